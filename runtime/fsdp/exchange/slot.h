/* Slots: memory shared by the ranks of a host, for exchanging one unit's parameters or gradients at
 * a time.
 *
 * [Note: slot protocol] A slot of parameters has one part, into which every rank casts its own
 * extents; in layout pull it has one part per rank (its stage), which the others copy to private
 * memory before `released`. A slot of gradients has one part per rank. Words per slot and rank:
 *
 *     filled         generation whose extents or gradient this rank has written
 *     rooted         generation whose roots it has sent to other hosts (several hosts only)
 *     reduced        generation whose chunk it has reduced in place (replicas only)
 *     dropped        generation that it will not fill, or not reduce
 *     released       generation it has finished reading
 *     schedule_hash  hash of all notes and fingerprints of this rank when it committed `filled`
 *
 * Slot and generation of a use follow from program order alone: the allowed slot that was taken
 * longest ago, and its next generation. So ranks agree without messages. Generation g is filled
 * once released[q] >= g - 1 for every rank q, and read once filled[q] >= g for every q with an
 * equal hash. (Gradients: written, and read.) There are no barriers. Steps that must wait are
 * tasks, and every wait runs the tasks.
 *
 * A task that is dropped, because its unit is skipped, written or reset, stores `dropped` and
 * `released` and leaves the slot alone. Ranks of one program all drop it, and nobody reads. If one
 * drops it alone, a reader sees dropped[q] >= g and filled[q] < g (or reduced[q] < g). That is
 * stable, since q fills nothing later before the reader releases g: the reader ends the job. (A
 * rank that skips what it had filled is found by its note.)
 *
 * In layout nccl a slot has no parts: parameters and gradients are in private memory, and the
 * devices' communicator moves them in program order, when a use is committed. `filled` and
 * `released` are promises of the hosts alone; no stream awaits them.
 *
 * The model tests/model/slots.pml checks that there is no deadlock, no slot changes under a reader,
 * and nobody reads an unfilled slot. */
#ifndef MSI_FSDP_SLOT_H
#define MSI_FSDP_SLOT_H

#include "comm.h"
#include "device_comm.h"
#include "progress.h"
#include "slots_plan.h"
#include "stream_dep.h"

/* One rank's state of a slot, followed by its flags. */
typedef struct msi_slot_word {
    _Alignas(64) _Atomic uint64_t filled;
    _Atomic uint64_t reduced;
    _Atomic uint64_t dropped;
    _Atomic uint64_t released;
    _Atomic uint64_t schedule_hash;
    _Atomic uint64_t whole; /* not 0: this rank contributed to every parameter */
    _Atomic uint64_t rooted;
    /* The completed part of it, on a device that runs work later: [Note: promises]. */
    _Alignas(64) _Atomic uint64_t has_filled;
    _Atomic uint64_t has_reduced;
    _Atomic uint64_t has_released;
} msi_slot_word;

_Static_assert(sizeof(msi_slot_word) == MSI_SLOT_WORDS, "two cache lines");

typedef struct msi_slot {
    char *words;        /* (W, word_bytes) */
    int64_t word_bytes; /* 0: one entry, used for every rank */
    char *ro;           /* read-only mapping of the first part */
    char *own;          /* pull, nccl: private memory; NULL: none */
    int64_t own_bytes;
    msi_mem_block *block; /* of `own` */
    int32_t number;       /* in its pool, equal on all ranks */
    uint64_t generation;  /* of the latest use, in this rank's program order */
    uint64_t seq;         /* sequence of its latest use */
    int64_t taken_at;     /* counter for the order of takes */
    msi_mark used;        /* after this rank's last enqueued access */
    void *holder;         /* current user, or NULL */
    bool ring;            /* false: a home slot */
    int32_t n_parts;      /* 1: for every rank; else one for each rank of a host */
    char *part[];         /* (n_parts); nccl: `own` */
} msi_slot;

static inline msi_slot_word *msi_slot_words_of(const msi_slot *slot, int32_t q)
{
    return (msi_slot_word *)(void *)(slot->words + q * slot->word_bytes);
}

/* One byte per parameter: true if rank q contributed to it. */
static inline bool *msi_slot_flags_of(const msi_slot *slot, int32_t q)
{
    return (bool *)(void *)(msi_slot_words_of(slot, q) + 1);
}

/* On a device, other ranks' parts are read-only. For a rank of another host: that of the rank in
 * its place on this one. */
