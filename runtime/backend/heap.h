/* A context's heap: cached blocks, with exact byte counts. Shared by its files:
 *
 *   heap.c         allocating, releasing, counting, running out
 *   heap_wait.c    blocks that must not be reused before a point in a stream
 *   heap_lists.c   size classes: free blocks, and the system's pieces they are cut from
 *   heap_chunks.c  requests to a device's system, cut into pieces
 *   heap_idle.c    returning idle memory to the system
 *   heap_due.c     statistics, and when the host should collect garbage
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

typedef struct msi_chunk msi_chunk; /* heap_chunks.c */

typedef struct msi_heap {
    ms_memory_stats stats;
    int64_t step_end;      /* in stats.n_allocs */
    int64_t collect_above; /* bytes; if more are live, a collection is due */
    bool closed;           /* context closed; the last block frees the heap */
    bool lost;             /* memory gone with the closed device */
    int64_t fail_in;       /* test hook: allocations until one fails; -1: never */
    int64_t n_live;
    msi_device *device;    /* owner of the memory; NULL: the system */
    struct msi_heap *host; /* device heap: the host heap, made on demand */
    int32_t place;         /* MSI_PLACE_* of device memory */
    int64_t chunk_bytes;   /* least request to a device's system; 0: each piece is one */
    msi_chunk *chunks;
    bool spoils; /* fill free blocks with NaN */
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

/* -- lists ------------------------------------------------------------------------------------- */

/* A piece of a chunk; NULL if memory is out. */
void *msi_chunk_take(msi_heap *h, int64_t bytes);
void msi_chunk_give(msi_heap *h, const void *p);
/* Return all chunks: the device closes. */
void msi_chunks_forget(msi_heap *h);
/* A new block of the class, from the system; others cut from its piece are free. NULL if memory is
 * out. */
msi_mem_block *msi_class_grow(msi_heap *h, msi_class *c);
/* True if pieces of free blocks may be returned, after their users have run. Not inside a running
 * item, whose later work may use them. (Free host blocks have no users.) */
bool msi_pieces_may_go(const msi_heap *h);
/* Return the piece that starts with `first`, and its records. */
void msi_piece_give(msi_mem_block *first);
/* Free a block of a closed heap; the last one returns the piece. */
void msi_piece_leave(const msi_mem_block *b);

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

/* -- waiting ----------------------------------------------------------------------------------- */

/* Free the released block when `mark` is done. */
void msi_wait_for(msi_mem_block *b, msi_mark mark);
/* Free blocks whose marks are done. */
void msi_wait_look(msi_heap *h);
/* Wait for all marks; frees all. */
void msi_wait_end(msi_heap *h);
/* The device closes after running all work: free all. */
void msi_wait_forget(msi_heap *h);

/* -- returning memory -------------------------------------------------------------------------- */

/* Return all free memory. */
void msi_heap_trim(msi_heap *h);
/* stats.n_allocs has reached step_end. */
void msi_heap_end_step(msi_heap *h);
/* The host's collector has run: current live bytes are the baseline. */
void msi_heap_collected(msi_heap *h);
/* Bytes in free blocks. */
int64_t msi_heap_cached(const msi_heap *h);

/* -- a context's ------------------------------------------------------------------------------- */

/* Made on demand; NULL if memory is out. */
msi_heap *msi_heap_of(ms_context *ctx);

#endif
