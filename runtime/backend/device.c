/* The context's device: opening it, enqueueing, waiting. */
#include "blocks.h"
#include "device_comm.h"

#include <stdio.h>
#include <string.h>

_Atomic int32_t msi_n_devices;

static msi_kernel_fn cpu_kernel(int32_t kernel, int32_t dtype)
{
    return msi_kernels()->fn[kernel][dtype];
}

static void close_room(void *device)
{
    msi_device *d = device;

    d->ops->abandon(d); /* no layer that waits for peers is left */
    msi_device_comms_abort(d);
    (void)msi_device_wait(d);
    d->ops->give(d, d->fault, sizeof(*d->fault), MSI_PLACE_PINNED);
    d->ops->close(d);
    atomic_fetch_sub(&msi_n_devices, 1);
}

/* After the table's open(): set the fields common to all devices. */
static int32_t init_common(msi_device *d)
{
    void *fault;
    const int32_t outcome = d->ops->take(d, sizeof(*d->fault), MSI_PLACE_PINNED, &fault);

    if (outcome != MSI_DEV_OK) {
        d->ops->close(d);
        return outcome;
    }
    d->fault = fault;
    *d->fault = (msi_fault){0};
    return MSI_DEV_OK;
}

ms_status msi_device_open(ms_context *ctx, int32_t index)
{
    const msi_device_host host = {.user = ctx,
                                  .kernel_name = msi_kernel_name,
                                  .kernel = cpu_kernel,
                                  .args_bytes = msi_args_bytes,
                                  .args_copy = msi_args_copy,
                                  .gemm = msi_device_gemm,
                                  .cpu = &msi_cpu_device_ops};
    const char *kind;
    char error[MSI_DEVICE_ERROR] = "";
    const msi_device_ops *ops = NULL;
    msi_device *d;

    MS_TRY(msi_device_choice(ctx, &kind, &index));
    if (kind == NULL) {
        return MS_OK;
    }
    MS_TRY(msi_device_load(ctx, kind, &ops));
    if (ctx->device_kind != NULL && ctx->device_index >= 0) {
        MS_TRY(msi_device_check_index(ops, index));
    }
    int32_t outcome = ops->open(&d, &host, index, error);

    switch (outcome == MSI_DEV_OK ? init_common(d) : outcome) {
    case MSI_DEV_OK:
        ctx->device = d;
        d->ctx = ctx;
        ctx->room[MSI_ROOM_DEVICE] = ctx->device;
        ctx->close[MSI_ROOM_DEVICE] = close_room;
        atomic_fetch_add(&msi_n_devices, 1);
        msi_device_watch_forks();
        return MS_OK;
    case MSI_DEV_NO_MEMORY:
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to open device '%s'", kind);
    default:
        return MS_FAIL(MS_DEVICE_ERROR, "device '%s' does not open: %s", kind, error);
    }
}

/* Convert the result of enqueueing `what` to an error. */
static ms_status device_outcome(const msi_device *d, const char *what, int32_t outcome)
{
    if (MSI_UNLIKELY(outcome != MSI_DEV_OK && d->lost != MS_OK)) {
        return MS_FAIL(d->lost, "%s: %s", what, d->why_lost);
    }
    switch (outcome) {
    case MSI_DEV_OK:
        return MS_OK;
    case MSI_DEV_NO_MEMORY:
        return MS_FAIL(MS_OUT_OF_MEMORY, "%s: no memory to enqueue it on device '%s'", what,
                       d->ops->kind);
    default:
        return d->text[0] != '\0'
                   ? MS_FAIL(MS_DEVICE_ERROR, "%s: device '%s': %s", what, d->ops->kind, d->text)
                   : MS_FAIL(MS_DEVICE_ERROR, "%s: device '%s' refuses it (%d)", what, d->ops->kind,
                             (int)outcome);
    }
}

/* True if memory was out and the stream has now drained, which may free some: the call is then
 * repeated once. */
static bool is_worth_another(msi_device *d, int32_t stream, int32_t outcome)
{
    return MSI_UNLIKELY(outcome == MSI_DEV_NO_MEMORY) &&
           msi_device_drain_to(d, d->ops->mark(d, stream));
}

