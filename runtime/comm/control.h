/* The control block all ranks of a job share, and what one rank keeps beside it.
 *
 * The block is a memfd mapped by every rank process (plain memory when ranks are threads). One word
 * decides everything that goes wrong: `abort` leaves zero once, by compare-and-swap, after the text
 * that explains it stands complete in the writer's slot; so a writer killed half-way leaves no
 * trace. Every rank writes only its own slot, members and staging; the launcher has a slot of its
 * own. */
#ifndef MSI_CONTROL_H
#define MSI_CONTROL_H

#include "bounds.h"
#include "comm.h"
#include "live.h"

#include <string.h>
#include <sys/types.h>

enum {
    MSI_MAX_RANKS = MS_MAX_RANKS, /* as many as the tree kernel takes sources */
    MSI_RING = 64,                /* fingerprints kept per rank and group */
    MSI_NOTES = 256,              /* notes kept per rank and group */
    MSI_CHUNK = 256 * 1024,       /* bytes staged at a time: two chunks stay in a core's L2 */
    MSI_TEXT = 4096,              /* a line and a traceback */
    MSI_CALL_TEXT = 384,          /* what a fingerprint says */
    MSI_OPERATION_TEXT = 176,
    MSI_MODEL_TEXT = 24,
    MSI_NOTED_TEXT = 512,       /* in what notes differ */
    MSI_FAILURE_TEXT = 640,     /* why a rank had failed */
    MSI_LONGEST_S = 1000000000, /* of a limit in seconds: no limit, in practice */
    MSI_LOOK_MS = 100,          /* how often a sleeper looks whether it waits in vain */
    MSI_AGAIN_MS = 100 /* a later stop signal is a second request: `timeout` sends one twice */
};

/* Why this process is no rank of its job any more. */
enum { MSI_GONE_NOT, MSI_GONE_LEFT, MSI_GONE_FORKED };

enum { MSI_RANK_STARTING, MSI_RANK_ALIVE, MSI_RANK_LEFT, MSI_RANK_DEAD };

enum {
    MSI_CAUSE_NONE,
    MSI_CAUSE_FAILED,   /* a rank said so */
    MSI_CAUSE_DIED,     /* its process ended */
    MSI_CAUSE_LEFT,     /* it finished while others needed it */
    MSI_CAUSE_MISMATCH, /* two ranks call different collectives */
    MSI_CAUSE_STUCK,    /* every rank waits, or a wait lasted too long */
    MSI_CAUSE_STOPPED   /* ended by a signal sent to the launcher */
};

/* One published fingerprint. Overwritten MSI_RING calls later: readers look at `seq` before and
 * after. */
typedef struct msi_record {
    _Alignas(64) _Atomic uint64_t seq;
    _Atomic uint64_t hash; /* of the schedule up to and including this one */
    _Atomic uint64_t word[sizeof(msi_fingerprint) / 8];
} msi_record;

/* One note, and the hash of all up to and including it. Overwritten MSI_NOTES notes later. */
typedef struct msi_note_record {
    _Alignas(64) _Atomic uint64_t n; /* of this note, from 1 */
    _Atomic uint64_t hash;
    _Atomic uint64_t word[sizeof(msi_note) / 8];
} msi_note_record;

/* A rank's part in a group. */
typedef struct msi_member {
    _Alignas(64) _Atomic uint64_t published; /* sequence number of the latest record */
    _Atomic uint64_t schedule;               /* hash in that record, or already in the next */
    _Atomic uint64_t arrived;                /* steps of data movement this rank has staged */
    _Atomic(void *) handoff;                 /* ranks as threads: a segment on its way */
    _Alignas(64) _Atomic uint64_t noted;     /* hash of all this rank has noted */
    _Atomic uint64_t failed_before;          /* call before which it failed last; 0: it has not */
    _Atomic uint64_t failures;               /* texts begun: no two of one call are mixed */
    msi_record ring[MSI_RING];
    _Atomic uint64_t failure[MSI_TEXT / 8]; /* why, as it says itself */
} msi_member;

