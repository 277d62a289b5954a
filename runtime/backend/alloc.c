/* The caching allocator of a context, with exact byte counts.
 *
 * Blocks carry a 64-byte header in front (size class, bytes asked for, kind) and are cut to size
 * classes of an eighth of a power of two, all multiples of 64 bytes, so a freed block fits the next
 * request of about its size and a steady training step asks the system for nothing. Counts are of
 * bytes asked for, never of what the class rounds to.
 *
 * [Note: what stays cached] Once more than half of what the heap holds is in free blocks that a
 * window of allocations did without, they go back to the system. A step longer than
 * the window would lose blocks that it takes again: a class that has to ask the system after it
 * gave blocks back makes the windows twice as long, until they span a step. Windows are counted in
 * allocations, so every run does the same whatever the time. One is never shorter than the list of
 * free blocks that its end has to walk.
 *
 * [Note: how much is held] Sizes that never come again, of a text that grows or of rows of any
 * length, would fill every class they pass. So before the heap takes more than twice what was in
 * use at once of late (in this window or the last, and some MiB) it gives free blocks back, the
 * longest idle first. A loop gets there only where phases of different sizes take turns that want
 * more than that together: each then takes from the system what it misses, every time.
 *
 * [Note: batches] A class of small blocks that keeps growing, as where results wait for a
 * collector, takes several at once: up to a quarter of what it has, in one piece whose pages come
 * with one call in place of a fault each. A piece goes back to the system whole, once all its
 * blocks are free. */
#include "bounds.h"
#include "device.h"
#include "pressure.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEADER = 64,
    MIN_SHIFT = 6, /* smallest class: 64 bytes */
    STEPS = 8,     /* classes per power of two */
    N_CLASSES = 42 * STEPS,
    FIRST_WINDOW = 1 << 14,
    LAST_WINDOW = 1 << 24,
#ifdef __SANITIZE_ADDRESS__
    BATCH_BYTES = 0, /* it watches what lies between pieces */
#else
    BATCH_BYTES = 64 << 10, /* of a piece that is cut into blocks; at most */
#endif
    IDLE_BYTES = 64 << 10, /* smaller blocks go back at the end of a window alone */
    ALWAYS_HELD = 32 << 20,
    BESIDE = 1 << 10 /* about what a block of a graph costs beside its bytes: header and records */
};

static const char *const kind_names[MS_MEM_KINDS] = {"parameter",  "gradient", "optimizer",
                                                     "activation", "arena",    "scratch"};

typedef struct block {
    struct block *next; /* in the free list */
    int64_t nbytes;     /* asked for; -1 while free */
    int64_t capacity;   /* of the class, without the header */
    int32_t size_class;
    int32_t kind;
    struct heap *heap;
    int64_t released;    /* stats.n_allocs at that time */
    struct block *first; /* of the piece it was cut from: itself where it came alone */
    int32_t n_blocks;    /* the first: of the piece */
    int32_t n_free;      /* the first: while a list is searched, and once the heap is closed */
} block;

_Static_assert(BATCH_BYTES <= IDLE_BYTES, "a larger block is a piece of its own");
_Static_assert(sizeof(block) <= HEADER, "the header must fit in front of an aligned block");

typedef struct class_list {
    block *free;    /* last released first */
    int64_t n_held; /* blocks, free or not */
    bool gave_back; /* blocks went back at the end of a window, and none was missed since */
} class_list;

typedef struct heap {
    class_list classes[N_CLASSES];
    ms_memory_stats stats;
    int64_t window;                   /* allocations; at least */
    int64_t window_began, window_end; /* in stats.n_allocs */
    bool missed;                      /* this window needed what one before it gave back */
    int64_t in_use;                   /* bytes of blocks that are not free, headers included */
    int64_t most, most_before;        /* in use at once: in this window, in the one before it */
    int64_t fail_in;                  /* test hook: allocations until one fails; -1: never */
    int64_t n_live;
    msi_pressure pressure;
    bool closed;        /* the context is gone; the last block frees the heap */
    msi_device *device; /* whose memory it is; NULL: the host's ... */
    bool lost;          /* ... or a device's that is closed, and the memory with it */
    struct heap *host;  /* beside a device's: the host's, made when first asked for */
} heap;

