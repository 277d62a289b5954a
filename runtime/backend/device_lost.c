/* A device on which nothing may run any more: nothing runs or waits, and every use is an error
 * (`lost`). For a forked process, whose streams are copies that would store words twice; and at the
 * end of a process, when late work would find libraries torn down. */
#include "device_comm.h"

#include <pthread.h>
#include <stdio.h>

static int32_t run(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype, const void *args)
{
    (void)d;
    (void)stream;
    (void)kernel;
    (void)dtype;
    (void)args;
    return MSI_DEV_FAILED;
}

static int32_t gemm(msi_device *d, int32_t stream, const msi_gemm_args *args)
{
    return run(d, stream, 0, 0, args);
}

static int32_t copy(msi_device *d, int32_t stream, void *to, const void *from, int64_t nbytes)
{
    (void)to;
    (void)nbytes;
    return run(d, stream, 0, 0, from);
}

static int32_t set(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes)
{
    return copy(d, stream, to, &byte, nbytes);
}

static int32_t post(msi_device *d, int32_t stream, _Atomic uint64_t *word, uint64_t value)
{
    (void)word;
    (void)value;
    return run(d, stream, 0, 0, NULL);
}

/* Device memory and the device end with the process. */
static void give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    (void)d;
    (void)p;
    (void)nbytes;
    (void)place;
}

static void detach(msi_device *d, void *p, int64_t nbytes)
{
    give(d, p, nbytes, MSI_PLACE_DEVICE);
}

static void close_nothing(msi_device *d)
{
    (void)d;
}

/* The CPU's table, except for these functions. */
static _Thread_local msi_device_ops gone_ops; /* one device per rank */

static void take_away(msi_device *d)
{
    const char *kind = d->ops->kind;

    d->ctx->end_work = NULL;
    d->lost = MS_DEVICE_ERROR;
    gone_ops = msi_cpu_device_ops;
    gone_ops.kind = kind;
    gone_ops.run = run;
    gone_ops.gemm = gemm;
    gone_ops.copy = copy;
    gone_ops.set = set;
    gone_ops.post = post;
    gone_ops.give = give;
    gone_ops.detach = detach;
    gone_ops.close = close_nothing;
    d->ops = &gone_ops;
    for (msi_device_comm *c = d->comms; c != NULL; c = c->next) { /* its threads are not here */
        c->state = NULL;
        c->failed = true;
    }
}

void msi_device_quit(msi_device *d)
{
    if (d->ops->poll(d) == MSI_DEV_NOT_YET) {
        snprintf(d->why_lost, sizeof(d->why_lost),
                 "this process ends by an error, and what device '%s' had not done is dropped",
                 d->ops->kind);
        take_away(d);
    }
}

/* In the forked process, on its only thread. */
static void forked(void)
{
    const ms_context *ctx = msi_context_peek();
    msi_device *d = ctx != NULL ? ctx->device : NULL;

    if (d != NULL) {
        snprintf(d->why_lost, sizeof(d->why_lost),
                 "this process was forked from the one that opened device '%s', and cannot use it",
                 d->ops->kind);
        take_away(d);
    }
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, forked);
}

void msi_device_watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch);
}
