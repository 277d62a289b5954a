/* Hooks that every context has from the start. This file is above all layers, so lower layers find
 * the hooks of higher ones in the context, and nothing is global to the process. */
#include "autograd.h"
#include "comm.h"
#include "device.h"
#include "job.h"

/* A rank with a card runs near it, whichever it became first. */
static void follow_card(ms_context *ctx)
{
    msi_device_info info = {.index = 0};

    if (ctx->device != NULL && ctx->device->ops->bus != NULL) {
        ctx->device->ops->info(ctx->device, &info);
        msi_cores_follow(msi_dist_peek(), "/sys", ctx->device->ops->bus, info.index);
    }
}

static ms_status open_device(ms_context *ctx)
{
    MS_TRY(msi_device_open(ctx, msi_dist_local_rank()));
    if (ctx->device != NULL) {
        ctx->end_work = msi_end_work;
        msi_exit_watch();
        follow_card(ctx);
    }
    return MS_OK;
}

void msi_context_init(ms_context *ctx)
{
    msi_tensor_install(ctx);
    msi_autograd_install(ctx);
    ctx->open_device = open_device;
    ctx->joined = follow_card;
    ctx->check_peers = msi_groups_check;
    ctx->tell_peers = msi_groups_failed;
}
