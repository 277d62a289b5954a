/* Elementwise kernels over views: broadcasting, summing back to a smaller shape. */
#include "tensor.h"

static ms_status check_broadcast(const char *op, const msi_view *dst, const msi_view *in)
{
    bool fits = in->ndim <= dst->ndim;

    for (int32_t d = 0; fits && d < in->ndim; d++) {
        fits = in->shape[d] == 1 || in->shape[d] == dst->shape[d + dst->ndim - in->ndim];
    }
    return fits ? MS_OK
                : MS_FAIL(MS_VALUE_ERROR, "%s: shape %s does not broadcast to %s", op,
                          msi_shape_text(in->ndim, in->shape),
                          msi_shape_text(dst->ndim, dst->shape));
}

ms_status msi_ew(const char *op, int32_t kernel, const msi_view *dst, const msi_view *const *in,
                 int32_t n_in, const double *scalars, bool accumulate)
{
    msi_ew_args args = {.accumulate = accumulate};
    msi_view expanded[3];
    const msi_view *operands[4] = {dst};

    if (msi_view_numel(dst) == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_data(dst, &args.out));
    for (int32_t i = 0; i < n_in; i++) {
        void *data;

        MS_TRY(msi_view_data(in[i], &data));
        args.in[i] = data;
        if (MSI_LIKELY(msi_view_same_shape(in[i], dst))) {
            operands[i + 1] = in[i];
            continue;
        }
        MS_TRY(check_broadcast(op, dst, in[i]));
        msi_view_expand(in[i], dst->ndim, dst->shape, &expanded[i]);
        operands[i + 1] = &expanded[i];
    }
    if (n_in > 0) {
        args.in_dtype = in[0]->dtype;
    }
    for (int32_t i = 0; scalars != NULL && i < 2; i++) {
        args.scalar[i] = scalars[i];
    }
    msi_loop_make(&args.loop, dst->ndim, dst->shape, operands, n_in + 1);
    return msi_dispatch(op, kernel, dst->dtype, &args);
}

ms_status msi_fill(const msi_view *dst, double value)
{
    const double scalars[2] = {value, 0};

    return msi_ew("fill", MSI_K_fill, dst, NULL, 0, scalars, false);
}

ms_status msi_sum_to(const char *op, const msi_view *dst, const msi_view *src, double scale,
                     bool accumulate)
{
    int32_t shift = src->ndim - dst->ndim;
    msi_view kept_out = *dst, kept_in = {.ndim = 0}, reduced = {.ndim = 0};
    msi_sum_args args = {.out_dtype = dst->dtype, .scale = scale, .accumulate = accumulate};
    const msi_view *kept[2] = {&kept_out, &kept_in}, *over[2] = {NULL, &reduced};
    void *in;

    if (msi_view_numel(dst) == 0) {
        return MS_OK;
    }
    kept_out.ndim = 0;
    for (int32_t i = 0; i < src->ndim; i++) {
        if (i >= shift && dst->shape[i - shift] == src->shape[i]) {
            kept_out.shape[kept_out.ndim] = src->shape[i];
            kept_out.stride[kept_out.ndim++] = dst->stride[i - shift];
            kept_in.shape[kept_in.ndim] = src->shape[i];
            kept_in.stride[kept_in.ndim++] = src->stride[i];
        } else if (i < shift || dst->shape[i - shift] == 1) {
            reduced.shape[reduced.ndim] = src->shape[i];
            reduced.stride[reduced.ndim++] = src->stride[i];
        } else {
            return MS_FAIL(MS_VALUE_ERROR, "%s: shape %s is no sum of %s over dimensions", op,
                           msi_shape_text(dst->ndim, dst->shape),
                           msi_shape_text(src->ndim, src->shape));
        }
    }
    MS_TRY(msi_view_data(dst, &args.out));
    MS_TRY(msi_view_data(src, &in));
    args.in = in;
    msi_loop_make(&args.kept, kept_in.ndim, kept_in.shape, kept, 2);
    msi_loop_make(&args.reduced, reduced.ndim, reduced.shape, over, 2);
    return msi_dispatch(op, MSI_K_sum, src->dtype, &args);
}
