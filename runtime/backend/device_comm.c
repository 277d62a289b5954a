/* Communicators of devices: calls and failures. */
#include "device_comm.h"

#include <stdlib.h>

ms_status msi_device_comm_new(msi_device_comm **out, msi_device *d, const msi_device_comm_ops *ops,
                              const void *id, int32_t rank, int32_t size)
{
    msi_device_comm *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a communicator of %d ranks", (int)size);
    }
    *c = (msi_device_comm){.ops = ops, .device = d, .rank = rank, .size = size, .next = d->comms};
    (void)d->ops->handle(d, MSI_STREAM_COMPUTE); /* its card is the thread's */
    const int32_t outcome = ops->open(&c->state, id, rank, size, c->text);

    if (outcome != MSI_DEV_OK && outcome != MSI_DEV_NOT_YET) {
        const ms_status status = MS_FAIL(MS_DEVICE_ERROR, "no %s communicator of %d ranks: %s",
                                         ops->kind, (int)size, c->text);

        free(c);
        return status;
    }
    c->incomplete = outcome == MSI_DEV_NOT_YET;
    d->comms = c;
    *out = c;
    return MS_OK;
}

void msi_device_comm_free(msi_device_comm *c)
{
    msi_device_comm **link;

    if (c == NULL) {
        return;
    }
    for (link = &c->device->comms; *link != c;) {
        link = &(*link)->next;
    }
    *link = c->next;
    c->next = NULL;
    if (c->state != NULL && (c->incomplete || c->failed)) {
        c->ops->abort(c);
    } else if (c->state != NULL) {
        c->ops->close(c->state);
    }
    free(c);
}

/* -- state ------------------------------------------------------------------------------------- */

static void *stream_of(msi_device_comm *c, int32_t stream)
{
    c->stream = stream;
    c->used |= 1u << stream;
    c->marked &= ~(1u << stream);
    return c->device->ops->handle(c->device, stream);
}

static void poll(msi_device_comm *c)
{
    const int32_t outcome = c->state != NULL ? c->ops->state(c->state, c->text) : MSI_DEV_OK;

    c->failed = c->failed || (outcome != MSI_DEV_OK && outcome != MSI_DEV_NOT_YET);
    if (c->incomplete && outcome == MSI_DEV_OK) {
        (void)stream_of(c, c->stream); /* the library has enqueued its items only now */
    }
    c->incomplete = outcome == MSI_DEV_NOT_YET;
}

bool msi_device_comm_is_complete(msi_device_comm *c)
{
    if (c->incomplete) {
        poll(c);
    }
    return !c->incomplete;
}

ms_status msi_device_comm_check(const msi_device_comm *c)
{
    return !c->failed ? MS_OK
                      : MS_FAIL(MS_DEVICE_ERROR, "%s: %s", c->ops->kind,
                                c->state != NULL ? c->text : "the communicator was aborted");
}

bool msi_device_comms_incomplete(const msi_device *d)
{
    for (const msi_device_comm *c = d->comms; c != NULL; c = c->next) {
        if (c->incomplete) {
            return true;
        }
    }
    return false;
}

static bool awaits(msi_device_comm *c)
{
    const msi_device_ops *ops = c->device->ops;

    for (int32_t s = 0; s < MSI_STREAMS; s++) {
        const uint32_t bit = 1u << s;

        if ((c->used & bit) != 0 && (c->marked & bit) == 0) {
            c->mark[s] = ops->mark(c->device, s);
            c->marked |= bit;
        }
        if ((c->used & bit) != 0 && ops->done(c->device, c->mark[s]) != MSI_DEV_NOT_YET) {
            c->used &= ~bit;
        }
    }
    return c->used != 0;
}

bool msi_device_comms_await(msi_device *d)
{
    bool any = false;

    for (msi_device_comm *c = d->comms; c != NULL; c = c->next) {
        any |= c->state != NULL && awaits(c);
    }
    return any;
}

ms_status msi_device_comms_check(const msi_device *d)
{
    for (msi_device_comm *c = d->comms; c != NULL; c = c->next) {
        poll(c);
        MS_TRY(msi_device_comm_check(c));
    }
    return MS_OK;
}

void msi_device_comms_abort(const msi_device *d)
{
    if (d->comms != NULL) {
        d->comms->ops->abort(d->comms); /* a context has one library */
    }
    for (msi_device_comm *c = d->comms; c != NULL; c = c->next) {
        c->state = NULL;
        c->incomplete = false;
        c->failed = true;
    }
}

/* -- calls ------------------------------------------------------------------------------------- */

static ms_status outcome_of(msi_device_comm *c, int32_t outcome)
{
    c->incomplete = outcome == MSI_DEV_NOT_YET;
    c->failed = c->failed || (outcome != MSI_DEV_OK && outcome != MSI_DEV_NOT_YET);
    return msi_device_comm_check(c);
}

#define CALL(c, stream, name, ...)                                                                 \
    ((c)->state == NULL ? msi_device_comm_check(c)                                                 \
                        : outcome_of(c, (c)->ops->name((c)->state, stream_of(c, stream),           \
                                                       __VA_ARGS__, (c)->text)))

ms_status msi_device_comm_all_gather(msi_device_comm *c, int32_t stream, const void *in, void *out,
                                     int64_t n, int32_t dtype)
{
    return n == 0 ? MS_OK : CALL(c, stream, all_gather, in, out, n, dtype);
}

ms_status msi_device_comm_reduce_scatter(msi_device_comm *c, int32_t stream, const void *in,
                                         void *out, int64_t n, int32_t dtype)
{
    return n == 0 ? MS_OK : CALL(c, stream, reduce_scatter, in, out, n, dtype);
}

ms_status msi_device_comm_broadcast(msi_device_comm *c, int32_t stream, void *data, int64_t n,
                                    int32_t dtype, int32_t root)
{
    return n == 0 ? MS_OK : CALL(c, stream, broadcast, data, n, dtype, root);
}

ms_status msi_device_comm_exchange(msi_device_comm *c, int32_t stream, const msi_device_part *parts,
                                   int32_t dtype)
{
    return CALL(c, stream, exchange, parts, dtype);
}
