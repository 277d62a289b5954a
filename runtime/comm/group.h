/* A group from the inside: what its members keep in memory that they share, and what one of them
 * keeps beside it. Every member writes only its own part and staging. */
#ifndef MSI_GROUP_H
#define MSI_GROUP_H

#include "job.h"
#include "transport.h"

#include <string.h>

enum {
    MSI_RING = 64,          /* fingerprints kept per member */
    MSI_NOTES = 256,        /* notes kept per member */
    MSI_CHUNK = 256 * 1024, /* bytes staged at a time: two chunks stay in a core's L2 */
    MSI_CALL_TEXT = 384,    /* what a fingerprint says */
    MSI_OPERATION_TEXT = 256,
    MSI_RANKS_TEXT = 128,
    MSI_SEQUENCE_TEXT = 48 + MSI_RANKS_TEXT,
    MSI_MODEL_TEXT = 24,
    MSI_NOTED_TEXT = 512,  /* in what notes differ */
    MSI_FAILURE_TEXT = 640 /* why a rank had failed */
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

/* How a member has left. */
enum { MSI_MEMBER_THERE, MSI_MEMBER_FREED, MSI_MEMBER_LEFT_JOB };

/* A rank's part in a group. */
typedef struct msi_member {
    _Alignas(64) _Atomic uint64_t published; /* sequence number of the latest record */
    _Atomic uint64_t schedule;               /* hash in that record, or already in the next */
    _Atomic uint64_t arrived;                /* steps of data movement this rank has staged */
    _Atomic(void *) handoff;                 /* ranks as threads: a segment on its way */
    _Alignas(64) _Atomic uint64_t noted;     /* hash of all this rank has noted */
    _Atomic uint64_t failed_before;          /* call before which it failed last; 0: it has not */
    _Atomic uint64_t left;                   /* MSI_MEMBER_*; the group of all ranks asks the job */
    _Atomic uint64_t failures;               /* texts begun: no two of one call are mixed */
    msi_record ring[MSI_RING];
    _Atomic uint64_t failure[MSI_TEXT / 8]; /* why, as it says itself */
} msi_member;

struct ms_comm {
    uint32_t magic;
    msi_job *job;
    const msi_dist *dist; /* this rank's place in the job; NULL: the launcher looks at its ranks */
    const msi_transport *via;
    uint64_t serial; /* no other group of this process has it */
    int32_t rank, size;
    int32_t own, n_members; /* those with a part in the group: (rank, size); of a fake one (0, 1) */
    int32_t *in_job;        /* (n_members) their ranks in the job */
    bool is_alone;          /* needs nobody, so it survives the others' failures */
    bool is_fake;           /* likewise, and its members but for this rank are not there */
    msi_member *members;    /* (n_members) */
    msi_note_record *notes; /* (n_members, MSI_NOTES); NULL without peers */
    char *staging;          /* (n_members, 2, MSI_CHUNK); the same */
    uint64_t seq, hash, step;
    uint64_t n_notes;   /* this rank's so far */
    uint64_t id;        /* of the group in its job, equal on all members; 0: of all ranks */
    ms_comm *next;      /* of those that were split off, or are fake, and are still there */
    int32_t n_holders;  /* of those: what keeps it beside its owner */
    bool forsaken;      /* its owner has freed it */
    msi_segment memory; /* of one that was split off; those of all its siblings lie beside it */
    int32_t n_models;
    uint64_t *checked; /* (n_members) sequence up to which each one's schedule equals ours */
    int64_t counts[MSI_COLL_KINDS];
    int64_t wait_ns;
};

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

/* What a rank that waits in this group puts into its `waiting`. */
static inline uint32_t msi_wait_word(const ms_comm *c)
{
    return (uint32_t)c->id | 1;
}

/* -- members.c: where members keep what they share --------------------------------------------- */
/* Bytes of it, of a group of that size. */
int64_t msi_members_bytes(int32_t size);
/* Mixed: what other builds keep does not fit. */
uint32_t msi_members_layout(void);
void msi_members_place(ms_comm *c, void *memory);
/* "ranks 1, 3", by their ranks in the job; of all members, or of those marked. */
const char *msi_ranks_text(const ms_comm *c, const bool *marked, char *buffer, size_t nbytes);
/* "sequence 3", and in a group of some ranks " of ranks 1, 3" behind it. */
const char *msi_sequence_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes);
/* All ranks of the job, as rank `rank` sees them or, with -1, its launcher. `in_job` and `checked`
 * are of that size. */
