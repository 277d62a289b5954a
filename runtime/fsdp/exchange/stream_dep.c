#include "stream_dep.h"

_Atomic int32_t msi_stream_dep_omitted = MSI_DEP_ALL;

static bool is_left_out(msi_stream_dep what)
{
    return MSI_UNLIKELY(what != MSI_DEP_ALL &&
                        what == (msi_stream_dep)atomic_load_explicit(&msi_stream_dep_omitted,
                                                                     memory_order_relaxed));
}

msi_mark msi_stream_dep_mark(const ms_context *ctx, int32_t stream)
{
    return ctx->device != NULL ? ctx->device->ops->mark(ctx->device, stream)
                               : (msi_mark){.stream = stream};
}

ms_status msi_stream_dep_after(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               msi_mark m)
{
    msi_device *d = ctx->device;

    return MSI_LIKELY(d == NULL) || m.ticket == 0 || is_left_out(what)
               ? MS_OK
               : msi_device_after(d, stream, m);
}

void msi_stream_dep_join(const ms_context *ctx, msi_stream_dep what, int32_t stream, msi_mark m)
{
    if (msi_stream_dep_after(ctx, what, stream, m) != MS_OK) {
        msi_drain(ctx);
    }
}

ms_status msi_stream_dep_await(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               _Atomic uint64_t *const *words, int32_t n, uint64_t at_least)
{
    msi_device *d = ctx->device;

    return MSI_LIKELY(d == NULL) || is_left_out(what)
               ? MS_OK
               : msi_device_await(d, stream, words, n, at_least);
}

void msi_stream_dep_post(const ms_context *ctx, int32_t stream, _Atomic uint64_t *word,
                         uint64_t value)
{
    msi_device *d = ctx->device;

    if (MSI_UNLIKELY(d != NULL) && d->ops->post(d, stream, word, value) != MSI_DEV_OK) {
        msi_drain(ctx);
        atomic_store(word, value);
    }
}

int32_t msi_stream_dep_use(const ms_context *ctx, int32_t stream)
{
    int32_t before = MSI_STREAM_COMPUTE;

    if (ctx->device != NULL) {
        before = ctx->device->stream;
        ctx->device->stream = stream;
    }
    return before;
}
