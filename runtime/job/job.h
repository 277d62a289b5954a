/* The ranks of a job: their numbers, how they end, and the shared control block. Knows no
 * collectives: the layer above (the guest) keeps its data after the block.
 *
 * The block is a memfd mapped by every rank process (plain memory for threads). One word decides
 * every failure: `abort` is set once, by compare-and-swap, after its writer's text is complete; so
 * a writer killed midway leaves no trace. Every rank, and the launcher, writes only its own part.
 * Uses C11 atomics without fences, as ThreadSanitizer requires. */
#ifndef MSI_JOB_H
#define MSI_JOB_H

#include "base.h"
#include "bounds.h"
#include "mirror.h"
#include "moonshard/job.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    MSI_TEXT = 4096,            /* a line and a traceback */
    MSI_LONGEST_S = 1000000000, /* largest limit in seconds; practically none */
    MSI_LOOK_MS = 100,          /* interval at which a sleeper checks for deadlock */
    MSI_RANKS_TEXT = 128,       /* of msi_ranks_list() */
    MSI_AGAIN_MS = 100          /* minimum distance of a second request (`timeout` sends two) */
};

/* Whether this process is still a rank of its job. */
enum { MSI_GONE_NOT, MSI_GONE_LEFT, MSI_GONE_FORKED };

enum { MSI_RANK_STARTING, MSI_RANK_ALIVE, MSI_RANK_LEFT, MSI_RANK_DEAD };

enum {
    MSI_CAUSE_NONE,
    MSI_CAUSE_FAILED,   /* a rank reported it */
    MSI_CAUSE_DIED,     /* its process ended */
    MSI_CAUSE_LEFT,     /* it left while others needed it */
    MSI_CAUSE_MISMATCH, /* two ranks called different collectives */
    MSI_CAUSE_STUCK,    /* every rank waits, or a wait lasted too long */
    MSI_CAUSE_STOPPED   /* ended by a signal sent to the launcher */
};

/* Part of a rank, or the launcher, in the block. */
typedef struct msi_job_rank {
    _Alignas(64) _Atomic uint32_t wakeups; /* futex: changes when a peer stored something */
    _Atomic uint32_t waiting;              /* 0: not waiting; else one word per group */
    _Atomic uint64_t waits;                /* number of sleeping waits begun: [Note: stuck] */
    _Atomic uint64_t checks;               /* number of checks while asleep */
    _Alignas(64) _Atomic int32_t state;
    _Atomic int32_t pid;
    _Atomic int32_t catches;    /* handles stop signals itself */
    _Atomic int32_t looks;      /* number of checks for a stop */
    _Atomic int32_t exec_error; /* errno of executing its program */
    int32_t kind;               /* ms_status of `text` */
    /* Number of puts of words for other hosts, and of those stored for this one: [Note: calm]. */
    _Alignas(64) _Atomic uint64_t sent;
    _Atomic uint64_t stored;
    char text[MSI_TEXT]; /* why this rank set `abort` */
    msi_address address; /* where it receives from other hosts */
} msi_job_rank;

typedef struct msi_block {
    uint64_t magic, nonce;
    uint32_t layout; /* sizes of the parts of block and guest, to reject other builds */
    int32_t world;
    /* This host, and its ranks: first .. first + n_local - 1. */
    int32_t n_hosts, host, first, n_local;
    msi_secret secret; /* of connections between hosts */
    int32_t cores;     /* usable by the launcher */
    cpu_set_t allowed; /* these */
    int64_t nbytes, guest_at;
    int64_t spin_ns, timeout_ns;
    int64_t announce_ns;                 /* length of a wait that is announced; 0: never */
    _Alignas(64) _Atomic uint64_t abort; /* 0, or writer, subject and cause */
    _Atomic uint32_t stop;               /* stop signals, one bit each */
    _Atomic int64_t quiet_until;         /* no announcement before this time */
    msi_job_rank rank[];                 /* (world + 1), the last is the launcher's */
} msi_block;

typedef struct msi_job msi_job;

/* A job's place among hosts: `host` of `n_hosts`, each with `n_local` ranks. */
typedef struct msi_job_size {
    int32_t n_hosts, host, n_local;
} msi_job_size;