/* A rank's (or the launcher's) part in the job. */
typedef struct msi_slot_rank {
    _Alignas(64) _Atomic uint32_t doorbell; /* futex: changes when peers stored something */
    _Atomic uint32_t waiting;
    _Atomic uint64_t waits;  /* sleeping waits begun, and ... */
    _Atomic uint64_t checks; /* ... looks taken while asleep */
    _Alignas(64) _Atomic int32_t state;
    _Atomic int32_t pid;
    _Atomic int32_t catches;    /* stop signals are this rank's own business */
    _Atomic int32_t looks;      /* times it has asked whether to stop */
    _Atomic int32_t exec_error; /* errno: this rank's program could not be run */
    int32_t kind;               /* ms_status of `text` */
    char text[MSI_TEXT];        /* why this slot's owner set `abort` */
} msi_slot_rank;

typedef struct msi_block {
    uint64_t magic, nonce;
    uint32_t layout; /* sizes of this struct's parts, mixed: other builds do not fit */
    int32_t world;
    int32_t cores; /* the launcher may use */
    int64_t nbytes, members_at, notes_at, staging_at;
    int64_t spin_ns, timeout_ns;
    int64_t announce_ns;                 /* a wait of this length is announced; 0: none is */
    _Alignas(64) _Atomic uint64_t abort; /* 0, or who wrote it, about whom, and why */
    _Atomic uint32_t stop;               /* signals that ask the job to stop, a bit each */
    _Atomic int64_t quiet_until;         /* no wait is announced before */
    msi_slot_rank slot[];                /* (world + 1), the last the launcher's */
} msi_block;

/* One process's (or, ranks as threads, all threads') hold on a job. */
typedef struct msi_job {
    msi_block *block;
    int32_t world;
    int32_t fd; /* of the block; -1: plain memory */
    bool threads;
    /* Mailboxes for file descriptors, one per rank: [0] its owner reads, [1] others write. */
    int32_t mail[MSI_MAX_RANKS][2];
    _Atomic(struct msi_shared_map *) maps; /* of all segments made */
} msi_job;

struct ms_comm {
    msi_live live;
    ms_context *ctx;
    msi_job *job;
    int32_t rank, size;
    int32_t slot[MSI_MAX_RANKS]; /* of each member in the job */
    bool is_self;                /* needs nobody, so it survives the others' failures */
    int32_t gone;                /* MSI_GONE_* */
    msi_member *members;
    msi_note_record *notes; /* (size, MSI_NOTES); NULL without peers */
    char *staging;          /* (size, 2, MSI_CHUNK) */
    uint64_t seq, hash, step;
    uint64_t n_notes; /* this rank's so far */
    int32_t n_models;
    uint64_t checked[MSI_MAX_RANKS]; /* sequence up to which each member's schedule equals ours */
    int64_t counts[MSI_COLL_KINDS];
    int64_t wait_ns;
};

/* What made a process a rank; none: a rank alone, once it has joined. */
enum { MSI_LAUNCHER_NONE, MSI_LAUNCHER_FORK, MSI_LAUNCHER_RUN, MSI_LAUNCHER_THREAD };

/* The comm room's state in a context. */
typedef struct msi_dist {
    ms_context *ctx;
    msi_job *job; /* NULL: not joined */
    int32_t rank;
    bool owns_job;
    int32_t gone;     /* MSI_GONE_* */
    int32_t launcher; /* MSI_LAUNCHER_* */
    ms_comm *world, *self;
    ms_launch *launch; /* ranks this process supervises */
    int32_t asked;     /* stop signal its last launch got and that it has not been told; 0: none */
} msi_dist;

/* Of the time since a sleeper looked last, what counts: this process may have been stopped in it.
 */
static inline int64_t msi_looked_ns(int64_t since)
{
    return since < 1000000000 ? since : 1000000000;
}

/* -- control.c: the block and the words in it -------------------------------------------------- */
ms_status msi_job_new(msi_job **out, int32_t world, bool threads);
/* Join a block somebody else made; takes `fd` on success. */
ms_status msi_job_open(msi_job **out, int32_t fd);
void msi_job_free(msi_job *job);
/* What this process stores into memory that it shares with the job, or into one map of it, is its
 * own from now on. Async-signal-safe. */
