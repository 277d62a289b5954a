/* Positions of elements that are not 0. Their number is the result's shape, so the host reads. */
#include "op.h"

/* Positions of the true elements of a contiguous bool (shape), one row each. */
static void write_positions(int64_t *rows, const uint8_t *truth, const msi_view *shape)
{
    const int64_t n = msi_view_numel(shape);

    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;

        if (truth[i] == 0) {
            continue;
        }
        for (int32_t d = shape->ndim - 1; d >= 0; d--) {
            rows[d] = rest % shape->shape[d] + 1;
            rest /= shape->shape[d];
        }
        rows += shape->ndim;
    }
}

/* The same in a new tensor. */
static ms_status positions_of(ms_tensor **out, ms_context *ctx, const uint8_t *truth,
                              const msi_view *shape)
{
    int64_t size[2] = {0, shape->ndim};
    msi_host_view host;
    ms_tensor *made;

    for (int64_t i = 0; i < msi_view_numel(shape); i++) {
        size[0] += truth[i] != 0;
    }
    MS_TRY(msi_tensor_make(&made, ctx, MS_DTYPE_I64, 2, size, MS_MEM_ACTIVATION));
    ms_status status = msi_host_view_begin(&host, &made->v, MSI_HOST_WRITES);

    if (status == MS_OK) {
        write_positions(host.data, truth, shape);
        status = msi_host_view_end(&host, MS_OK);
    }
    if (status != MS_OK) {
        ms_tensor_free(made);
        return status;
    }
    *out = made;
    return MS_OK;
}

ms_status ms_tensor_nonzero(ms_tensor **out, const ms_tensor *t)
{
    msi_op_host(t->ctx, "a shape depends on values of a tensor");
    msi_host_view host = {0};
    msi_view truth;
    ms_status status;

    *out = NULL;
    MS_TRY(msi_view_present(&t->v));
    MS_TRY(msi_view_like(&truth, t->ctx, &t->v, MS_DTYPE_BOOL, MS_MEM_SCRATCH, true));
    MS_TRY_GOTO(msi_host_view_begin(&host, &truth, MSI_HOST_READS), done);
    status = positions_of(out, t->ctx, host.data, &truth);
    status = msi_host_view_end(&host, status);
done:
    msi_storage_release(truth.storage);
    return status;
}