/* `n` ranks of one host. */
static inline msi_job_size msi_one_host(int32_t n)
{
    return (msi_job_size){.n_hosts = 1, .host = 0, .n_local = n};
}

/* The layer above: its data after the block for the world, and its hooks. */
typedef struct msi_job_guest {
    uint32_t (*layout)(void);         /* hash of the sizes of its parts */
    int64_t (*nbytes)(int32_t world); /* of its data, initially zeros */
    /* Text of the ranks' positions, in the launcher. */
    void (*positions)(msi_job *job, char *buffer, size_t nbytes);
    /* The calling rank will leave. */
    void (*leave)(void);
    /* The process exits, and what it opened may be closed: run nothing, wait for nothing. */
    void (*end)(void);
    /* All ranks have left without a failure: compare them; a difference is the job's failure. */
    void (*compare_left)(msi_job *job);
} msi_job_guest;

/* A process's state of a job (for threads: shared). */
struct msi_job {
    msi_block *block;
    const msi_job_guest *guest;
    int32_t world;
    int32_t fd; /* of the block; -1: plain memory */
    bool threads;
    _Atomic(struct msi_shared_map *) maps; /* shared with the job */
    struct msi_descriptor_kept *kept;      /* messages received before they were needed */
    msi_mirror *mirror; /* in a rank: the memory shared with other hosts; NULL: one host */
    int32_t own;        /* that rank */
    /* (world) sockets for file descriptors: the owner reads [0], others write [1]. */
    int32_t socket[][2];
};

/* How a process became a rank; NONE: alone, once joined. */
enum {
    MSI_LAUNCHER_NONE,
    MSI_LAUNCHER_FORK,
    MSI_LAUNCHER_RUN,
    MSI_LAUNCHER_THREAD,
    MSI_LAUNCHER_ELSEWHERE
};

/* A context's place in its job. */
typedef struct msi_dist {
    ms_context *ctx;
    msi_job *job; /* NULL: not joined */
    int32_t rank;
    bool owns_job;
    int32_t gone;      /* MSI_GONE_* */
    int32_t launcher;  /* MSI_LAUNCHER_* */
    ms_launch *launch; /* ranks this process supervises, and its end function */
    void (*end_launch)(ms_launch *launch);
    int32_t asked; /* stop signal of its last launch, not yet raised; 0: none */
} msi_dist;

/* -- block.c: the control block ---------------------------------------------------------------- */
ms_status msi_job_new(msi_job **out, const msi_job_guest *guest, msi_job_size size, bool threads);
/* Join an existing block; owns `fd` on success. */
ms_status msi_job_open(msi_job **out, const msi_job_guest *guest, int32_t fd);
void msi_job_free(msi_job *job);
/* The guest's data for the world. */
void *msi_job_guest_memory(const msi_job *job);
/* From now on this process's writes to the job's shared memory are private. Async-signal-safe. */
void msi_job_make_private(const msi_job *job);

/* End the job: every rank reports `cause` and the text. The first call wins, except that a rank's
 * failure replaces the report that it had left. `own` is the caller's rank, `subject` the failed
 * one (-1: none). True if this is the job's failure. */
bool msi_job_abort(msi_job *job, int32_t own, int32_t subject, int32_t cause, ms_status kind,
                   const char *format, ...) MSI_PRINTF(6, 7);
/* The same with a text that names its process already. */
bool msi_job_abort_text(msi_job *job, int32_t own, int32_t subject, int32_t cause, ms_status kind,
                        const char *text);
/* The job's failure, or false. `text` is borrowed from the block. */
bool msi_job_aborted(const msi_job *job, int32_t *subject, int32_t *cause, ms_status *kind,
                     const char **text);
void msi_job_set_state(msi_job *job, int32_t rank, int32_t state);

static inline bool msi_job_is_local(const msi_job *job, int32_t rank)
{
    return rank >= job->block->first && rank < job->block->first + job->block->n_local;
}

static inline int32_t msi_job_host_of(const msi_job *job, int32_t rank)
{
    return rank / job->block->n_local;
}

