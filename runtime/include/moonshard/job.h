/* Jobs: starting ranks, who they are, and how they end. */
#ifndef MOONSHARD_JOB_H
#define MOONSHARD_JOB_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A set of ranks being started and supervised by this process. */
typedef struct ms_launch ms_launch;

enum { MS_MAX_RANKS = 128 }; /**< of one job */

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
/** Leave: later collectives are MS_RUNTIME_ERROR. What ranks said after their last call is compared
 * when the last of a group has left; so it is when their processes end, with code 0, without this.
 * @return what was wrong with what this rank's device was given last, an index out of range say,
 *         and nobody was told; the rank has left */
MS_API ms_status ms_dist_leave(void);
/** Tell all ranks that this one failed; their pending and next collective raises `message`: a line
 * that may be followed by others, a traceback say, of 4,000 bytes together. A rank
 * that could not join tells, too; any other process that has not joined does nothing. A `kind` that
 * is none counts as MS_RUNTIME_ERROR. @return true when this is what the job fails with, false when
 * another failure came first */
MS_API bool ms_dist_abort(ms_status kind, MS_NULLABLE const char *message);
/** Leave the process at once with `code`, without running exit handlers that belong to the
 * launcher (a forked rank uses it when its script ends). Flushes stdio. What ms_dist_leave() would
 * return is printed, told to the job, and makes a `code` of 0 a 1. (So it is where a thread
 * that has opened a device, and not called ms_close(), ends its process by exit(0), before handlers
 * of the host are called. By another code what its device had not done is dropped.) */
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
