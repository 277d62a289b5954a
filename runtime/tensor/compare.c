/* Predicates of whole tensors. */
#include "op.h"

#include <string.h>

/* True if `kernel` holds for all pairs of elements; `a` and `b` broadcast to (ndim, shape). */
static ms_status holds_everywhere(ms_context *ctx, const char *what, int32_t kernel,
                                  const msi_view *a, const msi_view *b, int32_t ndim,
                                  const int64_t *shape, const double *scalars, bool *answer)
{
    const msi_view *in[2] = {a, b};
    msi_view each = {0};
    msi_host_view host;
    ms_status status;

    msi_view_set_contiguous(&each, MS_DTYPE_BOOL, ndim, shape);
    const int64_t n = msi_view_numel(&each);

    MS_TRY(msi_storage_new(&each.storage, ctx, n, MS_MEM_SCRATCH));
    MS_TRY_GOTO(msi_ew(what, kernel, &each, in, 2, scalars, false), done);
    MS_TRY_GOTO(msi_host_view_begin(&host, &each, MSI_HOST_READS), done);
    *answer = n == 0 || memchr(host.data, 0, (size_t)n) == NULL;
    status = msi_host_view_end(&host, MS_OK);
done:
    msi_storage_release(each.storage);
    return status;
}

ms_status ms_tensor_equal(const ms_tensor *a, const ms_tensor *b, bool *equal)
{
    msi_op_host(a->ctx, "the host compares tensors");
    *equal = false;
    if (a->v.dtype != b->v.dtype || !msi_view_same_shape(&a->v, &b->v)) {
        return MS_OK;
    }
    return holds_everywhere(a->ctx, "equal", MSI_K_eq, &a->v, &b->v, a->v.ndim, a->v.shape, NULL,
                            equal);
}

ms_status ms_tensor_allclose(const ms_tensor *a, const ms_tensor *b, double rtol, double atol,
                             bool *close)
{
    msi_op_host(a->ctx, "the host compares tensors");
    const double scalars[2] = {rtol, atol};
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    *close = false;
    if (!(rtol >= 0) || !(atol >= 0)) {
        return MS_FAIL(MS_VALUE_ERROR, "allclose: rtol is %g and atol %g, expected neither below 0",
                       rtol, atol);
    }
    if (a->v.dtype != b->v.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "allclose: dtypes are %s and %s, expected one",
                       ms_dtype_name(a->v.dtype), ms_dtype_name(b->v.dtype));
    }
    ms_status status = msi_broadcast(&a->v, &b->v, &ndim, shape);

    if (status != MS_OK) {
        return msi_fail_prefix(status, "allclose: ");
    }
    return holds_everywhere(a->ctx, "allclose", MSI_K_close, &a->v, &b->v, ndim, shape, scalars,
                            close);
}

/* True if a contiguous view has an element `wanted`. */
static ms_status find_in(const msi_view *v, bool wanted, bool *found)
{
    const int64_t n = msi_view_numel(v);
    msi_host_view host;

    MS_TRY(msi_host_view_begin(&host, v, MSI_HOST_READS));
    const uint8_t *each = host.data;

    *found = false;
    for (int64_t i = 0; i < n && !*found; i++) {
        *found = (each[i] != 0) == wanted;
    }
    return msi_host_view_end(&host, MS_OK);
}

/* The same for a tensor. */
static ms_status find(const ms_tensor *t, const char *what, bool wanted, bool *found)
{
    msi_view v = t->v;

    if (t->v.dtype != MS_DTYPE_BOOL) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: the tensor is %s, expected bool (compare it first)",
                       what, ms_dtype_name(t->v.dtype));
    }
    MS_TRY(msi_view_present(&v));
    if (!msi_view_contiguous(&v)) {
        MS_TRY(msi_view_like(&v, t->ctx, &t->v, MS_DTYPE_BOOL, MS_MEM_SCRATCH, true));
    }
    const ms_status status = find_in(&v, wanted, found);

    if (v.storage != t->v.storage) {
        msi_storage_release(v.storage);
    }
    return status;
}

ms_status ms_tensor_all(const ms_tensor *t, bool *all)
{
    msi_op_host(t->ctx, "the host reads values of a tensor");
    bool found = false;

    *all = false;
    MS_TRY(find(t, "all", false, &found));
    *all = !found;
    return MS_OK;
}

ms_status ms_tensor_any(const ms_tensor *t, bool *any)
{
    msi_op_host(t->ctx, "the host reads values of a tensor");
    *any = false;
    return find(t, "any", true, any);
}
