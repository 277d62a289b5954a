/* Waiting for a device, which may wait for other ranks' devices. */
#include "device_comm.h"

#include <stdio.h>

typedef struct patience {
    msi_device *device;
    int64_t looked_at, waited_ns; /* while this process ran */
    ms_status status;
} patience;

void msi_device_lose(msi_device *d, ms_status status)
{
    d->ops->abandon(d); /* first: an abort waits for the work before the calls it ends */
    msi_device_comms_abort(d);
    if (d->lost == MS_OK) {
        d->lost = status;
        snprintf(d->why_lost, sizeof(d->why_lost), "%s", ms_error_message());
    }
}

/* Called while nothing runs: ends the wait, with an error, if it depends on peers that left or
 * lasts too long. */
static bool check_peers(void *user, bool run)
{
    patience *p = user;
    ms_context *ctx = p->device->ctx;

    if (p->status == MS_OK && ctx != NULL) {
        const int64_t now = msi_now_ns();

        p->waited_ns = run && !msi_device_comms_await(p->device)
                           ? 0
                           : p->waited_ns + msi_looked_ns(now - p->looked_at);
        p->looked_at = now;
        p->status = ctx->check_peers(ctx, p->waited_ns);
        if (p->status == MS_OK) {
            p->status = msi_device_comms_check(p->device);
        }
        if (p->status != MS_OK) {
            msi_device_lose(p->device, p->status);
        }
    }
    return true;
}

ms_status msi_device_wait_for(msi_device *d, msi_mark mark)
{
    patience p = {.device = d, .looked_at = msi_now_ns(), .status = MS_OK};

    d->n_waits++;
    return d->ops->wait(d, mark, check_peers, &p) == MSI_DEV_OK
               ? p.status
               : MS_FAIL(MS_DEVICE_ERROR, "wait: device '%s' is lost%s%s", d->ops->kind,
                         d->text[0] != '\0' ? ": " : "", d->text);
}

bool msi_device_drain_to(msi_device *d, msi_mark mark)
{
    msi_error before;

    msi_error_keep(&before);
    (void)msi_device_wait_for(d, mark);
    msi_error_put_back(&before);
    return d->ops->done(d, mark) != MSI_DEV_NOT_YET;
}

bool msi_device_drain(msi_device *d)
{
    bool reached = true;

    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        reached &= msi_device_drain_to(d, d->ops->mark(d, i));
    }
    return reached;
}

ms_status msi_device_wait(msi_device *d)
{
    ms_status status = MS_OK;

    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        if (status == MS_OK) {
            status = msi_device_wait_for(d, d->ops->mark(d, i));
        } else {
            (void)msi_device_drain_to(d, d->ops->mark(d, i)); /* keeps the first error */
        }
    }
    return status;
}
