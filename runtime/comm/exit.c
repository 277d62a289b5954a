/* The end of a rank's process: what its device was given last may have been wrong, and nobody has
 * waited for it. */
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
        return MS_OK;
    }
    snprintf(why, sizeof(why), "%s", ms_error_message());
    snprintf(line, sizeof(line), "%s: %s", ms_status_name(status), why);
    ms_dist_abort(status, line); /* which may fail by itself */
    return MS_FAIL(status, "%s", why);
}

/* Whoever called exit() is told on stderr. */
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

/* glibc goes on with the handlers that are left, and with this code. */
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

/* [Note: before all others] exit() calls handlers, and destructors of C++ objects among them, in
 * the reverse order of their registration. The matrix library makes objects when it first needs
 * them, in a product say: a handler registered before would find them destroyed, and the product
 * that it waits for would use them. But before all of them exit() destroys the objects of the
 * thread that calls it (C++ [basic.start.term]; that library has none). So what is registered when
 * the device opens is the destructor of one, and that puts the handler, which alone is told the
 * code, in front of all others. */
int __cxa_thread_atexit_impl(void (*destroy)(void *object), void *object, void *library);
extern __attribute__((visibility("hidden"))) void *__dso_handle; /* which library this is */

/* Also where a thread ends alone: one that has closed its context has nothing left to end. */
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
    if (code == 0) { /* otherwise the launcher says what happened, with the code */
        (void)ms_dist_leave();
    }
    _exit(code);
}
