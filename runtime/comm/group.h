/* Private state of a group: the members' shared memory, and one member's own. Every member writes
 * only its own part and staging. */
#ifndef MSI_GROUP_H
#define MSI_GROUP_H

#include "job.h"
#include "transport.h"

#include <string.h>

enum {
    MSI_RING = 64,          /* fingerprints kept per member */
    MSI_NOTES = 256,        /* notes kept per member */
    MSI_CHUNK = 256 * 1024, /* bytes staged at a time: two chunks stay in a core's L2 */
    MSI_CHANNEL =
        256 * 1024,      /* bytes of a member's messages on their way, for all others together */
    MSI_CALL_TEXT = 384, /* text of a fingerprint */
    MSI_OPERATION_TEXT = 256,
    MSI_SEQUENCE_TEXT = 48 + MSI_RANKS_TEXT,
    MSI_MODEL_TEXT = 24,
    MSI_NOTED_TEXT = 512,  /* text of differing notes */
    MSI_FAILURE_TEXT = 640 /* text of a rank's failure */
};

/* One published fingerprint, overwritten MSI_RING calls later: readers check `seq` before and
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

/* How a member has left. */
enum { MSI_MEMBER_THERE, MSI_MEMBER_FREED, MSI_MEMBER_LEFT_JOB };

/* A rank's part in a group. */
typedef struct msi_member {
    _Alignas(64) _Atomic uint64_t published; /* sequence number of the latest record */
    _Atomic uint64_t schedule;               /* hash in that record, or already the next one's */
    _Atomic uint64_t arrived;                /* data movement steps this rank has staged */
    _Atomic(void *) handoff;                 /* ranks as threads: segment in transfer */
    _Alignas(64) _Atomic uint64_t noted;     /* hash of all notes of this rank */
    _Atomic uint64_t failed_before;          /* call before which it last failed; 0: none */
    _Atomic uint64_t left;                   /* MSI_MEMBER_*; for the world, ask the job */
    _Atomic uint64_t failures;               /* texts begun; detects mixed texts of one call */
    msi_record ring[MSI_RING];
    _Atomic uint64_t failure[MSI_TEXT / 8]; /* its reason */
} msi_member;

/* Messages from one member to another: a ring of chunks. */
typedef struct msi_channel {
    _Alignas(64) _Atomic uint64_t sent;  /* chunks that the sender has written */
    _Alignas(64) _Atomic uint64_t taken; /* and the receiver has read */
} msi_channel;

/* Do the members' devices have separate memories? */
enum { MSI_APART_UNKNOWN, MSI_APART_NO, MSI_APART_YES };

struct ms_comm {
    uint32_t magic;
    msi_job *job;
    const msi_dist *dist; /* this rank's place in the job; NULL in the launcher */
    const msi_transport *via;
    uint64_t serial; /* unique among this process's groups */
    int32_t rank, size;
    int32_t own, n_members; /* members with a part: (rank, size); fake: (0, 1) */
    int32_t *in_job;        /* (n_members) ranks in the job */
    msi_hosts hosts;
    int32_t *targets; /* (hosts.n) rank in the job that receives for each host; -1: this one */
    bool is_alone;    /* has no peers, so their failures do not affect it */
    bool is_fake;     /* the same, with members that do not exist */
    int32_t fake_first, fake_step; /* fake: member q is rank first + q step of a planned job */
    msi_member *members;           /* (n_members) */
    msi_note_record *notes;        /* (n_members, MSI_NOTES); NULL without peers */
    char *staging;                 /* (n_members, 2, MSI_CHUNK); or NULL */
    msi_channel *channel;          /* (n_members, n_members): from, to; or NULL */
    char *channel_bytes; /* (n_members, MSI_CHANNEL), shared by those to whom a member sends */
    uint64_t seq, hash, step;
    uint64_t n_notes;  /* of this rank */
    uint64_t id;       /* in its job, equal on all members; 0: world */
    ms_comm *next;     /* next split or fake group of the context */
    int32_t n_holders; /* split, fake: owners besides the caller */
    int32_t n_graphs;  /* recorded collectives: they keep an abandoned group */
    bool freed_by_caller;
    bool abandoned;                  /* no handle is left, see ms_comm_abandon() */
    msi_segment memory;              /* of a split group, shared with its siblings */
    struct msi_device_comm *devices; /* NULL: none yet */
    int32_t apart;                   /* MSI_APART_* */
    int32_t n_models;
    uint64_t *checked; /* (n_members) sequence up to which its schedule equals ours */
    int64_t counts[MSI_COLL_KINDS];
    int64_t wait_ns;
};

