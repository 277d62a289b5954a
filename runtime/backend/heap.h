/* A context's heap: caching memory in blocks, with exact byte counts. What its files share.
 *
 *   heap.c       taking, releasing, counting, running out
 *   heap_wait.c  blocks that are not to be used again before a point in a stream
 *   heap_lists.c size classes: free blocks, and the pieces of the system they are cut from
 *   heap_idle.c  what lies idle goes back to the system
 *   heap_due.c   figures, and when the host's garbage collector is due
 *
 * [Note: records] A block is known by its record, which lies beside its memory, not in front of it:
 * a device's memory is not the host's to write to. Records are made with the piece, a cache line
 * each. Who takes a block holds the record, so releasing it needs no search and no context.
 *
 * [Note: streams] Blocks are used in the order of stream COMPUTE, so a released block serves the
 * next request at once. A block that another stream uses too waits until that is past its mark. A
 * device's memory and the host's memory that it can reach have a heap each. A device's piece goes
 * back after its streams have drained, so none goes while an item runs. */
#ifndef MSI_HEAP_H
#define MSI_HEAP_H

#include "blocks.h"

enum {
    MSI_CLASS_STEPS = 8, /* classes per power of two */
    MSI_SMALLEST_SHIFT = 6,
    MSI_CLASSES = 42 * MSI_CLASS_STEPS
};

/* Blocks of about one size. */
typedef struct msi_class {
    msi_mem_block *free; /* last released first */
    int64_t capacity;
    int64_t n_held; /* blocks, free or not */
} msi_class;

/* Released, the oldest first. */
typedef struct msi_waiting {
    msi_mem_block *first, *last;
} msi_waiting;

typedef struct msi_heap {
    ms_memory_stats stats;
    int64_t step_end;      /* in stats.n_allocs */
    int64_t collect_above; /* bytes; when more is live, the host's collector is due */
    bool closed;           /* the context is gone; the last block frees the heap */
    bool lost;             /* the memory went with the device, which is closed */
    int64_t fail_in;       /* test hook: allocations until one fails; -1: never */
    int64_t n_live;
    msi_device *device;    /* that gives the memory; NULL: the system */
    struct msi_heap *host; /* beside a device's: the host's, made when first asked for */
    int32_t place;         /* MSI_PLACE_* of a device's */
    bool spoils;           /* what is free holds NaN */
    int64_t n_waiting;
    msi_waiting waiting[MSI_STREAMS]; /* by the stream of their marks */
    msi_class classes[MSI_CLASSES];
} msi_heap;

/* The class of blocks of so many bytes, all multiples of 64. */
static inline int32_t msi_class_of(int64_t nbytes, int64_t *capacity)
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
    return (shift - MSI_SMALLEST_SHIFT) * MSI_CLASS_STEPS + (int32_t)k;
}

/* -- lists ------------------------------------------------------------------------------------- */

/* A block of the class to use, from the system; those cut from the same piece are free. NULL when
 * memory is out. */
msi_mem_block *msi_class_grow(msi_heap *h, msi_class *c);
/* May pieces of free blocks go back, once what still uses them has run? Not where an item asks:
 * what is behind it was given them. (The host's blocks that are free nobody uses.) */
bool msi_pieces_may_go(const msi_heap *h);
/* Give the piece that `first` begins back, which may go, and the records of its blocks. */
void msi_piece_give(msi_mem_block *first);
/* A free block of a closed heap, in no list: its piece goes back with the last of its blocks. */
void msi_piece_leave(const msi_mem_block *b);

/* Fill a block with NaN: in the order of stream COMPUTE, or now where it is the host's. */
void msi_block_spoil(const msi_mem_block *b);

/* A block was released, and no stream but COMPUTE has it enqueued. */
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

/* A released block is free once `mark` is done. */
void msi_wait_for(msi_mem_block *b, msi_mark mark);
/* Free those whose marks are done. */
void msi_wait_look(msi_heap *h);
/* Wait for all marks: all are free. */
void msi_wait_end(msi_heap *h);
/* The device is about to be closed, and runs what it has first: all are free. */
void msi_wait_forget(msi_heap *h);

/* -- what goes back ---------------------------------------------------------------------------- */

/* Give back all that can be. */
void msi_heap_trim(msi_heap *h);
/* stats.n_allocs has come to step_end. */
void msi_heap_end_step(msi_heap *h);
/* The host's collector has run: all that is held now is needed. */
void msi_heap_collected(msi_heap *h);
/* Bytes in free blocks. */
int64_t msi_heap_cached(const msi_heap *h);

/* -- a context's ------------------------------------------------------------------------------- */

/* Made when first asked for; NULL: memory is out. */
msi_heap *msi_heap_of(ms_context *ctx);

#endif
