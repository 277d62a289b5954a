/* A context's heap: cached blocks, with exact byte counts. Shared by its files:
 *
 *   heap.c         allocating, releasing, counting, running out, statistics
 *   heap_pieces.c  memory of the system or a device, and the blocks cut from it
 *   heap_idle.c    blocks that wait for a mark; returning idle memory
 *
 * [Note: records] A block's record is separate from its memory, since the host cannot write device
 * memory. Records are made with the piece, one cache line each. The block's owner has the record,
 * so a release needs neither search nor context.
 *
 * [Note: streams] Blocks are used in order of stream COMPUTE, so a released block is reused at
 * once. A block also used by another stream waits until that has passed its mark. Device memory and
 * host memory accessible to it have separate heaps. A device piece is returned after its streams
 * have drained, so never while an item runs. */
#ifndef MSI_HEAP_H
#define MSI_HEAP_H

#include "blocks.h"

enum {
    MSI_CLASS_STEPS = 8, /* classes per power of two */
    MSI_SMALLEST_SHIFT = 6,
    MSI_CLASSES = 42 * MSI_CLASS_STEPS
};

/* Blocks of one size class. */
typedef struct msi_class {
    msi_mem_block *free; /* last released first */
    int64_t capacity;
    int64_t n_held; /* blocks, free or not */
} msi_class;

/* Released blocks, oldest first. */
typedef struct msi_waiting {
    msi_mem_block *first, *last;
} msi_waiting;

typedef struct msi_range msi_range; /* heap_pieces.c */

typedef struct msi_heap {
    ms_memory_stats stats;
    int64_t step_end;      /* in stats.n_allocs */
    int64_t collect_above; /* bytes; if more are live, a collection is due */
    bool closed;           /* context closed; the last block frees the heap */
    bool is_of_system;     /* its memory; else a device's, and gone with it */
    int64_t fail_in;       /* test hook: allocations until one fails; -1: never */
    int64_t n_live;
    msi_device *device;    /* owner of the memory; NULL: the system */
    struct msi_heap *host; /* device heap: the host heap, made on demand */
    int32_t place;         /* MSI_PLACE_* of device memory */
    int64_t chunk_bytes;   /* least request to a device's system */
    msi_range *ranges;     /* of a device's memory */
    bool spoils;           /* fill free blocks with NaN */
    bool observed;         /* by its device: no block is used twice */
    int64_t n_waiting;
    msi_waiting waiting[MSI_STREAMS]; /* by the stream of their marks */
    msi_class classes[MSI_CLASSES];
} msi_heap;

/* Size class of a block; capacities are multiples of 64. */
static inline int32_t msi_class_of(int64_t nbytes, int64_t *capacity)
{
    int64_t n = nbytes < 64 ? 64 : nbytes;
    int32_t shift = 63 - __builtin_clzll((uint64_t)n);
    int32_t step_shift = shift > 9 ? shift - 3 : 6; /* aligns each block of a piece */
    int64_t base = (int64_t)1 << shift;
    int64_t k = (n - base + ((int64_t)1 << step_shift) - 1) >> step_shift;

    *capacity = base + (k << step_shift);
    if (*capacity == base * 2) {
        shift++;
        k = 0;
    }
    return (shift - MSI_SMALLEST_SHIFT) * MSI_CLASS_STEPS + (int32_t)k;
}

/* -- heap_pieces.c ----------------------------------------------------------------------------- */

/* A new block of the class; others cut from its piece are free. NULL if memory is out. */
msi_mem_block *msi_class_grow(msi_heap *h, msi_class *c);
/* Return the piece that starts with `first`, and its records. */
void msi_piece_give(msi_mem_block *first);
/* Free a block of a closed heap; the last one returns the piece. */
void msi_piece_leave(const msi_mem_block *b);
/* Return all of a device's memory: it closes. */
void msi_pieces_forget(msi_heap *h);

/* -- blocks ------------------------------------------------------------------------------------ */

/* Fill a block with NaN: in order of COMPUTE, or now for host memory. */
void msi_block_spoil(const msi_mem_block *b);

/* Free a block that only COMPUTE may still use. */
static inline void msi_block_free(msi_mem_block *b)
{
    msi_heap *h = b->heap;
    msi_class *c = b->list;

    if (MSI_UNLIKELY(h->spoils)) {
        msi_block_spoil(b);
    }
    b->next = c->free;
    c->free = b;
    b->released = h->stats.n_allocs;
}

/* -- heap_idle.c ------------------------------------------------------------------------------- */

/* Free the released block when `mark` is done. */
void msi_wait_for(msi_mem_block *b, msi_mark mark);
/* Free the blocks whose marks are done; wait for all; or all, as the device has run its work and
 * closes. */
enum { MSI_UNTIL_DONE, MSI_UNTIL_WAITED, MSI_UNTIL_CLOSED };
void msi_heap_free_waiting(msi_heap *h, int32_t until);
/* Return all free memory. */
void msi_heap_trim(msi_heap *h);
/* stats.n_allocs has reached step_end. */
void msi_heap_end_step(msi_heap *h);
/* Bytes in free blocks. */
int64_t msi_heap_cached(const msi_heap *h);

/* -- a context's ------------------------------------------------------------------------------- */

/* Made on demand; NULL if memory is out. */
msi_heap *msi_heap_of(ms_context *ctx);

#endif