static int32_t class_of(int64_t nbytes, int64_t *capacity)
{
    int64_t n = nbytes < 64 ? 64 : nbytes;
    int32_t shift = 63 - __builtin_clzll((uint64_t)n);
    int32_t step_shift = shift > 9 ? shift - 3 : 6; /* each block of a piece is aligned */
    int64_t base = (int64_t)1 << shift;
    int64_t k = (n - base + ((int64_t)1 << step_shift) - 1) >> step_shift;

    *capacity = base + (k << step_shift);
    if (*capacity == base * 2) {
        shift++;
        k = 0;
    }
    return (shift - MIN_SHIFT) * STEPS + (int32_t)k;
}

/* [Note: a device's blocks] Whoever uses a block does so in the order of one stream, so it may be
 * used again at once. What is freed holds NaN from then on, in that order, until it is written. */
static void *take_piece(heap *h, int64_t bytes)
{
    void *p = NULL;

    if (h->device == NULL) {
        return msi_system_take(bytes);
    }
    return h->device->ops->take(h->device, bytes, MSI_PLACE_DEVICE, &p) == MSI_DEV_OK ? p : NULL;
}

static void spoil(const block *b, void *data)
{
    msi_device *d = b->heap->device;

    if (d != NULL) {
        (void)d->ops->set(d, MSI_STREAM_COMPUTE, data, 0xff, b->nbytes);
    }
}

/* Give the piece that `first` begins back. */
static void give_piece(block *first)
{
    const int64_t bytes = first->capacity + HEADER;
    heap *h = first->heap;

    h->stats.reserved -= bytes * first->n_blocks;
    h->classes[first->size_class].n_held -= first->n_blocks;
    if (h->device != NULL) {
        h->device->ops->give(h->device, first, bytes, MSI_PLACE_DEVICE);
    } else if (!h->lost) {
        msi_system_give(first, bytes);
    }
}

/* How many blocks to take at once: see [Note: batches]. */
static int64_t batch_of(const class_list *c, int64_t bytes)
{
    const int64_t most = BATCH_BYTES / bytes;
    const int64_t n = c->n_held / 4 < most ? c->n_held / 4 : most;

    return n > 1 ? n : 1;
}

/* A block of the class to use; those cut from the same piece are free. NULL when memory is out. */
static block *system_take_blocks(heap *h, int32_t size_class, int64_t capacity)
{
    class_list *c = &h->classes[size_class];
    const int64_t bytes = capacity + HEADER;
    int64_t n = h->device == NULL ? batch_of(c, bytes) : 1;
    block *first = n > 1 ? msi_take_touched(n * bytes) : NULL;

    if (first == NULL) {
        n = 1;
        first = take_piece(h, bytes);
    }
    if (first == NULL) {
        return NULL;
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        block *b = (block *)((char *)first + i * bytes);

        *b = (block){.next = c->free,
                     .nbytes = -1,
                     .capacity = capacity,
                     .size_class = size_class,
                     .heap = h,
                     .released = h->stats.n_allocs,
                     .first = first};
        c->free = b;
    }
    first->n_blocks = (int32_t)n;
    c->free = first->next;
    c->n_held += n;
    h->stats.reserved += bytes * n;
    h->stats.n_system++;
    h->missed = h->missed || c->gave_back;
    c->gave_back = false;
    return first;
}

/* Give back the pieces of a class whose blocks were all released by allocation `n`. */
static bool trim_class(class_list *c, int64_t n)
{
    block **end = &c->free, *gone = NULL;

    while (*end != NULL && (*end)->released > n) {
        end = &(*end)->next;
    }
    for (block *b = *end; b != NULL; b = b->next) {
        b->first->n_free++;
    }
    while (*end != NULL) {
        block *b = *end;

        if (b->first->n_free < b->first->n_blocks) {
            b->first->n_free = 0; /* and so for the piece's other blocks */
            end = &b->next;
            continue;
        }
        *end = b->next;
        if (b == b->first) {
            b->next = gone;
            gone = b;
        }
    }
    const bool some = gone != NULL;

    while (gone != NULL) {
        block *next = gone->next;

        give_piece(gone);
        gone = next;
    }
    return some;
}

