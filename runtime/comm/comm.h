/* Groups and the words they wait on: the inside of moonshard/comm.h.
 *
 * Every member has a ring of records (what it is doing, by sequence) in memory that all share, and
 * in its job a doorbell that it sleeps on. Whoever changes a word that peers may wait for calls
 * msi_comm_ring(). Only C11 atomics, no fences, so ThreadSanitizer understands it. */
#ifndef MSI_COMM_H
#define MSI_COMM_H

#include "moonshard/comm.h"
#include "note.h"
#include "tensor.h"

#include <stdatomic.h>

/* What a rank says before it moves data. Equal on all ranks at equal sequence numbers, or the job
 * ends with an error that names both. */
typedef struct msi_fingerprint {
    uint32_t kind; /* MSI_COLL_* */
    int16_t dtype; /* MS_DTYPE_* or -1 */
    int16_t ndim;  /* of `shape`; -1: of no tensor */
    int64_t count; /* elements, or bytes without a dtype */
    int32_t slot;  /* -1: none */
    union {
        int32_t root;  /* of a broadcast, in the job; the reduction of those that reduce */
        int32_t model; /* of the others: see msi_comm_count_model() */
    };
    union {
        uint64_t generation; /* of the slot */
        uint64_t forward;    /* of a tensor's: sequence of what it is the backward of; 0: none */
    };
    uint64_t noted; /* hash of all notes before; msi_comm_publish() fills it in */
    union {
        msi_label name; /* of the unit, or of what the script has called; zeros: none */
        int64_t shape[MS_MAX_DIMS];
    };
} msi_fingerprint;

enum {
    MSI_COLL_NONE = 0,
    MSI_COLL_ALL_GATHER,
    MSI_COLL_REDUCE_SCATTER,
    MSI_COLL_ALL_REDUCE,
    MSI_COLL_BROADCAST,
    MSI_COLL_BARRIER,
    MSI_COLL_UNSHARD,     /* slot protocol, counted as all-gather */
    MSI_COLL_REDUCE_UNIT, /* slot protocol, counted as reduce-scatter */
    MSI_COLL_REDUCE_FULL, /* slot protocol of NO_SHARD, counted as all-reduce */
    MSI_COLL_SEGMENT,     /* making a shared segment */
    MSI_COLL_RESET,       /* nothing moves: a rank gave up what it had named */
    MSI_COLL_KINDS
};

enum { MSI_OWNER_ALL = -1 };

/* Memory all ranks of a group on this host share: the host's, or a device's. */
typedef struct msi_segment {
    char *rw; /* writable map; NULL: another member alone writes */
    char *ro; /* read-only map of the same bytes (equal to rw for who alone writes) */
    int64_t nbytes;
    int32_t fd; /* -1: private memory, or another thread's; a device's, once all have mapped it */
    ms_comm *comm;
    struct msi_shared_map *shared; /* ranks as threads: the maps they share */
    struct msi_device *device;     /* this rank's, through which it is mapped; NULL: the host's */
    int32_t owner;                 /* of a device's memory: a member, or MSI_OWNER_ALL */
    bool unshared;                 /* the device's, for a group without peers */
} msi_segment;

/* The rank in the job of member q: what people know a rank by. Of a fake group q itself. */
int32_t msi_comm_rank_in_job(const ms_comm *comm, int32_t q);
/* A number that all groups of a job have in common, and those of other jobs have not. */
uint64_t msi_comm_job_number(const ms_comm *comm);
/* The least of its members' ranks in the job: groups side by side have different ones. */
int32_t msi_comm_first_in_job(const ms_comm *comm);
/* Publish the next operation of the schedule; gives its sequence number. Never waits. */
ms_status msi_comm_publish(ms_comm *comm, const msi_fingerprint *fp, uint64_t *seq);
/* The number that the next operation gets. */
uint64_t msi_comm_next(const ms_comm *comm);
/* Hash of all that this rank has published: what ranks that say the same have in common. */
uint64_t msi_comm_schedule_hash(const ms_comm *comm);
/* Say something that every rank should say here: compared with the group's next collective, which
 * fails on all ranks and names the first note that differs. Never waits; nothing without peers. */