#define ENQUEUE(d, stream, outcome, call)                                                          \
    do {                                                                                           \
        (outcome) = (call);                                                                        \
        if (is_worth_another(d, stream, outcome)) {                                                \
            (outcome) = (call);                                                                    \
        }                                                                                          \
    } while (0)

ms_status msi_device_run(msi_device *d, const char *op, int32_t kernel, int32_t dtype,
                         const void *args)
{
    int32_t outcome;

    ENQUEUE(d, d->stream, outcome, d->ops->run(d, d->stream, kernel, dtype, args));
    return outcome == MSI_DEV_UNSUPPORTED ? msi_kernel_missing(op, dtype, d->ops->kind)
                                          : device_outcome(d, op, outcome);
}

static const char order[] = "order of streams";

ms_status msi_device_after(msi_device *d, int32_t stream, msi_mark mark)
{
    int32_t outcome;

    ENQUEUE(d, stream, outcome, d->ops->after(d, stream, mark));
    return device_outcome(d, order, outcome);
}

ms_status msi_device_await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                           uint64_t at_least)
{
    int32_t outcome;

    ENQUEUE(d, stream, outcome, d->ops->await(d, stream, words, n, at_least));
    return device_outcome(d, order, outcome);
}

int64_t msi_work_bytes(const ms_context *ctx, int32_t kernel, int32_t dtype, const void *args)
{
    msi_device *d = ctx != NULL ? ctx->device : NULL;

    return MSI_UNLIKELY(d != NULL) && d->ops->work_bytes != NULL
               ? d->ops->work_bytes(d, kernel, dtype, args)
               : -1;
}

ms_status msi_device_pin(msi_device *d, void *p, int64_t nbytes)
{
    return device_outcome(d, "words of a slot", d->ops->pin(d, p, nbytes));
}

static ms_status check_on(msi_device *d, const char *op, int32_t kernel, int32_t dtype)
{
    if (d->ops->has == NULL) {
        return msi_check_host_kernel(op, kernel, dtype);
    }
    return MSI_LIKELY(d->ops->has(d, kernel, dtype)) ? MS_OK
                                                     : msi_kernel_missing(op, dtype, d->ops->kind);
}

ms_status msi_check_kernel(const char *op, int32_t kernel, int32_t dtype)
{
    const ms_context *ctx = MSI_UNLIKELY(msi_any_device()) ? msi_context_peek() : NULL;

    return ctx != NULL && ctx->device != NULL ? check_on(ctx->device, op, kernel, dtype)
                                              : msi_check_host_kernel(op, kernel, dtype);
}

ms_status msi_dispatch_host(const char *op, int32_t kernel, int32_t dtype, const void *args)
{
    MS_TRY(msi_check_host_kernel(op, kernel, dtype));
    msi_kernels()->fn[kernel][dtype](args);
    return MS_OK;
}

ms_status msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args)
{
    if (MSI_UNLIKELY(msi_any_device())) {
        const ms_context *ctx = msi_context_peek();

        if (ctx != NULL && ctx->device != NULL) {
            MS_TRY(check_on(ctx->device, op, kernel, dtype));
            return msi_device_run(ctx->device, op, kernel, dtype, args);
        }
    }
    return msi_dispatch_host(op, kernel, dtype, args);
}

bool msi_batches(void)
{
    const ms_context *ctx = MSI_UNLIKELY(msi_any_device()) ? msi_context_peek() : NULL;

    return ctx != NULL && ctx->device != NULL && ctx->device->ops->run_all != NULL;
}

void msi_batch_init(msi_batch *b, const char *op, int32_t kernel, int64_t nbytes)
{
    b->op = op;
    b->kernel = kernel;
    b->dtype = b->n = 0;
    b->nbytes = nbytes;
}

ms_status msi_batch_run(msi_batch *b)
{
    msi_device *d = b->n > 0 ? msi_context_peek()->device : NULL;
    const int32_t n = b->n;
    int32_t outcome;

    if (n == 0) {
        return MS_OK;
    }
    b->n = 0;
    ENQUEUE(d, d->stream, outcome,
            d->ops->run_all(d, d->stream, b->kernel, b->dtype, b->args, b->nbytes, n));
    return device_outcome(d, b->op, outcome);
}

