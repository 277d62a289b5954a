/* Ranks: starting them, groups, collectives.
 *
 * Every collective first publishes a fingerprint (kind, dtype, count, unit, slot, sequence, hash of
 * the schedule so far). A mismatch or a dead peer is MS_COMM_ERROR on all ranks within a second,
 * naming rank, operation, unit and sequence; the group is unusable afterwards. So is it in a
 * process that a rank forks. Sums run over ranks by one fixed binary tree, so results depend on
 * nothing but the values. */
#ifndef MOONSHARD_COMM_H
#define MOONSHARD_COMM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that call collectives together. */
typedef struct ms_comm ms_comm;
/** A set of ranks being started and supervised by this process. */
typedef struct ms_launch ms_launch;

enum { MS_MAX_RANKS = 128 }; /**< of one job */
enum { MS_REDUCE_SUM = 0, MS_REDUCE_AVG = 1, MS_REDUCE_MAX = 2, MS_REDUCE_MIN = 3 };

/** What ms_dist_info_get() tells. */
typedef struct ms_dist_info {
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;
    int32_t local_world_size;
    int32_t cores; /**< cores this rank may run on */
    bool initialized;
    const char *launcher;  /**< "none", "fork", "run", "thread" */
    const char *transport; /**< "self" or "shm" */
} ms_dist_info;

/**
 * Fork `n` ranks. In a child: `*rank` is its rank, `*out` NULL, the world group is ready. In the
 * caller: `*rank` is -1 and `*out` must be given to ms_launch_wait(); until then SIGINT, SIGTERM,
 * SIGHUP and SIGUSR1 are held back, to be relayed.
 * @return MS_RUNTIME_ERROR, naming the reason, when tensors are live, another thread runs, a
 *         device is up or ranks exist already; that or MS_OUT_OF_MEMORY, naming system call and
 *         limit, when the system refuses
 */
MS_API ms_status ms_launch_fork(ms_launch **out, int32_t n, int32_t *rank);
/**
 * Start `n` ranks that each execute `argv` (NULL-terminated); they join with ms_dist_join().
 * @param prefix  put "[rank N] " before every line they print
 * @return MS_RUNTIME_ERROR, naming the reason, when another thread runs or ranks exist already
 */
MS_API ms_status ms_launch_exec(ms_launch **out, int32_t n, const char *const *argv, bool prefix);
/**
 * Supervise until every rank has left: relay signals, end all on the first failure, name the root
 * cause; then end what the ranks started and left behind. No other child of this process is waited
 * for or touched. When some ranks have ended and others have not MS_COMM_ANNOUNCE (15) seconds
 * later, a warning names those. A second SIGINT or SIGTERM ends all at once, and so does the first
 * stop signal when some rank has not once called ms_dist_stop_agreed() MS_STOP_TIMEOUT (10) seconds
 * later. What nobody reads of the ranks' output delays nothing but the return; when the job has
 * failed, by MS_STOP_TIMEOUT seconds at most, and a warning says at once why it has. Frees
 * `launch`. A stop signal that came meanwhile is told by ms_dist_pass_on_stop().
 * @param exit_code  of the job: 0, that of the first rank that failed, or 128 + signal; 1 when all
 *                   went well but what ranks printed could not be read or written (said on stderr)
 * @param cause      a line naming the first failure ("" when there was none), followed by the lines
 *                   its rank gave ms_dist_abort() besides; static until the next call
 * @return MS_RUNTIME_ERROR in a copy (fork) of the process that launched; the launch goes on there
 */
MS_API ms_status ms_launch_wait(ms_launch *launch, int32_t *exit_code, const char **cause);
/**
 * For a host that goes on after ms_launch_wait(): raise the first SIGINT, SIGTERM or SIGHUP again
 * that reached it during the last one, as it was before: it ends this process, is handled, or waits
 * where the host blocks it. Does nothing the second time, or when none came. SIGUSR1 is for the
 * ranks alone.
 */
MS_API void ms_dist_pass_on_stop(void);

/** Join the ranks this process was started among (environment), or be a world of one. Does nothing
 * the second time. */
MS_API ms_status ms_dist_join(void);
/** True when this process was started as a rank by a launcher whose environment we understand. */
MS_API bool ms_dist_launched(void);
MS_API void ms_dist_info_get(ms_dist_info *info);
/** Leave: later collectives are MS_RUNTIME_ERROR. */
MS_API void ms_dist_leave(void);
/** Tell all ranks that this one failed; their pending and next collective raises `message`: a line
 * that may be followed by others, a traceback say, of 4,000 bytes together. A rank
 * that could not join tells, too; any other process that has not joined does nothing. A `kind` that
 * is none counts as MS_RUNTIME_ERROR. @return true when this is what the job fails with, false when
 * another failure came first */
