/* Invalid data found by kernels, and failed products on a device. */
#include "device.h"

#include "moonshard/tensor.h"

#include <stdio.h>

msi_fault *msi_device_fault(const ms_context *ctx, msi_fault *now)
{
    return ctx->device != NULL ? ctx->device->fault : now;
}

ms_status msi_fault_report(msi_fault *fault)
{
    static const char *const indices[MSI_K_COUNT] = {[MSI_K_embedding] = "embedding: id",
                                                     [MSI_K_cross_entropy] =
                                                         "cross_entropy: target",
                                                     [MSI_K_gather] = "gather: index",
                                                     [MSI_K_scatter] = "scatter: index",
                                                     [MSI_K_nll_loss] = "nll_loss: target"};
    const msi_fault f = *fault;

    if (MSI_LIKELY(f.found == 0)) {
        return MS_OK;
    }
    fault->found = 0;
    const bool from_1 = f.kernel == MSI_K_gather || f.kernel == MSI_K_scatter;

    return MS_FAIL(MS_INDEX_ERROR,
                   from_1 ? "%s %lld, number %lld of %lld, is outside [1, %lld]"
                          : "%s %lld, number %lld of %lld, is outside [0, %lld)",
                   indices[f.kernel], (long long)f.index, (long long)f.position + 1, (long long)f.n,
                   (long long)f.end);
}

/* The error of the next wait: later kernels have used invalid values. */
static ms_status report(ms_status status, const char *why)
{
    char text[512];

    snprintf(text, sizeof(text), "%s", why);
    return MS_FAIL(status, "%s; the device went on with wrong values: load a checkpoint", text);
}

/* Fill with NaN, so that the missing result is visible. */
static void spoil(const msi_gemm_args *g)
{
    const int64_t size = ms_dtype_size(g->c_dtype);

    for (int64_t b = 0; b < g->batch; b++) {
        for (int64_t i = 0; i < g->m; i++) {
            memset((char *)g->c + (b * g->c_batch + i * g->c_row) * size, 0xff,
                   (size_t)(g->n * size));
        }
    }
}

/* Record the last error as a product's, for msi_device_fault_report(). */
static void product_failed(msi_device *d, const msi_gemm_args *g, ms_status status)
{
    const char *op = g->op != NULL ? g->op : "gemm";

    spoil(g);
    if (d->fault->found == 0) {
        *d->fault = (msi_fault){.found = 1, .kernel = MSI_K_gemm, .status = status};
        snprintf(d->why_failed, sizeof(d->why_failed), "%s%s%s: %s",
                 g->is_gradient ? "backward of '" : "", op, g->is_gradient ? "'" : "",
                 ms_error_message());
    }
}

ms_status msi_device_gemm(void *user, const msi_gemm_args *g)
{
    ms_context *ctx = user;
    msi_error before; /* of the enqueueing or waiting call */

    msi_error_keep(&before);
    const ms_status status = msi_gemm_now(ctx, g);

    if (status != MS_OK) {
        product_failed(ctx->device, g, status);
        msi_error_put_back(&before);
    }
    return status;
}

ms_status msi_device_fault_report(msi_device *d)
{
    const msi_fault f = *d->fault;

    d->failed = MS_OK;
    if (MSI_LIKELY(f.found == 0)) {
        return MS_OK;
    }
    if (f.kernel == MSI_K_gemm) {
        d->fault->found = 0;
        return report((ms_status)f.status, d->why_failed);
    }
    const ms_status status = msi_fault_report(d->fault);

    return report(status, ms_error_message());
}
