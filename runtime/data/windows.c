/* Windows of token streams, in a shuffled order that is computed and not stored. */
#include "moonshard/data.h"
#include "random_stream.h"
#include "token_file.h"

#include <string.h>

static ms_status check_tokens(const ms_tensor *tokens)
{
    if (tokens->v.dtype != MS_DTYPE_U8 && tokens->v.dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "tokens are u8 or i64, got %s",
                       ms_dtype_name(tokens->v.dtype));
    }
    if (tokens->v.ndim != 1 || !msi_view_contiguous(&tokens->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "tokens have shape %s, expected one contiguous dimension",
                       msi_shape_text(tokens->v.ndim, tokens->v.shape));
    }
    return MS_OK;
}

ms_status ms_data_n_windows(const ms_tensor *tokens, int64_t context, int64_t *n)
{
    *n = 0;
    MS_TRY(check_tokens(tokens));
    if (context < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "a window has %lld tokens, expected at least 1",
                       (long long)context);
    }
    *n = tokens->v.shape[0] > 0 ? (tokens->v.shape[0] - 1) / context : 0;
    return MS_OK;
}

enum { ROUNDS = 6 };

/* [Note: shuffling] A Feistel network permutes [0, 4^k) whatever its round function is. Following
 * it until it falls below n (at most four steps on average, as 4^k < 4 n) permutes [0, n). So the
 * order of an epoch needs no memory and any place in it can be asked for, in any order. */
static uint64_t permute(uint64_t i, uint64_t n, uint64_t key)
{
    int half = 1;

    while ((UINT64_C(1) << (2 * half)) < n) {
        half++;
    }
    const uint64_t mask = (UINT64_C(1) << half) - 1;

    do {
        uint64_t left = i >> half, right = i & mask;

        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (msi_mix64(key + round * MSI_GOLDEN + right) & mask);

            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

static ms_status check_windows(const char *name, const ms_tensor *t, const ms_tensor *x)
{
    if (t->v.dtype != MS_DTYPE_I64 || t->v.ndim != 2 || !msi_view_contiguous(&t->v) ||
        !msi_view_same_shape(&t->v, &x->v)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "windows go into two contiguous i64 tensors of one shape (B, T), got %s of "
                       "dtype %s as %s",
                       msi_shape_text(t->v.ndim, t->v.shape), ms_dtype_name(t->v.dtype), name);
    }
    return MS_OK;
}

static void copy_tokens(int64_t *out, const ms_tensor *tokens, int64_t first, int64_t n)
{
    const void *data = msi_view_ptr(&tokens->v);

    if (tokens->v.dtype == MS_DTYPE_I64) {
        memcpy(out, (const int64_t *)data + first, (size_t)n * sizeof(*out));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = ((const uint8_t *)data)[first + i];
    }
}

ms_status ms_data_digest(const ms_tensor *tokens, uint64_t *digest)
{
    enum { END = 64 * 1024 };

    *digest = 0;
    MS_TRY(check_tokens(tokens));
    MS_TRY(msi_settle(tokens->ctx));
    const char *data = msi_view_ptr(&tokens->v);
    int64_t nbytes = tokens->v.shape[0] * ms_dtype_size(tokens->v.dtype);
    int64_t end = nbytes < END ? nbytes : END;

    *digest = msi_mix64(ms_hash_bytes(data, end) ^
                        msi_mix64(ms_hash_bytes(data + nbytes - end, end) ^ (uint64_t)nbytes));
    return msi_token_file_check(tokens->v.storage);
}

ms_status ms_data_windows(ms_tensor *x, ms_tensor *y, const ms_tensor *tokens, int64_t sample,
                          int64_t per_epoch, uint64_t seed, bool shuffle)
{
    int64_t n, rows, context, first = sample;

    MS_TRY(check_windows("x", x, x));
    MS_TRY(check_windows("y", y, x));
    rows = x->v.shape[0];
    context = x->v.shape[1];
    MS_TRY(ms_data_n_windows(tokens, context, &n));
    if (per_epoch < 1 || per_epoch > n) {
        return MS_FAIL(MS_VALUE_ERROR, "an epoch has %lld samples, expected 1 to %lld",
                       (long long)per_epoch, (long long)n);
    }
    first = sample < 0 ? sample : sample % per_epoch;
    if (first < 0 || first > n - rows) {
        return MS_FAIL(MS_INDEX_ERROR, "samples %lld to %lld are asked for, %lld exist",
                       (long long)first, (long long)(first + rows - 1), (long long)n);
    }
    if (msi_view_shares(&x->v, &y->v) || msi_view_shares(&x->v, &tokens->v) ||
        msi_view_shares(&y->v, &tokens->v)) {
        return MS_FAIL(MS_RUNTIME_ERROR, "data_windows: x, y and the tokens overlap in memory");
    }
    MS_TRY(msi_tensor_check_write(y, "data_windows"));
    MS_TRY(ms_samples_begin(sample));
    MS_TRY(msi_tensor_begin_write(x, "data_windows"));
    MS_TRY(msi_tensor_begin_write(y, "data_windows"));
    MS_TRY(msi_settle(x->ctx));
    const uint64_t key = msi_stream(seed, (uint64_t)(sample / per_epoch));

    for (int64_t b = 0; b < rows; b++) {
        int64_t window =
            shuffle ? (int64_t)permute((uint64_t)(first + b), (uint64_t)n, key) : first + b;

        copy_tokens((int64_t *)msi_view_ptr(&x->v) + b * context, tokens, window * context,
                    context);
        copy_tokens((int64_t *)msi_view_ptr(&y->v) + b * context, tokens, window * context + 1,
                    context);
    }
    return msi_token_file_check(tokens->v.storage);
}