/* The reduction (MS_REDUCE_*) of `src`, one of each member, rounded once. */
static inline msi_tree_args msi_reduce_args(const ms_comm *c, int32_t dtype, int32_t reduce,
                                            int64_t n, const msi_tree_source *src, char *out)
{
    return (msi_tree_args){.n = n,
                           .n_src = c->size,
                           .src = src,
                           .out = out,
                           .round_dtype = dtype,
                           .factor = reduce == MS_REDUCE_AVG ? 1.0 / c->size : 1.0,
                           .reduce = reduce == MS_REDUCE_AVG ? MS_REDUCE_SUM : reduce};
}

/* [Note: torn reads] What a rank overwrites while others read is stored in words, with release,
 * after its number was cleared. It is loaded with acquire, before its number is checked again. A
 * reader that sees a newer word therefore also sees that the number has changed. This needs no
 * fences. */
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

/* -- hosts.c: memory that members on other hosts have copies of ---------------------------------
 */
/* Find the members' hosts. */
void msi_comm_find_hosts(ms_comm *c);
/* Send what this rank has written, to all other hosts. */
void msi_comm_put_all(const ms_comm *c, msi_mirror_kind kind, const void *at, int64_t nbytes);
static inline void msi_comm_put(const ms_comm *c, msi_mirror_kind kind, const void *at,
                                int64_t nbytes)
{
    if (MSI_UNLIKELY(c->hosts.n > 1)) {
        msi_comm_put_all(c, kind, at, nbytes);
    }
}
/* The same to member q's host. */
void msi_comm_put_to(const ms_comm *c, int32_t q, msi_mirror_kind kind, const void *at,
                     int64_t nbytes);
void msi_comm_push(const ms_comm *c);

/* Value of `waiting` of a rank that waits in this group. */
static inline uint32_t msi_wait_word(const ms_comm *c)
{
    return (uint32_t)c->id | 1;
}

/* -- members.c: shared memory of the members --------------------------------------------------- */
/* Its size, in bytes, for a group of `size`. */
int64_t msi_members_bytes(int32_t size);
/* Hash of the layout, to reject other builds. */
uint32_t msi_members_layout(void);
void msi_members_place(ms_comm *c, void *memory);
/* "ranks 1, 3": ranks in the job of all members, or of those marked. */
const char *msi_ranks_text(const ms_comm *c, const bool *marked, char *buffer, size_t nbytes);
/* "sequence 3", followed in a split group by " of ranks 1, 3". */
const char *msi_sequence_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes);
/* The world as rank `rank` sees it, or with -1 the launcher. `in_job` and `checked` have its size.
 */
void msi_members_of_job(ms_comm *out, msi_job *job, int32_t rank, int32_t *in_job,
                        uint64_t *checked);

/* -- fingerprint.c ----------------------------------------------------------------------------- */
/* Number of words in use, given by the first ones; the rest is undefined. */
int32_t msi_fingerprint_words(const msi_fingerprint *fp);
/* "all_gather", of MSI_COLL_*. */
const char *msi_coll_name(uint32_t kind);
/* True if both are the same operation, ignoring earlier notes. */
bool msi_fingerprint_same_call(const msi_fingerprint *a, const msi_fingerprint *b);
/* " of model 2", or "" for the first. */
const char *msi_model_text(int32_t model, char *buffer, size_t nbytes);
/* "all_gather(f32, 1024 elements, unit 'h.0')" */
const char *msi_fingerprint_text(const msi_fingerprint *fp, char *buffer, size_t nbytes);
/* "all_gather of unit 'h.0'" */
const char *msi_fingerprint_name(const msi_fingerprint *fp, char *buffer, size_t nbytes);

/* -- record.c: published fingerprints ---------------------------------------------------------- */
void msi_record_write(msi_member *m, uint64_t seq, uint64_t hash, const msi_fingerprint *fp);
/* Read record `seq` of a member; false if not written yet, or overwritten. `fp` may be NULL. */
bool msi_record_read(msi_member *m, uint64_t seq, msi_fingerprint *fp, uint64_t *hash);
/* "all_gather of unit 'h.0' (sequence 17)", from this rank's own record. */
const char *msi_operation_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes);
/* This rank's error after the job was aborted. `verb`: "waited in". */
ms_status msi_comm_fail(const ms_comm *c, const char *verb, const char *operation);

