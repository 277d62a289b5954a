/* Memory statistics, and when the host should collect garbage.
 *
 * Lua's collector sees small refs, not the tensors and graphs they retain. It is due when live
 * bytes exceed those after its last run by half, and by 64 MiB. */
#include "heap.h"

#include <string.h>

enum {
    BESIDE = 1 << 10, /* records per block of a graph, roughly */
    LEAST = 64 << 20
};

void msi_memory_stats(ms_context *ctx, ms_memory_stats *stats)
{
    const msi_heap *h = ctx->room[MSI_ROOM_BACKEND]; /* makes no heap, opens no device */

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

void msi_heap_collected(msi_heap *h)
{
    const int64_t now = held(h);

    h->collect_above = now + (now / 2 > LEAST ? now / 2 : LEAST);
}

bool ms_memory_collect_due(void)
{
    const msi_heap *h = heap_here();

    return h != NULL && held(h) > h->collect_above;
}

void ms_memory_collected(void)
{
    msi_heap *h = heap_here();

    if (h != NULL) {
        msi_heap_collected(h);
    }
}
