/* Body of attention.c for one dtype T of operands and results: copies heads to and from the dense
 * storage of tiles. Tiles of f16 and bf16 are multiplied in their dtype, or in f32 if the library
 * has no such products (see a->tile_dtype). */
#include "row_lanes.h"

#include "attention_tile.h"

/* The function of attention_tile.h for a->tile_dtype. */
#define TILES(name) (a->tile_dtype == DTYPE ? LOCAL(name) : OF_REAL(name))

/* The rows of a head, dense and in a->tile_dtype: the operand itself if possible, else a copy in
 * `room`. */
static const void *LOCAL(dense)(const msi_attention_args *a, const void *room, const T *from,
                                int64_t stride, int64_t rows)
{
    const int64_t depth = a->head_dim, nbytes = depth * (int64_t)sizeof(T);
    const bool cast = a->tile_dtype != DTYPE;
    void *to = (void *)(uintptr_t)room; /* part of `work` */

    if (stride == depth && !cast) {
        return from;
    }
    for (int64_t i = 0; i < rows; i++) {
        const T *row = from + i * stride;

        if (i + ROWS_AHEAD < rows) {
            expect_read(row + ROWS_AHEAD * stride, nbytes);
        }
        if (!cast) {
            memcpy((T *)to + i * depth, row, (size_t)nbytes);
            continue;
        }
        for (int64_t d = 0; d < depth; d += WIDTH) {
            OF(store_n)((REAL *)to + i * depth + d, LOAD_N(row + d, depth - d), depth - d);
        }
    }
    return to;
}

/* to (rows, D), strided, = from (rows, D), dense, with row i times factor[i] (NULL: 1). */
static void LOCAL(put_rows)(T *to, int64_t stride, const REAL *from, int64_t rows, int64_t depth,
                            const REAL *factor)
{
    for (int64_t i = 0; i < rows; i++) {
        T *row = to + i * stride;
        const REAL f = factor != NULL ? factor[i] : 1;

        if (i + ROWS_AHEAD < rows) {
            expect_write(row + ROWS_AHEAD * stride, depth * (int64_t)sizeof(T));
        }
        for (int64_t d = 0; d < depth; d += WIDTH) {
            STORE_N(row + d, OF(load_n)(from + i * depth + d, depth - d) * SPLAT(f), depth - d);
        }
    }
}

static T *LOCAL(head)(const void *x, const int64_t *stride, int64_t b, int64_t h)
{
    return (T *)(uintptr_t)x + b * stride[0] + h * stride[1];
}

/* `w` for the operands of head (b, h). */
static tiles LOCAL(enter)(const msi_attention_args *a, const tiles *w, int64_t b, int64_t h)
{
    const int64_t kv = h / (a->heads / a->kv_heads);
    tiles x = *w;

    x.q = LOCAL(dense)(a, w->q, LOCAL(head)(a->q, a->q_stride, b, h), a->q_stride[2], a->q_len);
    x.k = LOCAL(dense)(a, w->k, LOCAL(head)(a->k, a->k_stride, b, kv), a->k_stride[2], a->kv_len);
    x.v = LOCAL(dense)(a, w->v, LOCAL(head)(a->v, a->v_stride, b, kv), a->v_stride[2], a->kv_len);
    x.max = (REAL *)a->max + (b * a->heads + h) * a->q_len;
    x.rsum = (REAL *)a->rsum + (b * a->heads + h) * a->q_len;
    if (a->mask != NULL) {
        x.mask = (const char *)a->mask + (b * a->mask_stride[0] + h * a->mask_stride[1]) *
                                             (a->mask_is_bool ? 1 : (int64_t)sizeof(REAL));
    }
    if (a->dmask != NULL) {
        x.dmask = (REAL *)a->dmask + b * a->dmask_stride[0] + h * a->dmask_stride[1];
    }
    x.key = philox_key(a->seed, a->site, (uint64_t)a->call);
    x.sample = (uint64_t)(a->sample_base + b);
    x.element = h * a->q_len * a->kv_len;
    return x;
}

/* -- forward ----------------------------------------------------------------------------------- */

static void LOCAL(forward_head)(const msi_attention_args *a, const tiles *w, T *out)
{
    for (int64_t q0 = 0; q0 < a->q_len; q0 += MSI_ATTENTION_ROWS) {
        const int64_t left = a->q_len - q0;
        const int64_t nq = left < MSI_ATTENTION_ROWS ? left : MSI_ATTENTION_ROWS;
        REAL *l = (REAL *)w->rsum + q0, factor[MSI_ATTENTION_ROWS];

        TILES(forward_queries)(a, w, q0, nq);
        for (int64_t i = 0; i < nq; i++) {
            l[i] = l[i] == 0 ? 0 : 1 / l[i]; /* no keys, or all are masked: zeros */
            factor[i] = a->dropout_p > 0 ? l[i] * (REAL)drop_factor(a) : l[i];
        }
        LOCAL(put_rows)(out + q0 * a->o_stride[2], a->o_stride[2], w->acc, nq, a->head_dim, factor);
    }
}

