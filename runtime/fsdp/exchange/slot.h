/* Slots: memory that the ranks of a host share, in which they exchange one unit's parameters or
 * gradients at a time.
 *
 * [Note: slot protocol] A slot of parameters is one part, into which every rank casts its own
 * extents; or, in layout pull, a part for each rank, its stage, which the others copy into memory
 * of their own, and `released` says that this rank has. A slot of gradients has a part for each
 * rank. Per slot and rank there are words:
 *
 *     filled    generation whose extents, or whose gradient, this rank has put in
 *     reduced   generation of which it has reduced its chunk in place (replicas only)
 *     dropped   generation that it will not fill, or reduce, any more
 *     released  generation it is done reading
 *     schedule_hash  hash of all this rank had said when it named the generation it filled
 *
 * Slot and generation of every use follow from program order alone: of those that may be taken the
 * one that was taken longest ago is, and its generation is counted up. So ranks agree without
 * talking. Generation g is filled once released[q] >= g - 1 for every rank q, and read once
 * filled[q] >= g for every q that has said the same. (Of gradients: written and read.) No barriers.
 * What cannot be done yet is a task, and every wait runs the tasks. One that is given up, as the
 * unit is skipped, written or reset, stores `dropped` and `released`, and the slot is left alone.
 * Ranks that run one program all give it up, and nobody reads. One that does so alone leaves a
 * reader with dropped[q] >= g and filled[q] < g (or reduced[q] < g); that stays so, as q fills
 * nothing later before the reader releases g: the job ends there. (One that had filled what it
 * skips is told apart by its note.) The model in slots.pml checks that this neither deadlocks, nor
 * lets a slot change under a reader, nor lets anybody read what was not filled. */
#ifndef MSI_FSDP_SLOT_H
#define MSI_FSDP_SLOT_H

#include "comm.h"
#include "slots_plan.h"
#include "stream_dep.h"

/* What one rank says about a slot; its flags stand behind it. */
typedef struct msi_slot_word {
    _Alignas(64) _Atomic uint64_t filled;
    _Atomic uint64_t reduced;
    _Atomic uint64_t dropped;
    _Atomic uint64_t released;
    _Atomic uint64_t schedule_hash;
    _Atomic uint64_t whole; /* not 0: this rank has contributed to every parameter */
    /* What of it has come true, where a device runs things later: [Note: promises]. */
    _Alignas(64) _Atomic uint64_t has_filled;
    _Atomic uint64_t has_reduced;
    _Atomic uint64_t has_released;
} msi_slot_word;

_Static_assert(sizeof(msi_slot_word) == MSI_SLOT_WORDS, "two cache lines");

typedef struct msi_slot {
    char *words;        /* (W, word_bytes) */
    int64_t word_bytes; /* 0: there are this rank's alone, which are every rank's */
    char *ro;           /* the first part, where it is only read */
    char *own;          /* pull: this rank's full parameters; NULL: they are the first part */
    int64_t own_bytes;
    msi_mem_block *block; /* of `own` */
    int32_t number;       /* in its pool: the same on all ranks */
    uint64_t generation;  /* of the latest use, in this rank's program order */
    uint64_t seq;         /* that its latest use was named with */
    int64_t taken_at;     /* order in which it was taken last */
    msi_mark used;        /* after the last of its latest use that this rank has enqueued */
    void *holder;         /* what uses it; NULL: nothing does */
    bool ring;            /* false: a home slot */
    int32_t part_step;    /* 1; 0: there is one part, which is every rank's */
    char *part[];         /* (W or 1) */
} msi_slot;

static inline msi_slot_word *msi_slot_words_of(const msi_slot *slot, int32_t q)
{
    return (msi_slot_word *)(void *)(slot->words + q * slot->word_bytes);
}

/* A byte for each parameter: has rank q contributed to it? */
static inline bool *msi_slot_flags_of(const msi_slot *slot, int32_t q)
{
    return (bool *)(void *)(msi_slot_words_of(slot, q) + 1);
}

/* On a device another rank's may only be read. */
static inline char *msi_slot_part(const msi_slot *slot, int32_t q)
{
    return slot->part[q * slot->part_step];
}

/* All slots of one kind, and their memory. Zeroed: none.
 *
 * What is planned, and each slot that the ring grows by, lies in a segment of the host's: words,
 * then parts. On a device the host's holds words alone, and there is a segment of each rank's
 * device, which it alone writes, for its parts; or, where there is one part, a segment of the first
 * rank's, which all write. An owner's parts follow each other as all parts do where they lie
 * together. Words are always the host's: hosts and streams look at them. */
typedef struct msi_slot_pool {
    ms_context *ctx;
    ms_comm *comm;
    msi_slots_plan plan;   /* for all ranks: what is counted */
    msi_slots_plan mapped; /* the same; in a fake group for this rank alone */
    msi_segment *segments;
    msi_slot **slots;
    int32_t n_segments, n_slots;
    int64_t nbytes;  /* of all segments, as planned */
    int64_t n_taken; /* so far */
} msi_slot_pool;

/* Map what is planned; homes[i] is the home slot of wish i, or NULL. Collective where anything is.
 * After an error the pool is empty. In a fake group the wishes move to where one rank's parts lie.
 */
ms_status msi_slot_pool_new(msi_slot_pool *pool, ms_context *ctx, ms_comm *comm,
                            const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n,
                            msi_slot **homes);
void msi_slot_pool_free(msi_slot_pool *pool);
/* Bytes of the arena that are counted for it. */
int64_t msi_slot_pool_bytes(const msi_slot_pool *pool);
/* Of the ring's slots that may be taken the one that was taken longest ago, or NULL. Not the one
 * that became free first: what a slot becomes free by, in the middle of a backward or at its end,
 * may differ between ranks whose graphs do. What they take is compared, so they take it in one
 * order. */
msi_slot *msi_slot_oldest(const msi_slot_pool *pool, bool (*may)(const msi_slot *slot));
/* More slots are held at once than the ring was made for (deep nesting): it grows by one, on all
 * ranks at the same point of the program. */
ms_status msi_slot_grow(msi_slot_pool *pool, msi_slot **slot);
/* The next generation is `holder`'s. */
void msi_slot_take(msi_slot_pool *pool, msi_slot *slot, void *holder);
/* Has every rank read all generations before this one? */
bool msi_slot_is_read(const msi_slot *slot, int32_t world);
/* What a rank does with a generation. */
typedef enum msi_slot_event { MSI_SLOT_FILLED, MSI_SLOT_REDUCED, MSI_SLOT_RELEASED } msi_slot_event;
/* This rank has done that with the slot's, in the order of `stream`: tell the peers. Needs neither
 * memory nor peers. */
void msi_slot_publish(const msi_slot_pool *pool, msi_slot *slot, int32_t stream,
                      msi_slot_event what);
/* `stream` goes on once all other ranks have done that with `generation`, as all have said. */
ms_status msi_slot_await(const msi_slot_pool *pool, const msi_slot *slot, msi_stream_dep order,
                         int32_t stream, msi_slot_event what, uint64_t generation);
/* Has rank q done that with this one, and had said the same when it named it? */
bool msi_slot_has(const msi_slot *slot, int32_t q, msi_slot_event what, uint64_t schedule_hash);
/* Will it not? */
bool msi_slot_has_dropped(const msi_slot *slot, int32_t q, msi_slot_event what);
/* The first rank that will not, or -1. */
int32_t msi_slot_dropped_by(const msi_slot *slot, int32_t world, msi_slot_event what);

#endif
