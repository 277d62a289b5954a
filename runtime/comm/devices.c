/* A group's devices: their communicator, and what moves by it. The first member makes its id, which
 * travels as every rank's outcome does, so a rank that cannot take part is an error on all. */
#include "group.h"

#include "device_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct offer {
    int32_t status;
    char id[MSI_DEVICE_COMM_ID];
    char why[MSI_DEVICE_ERROR];
} offer;

static ms_status make_offer(const ms_comm *c, offer *mine, const msi_device_comm_ops **ops)
{
    ms_context *ctx = msi_context();

    MS_TRY(msi_memory_open(ctx)); /* and the device */
    MS_TRY(msi_device_comm_load(ctx, ops));
    return c->rank > 0 || (*ops)->id(mine->id, mine->why) == MSI_DEV_OK
               ? MS_OK
               : MS_FAIL(MS_DEVICE_ERROR, "no id of a %s communicator: %s", (*ops)->kind,
                         mine->why);
}

/* The first member's, unless one has failed. */
static ms_status agree(ms_comm *c, const offer *mine, offer *all)
{
    MS_TRY(msi_comm_gather_bytes(c, "the devices' communicator", mine, sizeof(*mine), all));
    for (int32_t q = 0; q < c->size; q++) {
        if (all[q].status != MS_OK) {
            return MS_FAIL((ms_status)all[q].status, "rank %d: %s", (int)c->in_job[q], all[q].why);
        }
    }
    return MS_OK;
}

static bool is_complete(void *devices)
{
    return msi_device_comm_is_complete(devices);
}

static ms_status join(ms_comm *c, const msi_device_comm_ops *ops, const void *id)
{
    msi_device_comm *devices;

    MS_TRY(msi_device_comm_new(&devices, msi_context()->device, ops, id, c->rank, c->size));
    ms_status status = msi_comm_wait(c, c->seq, is_complete, devices);

    status = status == MS_OK ? msi_device_comm_check(devices) : status;
    if (status != MS_OK) {
        msi_device_comm_free(devices);
        return status;
    }
    c->devices = devices;
    return MS_OK;
}

void msi_devices_leave(const ms_comm *c)
{
    if (c->devices != NULL) {
        msi_drain(c->devices->device->ctx);
        msi_device_comm_free(c->devices);
    }
}

ms_status msi_comm_devices(ms_comm *c, msi_device_comm **out)
{
    offer mine = {.status = MS_OK}, *all;
    const msi_device_comm_ops *ops = NULL;
    ms_status status;

    *out = c->devices;
    if (c->devices != NULL || c->is_alone || c->size == 1) {
        return MS_OK;
    }
    all = malloc(sizeof(*all) * (size_t)c->size);
    if (all == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the devices of %d ranks", (int)c->size);
    }
    mine.status = make_offer(c, &mine, &ops);
    if (mine.status != MS_OK) {
        snprintf(mine.why, sizeof(mine.why), "%s", ms_error_message());
    }
    status = agree(c, &mine, all);
    if (status == MS_OK) {
        status = join(c, ops, all[0].id);
    }
    free(all);
    *out = c->devices;
    return status;
}

/* -- what moves between devices ---------------------------------------------------------------- */

static ms_status compare_memories(ms_comm *c, const msi_device_info *mine)
{
    if (!msi_device_has_memory(mine)) {
        c->apart = MSI_APART_NO;
        return MS_OK;
    }
    char(*all)[sizeof(mine->uuid)] = malloc(sizeof(*all) * (size_t)c->size);

    if (all == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the devices of %d ranks", (int)c->size);
    }
    const ms_status status =
        msi_comm_gather_bytes(c, "the devices' memories", mine->uuid, sizeof(mine->uuid), all);

    c->apart = status != MS_OK ? MSI_APART_UNKNOWN : MSI_APART_NO;
    for (int32_t q = 0; status == MS_OK && q < c->size; q++) {
        if (memcmp(all[q], mine->uuid, sizeof(mine->uuid)) != 0) {
            c->apart = MSI_APART_YES;
        }
    }
    free(all);
    return status;
}

ms_status msi_comm_are_apart(ms_comm *c, bool *apart)
{
    const ms_context *ctx = msi_context();
    msi_device_info mine = {.uuid = ""};

    if (!c->is_alone && ctx->device != NULL && c->apart == MSI_APART_UNKNOWN) {
        ctx->device->ops->info(ctx->device, &mine);
        MS_TRY(compare_memories(c, &mine));
    }
    *apart = c->apart == MSI_APART_YES || (ctx->device != NULL && c->hosts.n > 1);
    return MS_OK;
}

ms_status msi_comm_gather_devices(ms_comm *c, const msi_label *what, int32_t model, const void *in,
                                  int64_t nbytes, void *out)
{
    msi_device_comm *devices;

    MS_TRY(msi_comm_devices(c, &devices));
    return msi_comm_gather_via(c, &msi_transport_devices, what, model, in, nbytes, out);
}

ms_status msi_devices_route(ms_comm *c, const msi_view *v, int64_t nbytes,
                            const msi_transport **via)
{
    const ms_context *ctx = v->storage->ctx;
    msi_device_comm *devices;
    bool apart;

    *via = c->via;
    if (MSI_LIKELY(ctx->device == NULL) || nbytes < MSI_DEVICES_BYTES || v->storage->host != NULL ||
        !msi_device_communicates(ctx->device)) {
        return MS_OK;
    }
    MS_TRY(msi_comm_are_apart(c, &apart));
    if (apart) {
        MS_TRY(msi_comm_devices(c, &devices));
        *via = &msi_transport_devices;
    }
    return MS_OK;
}