/* -- compare.c --------------------------------------------------------------------------------- */
/* Compare all members' schedules as far as both have come. False: the job has ended. */
bool msi_members_agree(ms_comm *c);
/* After all members have left: compare to the end. A difference (false) is the job's failure. */
bool msi_members_left_alike(ms_comm *c);

/* -- failure.c: a rank's own failures ---------------------------------------------------------- */
/* The call before which member q last failed, and its reason; 0: none. */
uint64_t msi_failure_read(const ms_comm *c, int32_t q, char *text, size_t nbytes);
/* "; rank 1 had failed before its call 7: ...", if only one of two members failed; else "". */
const char *msi_failure_text(const ms_comm *c, int32_t a, int32_t b, char *buffer, size_t nbytes);
/* The member whose failure was just reported to all; this rank if there is none. */
int32_t msi_failure_owner(const ms_comm *c);

/* -- notes.c ----------------------------------------------------------------------------------- */
/* Hash of all notes of a member. */
static inline uint64_t msi_noted(const ms_comm *c, int32_t member)
{
    return atomic_load_explicit(&c->members[member].noted, memory_order_acquire);
}
/* The first note that differs between members a and b; `noted_a`, `noted_b`: from their
 * fingerprints. "lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1" */
const char *msi_notes_text(ms_comm *c, int32_t a, uint64_t noted_a, int32_t b, uint64_t noted_b,
                           char *buffer, size_t nbytes);

/* -- positions.c ------------------------------------------------------------------------------- */
/* "rank 0 (pid 4711, T stopped): barrier() (sequence 3), rank 1 ...": those that others wait for
 * first, truncated. */
void msi_positions_text(const ms_comm *c, char *buffer, size_t nbytes);
/* Warn that this rank has waited long for `seq`, unless it is too early or another rank warned. */
void msi_announce(const ms_comm *c, uint64_t seq, int64_t waited_ns);

/* -- wait.c --------------------------------------------------------------------------------------
 */
/* msi_comm_wait() in `operation`, for a text: NULL: that of `seq`. */
ms_status msi_comm_wait_in(ms_comm *c, uint64_t seq, const char *operation,
                           bool (*ready)(void *user), void *user);
/* Has member q left the job or freed the group? */
bool msi_member_left(const ms_comm *c, int32_t q);
/* Member q has left without what `operation` needs: end the job. MS_COMM_ERROR. */
ms_status msi_member_left_error(ms_comm *c, int32_t q, const char *operation);

/* -- channel.c -----------------------------------------------------------------------------------
 */
/* Move pending messages of this rank on, in all groups, as far as they go without waiting. */
void msi_messages_progress(void);
/* Give up those of a group that goes; NULL: all. */
void msi_messages_drop(const ms_comm *c);
bool msi_messages_pending(const ms_comm *c);

/* -- state.c: the groups of a context ---------------------------------------------------------- */
typedef struct msi_groups {
    ms_comm *world, *self;
    ms_comm *others; /* split or fake, latest first */
} msi_groups;

/* The context's, made on first use; NULL without memory (error set). */
msi_groups *msi_groups_state(ms_context *ctx);
/* The same, or NULL. */
msi_groups *msi_groups_peek(void);
/* Free a split or fake group. */
void msi_comm_discard(ms_comm *c);
/* This rank leaves its job and all groups. */
void msi_groups_leave(void);
/* The same at process exit, without waiting for its device. */
void msi_groups_end(void);

/* -- bytes.c ----------------------------------------------------------------------------------- */
/* msi_comm_gather_named() by a transport. */
ms_status msi_comm_gather_via(ms_comm *c, const msi_transport *via, const msi_label *what,
                              int32_t model, const void *in, int64_t nbytes, void *out);

/* -- devices.c --------------------------------------------------------------------------------- */
/* Free the devices' communicator, after its work has run. */
void msi_devices_leave(const ms_comm *c);
/* How a collective on a tensor moves, of which each member has parts of up to `nbytes`: by the
 * group's transport, or large parts on devices that are apart by msi_transport_devices. `nbytes` is
 * equal on all members. Collective at the first large part. */
ms_status msi_devices_route(ms_comm *c, const msi_view *v, int64_t nbytes,
                            const msi_transport **via);

/* -- start.c ----------------------------------------------------------------------------------- */
/* The job's calls into comm/. */
extern const msi_job_guest msi_job_of_groups;

#endif
