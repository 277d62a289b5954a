/* Waiting for a device, which may wait for those of other ranks. */
#include "device.h"

typedef struct patience {
    msi_device *device;
    int64_t looked_at, waited_ns; /* while this process ran */
    ms_status status;
} patience;

/* Nothing runs: if it waits for peers that are gone, or for too long, the wait ends, and with the
 * error that says so. What is computed then is of no use. */
static bool check_peers(void *user)
{
    patience *p = user;
    ms_context *ctx = p->device->ctx;

    if (p->status == MS_OK && ctx != NULL) {
        const int64_t now = msi_now_ns();

        p->waited_ns += msi_looked_ns(now - p->looked_at);
        p->looked_at = now;
        p->status = ctx->check_peers(ctx, p->waited_ns);
        if (p->status != MS_OK) {
            p->device->ops->abandon(p->device);
        }
    }
    return true;
}

ms_status msi_device_wait_for(msi_device *d, msi_mark mark)
{
    patience p = {.device = d, .looked_at = msi_now_ns(), .status = MS_OK};

    return d->ops->wait(d, mark, check_peers, &p) == MSI_DEV_OK
               ? p.status
               : MS_FAIL(MS_DEVICE_ERROR, "wait: device '%s' is lost", d->ops->kind);
}

ms_status msi_device_wait(msi_device *d)
{
    ms_status status = MS_OK;

    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        const ms_status waited = msi_device_wait_for(d, d->ops->mark(d, i));

        status = status != MS_OK ? status : waited;
    }
    return status;
}
