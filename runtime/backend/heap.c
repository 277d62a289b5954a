/* Allocating and releasing blocks, with exact byte counts.
 *
 * A freed block serves the next request of its size class, so a steady training step asks the
 * system for nothing. Counts are of requested bytes, not of class sizes. */
#include "heap.h"
#include "bounds.h"
#include "device_plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_BYTES = 46,   /* a power of two */
    BESIDE = 1 << 10,  /* bytes of records per block of a graph, roughly */
    COLLECT = 64 << 20 /* bytes: see ms_memory_collect_due() */
};

static const char *const kind_names[MS_MEM_KINDS] = {"parameter",  "gradient", "optimizer",
                                                     "activation", "arena",    "scratch"};

/* After the context closed, the last block frees the heap. */
static void close_heap(msi_heap *h)
{
    msi_heap_free_waiting(h, MSI_UNTIL_CLOSED);
    msi_heap_trim(h);
    for (int32_t i = 0; i < MSI_CLASSES; i++) {
        while (h->classes[i].free != NULL) {
            msi_mem_block *b = h->classes[i].free;

            h->classes[i].free = b->next;
            msi_piece_leave(b);
        }
    }
    msi_pieces_forget(h); /* live blocks lose a device's memory */
    h->closed = true;
    h->device = NULL;
    if (h->n_live == 0) {
        free(h);
    }
}

static void close_room(void *state)
{
    msi_heap *h = state;

    if (h->host != NULL) {
        close_heap(h->host);
    }
    close_heap(h);
}

#ifdef MS_DEBUG
enum { SPOIL_ALWAYS = true };
#else
enum { SPOIL_ALWAYS = false };
#endif

/* Set the owner of the heap's memory; NULL: the system. */
static void use_device(msi_heap *h, msi_device *d, int32_t place)
{
    msi_device_info info = {0};

    h->device = d;
    h->is_of_system = d == NULL;
    h->place = place;
    if (d != NULL) {
        d->ops->info(d, &info);
        h->observed = d->ops->block != NULL && place == MSI_PLACE_DEVICE;
        h->spoils = (info.spoils || SPOIL_ALWAYS) && !h->observed;
        h->chunk_bytes = place == MSI_PLACE_PINNED ? info.chunk / 8 : info.chunk;
    }
}

static msi_heap *heap_new(msi_device *d, int32_t place)
{
    msi_heap *h = calloc(1, sizeof(*h));

    if (h != NULL) {
        h->fail_in = -1;
        h->collect_above = COLLECT;
        use_device(h, d, place);
    }
    return h;
}

static void count(msi_heap *h, int64_t nbytes, int32_t kind)
{
    ms_memory_stats *s = &h->stats;

    s->live[kind] += nbytes;
    s->live_total += nbytes;
    if (s->live[kind] > s->peak[kind]) {
        s->peak[kind] = s->live[kind];
    }
    if (s->live_total > s->peak_total) {
        s->peak_total = s->live_total;
    }
}

static ms_status out_of_memory(msi_heap *h, int64_t nbytes, int32_t kind)
{
    char bound[MSI_BOUND_TEXT];

    return MS_FAIL(MS_OUT_OF_MEMORY,
                   "no memory for %lld bytes of %s%s (live: %lld bytes, of which activations %lld; "
                   "held from the system: %lld)%s",
                   (long long)nbytes, kind_names[kind],
                   h && h->place == MSI_PLACE_PINNED ? " on the device's host" : "",
                   h ? (long long)h->stats.live_total : 0,
                   h ? (long long)h->stats.live[MS_MEM_ACTIVATION] : 0,
                   h ? (long long)h->stats.reserved : 0,
                   msi_bound_text(msi_address_space_left(), bound, sizeof(bound)));
}

