/* The end of a rank's process: reports errors of device work that nobody waited for. */
#include "group.h"

#include "backend.h"
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

ms_status msi_end_work(ms_context *ctx)
{
    const ms_status status = msi_settle(ctx);
    char why[MSI_MESSAGE_BYTES], line[MSI_MESSAGE_BYTES + 32];

    if (status == MS_OK) {
        if (ctx->device != NULL && ctx->device->ops->finish != NULL) {
            ctx->device->ops->finish(ctx->device);
        }
        return MS_OK;
    }
    snprintf(why, sizeof(why), "%s", ms_error_message());
    snprintf(line, sizeof(line), "%s: %s", ms_status_name(status), why);
    ms_dist_abort(status, line); /* may itself fail */
    return MS_FAIL(status, "%s", why);
}

/* Prints errors to stderr. */
static bool ends_well(void)
{
    ms_context *ctx = msi_context_peek();
    const msi_dist *d = msi_dist_peek();
    const ms_status status = ctx != NULL && ctx->end_work != NULL ? ctx->end_work(ctx) : MS_OK;
    char rank[32] = "";

    if (status != MS_OK) {
        if (d != NULL && d->job != NULL && d->job->world > 1) {
            snprintf(rank, sizeof(rank), "rank %d: ", (int)d->rank);
        }
        fprintf(stderr, "moonshard: %s%s: %s\n", rank, ms_status_name(status), ms_error_message());
    }
    return status == MS_OK;
}

/* glibc continues with the remaining handlers and this code. */
static void at_exit(int code, void *nothing)
{
    const ms_context *ctx = msi_context_peek();

    (void)nothing;
    if (code == 0 && !ends_well()) {
        exit(1);
    }
    if (code != 0 && ctx != NULL && ctx->device != NULL) {
        msi_device_quit(ctx->device);
    }
}

/* [Note: before all others] exit() calls handlers and C++ destructors in reverse order of
 * registration. The matrix library creates objects at its first product. A handler registered
 * earlier would run after their destruction, while pending products still use them. But exit()
 * first destroys the calling thread's thread_local objects (C++ [basic.start.term]; that library
 * has none). So opening a device registers such a destructor, which registers the handler: it runs
 * first, and on_exit() gives it the code. */
int __cxa_thread_atexit_impl(void (*destroy)(void *object), void *object, void *library);
extern __attribute__((visibility("hidden"))) void *__dso_handle; /* identifies this library */

/* Also runs when a thread ends; a closed context has no device. */
static void go_first(void *watched)
{
    const ms_context *ctx = msi_context_peek();

    (void)watched;
    if (ctx != NULL && ctx->device != NULL) {
        on_exit(at_exit, NULL);
    }
}

void msi_exit_watch(void)
{
    static _Thread_local bool watched;

    if (!watched) {
        watched = true;
        __cxa_thread_atexit_impl(go_first, &watched, &__dso_handle);
    }
}

void ms_dist_exit(int32_t code)
{
    fflush(NULL);
    if (code == 0 && !ends_well()) {
        code = 1;
    }
    if (code == 0) { /* otherwise the launcher reports the code */
        (void)ms_dist_leave();
    }
    _exit(code);
}
