/* Norms by fixed blocks, and the scaling that clips by them. */
#include "norm.h"

#include <math.h>

ms_status msi_clip_check(double max_norm, double order)
{
    if (!(max_norm >= 0)) { /* a negative bound would flip all gradients */
        return MS_FAIL(MS_VALUE_ERROR, "max_norm is %g, expected 0 or more", max_norm);
    }
    if (!(order >= 0)) {
        return MS_FAIL(MS_VALUE_ERROR, "norm_type is %g, expected 0 or more", order);
    }
    return MS_OK;
}

int64_t msi_norm_n_blocks(int64_t numel)
{
    return numel / MSI_NORM_BLOCK + (numel % MSI_NORM_BLOCK != 0);
}

/* v, or a contiguous copy; the caller releases the storage. */
static ms_status packed(const msi_view *v, msi_view *out)
{
    if (msi_view_contiguous(v)) {
        *out = *v;
        msi_storage_retain(v->storage);
        return MS_OK;
    }
    return msi_view_like(out, v->storage->ctx, v, v->dtype, MS_MEM_SCRATCH, true);
}

/* Of a contiguous view; `calls` NULL: at once. */
static ms_status packed_blocks(const msi_view *v, double order, double *out, msi_batch *calls)
{
    msi_norm_args args = {
        .n = msi_view_numel(v), .block = MSI_NORM_BLOCK, .out = out, .order = order};
    void *data;

    if (args.n == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_data(v, &data));
    args.x = data;
    return calls != NULL ? msi_batch_add(calls, v->dtype, &args)
                         : msi_dispatch("norm", MSI_K_norm, v->dtype, &args);
}

ms_status msi_norm_blocks(const msi_view *v, double order, double *out)
{
    msi_view whole;

    MS_TRY(packed(v, &whole));
    ms_status status = packed_blocks(&whole, order, out, NULL);

    msi_storage_release(whole.storage);
    return status;
}

/* -- a norm in context memory ------------------------------------------------------------------ */

enum { FACTOR, BLOCKS }; /* offsets in its storage */

static double *number_at(const msi_norm *norm, int64_t place)
{
    return (double *)norm->storage->data + place;
}

static msi_view factor_of(const msi_norm *norm)
{
    msi_view v = {.storage = norm->storage, .offset = FACTOR};

    msi_view_set_contiguous(&v, MS_DTYPE_F64, 0, NULL);
    return v;
}