MS_API bool ms_dist_abort(ms_status kind, MS_NULLABLE const char *message);
/** Leave the process at once with `code`, without running exit handlers that belong to the
 * launcher (a forked rank uses it when its script ends). Flushes stdio. */
MS_API void ms_dist_exit(int32_t code);
/**
 * Agree whether to stop after this step (a stop signal reached any rank or the launcher).
 * Collective over the world.
 * @param signal  0: go on; otherwise the signal's number, equal on all ranks
 */
MS_API ms_status ms_dist_stop_agreed(int32_t *signal);
/** Catch SIGINT, SIGTERM, SIGHUP and SIGUSR1 (those not ignored already) for ms_dist_stop_agreed();
 * a second SIGINT or SIGTERM ends the job unsaved. */
MS_API ms_status ms_dist_catch_signals(void);

/** The group of all ranks; borrowed, valid until ms_dist_leave(). Joins when nobody has yet. A rank
 * is the thread that joined: any other thread of its process is a world of one. */
MS_API ms_status ms_comm_world(ms_comm **out);
/** A group of this rank alone; borrowed. */
MS_API ms_status ms_comm_self(ms_comm **out);
MS_API int32_t ms_comm_rank(const ms_comm *comm);
MS_API int32_t ms_comm_size(const ms_comm *comm);

/** in (n) on every rank -> out (W * n), rank r's at [r*n, (r+1)*n). Contiguous, one dtype. */
MS_API ms_status ms_comm_all_gather(ms_comm *comm, ms_tensor *out, ms_tensor *in);
/** in (W * n) on every rank -> out (n): rank r's part of the reduction over ranks. */
MS_API ms_status ms_comm_reduce_scatter(ms_comm *comm, ms_tensor *out, ms_tensor *in,
                                        int32_t reduce);
/** In place, equal bits on every rank. */
MS_API ms_status ms_comm_all_reduce(ms_comm *comm, ms_tensor *t, int32_t reduce);
/** In place, rank `root`'s values everywhere. */
MS_API ms_status ms_comm_broadcast(ms_comm *comm, ms_tensor *t, int32_t root);
MS_API ms_status ms_comm_barrier(ms_comm *comm);
/**
 * Say something that every rank of the group should say here: a text, or up to eight numbers whose
 * names stand in `text` with a space between two. Nothing is sent: the next collective compares,
 * and is MS_COMM_ERROR on all ranks, naming the first difference, when a rank said something else,
 * in another order, or nothing. What ranks say after their last collective is compared when all
 * have left: then it is the job that fails. Says nothing after ms_dist_leave(). Copies what it is
 * given.
 * @param label  what it is about, e.g. "batch size". All of it counts, and of `text`; what is too
 * long is told cut
 */
MS_API ms_status ms_comm_same(ms_comm *comm, const char *label, const char *text,
                              const double *numbers, int32_t n_numbers);
/**
 * What every rank says in numbers: rank r's from all[r * n_numbers] on, on every rank.
 * @param what  the operation of the host that asks, which errors name
 * @param all   (size, n_numbers)
 */
MS_API ms_status ms_comm_exchange(ms_comm *comm, const char *what, const double *numbers,
                                  int32_t n_numbers, double *all);
/**
 * Say why this rank fails, before what tells its peers that it has: a collective that carries its
 * outcome, or another call than theirs. Their errors then bring the message; the latest one counts.
 * Nothing is sent.
 * @param message  a line that may be followed by others, of 3,900 bytes together; copied
 */
MS_API void ms_comm_failed(ms_comm *comm, const char *message);
/** Collectives of each kind this rank has called in `comm`, for tests: all-gather, reduce-scatter,
 * all-reduce, broadcast, barrier (an unshard counts as an all-gather, a unit's reduction as a
 * reduce-scatter or all-reduce). */
MS_API void ms_comm_counts(const ms_comm *comm, int64_t *counts5);
/** Seconds this rank has waited for others in `comm`: exposed communication. */
MS_API double ms_comm_wait_seconds(const ms_comm *comm);

#ifndef MS_FFI_CDEF
/** Run `fn(user, rank)` on `n` threads of this process, each a rank with its own context, joined by
 * shared memory. @return the first failure, with what its rank's ms_error_message() says; the
 * others are ended by it */
MS_API ms_status ms_dist_threads(int32_t n, ms_status (*fn)(void *user, int32_t rank), void *user);
#endif

#ifdef __cplusplus
}
#endif

#endif
