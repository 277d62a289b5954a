/* What kernels find wrong with data. */
#include "device.h"

msi_fault *msi_device_fault(const ms_context *ctx, msi_fault *now)
{
    return ctx->device != NULL ? ctx->device->fault : now;
}

ms_status msi_fault_tell(msi_fault *fault)
{
    static const char *const indices[MSI_K_COUNT] = {
        [MSI_K_embedding] = "embedding: id", [MSI_K_cross_entropy] = "cross_entropy: target"};
    const msi_fault f = *fault;

    if (MSI_LIKELY(f.found == 0)) {
        return MS_OK;
    }
    fault->found = 0;
    return MS_FAIL(MS_INDEX_ERROR, "%s %lld, number %lld of %lld, is outside [0, %lld)",
                   indices[f.kernel], (long long)f.index, (long long)f.position + 1, (long long)f.n,
                   (long long)f.end);
}
