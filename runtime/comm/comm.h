/* Groups and the words they wait on: the private part of moonshard/comm.h.
 *
 * Every member has a ring of records (its operations, by sequence) in shared memory, and a wakeups
 * in its job to sleep on. A rank that changes a word that peers may wait for calls msi_comm_ring().
 * Uses C11 atomics without fences, as ThreadSanitizer requires. */
#ifndef MSI_COMM_H
#define MSI_COMM_H

#include "moonshard/comm.h"
#include "note.h"
#include "tensor.h"

#include <stdatomic.h>

struct msi_device_comm;

/* What a rank announces before it moves data. If ranks differ at a sequence number, the job ends
 * with an error that gives both. */
typedef struct msi_fingerprint {
    uint32_t kind; /* MSI_COLL_* */
    int16_t dtype; /* MS_DTYPE_* or -1 */
    int16_t ndim;  /* of `shape`; -1: no tensor */
    int64_t count; /* elements, or bytes without a dtype */
    int32_t slot;  /* -1: none; MSI_SLOT_DEVICES */
    union {
        int32_t root;  /* broadcast, scatter, gather: root in the job; reductions: MS_REDUCE_*;
                          reduce: both, see msi_reduce_root() */
        int32_t model; /* others: see msi_comm_count_model() */
    };
    union {
        uint64_t generation; /* of the slot */
        uint64_t forward;    /* tensors: sequence of the forward collective; 0: none */
    };
    uint64_t noted; /* hash of all earlier notes; set by msi_comm_publish() */
    union {
        msi_label name; /* of the unit or the script's call; zeros: none */
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
    MSI_COLL_RESET,       /* no data: a rank drops what it committed */
    MSI_COLL_SCATTER,
    MSI_COLL_GATHER,
    MSI_COLL_REDUCE,
    MSI_COLL_ALL_TO_ALL,
    MSI_COLL_KINDS
};

/* Root and reduction in one number. */
static inline int32_t msi_reduce_root(int32_t root, int32_t reduce)
{
    return root * 4 + reduce;
}

enum { MSI_OWNER_ALL = -1 };
enum { MSI_SLOT_DEVICES = -2 }; /* a tensor that moves between devices */

/* The hosts of a group's members. */
typedef struct msi_hosts {
    int32_t n, own;   /* number, and this member's */
    int32_t leader;   /* first member of this host */
    int32_t per_host; /* members of each, in a row; 0: not equal on all */
} msi_hosts;

/* Memory shared by all ranks of a group on this host: the host's, or a device's. */
typedef struct msi_segment {
    char *rw; /* writable map; NULL: only another member writes */
    char *ro; /* read-only map of the same bytes (rw if this rank alone writes) */
    int64_t nbytes;
    int32_t fd; /* -1: private, another thread's, or a device's after mapping */
    ms_comm *comm;
    uint64_t region;               /* its number between hosts, */
    struct msi_mirror *mirror;     /* which sends to them; NULL: one host */
    struct msi_shared_map *shared; /* ranks as threads: shared maps */
    struct msi_device *device;     /* this rank's, which maps it; NULL: host memory */
    int32_t owner;                 /* of device memory: a member, or MSI_OWNER_ALL */
    bool unshared;                 /* device memory of a group without peers */
} msi_segment;

/* Rank in the job of member q, for messages. In a fake group of the job that is planned. */
int32_t msi_comm_rank_in_job(const ms_comm *comm, int32_t q);
/* Publish the next operation of the schedule; returns its sequence number. Never waits. */
ms_status msi_comm_publish(ms_comm *comm, const msi_fingerprint *fp, uint64_t *seq);
/* Sequence number of the next operation. */
uint64_t msi_comm_next(const ms_comm *comm);
/* Keep an abandoned group until msi_comm_end_use(), for a recorded collective. ms_comm_free() frees
 * it all the same. @return NULL: no memory */
void *msi_comm_use_in_graph(ms_comm *comm);
void msi_comm_end_use(void *use);
/* Hash of all that this rank has published; equal on ranks that published the same. */
uint64_t msi_comm_schedule_hash(const ms_comm *comm);
/* Record a note that must be equal on all ranks. The group's next collective compares it and fails
 * on all ranks with the first difference. Never waits; does nothing without peers. */
void msi_comm_note(ms_comm *comm, const msi_note *note);
/* Wait until `ready(user)` is true; it may only load atomics. MS_COMM_ERROR, with this operation,
 * if a rank died, aborted, left before `seq`, or published something different. If `ready` is
 * already true, a later death is not an error. */
ms_status msi_comm_wait(ms_comm *comm, uint64_t seq, bool (*ready)(void *user), void *user);
/* Called while the context's device waits for peers' promises. MS_COMM_ERROR if they left or differ
 * from this rank. */
ms_status msi_groups_check(ms_context *ctx, int64_t waited_ns);
/* Report to the peers that this rank's device failed in work they also did, but continues. Keeps
 * the current error. */
void msi_groups_failed(ms_context *ctx);
/* exit.c: this rank's device has finished, and the rank is about to exit. An unreported error of
 * that work fails the job, since peers may have gone on. */
ms_status msi_end_work(ms_context *ctx);
/* The same if this thread ends the process by exit(0) without closing; an error makes it exit(1).
 * Runs before other exit handlers. With other codes pending work never runs. */
void msi_exit_watch(void);
/* Member q will not finish what all committed at `seq` and this rank needs, perhaps after a
 * failure: end the job. MS_COMM_ERROR. */
ms_status msi_comm_dropped(ms_comm *comm, uint64_t seq, int32_t q);
/* True when `comm` is broken (cheap; for try paths). */
bool msi_comm_broken(ms_comm *comm);
/* Wake peers that may wait for words just stored (by seq_cst stores: see wait.c), and send what was
 * shared to other hosts. */
void msi_comm_ring(ms_comm *comm);
/* Hosts of the members; `n` 1: shared memory reaches all. */
const msi_hosts *msi_comm_hosts(const ms_comm *comm);
/* Other hosts get copies of what this rank has written to a segment: data, which must not change
 * until their ranks have reacted to a later word, or whole words of 8 bytes. Nothing on one host.
 */
void msi_comm_share(ms_comm *comm, const void *at, int64_t nbytes);
void msi_comm_share_words(ms_comm *comm, const void *at, int64_t nbytes);
/* Member q's host gets data from `from` at the place `at` of the segment. */
void msi_comm_share_with(ms_comm *comm, int32_t q, const void *at, const void *from,
                         int64_t nbytes);

/* Make a segment of `nbytes` (equal on all ranks), zeroed, pages reserved. Collective. Lack of
 * memory is an error, not a SIGBUS. */
ms_status msi_segment_new(msi_segment *out, ms_comm *comm, int64_t nbytes);
/* The same in device memory, uninitialised. `owner` allocates it and alone writes to it;
 * MSI_OWNER_ALL: the first member allocates it and all write.
 * @param device  of the calling context, which must outlive the segment */
ms_status msi_segment_new_on(msi_segment *out, ms_comm *comm, struct msi_device *device,
                             int32_t owner, int64_t nbytes);
/* Unmap. Not collective; safe after the group broke. This rank's device work on it must have run.
 */
void msi_segment_free(msi_segment *s);

/* Collectives on contiguous views (semantics: moonshard/comm.h; checks: collective/). Published,
 * and finished on return. Increment the versions of what they write. The smaller of two views may
 * be this rank's part of the other. `forward`: sequence of the collective whose backward this is,
 * to tell them apart; 0: none. */
ms_status msi_comm_all_gather(ms_comm *comm, const msi_view *out, const msi_view *in,
                              uint64_t forward);
ms_status msi_comm_reduce_scatter(ms_comm *comm, const msi_view *out, const msi_view *in,
                                  int32_t reduce, uint64_t forward);
ms_status msi_comm_all_reduce(ms_comm *comm, const msi_view *v, int32_t reduce, uint64_t forward);
ms_status msi_comm_broadcast(ms_comm *comm, const msi_view *v, int32_t root);
/* `in` (size, n), used on `root` alone, elsewhere any view -> `out` (n) on each. */
ms_status msi_comm_scatter(ms_comm *comm, const msi_view *out, const msi_view *in, int32_t root,
                           uint64_t forward);
/* `in` (n) of each -> `out` (size, n), written on `root` alone, elsewhere any view. */
ms_status msi_comm_gather(ms_comm *comm, const msi_view *out, const msi_view *in, int32_t root,
                          uint64_t forward);
/* In place on `root`, with the bits of an all-reduce; unchanged elsewhere. */
ms_status msi_comm_reduce(ms_comm *comm, const msi_view *v, int32_t root, int32_t reduce,
                          uint64_t forward);
/* in[q] of `in` to member q, out[q] of `out` from it, one after another. Numbers of rows of `row`
 * elements; NULL: equal. MS_COMM_ERROR on all ranks if what is sent is not what is expected. */
ms_status msi_comm_all_to_all(ms_comm *comm, const msi_view *out, const msi_view *in,
                              const int64_t *out_rows, const int64_t *in_rows, int64_t row,
                              uint64_t forward);
/* All-gather of small host data, through the control block's staging area.
 * @param what  the script's operation, for errors: "clip_grad_norm_" */
ms_status msi_comm_gather_bytes(ms_comm *comm, const char *what, const void *in, int64_t nbytes,
                                void *out);
/* The same with a label, "state_dict of unit 'h.0'", and a model. */
ms_status msi_comm_gather_named(ms_comm *comm, const msi_label *what, int32_t model, const void *in,
                                int64_t nbytes, void *out);
/* The same between the members' devices: memory of the device, in order of stream COMPUTE. `in` may
 * be this rank's part of `out`. Waits for peers at the first call alone. */
ms_status msi_comm_gather_devices(ms_comm *comm, const msi_label *what, int32_t model,
                                  const void *in, int64_t nbytes, void *out);
/* The communicator of the members' devices, made on the first call: collective. NULL in a group
 * without peers. */
ms_status msi_comm_devices(ms_comm *comm, struct msi_device_comm **out);
/* True if the members' devices have separate memories. Collective at the first call. */
ms_status msi_comm_are_apart(ms_comm *comm, bool *apart);
/* Number, from 1, of the next model of this group. All ranks call it at the same place of the
 * program, so it identifies the model everywhere and separates equal names in notes (0: none).
 * Messages show it from 2 on. */
int32_t msi_comm_count_model(ms_comm *comm);
/* Add a collective of `kind` to the trace of the device that plans, with `nbytes` of this rank. */
void msi_comm_plan(const ms_comm *comm, uint32_t kind, int64_t nbytes);
/* Count an operation of `kind` for ms_comm_counts(). */
void msi_comm_count(ms_comm *comm, uint32_t kind);

#endif
