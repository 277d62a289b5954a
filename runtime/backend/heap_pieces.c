/* Pieces of memory, and the blocks cut from them.
 *
 * A device's system may stop the device at a request, so that one asks for chunk_bytes or more. A
 * piece is the smallest free range of the requests that holds it; free neighbours are joined; a
 * request without pieces is returned. Ranges are in order of requests, the last first, and of
 * addresses, and aligned to RANGE_BYTES.
 *
 * [Note: batches] A growing class of small blocks (results waiting for a garbage collector) takes
 * several at once: up to a quarter of its count, in one piece whose pages are populated by one
 * call. A piece is returned as a whole, when all its blocks are free. */
#include "heap.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANGE_BYTES = 512,
#ifdef __SANITIZE_ADDRESS__
    BATCH_BYTES = 0 /* it checks memory between pieces */
#else
    BATCH_BYTES = 64 << 10 /* maximum size of a divided piece with records */
#endif
};

_Static_assert(sizeof(msi_mem_block) == 64, "a record is a cache line");

struct msi_range {
    msi_range *next;
    char *data;
    int64_t nbytes;
    bool is_free, begins; /* a request */
};

/* Number of blocks to allocate: [Note: batches]. */
static int64_t batch_of(const msi_class *c)
{
    const int64_t most = BATCH_BYTES / (c->capacity + (int64_t)sizeof(msi_mem_block));
    const int64_t n = c->n_held / 4 < most ? c->n_held / 4 : most;

    return n > 1 ? n : 1;
}

/* -- memory of a device ------------------------------------------------------------------------ */

static bool request(msi_heap *h, int64_t nbytes)
{
    msi_range *r = malloc(sizeof(*r));
    void *p = NULL;

    if (r == NULL || h->device->ops->take(h->device, nbytes, h->place, &p) != MSI_DEV_OK) {
        free(r);
        return false;
    }
    *r = (msi_range){h->ranges, p, nbytes, true, true};
    h->ranges = r;
    h->stats.reserved += nbytes;
    h->stats.n_system++;
    return true;
}

static void *take_range(msi_heap *h, int64_t bytes)
{
    const int64_t nbytes = msi_round_up(bytes, RANGE_BYTES);
    const int64_t least = nbytes > h->chunk_bytes ? nbytes : h->chunk_bytes;
    msi_range *best = NULL;

    for (msi_range *r = h->ranges; r != NULL; r = r->next) {
        if (r->is_free && r->nbytes >= nbytes && (best == NULL || r->nbytes < best->nbytes)) {
            best = r;
        }
    }
    if (best == NULL) {
        if (!request(h, least) && (least == nbytes || !request(h, nbytes))) {
            return NULL;
        }
        best = h->ranges;
    }
    msi_range *rest = best->nbytes > nbytes ? malloc(sizeof(*rest)) : NULL;

    if (rest != NULL) { /* without memory for it the piece is larger */
        *rest = (msi_range){best->next, best->data + nbytes, best->nbytes - nbytes, true, false};
        best->next = rest;
        best->nbytes = nbytes;
    }
    best->is_free = false;
    return best->data;
}

/* Join free neighbours, and return requests that are free. */
static void return_free(msi_heap *h)
{
    for (msi_range **at = &h->ranges; *at != NULL;) {
        msi_range *r = *at, *next = r->next;
        const bool ends = next == NULL || next->begins;

        if (r->is_free && !ends && next->is_free) {
            r->nbytes += next->nbytes;
            r->next = next->next;
            free(next);
        } else if (r->is_free && r->begins && ends) {
            h->stats.reserved -= r->nbytes;
            h->device->ops->give(h->device, r->data, r->nbytes, h->place);
            *at = next;
            free(r);
        } else {
            at = &r->next;
        }
    }
}

static void give_ranges(msi_heap *h, const void *p)
{
    for (msi_range *r = h->ranges; r != NULL; r = r->next) {
        r->is_free = r->is_free || p == NULL || r->data == p;
    }
    return_free(h);
}

void msi_pieces_forget(msi_heap *h)
{
    give_ranges(h, NULL);
}

/* -- pieces ------------------------------------------------------------------------------------ */

static void *take_piece(msi_heap *h, int64_t bytes, bool is_cut)
{
    if (!h->is_of_system) {
        return take_range(h, bytes);
    }
    void *p = is_cut ? msi_take_touched(bytes) : msi_system_take(bytes);

    if (p != NULL) {
        h->stats.reserved += bytes;
        h->stats.n_system++;
    }
    return p;
}

static void give_piece(msi_heap *h, void *p, int64_t bytes)
{
    if (!h->is_of_system) {
        give_ranges(h, p);
        return;
    }
    h->stats.reserved -= bytes;
    msi_system_give(p, bytes);
}

/* Allocate a piece of `n` blocks, with records. Returns the first; the others are free. */
static msi_mem_block *take_blocks(msi_heap *h, msi_class *c, int64_t n)
{
    msi_mem_block *first = msi_take_touched(n * (int64_t)sizeof(*first));
    char *data = first != NULL ? take_piece(h, n * c->capacity, n > 1) : NULL;

    if (data == NULL) {
        free(first);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        first[i] = (msi_mem_block){.data = data + i * c->capacity,
                                   .heap = h,
                                   .list = c,
                                   .next = &first[i + 1],
                                   .first = first,
                                   .released = h->stats.n_allocs};
    }
    first->n_blocks = (int16_t)n;
    first[n - 1].next = c->free;
    c->free = first->next;
    c->n_held += n;
    return first;
}

msi_mem_block *msi_class_grow(msi_heap *h, msi_class *c)
{
    const int64_t n = h->observed ? 1 : batch_of(c);
    msi_mem_block *first = n > 1 ? take_blocks(h, c, n) : NULL;

    return first != NULL ? first : take_blocks(h, c, 1);
}

void msi_piece_give(msi_mem_block *first)
{
    msi_heap *h = first->heap;
    msi_class *c = first->list;
    const int64_t bytes = first->n_blocks * c->capacity;

    c->n_held -= first->n_blocks;
    give_piece(h, first->data, bytes);
    free(first);
}

void msi_piece_leave(const msi_mem_block *b)
{
    if (++b->first->n_free == b->first->n_blocks) {
        msi_piece_give(b->first);
    }
}

void msi_block_spoil(const msi_mem_block *b)
{
    msi_device *d = b->heap->device;

    if (b->heap->place == MSI_PLACE_PINNED) {
        memset(b->data, 0xff, (size_t)b->nbytes);
    } else {
        (void)d->ops->set(d, MSI_STREAM_COMPUTE, b->data, 0xff, b->nbytes);
    }
}
