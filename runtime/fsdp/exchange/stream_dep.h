/* What streams wait for, on devices that run work later.
 *
 * [Note: promises] Ranks agree through words that their hosts store (slot.h). On a device such a
 * word is a promise: the host stores it after it has enqueued the work and, behind that, a post of
 * the word's twin. A peer's host continues on the promise; the work it enqueues then awaits the
 * twin. So one host protocol serves all devices, no host waits for a device, and no stream waits
 * for work that nobody has enqueued. Streams of ranks that share a card therefore cannot deadlock,
 * and dropped work was never promised. On the CPU word and twin are one, and these functions do
 * nothing.
 *
 * Streams of one rank are ordered by marks, streams of different ranks by words. */
#ifndef MSI_FSDP_STREAM_DEP_H
#define MSI_FSDP_STREAM_DEP_H

#include "device.h"

/* Each is needed: tests/fsdp/test_device_orders.c and tests/model/streams.pml omit one at a time
 * (except the last; the test says why). */
typedef enum msi_stream_dep {
    MSI_DEP_ALL,
    MSI_DEP_STEPPED,  /* master written -> cast */
    MSI_DEP_USED,     /* this rank has read the slot's last generation -> it writes the next */
    MSI_DEP_RELEASED, /* as USED, by the others */
    MSI_DEP_FILLED,   /* the others have cast their extents -> it reads them */
    MSI_DEP_GATHERED, /* full parameters complete -> computed with */
    MSI_DEP_REUSED,   /* this rank has reduced the slot's last gradient -> it writes the next */
    MSI_DEP_READ,     /* as REUSED, by the others */
    MSI_DEP_WRITTEN,  /* this rank has written its gradient -> it reduces it */
    MSI_DEP_READY,    /* as WRITTEN, by the others */
    MSI_DEP_PREPARED, /* the destination of the sum is ready -> added to */
    MSI_DEP_CHUNKED,  /* replicas: the others' chunks are reduced -> copied */
    MSI_DEP_SUMMED,   /* a backward's sums are complete -> the optimizer reads them */
    MSI_DEP_ARRIVED   /* one unit's sums, if no backward ended since */
} msi_stream_dep;

/* Test hook: the dependency to omit. */
extern _Atomic int32_t msi_stream_dep_omitted;

/* A mark after all work enqueued on `stream`. */
msi_mark msi_stream_dep_mark(const ms_context *ctx, int32_t stream);
/* `stream` waits for m. */
ms_status msi_stream_dep_after(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               msi_mark m);
/* The same, which cannot fail: without memory the host waits. */
void msi_stream_dep_join(const ms_context *ctx, msi_stream_dep what, int32_t stream, msi_mark m);
/* `stream` waits until the n words are `at_least`; their ranks have promised it. */
ms_status msi_stream_dep_await(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               _Atomic uint64_t *const *words, int32_t n, uint64_t at_least);
/* `stream` stores `value`. Cannot fail, likewise. */
void msi_stream_dep_post(const ms_context *ctx, int32_t stream, _Atomic uint64_t *word,
                         uint64_t value);
/* Dispatch to `stream` from now on. Returns the previous stream. */
int32_t msi_stream_dep_use(const ms_context *ctx, int32_t stream);
/* MS_TRY with dispatch to `stream`. */
#define MS_TRY_ON(ctx, stream, call)                                                               \
    do {                                                                                           \
        const int32_t before_ = msi_stream_dep_use(ctx, stream);                                   \
        const ms_status outcome_ = (call);                                                         \
                                                                                                   \
        msi_stream_dep_use(ctx, before_);                                                          \
        MS_TRY(outcome_);                                                                          \
    } while (0)

#endif