/* Give back what can be. */
static void trim(heap *h)
{
    for (int32_t i = 0; i < N_CLASSES; i++) {
        trim_class(&h->classes[i], INT64_MAX);
    }
}

typedef struct free_blocks {
    int64_t n;
    int64_t bytes;
    int64_t old_bytes; /* of those that were released by the allocation asked about */
} free_blocks;

/* ... by allocation `n`. */
static free_blocks count_free(const heap *h, int64_t n)
{
    free_blocks f = {0};

    for (int32_t i = 0; i < N_CLASSES; i++) {
        for (const block *b = h->classes[i].free; b != NULL; b = b->next) {
            const int64_t bytes = b->capacity + HEADER;

            f.n++;
            f.bytes += bytes;
            f.old_bytes += b->released <= n ? bytes : 0;
        }
    }
    return f;
}

/* See [Note: what stays cached]. What lay free since the window began, it did without. */
static void end_window(heap *h)
{
    const free_blocks f = count_free(h, h->window_began);

    if (f.old_bytes > h->stats.reserved / 2) {
        for (int32_t i = 0; i < N_CLASSES; i++) {
            h->classes[i].gave_back |= trim_class(&h->classes[i], h->window_began);
        }
    }
    if (h->missed && h->window < LAST_WINDOW) {
        h->window *= 2;
    }
    h->missed = false;
    h->most_before = h->most;
    h->most = h->in_use;
    h->window_began = h->stats.n_allocs;
    h->window_end = h->window_began + (h->window > f.n ? h->window : f.n);
}

static void turn_list(class_list *c)
{
    block *turned = NULL;

    while (c->free != NULL) {
        block *b = c->free;

        c->free = b->next;
        b->next = turned;
        turned = b;
    }
    c->free = turned;
}

/* The class from `from` on whose list, turned, begins with the block that was released first, or
 * NULL. */
static class_list *longest_idle(heap *h, int32_t from)
{
    class_list *found = NULL;

    for (int32_t i = from; i < N_CLASSES; i++) {
        class_list *c = &h->classes[i];

        if (c->free != NULL && (found == NULL || c->free->released < found->free->released)) {
            found = c;
        }
    }
    return found;
}

/* Give back at least so many bytes of larger blocks, or all of them: the longest idle. Each is a
 * piece of its own. */
static void give_idle(heap *h, int64_t bytes)
{
    int64_t capacity;
    const int32_t from = class_of(IDLE_BYTES, &capacity);
    class_list *c;

    for (int32_t i = from; i < N_CLASSES; i++) {
        turn_list(&h->classes[i]);
    }
    while (bytes > 0 && (c = longest_idle(h, from)) != NULL) {
        block *b = c->free;

        c->free = b->next;
        bytes -= b->capacity + HEADER;
        give_piece(b);
    }
    for (int32_t i = from; i < N_CLASSES; i++) {
        turn_list(&h->classes[i]);
    }
}

/* Before a block of so many bytes is taken: see [Note: how much is held]. */
static void keep_within(heap *h, int64_t bytes)
{
    const int64_t most = h->most > h->most_before ? h->most : h->most_before;
    const int64_t limit = 2 * most + ALWAYS_HELD;
    const int64_t excess = h->stats.reserved + bytes - limit;

    if (excess > 0 && bytes > IDLE_BYTES && h->stats.reserved > h->in_use) {
        give_idle(h, excess + limit / 8); /* so that the next few need not look */
    }
}

/* The last block that outlives the context frees the heap. */
static void close_heap(heap *h)
{
    trim(h);
    for (int32_t i = 0; i < N_CLASSES; i++) {
        for (block *b = h->classes[i].free; b != NULL; b = b->next) {
            b->first->n_free++;
        }
    }
    h->closed = true;
    h->lost = h->device != NULL;
    h->device = NULL;
    if (h->n_live == 0) {
        free(h);
    }
}

static void close_room(void *state)
{
    heap *h = state;

    if (h->host != NULL) {
        close_heap(h->host);
    }
    close_heap(h);
}