void MSI_NAME(LOCAL(attention))(const void *args)
{
    const msi_attention_args *a = args;
    const int64_t tile = a->tile_dtype == DTYPE ? sizeof(T) : sizeof(REAL);
    const tiles w = lay_out(a, tile, sizeof(REAL), false);

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const tiles x = LOCAL(enter)(a, &w, b, h);

            LOCAL(forward_head)(a, &x, LOCAL(head)(a->out, a->o_stride, b, h));
        }
    }
}

/* -- backward ---------------------------------------------------------------------------------- */

/* delta (T) = sum over D of out dout. */
static void LOCAL(sum_products)(const msi_attention_args *a, REAL *delta, const T *o, const T *dout)
{
    const int64_t depth = a->head_dim;

    for (int64_t t = 0; t < a->q_len; t++) {
        const T *x = o + t * a->o_stride[2], *y = dout + t * a->do_stride[2];
        V sum[LOCAL(PARTS)] = {SPLAT(0)};

        if (t + ROWS_AHEAD < a->q_len) {
            expect_read(x + ROWS_AHEAD * a->o_stride[2], depth * (int64_t)sizeof(T));
        }
        for (int64_t d = 0; d < depth; d += LANES) {
#pragma GCC unroll 8
            for (int u = 0; u < LOCAL(PARTS); u++) {
                const int64_t at = d + WIDTH * u;

                if (at < depth) {
                    sum[u] += LOAD_N(x + at, depth - at) * LOAD_N(y + at, depth - at);
                }
            }
        }
        delta[t] = LOCAL(fold)(sum);
    }
}

/* sum (rows, D) (+)= from. */
static void LOCAL(add_rows)(REAL *sum, const REAL *from, int64_t n, bool first)
{
    for (int64_t i = 0; i < n; i += WIDTH) {
        V v = OF(load_n)(from + i, n - i);

        OF(store_n)(sum + i, first ? v : OF(load_n)(sum + i, n - i) + v, n - i);
    }
}

/* Store rows of dk or dv from k0. Query heads h that share a key head are added; the last one
 * stores. */
static void LOCAL(put_keys)(const msi_attention_args *a, T *to, int64_t stride, REAL *sum,
                            const REAL *from, int64_t k0, int64_t nk, int64_t h, const REAL *factor)
{
    const int64_t shared = a->heads / a->kv_heads, depth = a->head_dim;

    if (shared > 1) {
        LOCAL(add_rows)(sum + k0 * depth, from, nk * depth, h % shared == 0);
        from = sum + k0 * depth;
    }
    if (h % shared == shared - 1) {
        LOCAL(put_rows)(to + k0 * stride, stride, from, nk, depth, factor);
    }
}

static void LOCAL(backward_head)(const msi_attention_args *a, const tiles *w, int64_t h, T *dq,
                                 T *dk, T *dv)
{
    const int64_t depth = a->head_dim, cols = MSI_ATTENTION_COLS;
    REAL factor[MSI_ATTENTION_COLS];

    if (a->kv_len == 0 || a->mask != NULL) { /* no tile stores dq */
        memset(w->dq, 0, (size_t)(a->q_len * depth) * sizeof(REAL));
    }
    for (int64_t i = 0; a->dropout_p > 0 && i < cols; i++) {
        factor[i] = (REAL)drop_factor(a);
    }
    for (int64_t k0 = 0; k0 < a->kv_len; k0 += cols) {
        const int64_t nk = a->kv_len - k0 < cols ? a->kv_len - k0 : cols;

        TILES(backward_keys)(a, w, k0, nk);
        LOCAL(put_keys)(a, dk, a->dk_stride[2], w->dk_sum, w->dk, k0, nk, h, NULL);
        LOCAL(put_keys)
        (a, dv, a->dv_stride[2], w->dv_sum, w->dv, k0, nk, h, a->dropout_p > 0 ? factor : NULL);
    }
    LOCAL(put_rows)(dq, a->dq_stride[2], w->dq, a->q_len, depth, NULL);
}

void MSI_NAME(LOCAL(attention_grad))(const void *args)
{
    const msi_attention_args *a = args;
    const int64_t tile = a->tile_dtype == DTYPE ? sizeof(T) : sizeof(REAL);
    const tiles w = lay_out(a, tile, sizeof(REAL), true);

    if (a->dmask != NULL) {
        memset(a->dmask, 0, (size_t)a->dmask_numel * sizeof(REAL));
    }

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t kv = h / (a->heads / a->kv_heads);
            const T *dout = LOCAL(head)(a->dout, a->do_stride, b, h);
            tiles x = LOCAL(enter)(a, &w, b, h);

            x.dout = LOCAL(dense)(a, w.dout, dout, a->do_stride[2], a->q_len);
            LOCAL(sum_products)(a, w.delta, LOCAL(head)(a->o, a->o_stride, b, h), dout);
            LOCAL(backward_head)
            (a, &x, h, LOCAL(head)(a->dq, a->dq_stride, b, h),
             LOCAL(head)(a->dk, a->dk_stride, b, kv), LOCAL(head)(a->dv, a->dv_stride, b, kv));
        }
    }
}

#undef TILES
