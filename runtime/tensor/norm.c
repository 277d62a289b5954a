/* Norms by fixed blocks, and the scaling that clips by them. */
#include "norm.h"

#include <math.h>

ms_status msi_clip_check(double max_norm, double norm_type, bool *largest)
{
    if (!(max_norm >= 0)) { /* a negative bound would flip all gradients */
        return MS_FAIL(MS_VALUE_ERROR, "max_norm is %g, expected 0 or more", max_norm);
    }
    if (norm_type != 2 && norm_type != HUGE_VAL) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "norm type %g, expected 2 or inf", norm_type);
    }
    *largest = norm_type == HUGE_VAL;
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

static ms_status packed_blocks(const msi_view *v, bool largest, double *out)
{
    msi_norm_args args = {
        .n = msi_view_numel(v), .block = MSI_NORM_BLOCK, .out = out, .largest = largest};
    void *data;

    if (args.n == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_data(v, &data));
    args.x = data;
    return msi_dispatch("norm", MSI_K_norm, v->dtype, &args);
}

ms_status msi_norm_blocks(const msi_view *v, bool largest, double *out)
{
    msi_view whole;

    MS_TRY(packed(v, &whole));
    ms_status status = packed_blocks(&whole, largest, out);

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

ms_status msi_norm_open(msi_norm *norm, ms_context *ctx, int64_t n_blocks, bool largest)
{
    *norm = (msi_norm){.largest = largest};
    MS_TRY(msi_storage_new(&norm->storage, ctx, (BLOCKS + n_blocks) * (int64_t)sizeof(double),
                           MS_MEM_SCRATCH));
    return msi_tensor_make(&norm->total, ctx, MS_DTYPE_F64, 0, NULL, MS_MEM_ACTIVATION);
}

void msi_norm_release(msi_norm *norm)
{
    ms_tensor_free(norm->total);
    msi_storage_release(norm->storage);
}

ms_tensor *msi_norm_take(msi_norm *norm)
{
    ms_tensor *total = norm->total;

    norm->total = NULL;
    return total;
}

ms_status msi_norm_add(msi_norm *norm, const msi_view *v)
{
    MS_TRY(msi_norm_blocks(v, norm->largest, number_at(norm, BLOCKS + norm->n_blocks)));
    norm->n_blocks += msi_norm_n_blocks(msi_view_numel(v));
    return MS_OK;
}

ms_status msi_norm_fold_blocks(const msi_norm *norm, double max_norm)
{
    const msi_norm_fold_args args = {.n = norm->n_blocks,
                                     .blocks = number_at(norm, BLOCKS),
                                     .largest = norm->largest,
                                     .max_norm = max_norm,
                                     .norm = norm->total->v.storage->data,
                                     .coefficient = number_at(norm, FACTOR)};

    return msi_dispatch("norm", MSI_K_norm_fold, MS_DTYPE_F64, &args);
}

ms_status msi_norm_set(const msi_norm *norm, double max_norm, double value)
{
    const msi_view factor = factor_of(norm);

    MS_TRY(msi_fill(&norm->total->v, value));
    return msi_fill(&factor, msi_clip_coefficient(max_norm, value));
}

ms_status msi_norm_clip(const msi_norm *norm, const msi_view *v)
{
    const msi_view factor = factor_of(norm);
    const msi_view *const in[2] = {v, &factor};

    return msi_ew("scale", MSI_K_scale, v, in, 2, NULL, false);
}
