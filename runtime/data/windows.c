/* Windows of token streams, in a shuffled order that is computed and not stored. */
#include "moonshard/data.h"
#include "op.h"
#include "random_stream.h"
#include "token_file.h"

#include <string.h>

static ms_status check_tokens(const ms_tensor *tokens)
{
    if (tokens->v.dtype != MS_DTYPE_U8 && tokens->v.dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "tokens are u8 or i64, got %s",
                       ms_dtype_name(tokens->v.dtype));
    }
    const bool bytes = tokens->v.ndim == 2 && tokens->v.dtype == MS_DTYPE_U8 &&
                       (tokens->v.shape[1] == 2 || tokens->v.shape[1] == 4);

    if ((tokens->v.ndim != 1 && !bytes) || !msi_view_contiguous(&tokens->v)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "tokens have shape %s, expected one contiguous dimension, or 2 or 4 bytes "
                       "of u8 for each",
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

/* [Note: shuffling] A Feistel network permutes [0, 4^k) for any round function. Iterating it until
 * the result is below n (at most four steps on average, as 4^k < 4 n) permutes [0, n). So an
 * epoch's order needs no memory and has random access. */
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

ms_status ms_data_permute(int64_t *sample, int64_t i, int64_t n, uint64_t seed, int64_t epoch)
{
    *sample = 0;
    if (i < 0 || i >= n) {
        return MS_FAIL(MS_INDEX_ERROR, "sample %lld is asked for, %lld exist", (long long)i,
                       (long long)n);
    }
    *sample = (int64_t)permute((uint64_t)i, (uint64_t)n, msi_stream(seed, (uint64_t)epoch));
    return MS_OK;
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

/* Tokens [first, first + n), contiguous. */
static msi_view tokens_at(const ms_tensor *tokens, int64_t first, int64_t n)
{
    msi_view v = tokens->v;

    v.offset += first * v.stride[0];
    v.shape[0] = n;
    return v;
}

/* Bytes of a token. */
static int64_t token_size(const ms_tensor *tokens)
{
    return tokens->v.ndim == 2 ? tokens->v.shape[1] : ms_dtype_size(tokens->v.dtype);
}

/* Tokens [first, first + n) as numbers. */
static ms_status copy_tokens(int64_t *out, const ms_tensor *tokens, int64_t first, int64_t n)
{
    const msi_view part = tokens_at(tokens, first, n);
    msi_host_view host;

    MS_TRY(msi_host_view_begin(&host, &part, MSI_HOST_READS));
    const uint8_t *bytes = host.data;

    switch (token_size(tokens)) {
    case 1:
        for (int64_t i = 0; i < n; i++) {
            out[i] = bytes[i];
        }
        break;
    case 2:
        for (int64_t i = 0; i < n; i++) {
            out[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
        }
        break;
    case 4:
        for (int64_t i = 0; i < n; i++) {
            out[i] = bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 |
                     (int64_t)bytes[4 * i + 3] << 24;
        }
        break;
    default:
        memcpy(out, bytes, (size_t)n * sizeof(*out));
    }
    return msi_host_view_end(&host, MS_OK);
}

/* The window's tokens and their successors. */
static ms_status copy_window(int64_t *x, int64_t *y, const ms_tensor *tokens, int64_t first,
                             int64_t n)
{
    MS_TRY(copy_tokens(x, tokens, first, n));
    MS_TRY(copy_tokens(y + n - 1, tokens, first + n, 1));
    memcpy(y, x + 1, (size_t)(n - 1) * sizeof(*y));
    return MS_OK;
}

ms_status ms_data_read(ms_tensor *out, const ms_tensor *tokens, int64_t first)
{
    msi_host_view to = {0};

    msi_op_host(out->ctx, "the host writes tokens into a tensor");
    MS_TRY(check_tokens(tokens));
    if (out->v.dtype != MS_DTYPE_I64 || out->v.ndim != 1 || !msi_view_contiguous(&out->v)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "tokens go into a contiguous i64 tensor of one dimension, got %s of dtype "
                       "%s",
                       msi_shape_text(out->v.ndim, out->v.shape), ms_dtype_name(out->v.dtype));
    }
    const int64_t n = out->v.shape[0], total = tokens->v.shape[0];

    if (first < 0 || first > total - n) {
        return MS_FAIL(MS_INDEX_ERROR, "tokens %lld to %lld are asked for, %lld exist",
                       (long long)first, (long long)(first + n - 1), (long long)total);
    }
    MS_TRY(msi_tensor_begin_write(out, "data_read"));
    MS_TRY(msi_host_view_begin(&to, &out->v, MSI_HOST_WRITES));
    MS_TRY(msi_host_view_end(&to, copy_tokens(to.data, tokens, first, n)));
    return msi_token_file_check(tokens->v.storage);
}

static ms_status hash_tokens(const ms_tensor *tokens, int64_t first, int64_t n, uint64_t *hash)
{
    const msi_view part = tokens_at(tokens, first, n);

    return msi_view_hash(&part, hash);
}

ms_status ms_data_digest(const ms_tensor *tokens, uint64_t *digest)
{
    enum { END = 64 * 1024 };
    uint64_t head, tail;

    *digest = 0;
    msi_op_host(tokens->ctx, "the host reads values of a tensor");
    MS_TRY(check_tokens(tokens));
    const int64_t n = tokens->v.shape[0], size = token_size(tokens);
    const int64_t end = n < END / size ? n : END / size;

    MS_TRY(hash_tokens(tokens, 0, end, &head));
    MS_TRY(hash_tokens(tokens, n - end, end, &tail));
    *digest = msi_mix64(head ^ msi_mix64(tail ^ (uint64_t)(n * size)));
    return msi_token_file_check(tokens->v.storage);
}

/* Fill windows from sample `first` of an epoch of n windows with key `key`. */
static ms_status fill_windows(ms_tensor *x, ms_tensor *y, const ms_tensor *tokens, int64_t first,
                              int64_t n, uint64_t key, bool shuffle)
{
    const int64_t rows = x->v.shape[0], context = x->v.shape[1];
    msi_host_view to_x = {0}, to_y = {0};
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&to_x, &x->v, MSI_HOST_WRITES), done);
    MS_TRY_GOTO(msi_host_view_begin(&to_y, &y->v, MSI_HOST_WRITES), done);
    for (int64_t b = 0; b < rows; b++) {
        const int64_t window =
            shuffle ? (int64_t)permute((uint64_t)(first + b), (uint64_t)n, key) : first + b;

        MS_TRY_GOTO(copy_window((int64_t *)to_x.data + b * context,
                                (int64_t *)to_y.data + b * context, tokens, window * context,
                                context),
                    done);
    }
done:
    status = msi_host_view_end(&to_x, status);
    return msi_host_view_end(&to_y, status);
}

ms_status ms_data_windows(ms_tensor *x, ms_tensor *y, const ms_tensor *tokens, int64_t sample,
                          int64_t per_epoch, uint64_t seed, bool shuffle)
{
    int64_t n, first = sample;

    msi_op_host(x->ctx, "the host writes tokens into a tensor");
    MS_TRY(check_windows("x", x, x));
    MS_TRY(check_windows("y", y, x));
    const int64_t rows = x->v.shape[0];

    MS_TRY(ms_data_n_windows(tokens, x->v.shape[1], &n));
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
    const uint64_t key = msi_stream(seed, (uint64_t)(sample / per_epoch));

    MS_TRY(fill_windows(x, y, tokens, first, n, key, shuffle));
    return msi_token_file_check(tokens->v.storage);
}