/* The first allocation opens the device, which checks this heap for space. */
static ms_status room_new(ms_context *ctx, msi_heap **out)
{
    msi_heap *h = heap_new(NULL, MSI_PLACE_DEVICE);

    *out = NULL;
    if (h == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a heap (%zu bytes)", sizeof(*h));
    }
    ctx->room[MSI_ROOM_BACKEND] = h;
    ctx->close[MSI_ROOM_BACKEND] = close_room;
    ms_status status = ctx->open_device != NULL ? ctx->open_device(ctx) : MS_OK;

    if (status != MS_OK) {
        ctx->room[MSI_ROOM_BACKEND] = NULL;
        free(h);
        return status;
    }
    h->fail_in = msi_switch_int("MS_FAIL_ALLOC", -1);
    use_device(h, ctx->device, MSI_PLACE_DEVICE);
    *out = h;
    return MS_OK;
}

/* `ctx` NULL: out of memory, error set. */
static ms_status heap_get(ms_context *ctx, msi_heap **h)
{
    *h = ctx != NULL ? ctx->room[MSI_ROOM_BACKEND] : NULL;
    if (MSI_LIKELY(*h != NULL)) {
        return MS_OK;
    }
    return ctx != NULL ? room_new(ctx, h) : MS_OUT_OF_MEMORY;
}

msi_heap *msi_heap_of(ms_context *ctx)
{
    msi_heap *h;

    return heap_get(ctx, &h) == MS_OK ? h : NULL;
}

ms_status msi_memory_open(ms_context *ctx)
{
    msi_heap *h;

    return heap_get(ctx, &h);
}

/* True if a test wants this allocation to fail. */
static bool fails_on_demand(msi_heap *h)
{
    return h->fail_in >= 0 && h->fail_in-- == 0;
}

static msi_mem_block *take_free(msi_class *c)
{
    msi_mem_block *b = c->free;

    if (MSI_LIKELY(b != NULL)) {
        c->free = b->next;
    }
    return b;
}

/* Wait for waiting blocks, return free memory, retry. NULL: out of memory. */
static msi_mem_block *take_at_last(msi_heap *h, msi_class *c)
{
    msi_heap_free_waiting(h, MSI_UNTIL_WAITED);
    msi_mem_block *b = take_free(c);

    if (b == NULL) {
        msi_heap_trim(h);
        b = msi_class_grow(h, c);
    }
    return b;
}

/* For a class without free blocks: one whose wait is over, or a new one. */
__attribute__((noinline)) static msi_mem_block *take_other(msi_heap *h, msi_class *c)
{
    msi_heap_free_waiting(h, MSI_UNTIL_DONE);
    msi_mem_block *b = take_free(c);

    if (b == NULL) {
        b = msi_class_grow(h, c);
    }
    return b != NULL ? b : take_at_last(h, c);
}

static ms_status take(msi_heap *h, int64_t nbytes, int32_t kind, msi_mem_block **out)
{
    int64_t capacity;

    if (nbytes < 0 || nbytes > (int64_t)1 << MOST_BYTES || fails_on_demand(h)) {
        return out_of_memory(h, nbytes, kind);
    }
    if (MSI_UNLIKELY(h->stats.n_allocs >= h->step_end)) {
        msi_heap_end_step(h);
    }
    msi_class *c = &h->classes[msi_class_of(nbytes, &capacity)];
    msi_mem_block *b = MSI_LIKELY(!h->observed) ? take_free(c) : NULL;

    if (MSI_UNLIKELY(b == NULL)) {
        c->capacity = capacity;
        b = h->observed ? msi_class_grow(h, c) : take_other(h, c);
        if (b == NULL) {
            return out_of_memory(h, nbytes, kind);
        }
    }
    b->nbytes = nbytes;
    b->kind = (int16_t)kind;
    h->stats.n_allocs++;
    h->n_live++;
    count(h, nbytes, kind);
    if (MSI_UNLIKELY(h->observed)) {
        h->device->ops->block(h->device, b->data, nbytes, false);
    }
    *out = b;
    return MS_OK;
}

ms_status msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out)
{
    msi_heap *h;

    *out = NULL;
    MS_TRY(heap_get(ctx, &h));
    return take(h, nbytes, kind, out);
}

