/* Pieces of system memory, and the blocks cut from them.
 *
 * [Note: batches] A growing class of small blocks (results waiting for a garbage collector) takes
 * several at once: up to a quarter of its count, in one piece whose pages are populated by one
 * call. A piece is returned as a whole, when all its blocks are free. */
#include "heap.h"

#include <stdlib.h>
#include <string.h>

enum {
#ifdef __SANITIZE_ADDRESS__
    BATCH_BYTES = 0 /* it checks memory between pieces */
#else
    BATCH_BYTES = 64 << 10 /* maximum size of a divided piece with records */
#endif
};

_Static_assert(sizeof(msi_mem_block) == 64, "a record is a cache line");

/* Number of blocks to allocate: [Note: batches]. */
static int64_t batch_of(const msi_class *c)
{
    const int64_t most = BATCH_BYTES / (c->capacity + (int64_t)sizeof(msi_mem_block));
    const int64_t n = c->n_held / 4 < most ? c->n_held / 4 : most;

    return n > 1 ? n : 1;
}

static void *take_bytes(const msi_heap *h, int64_t bytes, bool is_cut)
{
    void *p = NULL;

    if (h->device == NULL) {
        return is_cut ? msi_take_touched(bytes) : msi_system_take(bytes);
    }
    return h->device->ops->take(h->device, bytes, h->place, &p) == MSI_DEV_OK ? p : NULL;
}

static void *take_piece(msi_heap *h, int64_t bytes, bool is_cut)
{
    if (MSI_UNLIKELY(h->chunk_bytes > 0)) {
        return msi_chunk_take(h, bytes);
    }
    void *p = take_bytes(h, bytes, is_cut);

    if (p != NULL) {
        h->stats.reserved += bytes;
        h->stats.n_system++;
    }
    return p;
}

static void give_piece(msi_heap *h, void *p, int64_t bytes)
{
    if (h->chunk_bytes > 0) {
        msi_chunk_give(h, p);
        return;
    }
    h->stats.reserved -= bytes;
    if (h->device != NULL) {
        h->device->ops->give(h->device, p, bytes, h->place);
    } else if (!h->lost) {
        msi_system_give(p, bytes);
    }
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
    const int64_t n = batch_of(c);
    msi_mem_block *first = n > 1 ? take_blocks(h, c, n) : NULL;

    return first != NULL ? first : take_blocks(h, c, 1);
}

bool msi_pieces_may_go(const msi_heap *h)
{
    return h->device == NULL || h->place == MSI_PLACE_PINNED || msi_device_drain(h->device);
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