/* -- hosts.c: the ranks of other hosts --------------------------------------------------------- */
/* Rank `rank` receives from other hosts at its listener, which is taken over. */
ms_status msi_job_mirror(msi_job *job, int32_t rank, int32_t listener);
/* What carries data between hosts, by MS_NET: NULL: TCP alone. MS_COMM_ERROR: it is missing. */
ms_status msi_job_engine(ms_context *ctx, const msi_engine_ops **out);
/* "shm+tcp" or "shm+ucx" */
const char *msi_job_between_hosts(const msi_job *job);
/* Wait until what this rank has sent to other hosts is stored there. */
void msi_job_flush(const msi_job *job);
/* This rank leaves. On several hosts: receive until the ranks of other hosts have, since its
 * launcher compares them all. */
void msi_job_linger(msi_job *job, int32_t rank);

/* -- wakeup.c: sleeping until a peer stores something ---------------------------------------- */
void msi_wake(msi_job_rank *rank);
/* Until the wakeups differs from `seen`, or for `most_ns`. */
void msi_sleep_unless_woken(msi_job_rank *rank, uint32_t seen, int64_t most_ns);

/* A sleeping rank's last view of the others, by rank. */
typedef struct msi_watch {
    bool set;
    uint64_t *waits, *checks;
} msi_watch;
/* True if every remaining rank waits as `rank` does, so that none can store anything. */
bool msi_job_is_deadlocked(const msi_job *job, int32_t rank, msi_watch *w);

/* -- maps.c: other shared memory of the job ---------------------------------------------------- */
/* Maps of one memfd, shared by ranks as threads. The last owner unmaps; the job frees the struct,
 * and incomplete maps. */
typedef struct msi_shared_map {
    _Atomic int32_t owners;
    int32_t fd;
    char *rw, *ro;
    int64_t nbytes;
    struct msi_shared_map *next;
} msi_shared_map;

/* Empty maps need an address, too. */
static inline size_t msi_map_bytes(int64_t nbytes)
{
    return (size_t)(nbytes > 0 ? nbytes : 1);
}

void msi_unmap(char *rw, char *ro, int64_t nbytes);
/* Add maps to the job's list. NULL: out of memory. */
msi_shared_map *msi_maps_add(msi_job *job, const msi_shared_map *made, int32_t owners);
/* Remove an owner. */
void msi_maps_drop(msi_shared_map *map);
/* From now on this process's writes to the map are private. Async-signal-safe, both. */
void msi_make_private(void *map, size_t nbytes, int protection, int32_t fd);
void msi_maps_make_private(const msi_job *job);
/* Free the remaining ones after all ranks ended. */
void msi_maps_sweep(msi_job *job);

/* -- descriptors.c: sending file descriptors to rank processes
 * ---------------------------------------- */
/* Purpose of a descriptor: a call of a group. */
typedef struct msi_purpose {
    uint64_t nonce; /* of the job; set by descriptors.c */
    uint64_t group, seq;
} msi_purpose;

ms_status msi_descriptors_new(msi_job *job);
void msi_descriptors_free(msi_job *job);
/* Close the socket ends that `rank` does not need. */
void msi_descriptors_keep(msi_job *job, int32_t rank);
/* Returns errno; 0: sent. */
int msi_descriptors_send(const msi_job *job, int32_t rank, msi_purpose purpose, int32_t fd);
/* The same. The sender has already arrived, so its message is available. */
int msi_descriptors_receive(msi_job *job, int32_t rank, msi_purpose purpose, int32_t *fd);

/* -- memfd.c ----------------------------------------------------------------------------------- */
/* A memfd of this size with reserved pages; `error` 0, or what failed. Lack of memory is an error,
 * not a signal. */
msi_bound msi_memfd_new(int32_t *fd, const char *name, int64_t nbytes);

/* -- calls.c ----------------------------------------------------------------------------------- */
/* Kind of a system call's error. */
ms_status msi_error_kind(int error);
/* Fail with that kind; the message has the purpose, the call, the reason and the limit: "cannot
 * start rank 3: fork: Resource temporarily unavailable (...)" */
