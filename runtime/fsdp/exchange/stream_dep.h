/* What streams wait for, where a device runs things later.
 *
 * [Note: promises] Ranks agree through words that their hosts store (slot.h). On a device such a
 * word is a promise: the host stores it when it has enqueued what it says and, behind that, a post
 * of the word's twin. A peer's host goes on by the promise; what it enqueues then awaits the twin.
 * So the protocol of the hosts is one for all devices, no host waits for a device, and no stream
 * ever waits for what nobody has enqueued yet: streams of ranks that share a card cannot block each
 * other for good, and what a rank gives up was never promised. Where work has run when its call
 * returns word and twin are one, and nothing here does anything.
 *
 * Within a rank streams are ordered by marks, between ranks by words. */
#ifndef MSI_FSDP_STREAM_DEP_H
#define MSI_FSDP_STREAM_DEP_H

#include "device.h"

/* Every one of them is needed (tests/fsdp/test_device_orders.c and streams.pml leave each out, but
 * for the last: that test says why). */
typedef enum msi_stream_dep {
    MSI_DEP_ALL,
    MSI_DEP_STEPPED,  /* the master is written -> it is cast */
    MSI_DEP_USED,     /* this rank has read the slot's last generation -> the next is written */
    MSI_DEP_RELEASED, /* ... and so have the others */
    MSI_DEP_FILLED,   /* the others have cast theirs -> they are read */
    MSI_DEP_GATHERED, /* the full parameters are there -> they are computed with */
    MSI_DEP_REUSED,   /* this rank has reduced the slot's last gradient -> the next is written */
    MSI_DEP_READ,     /* ... and so have the others */
    MSI_DEP_WRITTEN,  /* this rank has written its gradient -> it is reduced */
    MSI_DEP_READY,    /* ... and so have the others */
    MSI_DEP_PREPARED, /* what the sum adds to is there -> it is added to */
    MSI_DEP_CHUNKED,  /* replicas: the others have reduced their chunks -> they are copied */
    MSI_DEP_SUMMED,   /* a backward's sums are there -> the optimizer reads them */
    MSI_DEP_ARRIVED   /* ... one unit's, where no backward has ended since */
} msi_stream_dep;

/* Test hook: the one that is left out. */
extern _Atomic int32_t msi_stream_dep_omitted;

/* A point of `stream`, after all enqueued so far. */
msi_mark msi_stream_dep_mark(const ms_context *ctx, int32_t stream);
/* `stream` goes on after m. */
ms_status msi_stream_dep_after(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               msi_mark m);
/* The same, which cannot fail: without memory to enqueue it, it waits. */
void msi_stream_dep_join(const ms_context *ctx, msi_stream_dep what, int32_t stream, msi_mark m);
/* `stream` goes on once the n words are `at_least`, which their ranks have promised. */
ms_status msi_stream_dep_await(const ms_context *ctx, msi_stream_dep what, int32_t stream,
                               _Atomic uint64_t *const *words, int32_t n, uint64_t at_least);
/* `stream` stores `value`. Cannot fail, likewise. */
void msi_stream_dep_post(const ms_context *ctx, int32_t stream, _Atomic uint64_t *word,
                         uint64_t value);
/* What is dispatched from now on goes to `stream`; the one before is the result. */
int32_t msi_stream_dep_use(const ms_context *ctx, int32_t stream);
/* MS_TRY of what is dispatched to `stream`. */
#define MS_TRY_ON(ctx, stream, call)                                                               \
    do {                                                                                           \
        const int32_t before_ = msi_stream_dep_use(ctx, stream);                                   \
        const ms_status outcome_ = (call);                                                         \
                                                                                                   \
        msi_stream_dep_use(ctx, before_);                                                          \
        MS_TRY(outcome_);                                                                          \
    } while (0)

#endif
