/* Norms by fixed blocks, and the scaling that clips by them. */
#include "norm.h"

#include <math.h>

ms_status msi_clip_check(double max_norm, double norm_type, bool *largest)
{
    if (!(max_norm >= 0)) { /* a negative bound would turn all gradients round */
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

/* v, or a packed copy when it has gaps; the caller releases the storage. */
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
    MS_TRY(msi_dispatch("norm", MSI_K_norm, v->dtype, &args));
    return msi_settle(v->storage->ctx);
}

ms_status msi_norm_blocks(const msi_view *v, bool largest, double *out)
{
    msi_view whole;

    MS_TRY(packed(v, &whole));
    ms_status status = packed_blocks(&whole, largest, out);

    msi_storage_release(whole.storage);
    return status;
}

double msi_norm_fold(double total, const double *blocks, int64_t n, bool largest)
{
    for (int64_t i = 0; i < n; i++) {
        if (!largest) {
            total += blocks[i];
        } else if (blocks[i] > total || isnan(blocks[i])) {
            total = blocks[i]; /* NaN > anything is false, so a NaN total is kept */
        }
    }
    return total;
}

ms_status msi_norm_fold_view(double *total, const msi_view *v, bool largest)
{
    double blocks[128];
    int64_t numel = msi_view_numel(v);
    const int64_t chunk = (int64_t)MSI_COUNT(blocks) * MSI_NORM_BLOCK;
    msi_view whole;
    ms_status status = MS_OK;

    MS_TRY(packed(v, &whole));
    msi_view part = whole;

    for (int64_t first = 0; first < numel && status == MS_OK; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;

        part.offset = whole.offset + first;
        msi_view_set_contiguous(&part, v->dtype, 1, &n);
        status = packed_blocks(&part, largest, blocks);
        *total = msi_norm_fold(*total, blocks, status == MS_OK ? msi_norm_n_blocks(n) : 0, largest);
    }
    msi_storage_release(whole.storage);
    return status;
}

double msi_norm_finish(double total, bool largest)
{
    return largest ? total : sqrt(total);
}

double msi_clip_coefficient(double max_norm, double norm)
{
    double coefficient = max_norm / (norm + 1e-6);

    return coefficient > 1 ? 1 : coefficient;
}

ms_status msi_scale(const msi_view *v, double factor)
{
    const double scalars[2] = {factor, -0.0};

    return msi_ew("scale", MSI_K_affine, v, &v, 1, scalars, false);
}