void msi_job_make_private(const msi_job *job);
void msi_make_private(void *map, size_t nbytes, int protection, int32_t fd);
/* Close the mailbox ends that rank `rank` does not need. */
void msi_job_keep_mail(msi_job *job, int32_t rank);

/* End the job, unless something else has ended it before: `cause` and the text become what every
 * rank reports. What a rank fails by after others found that it had left takes the place of that.
 * `slot` is the caller's own, `subject` the rank it is about (-1: none). True: this
 * is what the job ends with. */
bool msi_job_abort(msi_job *job, int32_t slot, int32_t subject, int32_t cause, ms_status kind,
                   const char *format, ...) MSI_PRINTF(6, 7);
/* The first failure, or false. `text` is borrowed from the block. */
bool msi_job_aborted(const msi_job *job, int32_t *subject, int32_t *cause, ms_status *kind,
                     const char **text);
/* Wake every rank, whatever it waits for. */
void msi_job_ring_all(msi_job *job);
void msi_job_set_state(msi_job *job, int32_t rank, int32_t state);

/* [Note: torn reads] What a rank overwrites while others read it is stored in words, with release,
 * after its number was taken away, and loaded with acquire before its number is looked at again:
 * who sees a word of something newer also sees that the number has changed. No fences, no torn
 * text. */
static inline void msi_words_store(_Atomic uint64_t *to, const void *from, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint64_t word;

        memcpy(&word, (const char *)from + 8 * i, sizeof(word));
        atomic_store_explicit(&to[i], word, memory_order_release);
    }
}

static inline void msi_words_load(void *to, _Atomic uint64_t *from, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint64_t word = atomic_load_explicit(&from[i], memory_order_acquire);

        memcpy((char *)to + 8 * i, &word, sizeof(word));
    }
}

/* -- record.c: fingerprints -------------------------------------------------------------------- */
/* Record `seq` of a member; false when it is not there (yet, or any more). `fp` may be NULL. */
bool msi_record_read(msi_member *m, uint64_t seq, msi_fingerprint *fp, uint64_t *hash);
/* Do both name the same operation, whatever was noted before? */
bool msi_fingerprint_same_call(const msi_fingerprint *a, const msi_fingerprint *b);
/* " of model 2", or "" where nothing tells models apart. */
const char *msi_model_text(int32_t model, char *buffer, size_t nbytes);
/* "all_gather(f32, 1024 elements, unit 'h.0')" */
const char *msi_fingerprint_text(const msi_fingerprint *fp, char *buffer, size_t nbytes);
/* "all_gather of unit 'h.0' (sequence 17)", of this rank's own record. */
const char *msi_operation_text(ms_comm *c, uint64_t seq, char *buffer, size_t nbytes);
/* The job has been aborted: this rank's error. `verb` is what it was doing: "waited in". */
ms_status msi_comm_fail(ms_comm *c, const char *verb, const char *operation);

/* -- compare.c --------------------------------------------------------------------------------- */
/* Does every member say what this one does, as far as both have come? False: the job has ended. */
bool msi_members_agree(ms_comm *c);
/* No rank runs any more. Where they left without a failure, but not after the same calls and notes,
 * that is what the job ends with. */
void msi_job_compare_left(msi_job *job);

/* -- failure.c: what a rank says of its own failures --------------------------------------------
 */
/* The call of member q before which it failed last, and why; 0: it has not failed. */
uint64_t msi_failure_read(const ms_comm *c, int32_t q, char *text, size_t nbytes);
/* "; rank 1 had failed before its call 7: ...", where one of the two members failed and the other
 * did not; else "". */
const char *msi_failure_text(const ms_comm *c, int32_t a, int32_t b, char *buffer, size_t nbytes);
/* Which member's failure is it that all have just been told? This rank's own if nobody else's. */
int32_t msi_failure_owner(const ms_comm *c);

