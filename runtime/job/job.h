/* The ranks of a job: who they are, how they end, and the control block all of them share. Nothing
 * here knows of collectives: what ranks say to each other is kept behind the block by a guest.
 *
 * The block is a memfd mapped by every rank process (plain memory when ranks are threads). One word
 * decides everything that goes wrong: `abort` leaves zero once, by compare-and-swap, after the text
 * that explains it stands complete in what the writer says; so a writer killed half-way leaves no
 * trace. Every rank writes only its own part; the launcher has one, too. Only C11 atomics, no
 * fences, so ThreadSanitizer understands it. */
#ifndef MSI_JOB_H
#define MSI_JOB_H

#include "base.h"
#include "bounds.h"
#include "moonshard/job.h"

#include <stdatomic.h>
#include <sys/types.h>

enum {
    MSI_TEXT = 4096,            /* a line and a traceback */
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

/* A rank's (or the launcher's) part in the job. */
typedef struct msi_job_rank {
    _Alignas(64) _Atomic uint32_t doorbell; /* futex: changes when peers stored something */
    _Atomic uint32_t waiting; /* 0: it does not; else in what: the same word for one group */
    _Atomic uint64_t waits;   /* sleeping waits begun, and ... */
    _Atomic uint64_t checks;  /* ... looks taken while asleep */
    _Alignas(64) _Atomic int32_t state;
    _Atomic int32_t pid;
    _Atomic int32_t catches;    /* stop signals are this rank's own business */
    _Atomic int32_t looks;      /* times it has asked whether to stop */
    _Atomic int32_t exec_error; /* errno: this rank's program could not be run */
    int32_t kind;               /* ms_status of `text` */
    char text[MSI_TEXT];        /* why this rank set `abort` */
} msi_job_rank;

typedef struct msi_block {
    uint64_t magic, nonce;
    uint32_t layout; /* sizes of this struct's parts and of the guest's: other builds do not fit */
    int32_t world;
    int32_t cores; /* the launcher may use */
    int64_t nbytes, guest_at;
    int64_t spin_ns, timeout_ns;
    int64_t announce_ns;                 /* a wait of this length is announced; 0: none is */
    _Alignas(64) _Atomic uint64_t abort; /* 0, or who wrote it, about whom, and why */
    _Atomic uint32_t stop;               /* signals that ask the job to stop, a bit each */
    _Atomic int64_t quiet_until;         /* no wait is announced before */
    msi_job_rank rank[];                 /* (world + 1), the last the launcher's */
} msi_block;

typedef struct msi_job msi_job;

/* The room above, which a job is made with: what it keeps behind the block for the group of all
 * ranks, and what it tells of it. */
typedef struct msi_job_guest {
    uint32_t (*layout)(void);         /* sizes of the parts of what it keeps, mixed */
    int64_t (*nbytes)(int32_t world); /* of what it keeps, zeros at first */
    /* Where the ranks are, in words. In the launcher. */
    void (*positions)(msi_job *job, char *buffer, size_t nbytes);
    /* The calling rank is about to leave. */
    void (*leave)(void);
    /* Its process is at its end, where what it has opened may be closed already: nothing is run or
     * waited for. */
    void (*end)(void);
    /* No rank runs any more: where they left without a failure, but did not say the same, that is
     * what the job ends with. */
    void (*compare_left)(msi_job *job);
} msi_job_guest;

/* One process's (or, ranks as threads, all threads') hold on a job. */
struct msi_job {
    msi_block *block;
    const msi_job_guest *guest;
    int32_t world;
    int32_t fd; /* of the block; -1: plain memory */
    bool threads;
    _Atomic(struct msi_shared_map *) maps; /* that are shared with the job */
    struct msi_letter_kept *kept;          /* letters that came before they were asked for */
    /* (world) mailboxes for file descriptors: [0] its owner reads, [1] others write. */
    int32_t mail[][2];
};

/* What made a process a rank; none: a rank alone, once it has joined. */
enum { MSI_LAUNCHER_NONE, MSI_LAUNCHER_FORK, MSI_LAUNCHER_RUN, MSI_LAUNCHER_THREAD };

/* A context's place in its job. */
typedef struct msi_dist {
    ms_context *ctx;
    msi_job *job; /* NULL: not joined */
    int32_t rank;
    bool owns_job;
    int32_t gone;      /* MSI_GONE_* */
    int32_t launcher;  /* MSI_LAUNCHER_* */
    ms_launch *launch; /* ranks this process supervises, and what ends them */
    void (*end_launch)(ms_launch *launch);
    int32_t asked; /* stop signal its last launch got and that it has not been told; 0: none */
} msi_dist;

/* -- block.c: the block and the words in it ---------------------------------------------------- */
ms_status msi_job_new(msi_job **out, const msi_job_guest *guest, int32_t world, bool threads);
/* Join a block somebody else made; takes `fd` on success. */
ms_status msi_job_open(msi_job **out, const msi_job_guest *guest, int32_t fd);
void msi_job_free(msi_job *job);
/* What the guest keeps for the group of all ranks. */
void *msi_job_guest_memory(const msi_job *job);
/* What this process stores into memory that it shares with the job is its own from now on.
 * Async-signal-safe. */
void msi_job_make_private(const msi_job *job);

/* End the job, unless something else has ended it before: `cause` and the text become what every
 * rank reports. What a rank fails by after others found that it had left takes the place of that.
 * `own` is the caller's rank, `subject` the one it is about (-1: none). True: this is what the job
 * ends with. */
bool msi_job_abort(msi_job *job, int32_t own, int32_t subject, int32_t cause, ms_status kind,
                   const char *format, ...) MSI_PRINTF(6, 7);
/* The first failure, or false. `text` is borrowed from the block. */
bool msi_job_aborted(const msi_job *job, int32_t *subject, int32_t *cause, ms_status *kind,
                     const char **text);
void msi_job_set_state(msi_job *job, int32_t rank, int32_t state);

/* -- doorbell.c: sleeping until a peer has stored something ------------------------------------ */
void msi_doorbell_ring(msi_job_rank *rank);
/* Until the doorbell is another than `seen`, or so long. */
void msi_doorbell_sleep(msi_job_rank *rank, uint32_t seen, int64_t most_ns);

/* What a sleeping rank has seen of the others, by rank. */
typedef struct msi_watch {
    bool set;
    uint64_t *waits, *checks;
} msi_watch;
/* Does every rank that is left wait as `rank` does, so that nobody can store anything any more? */
bool msi_job_waits_in_vain(const msi_job *job, int32_t rank, msi_watch *w);

/* -- maps.c: memory that ranks of a job share, but the block ----------------------------------- */
/* Maps of one memfd; ranks as threads share them. The last owner unmaps; the job frees this struct,
 * and maps whose making failed half-way. */
typedef struct msi_shared_map {
    _Atomic int32_t owners;
    int32_t fd;
    char *rw, *ro;
    int64_t nbytes;
    struct msi_shared_map *next;
} msi_shared_map;

/* Something empty still has addresses. */
static inline size_t msi_map_bytes(int64_t nbytes)
{
    return (size_t)(nbytes > 0 ? nbytes : 1);
}

void msi_unmap(char *rw, char *ro, int64_t nbytes);
/* Put such maps into the job's list. NULL: no memory. */
msi_shared_map *msi_maps_add(msi_job *job, const msi_shared_map *made, int32_t owners);
/* One owner less. */
void msi_maps_drop(msi_shared_map *map);
/* What this process stores into this map is its own from now on. Async-signal-safe, as the next. */
void msi_make_private(void *map, size_t nbytes, int protection, int32_t fd);
void msi_maps_make_private(const msi_job *job);
/* Free what is left of them: no rank runs any more. */
void msi_maps_sweep(msi_job *job);

/* -- mail.c: handing file descriptors to ranks that are processes ------------------------------ */
/* What a descriptor is for: a call of a group. */
typedef struct msi_letter {
    uint64_t nonce; /* of the job: mail.c fills it in */
    uint64_t group, seq;
} msi_letter;

ms_status msi_mail_new(msi_job *job);
void msi_mail_free(msi_job *job);
/* Close the mailbox ends that rank `rank` does not need. */
void msi_mail_keep(msi_job *job, int32_t rank);
/* Give errno, 0: sent. */
int msi_mail_send(const msi_job *job, int32_t rank, msi_letter letter, int32_t fd);
/* The same. The sender has arrived already, so its letter is there. */
int msi_mail_receive(msi_job *job, int32_t rank, msi_letter letter, int32_t *fd);

/* -- memfd.c ----------------------------------------------------------------------------------- */
/* A memfd of that size, its pages reserved: what it failed by, or `error` 0. An error, not a
 * signal, when memory is short. */
msi_bound msi_memfd_new(int32_t *fd, const char *name, int64_t nbytes);

/* -- calls.c ----------------------------------------------------------------------------------- */
/* Of what kind is a system call's error? */
ms_status msi_error_kind(int error);
/* It has failed: an error of that kind, whose text says what was to be done, the call, the reason
 * and the limit it met. "cannot start rank 3: fork: Resource temporarily unavailable (...)" */
ms_status msi_fail_call(const char *call, int error, const char *format, ...) MSI_PRINTF(3, 4);

/* -- process.c --------------------------------------------------------------------------------- */
/* State ('R', 'S', 'T', ...) and parent of a process. False: there is none. */
bool msi_process_look(pid_t pid, char *state, pid_t *parent);

/* -- signals.c: `stop` of a block -------------------------------------------------------------- */
/* Stop signals that have reached this rank or its launcher, a bit each: the rank asks once more. */
uint32_t msi_stop_look(const msi_dist *d);
/* All ranks have agreed on these: the launcher takes what they leave with as asked for. The signal
 * to stop by, 0: none. */
int32_t msi_stop_agreed(const msi_dist *d, uint32_t stop);
bool msi_stop_has(uint32_t stop, int32_t signal);
/* The signal to stop by, 0: none. A request to stop counts over SIGUSR1, whichever came first. */
int32_t msi_stop_signal(uint32_t stop);
/* Catch them from now on, as rank of this job. */
ms_status msi_stop_catch(const msi_dist *d);

/* -- affinity.c -------------------------------------------------------------------------------- */
int32_t msi_cores_allowed(void);
/* Give the calling thread its part of the cores this process may use, when there are enough. */
void msi_cores_pin(int32_t rank, int32_t world);

/* -- dist.c: a context's place in its job ------------------------------------------------------ */
/* The context's, made on first use; NULL when memory is out (error set). */
msi_dist *msi_dist_state(void);
/* The same, where it has been made. */
msi_dist *msi_dist_peek(void);
/* Become rank `rank` of `job`. */
ms_status msi_dist_enter(msi_dist *d, msi_job *job, int32_t rank, int32_t launcher, bool owns_job);
/* This process is no rank: the error that says why. */
ms_status msi_gone_error(const msi_dist *d);
/* Which rank of how many the calling thread was when it closed (ms_close()): it computes alone from
 * then on, and no collective can follow. world 0: it was none that somebody had started. */
typedef struct msi_closed_rank {
    int32_t rank, world;
} msi_closed_rank;

msi_closed_rank msi_dist_closed(void);

/* -- join.c: what a public function does for a job with this guest ----------------------------- */
/* ms_dist_join() */
ms_status msi_dist_join(const msi_job_guest *guest);
/* Among the ranks of this host, also before it has joined: what it computes with by then it keeps.
 * 0 where nothing says it. */
int32_t msi_dist_local_rank(void);
/* ms_dist_abort() of a process that has not joined, which a rank may be that could not. */
bool msi_dist_abort_unjoined(const msi_job_guest *guest, ms_status kind, const char *message);

/* -- launch.c, threads.c: the same ------------------------------------------------------------- */
ms_status msi_launch_fork(ms_launch **out, const msi_job_guest *guest, int32_t n, int32_t *rank);
ms_status msi_launch_exec(ms_launch **out, const msi_job_guest *guest, int32_t n,
                          const char *const *argv, bool prefix);
ms_status msi_dist_threads(const msi_job_guest *guest, int32_t n,
                           ms_status (*fn)(void *user, int32_t rank), void *user);

#endif
