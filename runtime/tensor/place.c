/* Tensors in host memory beside a device. */
#include "op.h"

ms_status ms_tensor_to_host(ms_tensor **out, const ms_tensor *t)
{
    msi_op_host(t->ctx, "a tensor is copied to the host");
    msi_view v = t->v;

    *out = NULL;
    if (t->ctx->device == NULL || v.storage->host != NULL) {
        return msi_tensor_new(out, t->ctx, &v);
    }
    MS_TRY(msi_view_present(&v));
    msi_view_set_contiguous(&v, t->v.dtype, t->v.ndim, t->v.shape);
    MS_TRY(msi_storage_new_host(&v.storage, t->ctx, msi_view_numel(&v) * ms_dtype_size(v.dtype)));
    ms_status status = msi_copy(&v, &t->v, false);

    if (status == MS_OK) {
        status = msi_tensor_new(out, t->ctx, &v);
    }
    msi_storage_release(v.storage);
    return status;
}

bool msi_places_differ(ms_tensor *const *in, int32_t n)
{
    bool host = false, device = false;

    for (int32_t i = 0; i < n; i++) {
        if (in[i] != NULL && in[i]->v.storage->host != NULL) {
            host = true;
        } else if (in[i] != NULL && !in[i]->v.storage->meta) {
            device = true;
        }
    }
    return host && device;
}

/* On the device: a scalar of the host is copied; its gradient would be lost. */
static ms_status bring_scalar(const char *op, ms_tensor *t, ms_tensor **out)
{
    msi_view v;

    if (t->v.ndim > 0 || t->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "Expected all tensors to be on the same device, but found at least two "
                       "devices, %s and cpu! (operand of shape %s of %s)",
                       msi_device_label(t->ctx), msi_shape_text(t->v.ndim, t->v.shape), op);
    }
    MS_TRY(msi_view_like(&v, t->ctx, &t->v, t->v.dtype, MS_MEM_ACTIVATION, true));
    const ms_status status = msi_tensor_new_internal(out, t->ctx, &v);

    msi_storage_release(v.storage);
    return status;
}

ms_status msi_bring_scalars(const char *op, ms_tensor *const *in, int32_t n, ms_tensor **moved)
{
    for (int32_t i = 0; i < n; i++) {
        if (in[i] != NULL && in[i]->v.storage->host != NULL) {
            MS_TRY(bring_scalar(op, in[i], &moved[i]));
        }
    }
    return MS_OK;
}
