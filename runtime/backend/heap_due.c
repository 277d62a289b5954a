/* Figures of a context's memory, and when a collector of the host should run. */
#include "bounds.h"
#include "heap.h"

#include <string.h>

enum { BESIDE = 1 << 10 /* about what a block of a graph costs beside its bytes: records */ };

void msi_memory_stats(ms_context *ctx, ms_memory_stats *stats)
{
    const msi_heap *h = ctx->room[MSI_ROOM_BACKEND]; /* who asks makes none, and opens no device */

    if (h != NULL) {
        *stats = h->stats;
        stats->cached = msi_heap_cached(h);
        stats->pinned = h->host != NULL ? h->host->stats.live_total : 0;
    } else {
        memset(stats, 0, sizeof(*stats));
    }
    stats->live_handles = ctx->live_handles;
}

void ms_memory_stats_get(ms_memory_stats *stats)
{
    ms_context *ctx = msi_context_peek();

    if (ctx != NULL) {
        msi_memory_stats(ctx, stats);
    } else {
        memset(stats, 0, sizeof(*stats));
    }
}

static msi_heap *heap_here(void)
{
    ms_context *ctx = msi_context_peek();

    return ctx != NULL ? ctx->room[MSI_ROOM_BACKEND] : NULL;
}

void ms_memory_reset_peak(void)
{
    msi_heap *h = heap_here();

    if (h != NULL) {
        memcpy(h->stats.peak, h->stats.live, sizeof(h->stats.peak));
        h->stats.peak_total = h->stats.live_total;
    }
}

static int64_t held(const msi_heap *h)
{
    return h->stats.live_total + h->n_live * BESIDE;
}

/* Bytes that may still be taken: from the system, and of what lies free here. */
static int64_t room_left(const msi_heap *h)
{
    const int64_t all = msi_memory_left("").left, own = msi_own_space_left().left;
    const int64_t left = all < own ? all : own;
    const int64_t cached = msi_heap_cached(h);

    return left > INT64_MAX - cached ? left : left + cached;
}

/* Not inline: it needs a guarded frame, which the common way out of its caller need not pay. */
__attribute__((noinline)) static bool is_due(msi_heap *h)
{
    return !msi_pressure_fall(&h->pressure, held(h), h->stats.live[MS_MEM_ACTIVATION]) &&
           msi_pressure_due(&h->pressure, held(h), room_left(h));
}

bool ms_memory_collect_due(void)
{
    msi_heap *h = heap_here();

    return h != NULL && MSI_UNLIKELY(!msi_pressure_is_calm(&h->pressure, held(h))) && is_due(h);
}

void ms_memory_collected(void)
{
    msi_heap *h = heap_here();

    if (h != NULL) {
        msi_pressure_collected(&h->pressure, held(h), h->stats.live[MS_MEM_ACTIVATION]);
    }
}