int32_t msi_norm_dtype(int32_t a, int32_t b)
{
    if (a == b || b == MS_DTYPE_NONE) {
        return a;
    }
    if (a == MS_DTYPE_NONE) {
        return b;
    }
    return a == MS_DTYPE_F64 || b == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

ms_status msi_norm_open(msi_norm *norm, ms_context *ctx, int64_t n_blocks, double order,
                        int32_t dtype)
{
    *norm = (msi_norm){.order = order};
    msi_batch_init(&norm->calls, "norm", MSI_K_norm, sizeof(msi_norm_args));
    MS_TRY(msi_storage_new(&norm->storage, ctx, (BLOCKS + n_blocks) * (int64_t)sizeof(double),
                           MS_MEM_SCRATCH));
    MS_TRY(msi_tensor_make(&norm->total, ctx, MS_DTYPE_F64, 0, NULL, MS_MEM_ACTIVATION));
    return dtype == MS_DTYPE_F64
               ? MS_OK
               : msi_tensor_make(&norm->rounded, ctx, dtype == MS_DTYPE_NONE ? MS_DTYPE_F32 : dtype,
                                 0, NULL, MS_MEM_ACTIVATION);
}

void msi_norm_release(msi_norm *norm)
{
    ms_tensor_free(norm->total);
    ms_tensor_free(norm->rounded);
    msi_storage_release(norm->storage);
}

ms_status msi_norm_take(msi_norm *norm, ms_tensor **out)
{
    ms_tensor **taken = norm->rounded != NULL ? &norm->rounded : &norm->total;

    if (norm->rounded != NULL) {
        MS_TRY(msi_copy(&norm->rounded->v, &norm->total->v, false));
    }
    *out = *taken;
    *taken = NULL;
    return MS_OK;
}

static ms_status fold(const msi_norm *norm, const double *blocks, int64_t n, double max_norm,
                      double *total)
{
    const msi_norm_fold_args args = {.n = n,
                                     .blocks = blocks,
                                     .order = norm->order,
                                     .max_norm = max_norm,
                                     .norm = total,
                                     .coefficient = number_at(norm, FACTOR)};

    return msi_dispatch("norm", MSI_K_norm_fold, MS_DTYPE_F64, &args);
}

double *msi_norm_room(msi_norm *norm, int64_t n)
{
    double *room = number_at(norm, BLOCKS + norm->n_blocks);

    norm->n_blocks += n;
    return room;
}

ms_status msi_norm_add(msi_norm *norm, const msi_view *v)
{
    const int64_t n = msi_norm_n_blocks(msi_view_numel(v));
    double *blocks = number_at(norm, BLOCKS + norm->n_blocks);

    MS_TRY(norm->order != 0 && msi_view_contiguous(v)
               ? packed_blocks(v, norm->order, blocks, &norm->calls)
               : msi_norm_blocks(v, norm->order, blocks));
    if (norm->order == 0 && n > 0) { /* counts tensors, not blocks */
        MS_TRY(fold(norm, blocks, n, 0, blocks));
    }
    norm->n_blocks += norm->order == 0 && n > 0 ? 1 : n;
    return MS_OK;
}

ms_status msi_norm_fold_blocks(msi_norm *norm, double max_norm)
{
    MS_TRY(msi_batch_run(&norm->calls));
    return fold(norm, number_at(norm, BLOCKS), norm->n_blocks, max_norm,
                norm->total->v.storage->data);
}

ms_status msi_norm_set(const msi_norm *norm, double max_norm, double value)
{
    const msi_view factor = factor_of(norm);

    MS_TRY(msi_fill(&norm->total->v, value));
    return msi_fill(&factor, msi_clip_coefficient(max_norm, value));
}

ms_status msi_norm_check_finite(const msi_norm *norm)
{
    double total;

    MS_TRY(ms_tensor_item(norm->total, &total));
    return isfinite(total)
               ? MS_OK
               : MS_FAIL(MS_RUNTIME_ERROR,
                         "The total norm of order %g for gradients from `parameters` is "
                         "non-finite, so it cannot be clipped. To disable this error and scale the "
                         "gradients by the non-finite norm anyway, set `error_if_nonfinite=false`",
                         norm->order);
}

_Static_assert(sizeof(msi_norm_args) <= MSI_BATCH_ARGS && sizeof(msi_ew_args) <= MSI_BATCH_ARGS,
               "a batch has room for them");

static ms_status clip_dense(msi_norm *norm, const msi_view *v)
{
    msi_ew_args args = {.loop = {.ndim = 1, .shape = {msi_view_numel(v)}, .stride = {{1}, {1}}},
                        .in_dtype = v->dtype};

    MS_TRY(msi_view_data(v, &args.out));
    args.in[0] = args.out;
    args.in[1] = number_at(norm, FACTOR);
    if (norm->calls.kernel != MSI_K_scale) {
        msi_batch_init(&norm->calls, "scale", MSI_K_scale, sizeof(args));
    }
    return args.loop.shape[0] > 0 ? msi_batch_add(&norm->calls, v->dtype, &args) : MS_OK;
}

ms_status msi_norm_clip(msi_norm *norm, const msi_view *v)
{
    const msi_view factor = factor_of(norm);
    const msi_view *const in[2] = {v, &factor};

    return msi_batches() && msi_view_contiguous(v)
               ? clip_dense(norm, v)
               : msi_ew("scale", MSI_K_scale, v, in, 2, NULL, false);
}

ms_status msi_norm_clip_end(msi_norm *norm)
{
    return msi_batch_run(&norm->calls);
}