ms_status msi_host_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out)
{
    msi_heap *h;

    *out = NULL;
    MS_TRY(heap_get(ctx, &h));
    if (h->device != NULL && !msi_device_plans(ctx)) {
        h->host = h->host != NULL ? h->host : heap_new(h->device, MSI_PLACE_PINNED);
        if (fails_on_demand(h)) { /* one count for both */
            return out_of_memory(h->host, nbytes, kind);
        }
        h = h->host;
    }
    return h != NULL ? take(h, nbytes, kind, out) : out_of_memory(NULL, nbytes, kind);
}

/* Blocks that outlive the context. */
__attribute__((noinline)) static void leave_closed(msi_heap *h, const msi_mem_block *b)
{
    msi_piece_leave(b);
    if (h->n_live == 0) {
        free(h);
    }
}

static void uncount(msi_heap *h, const msi_mem_block *b)
{
    count(h, -b->nbytes, b->kind);
    h->n_live--;
}

void msi_release(msi_mem_block *b)
{
    if (b == NULL) {
        return;
    }
    msi_heap *h = b->heap;

    uncount(h, b);
    if (MSI_UNLIKELY(h->closed)) {
        leave_closed(h, b);
        return;
    }
    if (MSI_UNLIKELY(h->observed)) {
        h->device->ops->block(h->device, b->data, b->nbytes, true);
    }
    msi_block_free(b);
}

void msi_release_after(msi_mem_block *b, msi_mark mark)
{
    msi_device *d = b != NULL ? b->heap->device : NULL;

    if (d == NULL || d->ops->done(d, mark) != MSI_DEV_NOT_YET) {
        msi_release(b);
        return;
    }
    uncount(b->heap, b);
    msi_wait_for(b, mark);
}

ms_status msi_alloc_probe(ms_context *ctx, int64_t nbytes, const char *what)
{
    msi_heap *h = msi_heap_of(ctx);
    bool fits = h != NULL && !fails_on_demand(h);
    char bound[MSI_BOUND_TEXT];

    if (fits && !msi_system_has(nbytes)) {
        msi_heap *of_system = h->device != NULL ? h->host : h;

        if (of_system != NULL) {
            msi_heap_trim(of_system);
        }
        fits = msi_system_has(nbytes);
    }
    return fits
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY,
                         "no memory for %s, which takes up to %lld KiB of address space (held from "
                         "the system for tensors: %lld bytes)%s",
                         what, (long long)nbytes / 1024, h ? (long long)h->stats.reserved : 0,
                         msi_bound_text(msi_address_space_left(), bound, sizeof(bound)));
}

void msi_mem_set_kind(msi_mem_block *b, int32_t kind)
{
    count(b->heap, -b->nbytes, b->kind);
    b->kind = (int16_t)kind;
    count(b->heap, b->nbytes, kind);
}

void msi_count_external(ms_context *ctx, int64_t nbytes, int32_t kind)
{
    msi_heap *h = msi_heap_of(ctx);

    if (h != NULL) {
        count(h, nbytes, kind);
    }
}

void msi_alloc_fail_at(ms_context *ctx, int64_t k)
{
    msi_heap *h = msi_heap_of(ctx);

    if (h != NULL) {
        h->fail_in = k;
    }
}

void msi_alloc_trim(ms_context *ctx)
{
    for (msi_heap *h = ctx->room[MSI_ROOM_BACKEND]; h != NULL; h = h->host) {
        msi_heap_free_waiting(h, MSI_UNTIL_DONE);
        msi_heap_trim(h);
    }
}

/* -- statistics, and collecting garbage -------------------------------------------------------- */

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

/* Lua's collector sees small refs, not the tensors and graphs they retain. It is due when live
 * bytes exceed those after its last run by half, and by COLLECT. */
static int64_t held(const msi_heap *h)
{
    return h->stats.live_total + h->n_live * BESIDE;
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
        const int64_t now = held(h);

        h->collect_above = now + (now / 2 > COLLECT ? now / 2 : COLLECT);
    }
}
