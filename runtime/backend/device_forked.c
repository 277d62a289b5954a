/* What a device is in a process that was forked from the one which opened it: its streams are a
 * copy, and what they were to store others would find twice. Nothing is run, and nothing waits. Who
 * enqueues or reads is told so (`lost`). */
#include "device.h"

#include <pthread.h>
#include <stdio.h>

static int32_t refuse(void)
{
    return MSI_DEV_FAILED;
}

static void close_nothing(msi_device *d)
{
    (void)d;
}

static void info(msi_device *d, msi_device_info *out)
{
    (void)d;
    *out = (msi_device_info){.name = "a device of another process"};
}

static int32_t take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    return msi_cpu_device_ops.take(d, nbytes, place, out);
}

/* It may be the device's: it goes with the process. */
static void give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    (void)d;
    (void)p;
    (void)nbytes;
    (void)place;
}

static int32_t share(msi_device *d, int64_t nbytes, void **out, int32_t *fd)
{
    (void)d;
    (void)nbytes;
    (void)fd;
    (void)out;
    return refuse();
}

static int32_t attach(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    (void)readonly;
    return share(d, nbytes, out, &fd);
}

static void detach(msi_device *d, void *p, int64_t nbytes)
{
    give(d, p, nbytes, 0);
}

static int32_t run(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype, const void *args)
{
    (void)d;
    (void)stream;
    (void)kernel;
    (void)dtype;
    (void)args;
    return refuse();
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

static msi_mark mark(msi_device *d, int32_t stream)
{
    (void)d;
    return (msi_mark){.stream = stream};
}

static int32_t after(msi_device *d, int32_t stream, msi_mark m)
{
    (void)m;
    return run(d, stream, 0, 0, NULL);
}

static int32_t done(msi_device *d, msi_mark m)
{
    (void)d;
    (void)m;
    return MSI_DEV_OK;
}

static int32_t wait(msi_device *d, msi_mark m, msi_go_on go_on, void *user)
{
    (void)go_on;
    (void)user;
    return done(d, m);
}

static int32_t poll(msi_device *d)
{
    (void)d;
    return MSI_DEV_OK;
}

static int32_t post(msi_device *d, int32_t stream, _Atomic uint64_t *word, uint64_t value)
{
    (void)word;
    (void)value;
    return run(d, stream, 0, 0, NULL);
}

static int32_t await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                     uint64_t at_least)
{
    (void)words;
    (void)n;
    (void)at_least;
    return run(d, stream, 0, 0, NULL);
}

static const msi_device_ops forked_ops = {.version = MSI_DEVICE_VERSION,
                                          .kind = "forked",
                                          .close = close_nothing,
                                          .info = info,
                                          .take = take,
                                          .give = give,
                                          .share = share,
                                          .attach = attach,
                                          .detach = detach,
                                          .run = run,
                                          .gemm = gemm,
                                          .copy = copy,
                                          .set = set,
                                          .mark = mark,
                                          .after = after,
                                          .done = done,
                                          .wait = wait,
                                          .poll = poll,
                                          .post = post,
                                          .await = await,
                                          .abandon = close_nothing};

/* In the new process, on the thread that forked it: there is no other. */
static void forked(void)
{
    ms_context *ctx = msi_context_peek();
    msi_device *d = ctx != NULL ? ctx->device : NULL;

    if (d != NULL) {
        ctx->end_work = NULL;
        d->lost = MS_DEVICE_ERROR;
        snprintf(d->why_lost, sizeof(d->why_lost),
                 "this process was forked from the one that opened device '%s', and cannot use it",
                 d->ops->kind);
        d->ops = &forked_ops;
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