void msi_comm_note(ms_comm *comm, const msi_note *note);
/* Wait until `ready(user)` is true. Fails with MS_COMM_ERROR when a rank died, aborted, left before
 * `seq`, or said something else than this rank up to now; the message names this operation. What is
 * ready when asked is never failed for a later death. `ready` must only load atomics. */
ms_status msi_comm_wait(ms_comm *comm, uint64_t seq, bool (*ready)(void *user), void *user);
/* The context's device waits for what peers have promised. MS_COMM_ERROR: they are gone, or do not
 * do what this rank does. */
ms_status msi_groups_check(ms_context *ctx, int64_t waited_ns);
/* This rank's device has failed at what its peers did, too, and went on: they are told. The error
 * that is set stays. */
void msi_groups_failed(ms_context *ctx);
/* exit.c: what this rank's device was given has run, and the rank is about to go. What was wrong
 * with it, and nobody was told, fails the job; peers may have gone on, and nobody asks again. */
ms_status msi_end_work(ms_context *ctx);
/* The same when this thread, without having closed, ends the process by exit(0), which that makes
 * exit(1), before anything that exit() calls. By another code what has not run never runs. */
void msi_exit_watch(void);
/* Member q, perhaps after a failure of its own, does not finish what all named at `seq` and this
 * rank needs: the job ends, unless it has. MS_COMM_ERROR. */
ms_status msi_comm_dropped(ms_comm *comm, uint64_t seq, int32_t q);
/* True when `comm` is broken (cheap; for try paths). */
bool msi_comm_broken(ms_comm *comm);
/* Wake peers that may wait for words this rank just stored (by seq_cst stores: see wait.c). */
void msi_comm_ring(ms_comm *comm);

/* Make a segment of `nbytes` (equal on all ranks), zeroed, pages reserved. Collective. An error,
 * not a SIGBUS, when memory is short. */
ms_status msi_segment_new(msi_segment *out, ms_comm *comm, int64_t nbytes);
/* The same in memory of the members' devices, of any content. Member `owner`'s takes it, and that
 * member alone writes there; MSI_OWNER_ALL: the first one's takes it, and all write.
 * @param device  of the calling context, which is closed later than the segment is freed */
ms_status msi_segment_new_on(msi_segment *out, ms_comm *comm, struct msi_device *device,
                             int32_t owner, int64_t nbytes);
/* Unmap. Not collective; safe after the group broke. What this rank has enqueued for a device's
 * memory has run. */
void msi_segment_free(msi_segment *s);

/* Collectives on contiguous views (moonshard/comm.h says which elements go where; collective/
 * checks them): named, and done on return. What is written counts its version up. The smaller of
 * two views may be this rank's part of the other. `forward`: the sequence number of the collective
 * whose backward this is, which no other is taken for; 0: of none. */
ms_status msi_comm_all_gather(ms_comm *comm, const msi_view *out, const msi_view *in,
                              uint64_t forward);
ms_status msi_comm_reduce_scatter(ms_comm *comm, const msi_view *out, const msi_view *in,
                                  int32_t reduce, uint64_t forward);
ms_status msi_comm_all_reduce(ms_comm *comm, const msi_view *v, int32_t reduce, uint64_t forward);
ms_status msi_comm_broadcast(ms_comm *comm, const msi_view *v, int32_t root);
/* All-gather of raw bytes: small host data, through the control block's staging area.
 * @param what  the operation as scripts know it, which errors name: "clip_grad_norm_" */
ms_status msi_comm_gather_bytes(ms_comm *comm, const char *what, const void *in, int64_t nbytes,
                                void *out);
/* The same for what has a name of its own, "state_dict of unit 'h.0'", and is of a model. */
ms_status msi_comm_gather_named(ms_comm *comm, const msi_label *what, int32_t model, const void *in,
                                int64_t nbytes, void *out);
/* The number, from 1, of one more model that the ranks of the group share. All ask for it at one
 * place of the program, so it stands for the same model everywhere, and what is said of a model
 * (0: of none) tells it from others with equal names. Texts name it from 2 on. */
int32_t msi_comm_count_model(ms_comm *comm);
/* Count an operation of `kind` for ms_comm_counts(). */
void msi_comm_count(ms_comm *comm, uint32_t kind);

#endif