/* -- notes.c ----------------------------------------------------------------------------------- */
/* Hash of all that a member has noted. */
uint64_t msi_noted(const ms_comm *c, int32_t member);
/* The first note in which members a and b differ, in words; `noted_a` and `noted_b` stand in the
 * fingerprints that differ. "lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1" */
const char *msi_notes_text(ms_comm *c, int32_t a, uint64_t noted_a, int32_t b, uint64_t noted_b,
                           char *buffer, size_t nbytes);

/* -- positions.c ------------------------------------------------------------------------------- */
/* "rank 0 (pid 4711, T stopped): barrier() (sequence 3), rank 1 ...", those that are waited for
 * first, as far as it fits. */
void msi_positions_text(ms_comm *c, char *buffer, size_t nbytes);
/* This rank has waited so long for `seq`: warn, unless it is early or the job has been told. */
void msi_announce(ms_comm *c, uint64_t seq, int64_t waited_ns);

/* -- wait.c ------------------------------------------------------------------------------------ */
void msi_doorbell_ring(msi_slot_rank *slot);

/* -- group.c ----------------------------------------------------------------------------------- */
/* The context's room, made on first use; NULL when memory is out (error set). */
msi_dist *msi_dist_state(void);
/* The group of all ranks of `job`, as rank `rank` sees it. */
void msi_comm_of_world(ms_comm *out, msi_job *job, int32_t rank);
/* This process is no rank: the error that says why. */
ms_status msi_gone_error(const ms_comm *c);
/* Become rank `rank` of `job`. */
ms_status msi_dist_enter(msi_dist *d, msi_job *job, int32_t rank, int32_t launcher, bool owns_job);

/* -- staging.c: moving bytes in steps ---------------------------------------------------------- */
/* Where this rank puts its bytes (MSI_CHUNK at most) for the coming step. */
char *msi_stage_own(ms_comm *c);
/* Say that they are there, wait for everybody's. */
ms_status msi_stage_step(ms_comm *c, uint64_t seq);
/* Member q's bytes of the step just made; they stay until the step after the next begins. */
const char *msi_stage_of(ms_comm *c, int32_t q);
/* Under an already published `seq`: nbytes from every member to every member. */
ms_status msi_stage_exchange(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out);

/* -- segment.c --------------------------------------------------------------------------------- */
/* Free what is left of a job's shared maps: no rank runs any more. */
void msi_segment_sweep(msi_job *job);
/* What this process stores into segments is its own from now on. Async-signal-safe. */
void msi_segments_make_private(const msi_job *job);

/* -- memfd.c ----------------------------------------------------------------------------------- */
/* A memfd of that size, its pages reserved: what it failed by, or `error` 0. An error, not a
 * signal, when memory is short. */
msi_bound msi_memfd_new(int32_t *fd, const char *name, int64_t nbytes);

/* -- calls.c ------------------------------------------------------------------------------------
 */
/* Of what kind is a system call's error? */
ms_status msi_error_kind(int error);
/* It has failed: an error of that kind, whose text says what was to be done, the call, the reason
 * and the limit it met. "cannot start rank 3: fork: Resource temporarily unavailable (...)" */
ms_status msi_fail_call(const char *call, int error, const char *format, ...) MSI_PRINTF(3, 4);

/* -- process.c --------------------------------------------------------------------------------- */
/* State ('R', 'S', 'T', ...) and parent of a process. False: there is none. */
bool msi_process_look(pid_t pid, char *state, pid_t *parent);

/* -- signals.c: `stop` of a block ----------------------------------------------------------------
 */
bool msi_stop_has(uint32_t stop, int32_t signal);
/* The signal to stop by, 0: none. A request to stop counts over SIGUSR1, whichever came first. */
int32_t msi_stop_signal(uint32_t stop);

/* -- affinity.c -------------------------------------------------------------------------------- */
int32_t msi_cores_allowed(void);
/* Give the calling thread its part of the cores this process may use, when there are enough. */
void msi_cores_pin(int32_t rank, int32_t world);

#endif
