/* The calling thread's context: made on first use, closed by ms_close(). It has the state of all
 * layers, so ranks may be threads and nothing is global to the process. */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>

static _Thread_local ms_context *current;

ms_context *msi_context_peek(void)
{
    return current;
}

ms_context *msi_context_new(void)
{
    ms_context *ctx = calloc(1, sizeof(*ctx));

    if (ctx == NULL) {
        msi_fail(MS_OUT_OF_MEMORY, "no memory for a context (%zu bytes)", sizeof(*ctx));
        return NULL;
    }
    msi_context_init(ctx);
    return ctx;
}

ms_context *msi_context(void)
{
    if (MSI_UNLIKELY(current == NULL)) {
        current = msi_context_new();
    }
    return current;
}

ms_context *msi_context_swap(ms_context *ctx)
{
    ms_context *before = current;

    current = ctx;
    return before;
}

void msi_context_close(ms_context *ctx)
{
    ms_context *before = msi_context_swap(ctx);

    for (int32_t i = 0; i < MSI_ROOM_COUNT; i++) {
        if (ctx->room[i] != NULL && ctx->close[i] != NULL) {
            ctx->close[i](ctx->room[i]);
        }
        ctx->room[i] = NULL;
    }
    (void)msi_context_swap(before != ctx ? before : NULL);
    free(ctx);
}

bool ms_is_open(void)
{
    return current != NULL;
}

ms_status ms_close(void)
{
    ms_context *ctx = current;

    if (ctx == NULL) {
        return MS_OK;
    }
    if (ctx->host_calls > 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "close: a hook is running, and what called it would be "
                                         "freed; close when that has returned");
    }
    const ms_status status = ctx->end_work != NULL ? ctx->end_work(ctx) : MS_OK;
    char why[MSI_MESSAGE_BYTES]; /* discard errors of closing */

    snprintf(why, sizeof(why), "%s", ms_error_message());
    msi_context_close(ctx);
    return status == MS_OK ? MS_OK : MS_FAIL(status, "%s", why);
}

void ms_seed(uint64_t seed)
{
    ms_context *ctx = msi_context();

    if (ctx != NULL) {
        ctx->seed = seed;
        ctx->sample_base_known = false;
        ctx->sample_epoch++;
    }
}

uint64_t ms_seed_get(void)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? ctx->seed : 0;
}

ms_status ms_samples_begin(int64_t first)
{
    if (first < 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "samples_begin: the first sample is %lld, expected 0 or more",
                       (long long)first);
    }
    ms_context *ctx = msi_context();

    if (ctx == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    ctx->sample_base = first;
    ctx->sample_base_known = true;
    ctx->sample_epoch++;
    return MS_OK;
}

int64_t ms_sample_epoch(void)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? ctx->sample_epoch : 0;
}