static heap *heap_new(void)
{
    heap *h = calloc(1, sizeof(*h));

    if (h != NULL) {
        h->fail_in = -1;
        h->window = h->window_end = FIRST_WINDOW;
        msi_pressure_init(&h->pressure);
    }
    return h;
}

static void count(heap *h, int64_t nbytes, int32_t kind)
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

static ms_status out_of_memory(heap *h, int64_t nbytes, int32_t kind)
{
    char bound[MSI_BOUND_TEXT];

    return MS_FAIL(MS_OUT_OF_MEMORY,
                   "no memory for %lld bytes of %s (live: %lld bytes, of which activations %lld; "
                   "held from the system: %lld)%s",
                   (long long)nbytes, kind_names[kind], h ? (long long)h->stats.live_total : 0,
                   h ? (long long)h->stats.live[MS_MEM_ACTIVATION] : 0,
                   h ? (long long)h->stats.reserved : 0,
                   msi_bound_text(msi_own_space_left(), bound, sizeof(bound)));
}

/* The context's first memory opens its device, which asks this heap whether there is room. */
static ms_status room_new(ms_context *ctx, heap **out)
{
    heap *h = heap_new();

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
    h->device = ctx->device;
    *out = h;
    return MS_OK;
}

/* `ctx` NULL: memory was out when it was asked for, which is its error. */
static ms_status heap_get(ms_context *ctx, heap **h)
{
    *h = ctx != NULL ? ctx->room[MSI_ROOM_BACKEND] : NULL;
    if (MSI_LIKELY(*h != NULL)) {
        return MS_OK;
    }
    return ctx != NULL ? room_new(ctx, h) : MS_OUT_OF_MEMORY;
}

/* NULL: none can be made. */
static heap *heap_of(ms_context *ctx)
{
    heap *h;

    return heap_get(ctx, &h) == MS_OK ? h : NULL;
}

/* Is this the allocation that a test wants to fail? */
static bool fails_on_demand(heap *h)
{
    return h->fail_in >= 0 && h->fail_in-- == 0;
}

static ms_status take(heap *h, int64_t nbytes, int32_t kind, void **out)
{
    int64_t capacity;

    if (nbytes < 0 || nbytes > (int64_t)1 << 46 || fails_on_demand(h)) {
        return out_of_memory(h, nbytes, kind);
    }
    if (MSI_UNLIKELY(h->stats.n_allocs >= h->window_end)) {
        end_window(h);
    }
    int32_t size_class = class_of(nbytes, &capacity);
    class_list *c = &h->classes[size_class];
    block *b = c->free;

    if (MSI_LIKELY(b != NULL)) {
        c->free = b->next;
    } else {
        keep_within(h, capacity + HEADER);
        b = system_take_blocks(h, size_class, capacity);
        if (b == NULL) {
            trim(h);
            b = system_take_blocks(h, size_class, capacity);
        }
        if (b == NULL) {
            return out_of_memory(h, nbytes, kind);
        }
    }
    b->nbytes = nbytes;
    b->kind = kind;
    h->stats.n_allocs++;
    h->n_live++;
    h->in_use += capacity + HEADER;
    h->most = h->in_use > h->most ? h->in_use : h->most;
    count(h, nbytes, kind);
    *out = (char *)b + HEADER;
    return MS_OK;
}

ms_status msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, void **out)
{
    heap *h;

    *out = NULL;
    MS_TRY(heap_get(ctx, &h));
    return take(h, nbytes, kind, out);
}

ms_status msi_host_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, void **out)
{
    heap *h;

    *out = NULL;
    MS_TRY(heap_get(ctx, &h));
    if (h->device != NULL) {
        h->host = h->host != NULL ? h->host : heap_new();
        h = h->host;
    }
    return h != NULL ? take(h, nbytes, kind, out) : out_of_memory(NULL, nbytes, kind);
}