static inline char *msi_slot_part(const msi_slot *slot, int32_t q)
{
    return slot->part[q % slot->n_parts];
}

/* All slots of one kind, and their memory. Zeroed: none.
 *
 * The planned slots, and each slot that the ring grows by, are in one host segment: words, then
 * parts. On a device the host segment has only words. The parts of each rank are in a segment of
 * its device, which only it writes; a single part is in the first rank's segment, which all write.
 * One owner's parts are laid out as all parts are in a host segment. */
typedef struct msi_slot_pool {
    ms_context *ctx;
    ms_comm *comm;
    msi_slots_plan plan;      /* for all ranks, as counted */
    msi_slots_plan mapped;    /* the same; in a fake group, for this rank alone */
    msi_device_comm *devices; /* of layout nccl; NULL in a fake group */
    int32_t *shard_of;        /* (W) gradients that are sent: which shard rank q owns */
    bool sums_in_order;       /* likewise */
    msi_segment *segments;
    msi_slot **slots;
    int32_t n_segments, n_slots;
    int64_t nbytes;  /* of all segments, as planned */
    int64_t n_taken; /* so far */
} msi_slot_pool;

/* Map the planned slots; homes[i] is wish i's home slot, or NULL. Collective if any is mapped.
 * After an error the pool is empty. In a fake group the wishes move to one rank's offsets. */
ms_status msi_slot_pool_new(msi_slot_pool *pool, ms_context *ctx, ms_comm *comm,
                            const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n,
                            msi_slot **homes);
void msi_slot_pool_free(msi_slot_pool *pool);
/* Layout nccl: open the communicator. Several hosts: exchange the ranks' shards. `shard_rank`: of
 * this rank; -1: for parameters. Collective. */
ms_status msi_slot_pool_connect(msi_slot_pool *pool, int32_t shard_rank);
/* Hosts that have copies of the slots' data; 1 in layout nccl, where devices exchange it. */
int32_t msi_slot_hosts(const msi_slot_pool *pool);
/* Layout nccl, gradients: they are summed in the order of the tree (MS_NCCL_DETERMINISTIC). */
bool msi_slots_sum_in_order(void);
/* Layout nccl: wait until the communicator's last call, of operation `seq`, is complete. Runs
 * tasks.
 */
ms_status msi_slot_pool_complete(const msi_slot_pool *pool, msi_progress *progress, uint64_t seq);
/* Bytes counted as arena. */
int64_t msi_slot_pool_bytes(const msi_slot_pool *pool);
/* The allowed ring slot that was taken longest ago, or NULL. Not the one freed first: the time of
 * freeing may differ between ranks with different graphs, and all must take slots in one order. */
msi_slot *msi_slot_oldest(const msi_slot_pool *pool, bool (*may)(const msi_slot *slot));
/* All ring slots are in use (deep nesting): add one, on all ranks at the same point of the program.
 */
ms_status msi_slot_grow(msi_slot_pool *pool, msi_slot **slot);
/* Begin the next generation for `holder`. */
void msi_slot_take(msi_slot_pool *pool, msi_slot *slot, void *holder);
/* True if every rank has released all earlier generations. */
bool msi_slot_is_read(const msi_slot *slot, int32_t world);
/* What a rank does with a generation. */
typedef enum msi_slot_event {
    MSI_SLOT_FILLED,
    MSI_SLOT_ROOTED,
    MSI_SLOT_REDUCED,
    MSI_SLOT_RELEASED
} msi_slot_event;
/* This rank drops the generation. */
void msi_slot_drop(const msi_slot_pool *pool, msi_slot *slot);
/* Publish that this rank has done `what`, in the order of `stream`. Needs neither memory nor peers.
 */
void msi_slot_publish(const msi_slot_pool *pool, msi_slot *slot, int32_t stream,
                      msi_slot_event what);
/* `stream` waits until all other ranks have done `what` with `generation`, as published. */
ms_status msi_slot_await(const msi_slot_pool *pool, const msi_slot *slot, msi_stream_dep order,
                         int32_t stream, msi_slot_event what, uint64_t generation);
/* True if rank q did `what` with the current generation, with this hash. */
bool msi_slot_has(const msi_slot *slot, int32_t q, msi_slot_event what, uint64_t schedule_hash);
/* It never will. */
bool msi_slot_has_dropped(const msi_slot *slot, int32_t q, msi_slot_event what);
/* The first rank that never will, or -1. */
int32_t msi_slot_dropped_by(const msi_slot *slot, int32_t world, msi_slot_event what);

#endif