ms_status msi_batch_add(msi_batch *b, int32_t dtype, const void *args)
{
    if (!msi_batches()) {
        return msi_dispatch(b->op, b->kernel, dtype, args);
    }
    MS_TRY(msi_check_kernel(b->op, b->kernel, dtype));
    if (b->n == MSI_RUN_ALL || b->dtype != dtype) {
        MS_TRY(msi_batch_run(b));
    }
    b->dtype = dtype;
    memcpy(b->args + b->n++ * b->nbytes, args, (size_t)b->nbytes);
    return MS_OK;
}

static ms_status gemm_on(msi_device *d, const msi_gemm_args *args)
{
    const char *op = args->op != NULL ? args->op : "gemm";
    const int64_t nbytes = msi_work_bytes(d->ctx, MSI_K_gemm, args->dtype, args);
    msi_gemm_args with_work = *args;
    msi_mem_block *block = NULL;
    int32_t outcome;

    if (nbytes > 0) {
        MS_TRY(msi_alloc(d->ctx, nbytes, MS_MEM_SCRATCH, &block));
        with_work.work = block->data;
    }
    ENQUEUE(d, d->stream, outcome, d->ops->gemm(d, d->stream, &with_work));
    if (d->stream == MSI_STREAM_COMPUTE) {
        msi_release(block);
    } else {
        msi_release_later(d->ctx, block);
    }
    return device_outcome(d, op, outcome);
}

ms_status msi_gemm(ms_context *ctx, const msi_gemm_args *args)
{
    msi_device *d = ctx->device;

    return MSI_UNLIKELY(d != NULL) ? gemm_on(d, args) : msi_gemm_now(ctx, args);
}

bool msi_gemm_fuses(const ms_context *ctx)
{
    return MSI_UNLIKELY(ctx->device != NULL) && ctx->device->ops->fuses;
}

ms_status *msi_device_status(const ms_context *ctx, ms_status *now)
{
    return ctx->device != NULL ? &ctx->device->failed : now;
}

/* -- for higher layers ------------------------------------------------------------------------- */

ms_status msi_mem_copy_on(msi_device *d, void *to, const void *from, int64_t nbytes)
{
    int32_t outcome;

    ENQUEUE(d, d->stream, outcome, d->ops->copy(d, d->stream, to, from, nbytes));
    return device_outcome(d, "copy", outcome);
}

ms_status msi_mem_set_on(msi_device *d, void *to, int32_t byte, int64_t nbytes)
{
    int32_t outcome;

    ENQUEUE(d, d->stream, outcome, d->ops->set(d, d->stream, to, byte, nbytes));
    return device_outcome(d, "fill", outcome);
}

bool msi_device_polls(msi_device *d)
{
    return d->ops->poll(d) == MSI_DEV_NOT_YET || msi_device_comms_incomplete(d);
}

/* The error of work that the host waited for. */
static ms_status outcome_of_work(msi_device *d)
{
    if (MSI_UNLIKELY(d->lost != MS_OK)) {
        return MS_FAIL(d->lost, "%s", d->why_lost);
    }
    const ms_status status = msi_device_fault_report(d);

    if (MSI_UNLIKELY(status != MS_OK)) {
        msi_error_late();
        if (d->ctx != NULL) {
            d->ctx->tell_peers(d->ctx);
        }
    }
    return status;
}

ms_status msi_device_settle(msi_device *d)
{
    MS_TRY(msi_device_wait(d));
    return outcome_of_work(d);
}

ms_status msi_device_settle_stream(msi_device *d)
{
    MS_TRY(msi_device_wait_for(d, d->ops->mark(d, d->stream)));
    return outcome_of_work(d);
}

bool msi_device_has_memory(const msi_device_info *info)
{
    static const char none[sizeof(info->uuid)];

    return memcmp(info->uuid, none, sizeof(none)) != 0;
}

const char *msi_device_label(const ms_context *ctx)
{
    char *text = msi_part_text();
    msi_device_info info = {0};

    if (ctx->device == NULL) {
        return "cpu";
    }
    ctx->device->ops->info(ctx->device, &info);
    snprintf(text, MSI_PART_TEXT, "%s:%d", ctx->device->ops->kind, (int)info.index);
    return text;
}