void msi_members_of_job(ms_comm *out, msi_job *job, int32_t rank, int32_t *in_job,
                        uint64_t *checked);

/* -- fingerprint.c ----------------------------------------------------------------------------- */
/* Words of a fingerprint that say something, as the first one tells; what stands behind
 * them counts for nothing. */
int32_t msi_fingerprint_words(const msi_fingerprint *fp);
/* Do both name the same operation, whatever was noted before? */
bool msi_fingerprint_same_call(const msi_fingerprint *a, const msi_fingerprint *b);
/* " of model 2", or "" where nothing tells models apart. */
const char *msi_model_text(int32_t model, char *buffer, size_t nbytes);
/* "all_gather(f32, 1024 elements, unit 'h.0')" */
const char *msi_fingerprint_text(const msi_fingerprint *fp, char *buffer, size_t nbytes);
/* "all_gather of unit 'h.0'" */
const char *msi_fingerprint_name(const msi_fingerprint *fp, char *buffer, size_t nbytes);

/* -- record.c: fingerprints where others read them --------------------------------------------- */
void msi_record_write(msi_member *m, uint64_t seq, uint64_t hash, const msi_fingerprint *fp);
/* Record `seq` of a member; false when it is not there (yet, or any more). `fp` may be NULL. */
bool msi_record_read(msi_member *m, uint64_t seq, msi_fingerprint *fp, uint64_t *hash);
/* "all_gather of unit 'h.0' (sequence 17)", of this rank's own record. */
const char *msi_operation_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes);
/* The job has been aborted: this rank's error. `verb` is what it was doing: "waited in". */
ms_status msi_comm_fail(const ms_comm *c, const char *verb, const char *operation);

/* -- compare.c --------------------------------------------------------------------------------- */
/* Does every member say what this one does, as far as both have come? False: the job has ended. */
bool msi_members_agree(ms_comm *c);
/* The members have left: did they say the same to the end? False: that is what the job ends with.
 */
bool msi_members_left_alike(ms_comm *c);

/* -- failure.c: what a rank says of its own failures ------------------------------------------- */
/* The call of member q before which it failed last, and why; 0: it has not failed. */
uint64_t msi_failure_read(const ms_comm *c, int32_t q, char *text, size_t nbytes);
/* "; rank 1 had failed before its call 7: ...", where one of the two members failed and the other
 * did not; else "". */
const char *msi_failure_text(const ms_comm *c, int32_t a, int32_t b, char *buffer, size_t nbytes);
/* Which member's failure is it that all have just been told? This rank's own if nobody else's. */
int32_t msi_failure_owner(const ms_comm *c);

/* -- notes.c ----------------------------------------------------------------------------------- */
/* Hash of all that a member has noted. */
static inline uint64_t msi_noted(const ms_comm *c, int32_t member)
{
    return atomic_load_explicit(&c->members[member].noted, memory_order_acquire);
}
/* The first note in which members a and b differ, in words; `noted_a` and `noted_b` stand in the
 * fingerprints that differ. "lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1" */
const char *msi_notes_text(ms_comm *c, int32_t a, uint64_t noted_a, int32_t b, uint64_t noted_b,
                           char *buffer, size_t nbytes);

/* -- positions.c ------------------------------------------------------------------------------- */
/* "rank 0 (pid 4711, T stopped): barrier() (sequence 3), rank 1 ...", those that are waited for
 * first, as far as it fits. */
void msi_positions_text(const ms_comm *c, char *buffer, size_t nbytes);
/* This rank has waited so long for `seq`: warn, unless it is early or the job has been told. */
void msi_announce(const ms_comm *c, uint64_t seq, int64_t waited_ns);

/* -- state.c: the groups of a context ---------------------------------------------------------- */
typedef struct msi_groups {
    ms_comm *world, *self;
    ms_comm *others; /* split off or fake, the latest first */
} msi_groups;

/* The context's, made on first use; NULL when memory is out (error set). */
msi_groups *msi_groups_state(ms_context *ctx);
/* The same, where it has been made. */
msi_groups *msi_groups_peek(void);
/* Free one of the others. */
void msi_comm_discard(ms_comm *c);
/* This rank is leaving its job, and with it all groups. */
void msi_groups_leave(void);
/* Its process ends: the same, but that its device runs nothing any more. */
void msi_groups_end(void);

/* -- start.c ----------------------------------------------------------------------------------- */
/* What groups are to a job. */
extern const msi_job_guest msi_job_of_groups;

#endif
