#include "meta.h"

ms_status msi_meta_like(const msi_meta *m)
{
    const msi_view *x = m->in[0];

    return msi_result(m->out, x->dtype, x->ndim, x->shape);
}

ms_status msi_meta_broadcast(const msi_meta *m, int32_t dtype)
{
    const msi_view *a = m->in[0], *b = m->in[1];
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    MS_TRY(msi_same_dtype(m->op->name, "a", a, "b", b));
    if (MSI_LIKELY(msi_view_same_shape(a, b))) {
        return msi_result(m->out, dtype, a->ndim, a->shape);
    }
    ms_status status = msi_broadcast(a, b, &ndim, shape);

    if (status != MS_OK) {
        return msi_fail_prefix(status, "%s: ", m->op->name);
    }
    return msi_result(m->out, dtype, ndim, shape);
}

ms_status msi_meta_kernel(const msi_meta *m, int32_t kernel, int32_t dtype)
{
    return MSI_LIKELY(msi_kernels()->fn[kernel][dtype] != NULL) || msi_view_numel(m->out) == 0
               ? MS_OK
               : msi_check_kernel(m->op->name, kernel, dtype);
}

ms_status msi_same_dtype(const char *op, const char *a_name, const msi_view *a, const char *b_name,
                         const msi_view *b)
{
    if (MSI_UNLIKELY(a->dtype != b->dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: %s is %s and %s is %s, expected one dtype", op, a_name,
                       ms_dtype_name(a->dtype), b_name, ms_dtype_name(b->dtype));
    }
    return MS_OK;
}

ms_status msi_same_dtype_of_product(const char *op, const msi_view *a, const msi_view *b)
{
    if (MSI_UNLIKELY(a->dtype != b->dtype)) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: mat1 and mat2 must have the same dtype, got %s and %s", op,
                       ms_dtype_name(a->dtype), ms_dtype_name(b->dtype));
    }
    return MS_OK;
}

ms_status msi_check_product(const char *op, int32_t dtype)
{
    if (MSI_UNLIKELY(!ms_dtype_is_floating(dtype))) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "%s is not implemented for dtype %s yet", op,
                       ms_dtype_name(dtype));
    }
    return MS_OK;
}