void msi_release(ms_context *ctx, void *data)
{
    if (data == NULL) {
        return;
    }
    block *b = (block *)((char *)data - HEADER);
    heap *h = b->heap;

    spoil(b, data);
    count(h, -b->nbytes, b->kind);
    h->n_live--;
    h->in_use -= b->capacity + HEADER;
    b->nbytes = -1;
    if (MSI_UNLIKELY(h->closed)) {
        if (++b->first->n_free == b->first->n_blocks) {
            give_piece(b->first);
        }
        if (h->n_live == 0) {
            free(h);
        }
        return;
    }
    class_list *c = &h->classes[b->size_class];

    b->next = c->free;
    c->free = b;
    b->released = h->stats.n_allocs;
}

ms_status msi_alloc_probe(ms_context *ctx, int64_t nbytes, const char *what)
{
    heap *h = heap_of(ctx);
    bool fits = h != NULL && !fails_on_demand(h);
    char bound[MSI_BOUND_TEXT];

    if (fits && !msi_system_has(nbytes)) {
        trim(h);
        fits = msi_system_has(nbytes);
    }
    return fits
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY,
                         "no memory for %s, which takes up to %lld KiB of address space (held from "
                         "the system for tensors: %lld bytes)%s",
                         what, (long long)nbytes / 1024, h ? (long long)h->stats.reserved : 0,
                         msi_bound_text(msi_own_space_left(), bound, sizeof(bound)));
}

void msi_alloc_set_kind(ms_context *ctx, void *data, int32_t kind)
{
    block *b = (block *)((char *)data - HEADER);

    count(b->heap, -b->nbytes, b->kind);
    b->kind = kind;
    count(b->heap, b->nbytes, kind);
}

void msi_count_external(ms_context *ctx, int64_t nbytes, int32_t kind)
{
    heap *h = heap_of(ctx);

    if (h != NULL) {
        count(h, nbytes, kind);
    }
}

void msi_alloc_fail_at(ms_context *ctx, int64_t k)
{
    heap *h = heap_of(ctx);

    if (h != NULL) {
        h->fail_in = k;
    }
}

void msi_memory_stats(ms_context *ctx, ms_memory_stats *stats)
{
    heap *h = heap_of(ctx);

    if (h != NULL) {
        *stats = h->stats;
        stats->cached = count_free(h, INT64_MAX).bytes;
    } else {
        memset(stats, 0, sizeof(*stats));
    }
}

void ms_memory_reset_peak(void)
{
    ms_context *ctx = msi_context();
    heap *h = heap_of(ctx);

    if (h != NULL) {
        memcpy(h->stats.peak, h->stats.live, sizeof(h->stats.peak));
        h->stats.peak_total = h->stats.live_total;
    }
}

void msi_alloc_trim(ms_context *ctx)
{
    heap *h = heap_of(ctx);

    if (h != NULL) {
        trim(h);
    }
}

/* -- what a collector of the host might free --------------------------------------------------- */

static int64_t held(const heap *h)
{
    return h->stats.live_total + h->n_live * BESIDE;
}

/* Bytes that may still be taken: from the system, and of what lies free here. */
static int64_t room_left(const heap *h)
{
    const ms_memory_stats *s = &h->stats;
    const int64_t all = msi_memory_left("").left, own = msi_own_space_left().left;
    const int64_t left = all < own ? all : own;
    const int64_t cached = s->reserved - (s->live_total - s->live[MS_MEM_ARENA]);

    return left > INT64_MAX - cached ? left : left + cached;
}

static heap *heap_here(void)
{
    ms_context *ctx = msi_context_peek();

    return ctx != NULL ? ctx->room[MSI_ROOM_BACKEND] : NULL;
}

/* Not inline: it needs a guarded frame, which the common way out of its caller need not pay. */
__attribute__((noinline)) static bool is_due(heap *h)
{
    return !msi_pressure_fall(&h->pressure, held(h), h->stats.live[MS_MEM_ACTIVATION]) &&
           msi_pressure_due(&h->pressure, held(h), room_left(h));
}

bool ms_memory_collect_due(void)
{
    heap *h = heap_here();

    return h != NULL && MSI_UNLIKELY(!msi_pressure_is_calm(&h->pressure, held(h))) && is_due(h);
}

void ms_memory_collected(void)
{
    heap *h = heap_here();

    if (h != NULL) {
        msi_pressure_collected(&h->pressure, held(h), h->stats.live[MS_MEM_ACTIVATION]);
    }
}