ms_status msi_fail_call(const char *call, int error, const char *format, ...) MSI_PRINTF(3, 4);

/* -- process.c --------------------------------------------------------------------------------- */
/* State ('R', 'S', 'T', ...) and parent of a process. False: it does not exist. */
bool msi_process_look(pid_t pid, char *state, pid_t *parent);
/* "rank 1", "ranks 1, 3 and 5 more" */
const char *msi_ranks_list(const int32_t *ranks, int32_t n, char *buffer, size_t nbytes);

/* -- signals.c: `stop` of a block -------------------------------------------------------------- */
/* Stop signals of this rank or its launcher, one bit each; counts the call. */
uint32_t msi_stop_look(const msi_dist *d);
/* All ranks agreed on these: the launcher accepts their exit codes. Returns the signal to stop by;
 * 0: none. */
int32_t msi_stop_agreed(const msi_dist *d, uint32_t stop);
bool msi_stop_has(uint32_t stop, int32_t signal);
/* The signal to stop by; 0: none. Requests to stop precede SIGUSR1. */
int32_t msi_stop_signal(uint32_t stop);
/* Catch them from now on. */
ms_status msi_stop_catch(const msi_dist *d);

/* -- affinity.c -------------------------------------------------------------------------------- */
int32_t msi_cores_allowed(void);
/* Pin the calling thread to its part of the process's cores, if there are enough. */
void msi_cores_pin(int32_t rank, int32_t world);
/* The PCI address (MSI_BUS_TEXT bytes) of the card that local rank `index` opens unless it chooses
 * another. */
typedef bool (*msi_bus_of)(int32_t index, char *text);
/* Local rank `rank`'s part of the allowed cores of its card's NUMA node, shared with the ranks of
 * `n` whose cards are there. `sys`: "/sys". False: the node or its cores are unknown. */
bool msi_cores_near(cpu_set_t *out, const char *sys, const cpu_set_t *allowed, msi_bus_of bus,
                    int32_t rank, int32_t n);
/* Move this rank, which has opened card `index`, and its threads to those cores. Nothing changes
 * if the launcher did not pin it, or its cores or card were chosen otherwise. `d` may be NULL. */
void msi_cores_follow(const msi_dist *d, const char *sys, msi_bus_of bus, int32_t index);

/* -- dist.c: a context's place in its job ------------------------------------------------------ */
/* The context's, made on first use; NULL if memory is out (error set). */
msi_dist *msi_dist_state(void);
/* The same, or NULL. */
msi_dist *msi_dist_peek(void);
/* Become rank `rank` of `job`. */
ms_status msi_dist_enter(msi_dist *d, msi_job *job, int32_t rank, int32_t launcher, bool owns_job);
/* The error of a process that is no longer a rank. */
ms_status msi_gone_error(const msi_dist *d);
/* The calling thread's rank before ms_close(), after which it computes alone. world 0: it was not a
 * started rank. */
typedef struct msi_closed_rank {
    int32_t rank, world;
} msi_closed_rank;

msi_closed_rank msi_dist_closed(void);

/* -- join.c: the public functions, for a guest ------------------------------------------------- */
/* ms_dist_join() */
ms_status msi_dist_join(const msi_job_guest *guest);
/* Rank on this host, also before joining, since it selects resources early. 0 if unknown. */
int32_t msi_dist_local_rank(void);
/* ms_dist_abort() in a process that has not joined, e.g. a rank that could not. */
bool msi_dist_abort_unjoined(const msi_job_guest *guest, ms_status kind, const char *message);

/* -- launch_hosts.c, threads.c: the same ------------------------------------------------------- */
ms_status msi_launch_fork(ms_launch **out, const msi_job_guest *guest, int32_t n, int32_t *rank);
/* `hosts` NULL: this one alone. */
ms_status msi_launch_exec(ms_launch **out, const msi_job_guest *guest, int32_t n,
                          const ms_hosts *hosts, const char *const *argv, bool prefix);
ms_status msi_dist_threads(const msi_job_guest *guest, int32_t n,
                           ms_status (*fn)(void *user, int32_t rank), void *user);

#endif
