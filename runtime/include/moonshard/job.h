/* Jobs: starting ranks, their numbers, and how they end. */
#ifndef MOONSHARD_JOB_H
#define MOONSHARD_JOB_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that this process starts and supervises. */
typedef struct ms_launch ms_launch;

enum { MS_MAX_RANKS = 128 }; /**< per job */

/** Result of ms_dist_info_get(). */
typedef struct ms_dist_info {
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;
    int32_t local_world_size;
    int32_t host; /**< this host's number */
    int32_t n_hosts;
    int32_t cores; /**< cores this rank may run on */
    bool initialized;
    const char *launcher;  /**< "none", "fork", "run", "thread" */
    const char *transport; /**< "self", "shm"; on several hosts "shm+tcp" or "shm+ucx" */
} ms_dist_info;

/** Where the launchers of a job on several hosts meet. */
typedef struct ms_hosts {
    int32_t n_hosts;
    int32_t host;        /**< this one, from 0 */
    const char *address; /**< of host 0, which listens there: a name or number of its own */
    int32_t port;
    const char *secret; /**< equal on all hosts; a launcher without it is not let in */
    double timeout_s;   /**< how long to wait for the others */
    int32_t listener;   /**< host 0: a socket that listens there, taken over; 0: not made yet */
} ms_hosts;

/** Fork `n` ranks. Child: `*rank` is its rank, `*out` NULL, the world group exists. Caller: `*rank`
 * is -1 and `*out` must be passed to ms_launch_wait(); until then SIGINT, SIGTERM, SIGHUP and
 * SIGUSR1 are deferred, then relayed. Each rank has its own copy of the caller's tensors.
 * @return MS_RUNTIME_ERROR, with the reason, if another thread runs, a device is open or ranks
 *         exist; that or MS_OUT_OF_MEMORY, with system call and limit, if the system
 *         refuses */
MS_API ms_status ms_launch_fork(ms_launch **out, int32_t n, int32_t *rank);
/**
 * Start `n` ranks that each execute `argv` (NULL-terminated) and join with ms_dist_join().
 * @param prefix  print "[rank N] " before every line of theirs
 * @return MS_RUNTIME_ERROR, with the reason, if another thread runs or ranks exist
 */
MS_API ms_status ms_launch_exec(ms_launch **out, int32_t n, const char *const *argv, bool prefix);
/**
 * Start this host's `n` ranks of a job on several hosts; each host makes this call, with equal `n`.
 * Ranks are numbered by host. Launchers exchange heartbeats: one that is silent for MS_HOST_TIMEOUT
 * seconds fails the job on the others.
 * @return as ms_launch_exec(); MS_COMM_ERROR: a host is missing, or differs
 */
MS_API ms_status ms_launch_hosts(ms_launch **out, const ms_hosts *hosts, int32_t n,
                                 const char *const *argv, bool prefix);
/**
 * Supervise until every rank has left: relay signals, end all ranks on the first failure, report
 * its cause, end the processes that ranks left behind. Does not touch other children. Frees
 * `launch`.
 *
 * | event                                                     | after           | effect  |
 * | some ranks have ended, others have not                    | MS_COMM_ANNOUNCE| warning |
 * | a second SIGINT or SIGTERM                                | at once         | end all |
 * | a stop signal; a rank never called ms_dist_stop_agreed()  | MS_STOP_TIMEOUT | end all |
 *
 * Output that nobody reads delays only the return; for a failed job by at most MS_STOP_TIMEOUT, and
 * a warning gives the failure at once. For stop signals see ms_dist_pass_on_stop().
 * @param exit_code  of the job: 0, the first failed rank's, or 128 + signal; 75 (EX_TEMPFAIL) if a
 *                   host or the process that keeps the ranks was lost; 1 if all ranks
 *                   succeeded but their output could not be read or written (reported on stderr)
 * @param cause      the first failure in one line ("" if none), then the further lines its rank
 *                   passed to ms_dist_abort(); static until the next call
 * @return MS_RUNTIME_ERROR in a forked copy of the launching process; the launch goes on there
 */
MS_API ms_status ms_launch_wait(ms_launch *launch, int32_t *exit_code, const char **cause);
/** For a host that continues after ms_launch_wait(): raise the first SIGINT, SIGTERM or SIGHUP that
 * arrived during it again, with the previous handlers and mask. No effect the second time, or
 * without one. SIGUSR1 is only relayed to ranks. */
MS_API void ms_dist_pass_on_stop(void);

/** Join the job of this process's environment, or become a world of one. No effect the second time.
 */
MS_API ms_status ms_dist_join(void);
/** True if a launcher with a compatible environment started this process as a rank. */
MS_API bool ms_dist_launched(void);
MS_API void ms_dist_info_get(ms_dist_info *info);
/** Leave: later collectives are MS_RUNTIME_ERROR. Pending notes are compared when the last rank of
 * a group has left. A process that exits with code 0 leaves without this call.
 * @return the unreported error of the device's last work, e.g. an index out of range; the rank has
 *         left */
MS_API ms_status ms_dist_leave(void);
/** Report this rank's failure to all ranks; their pending and next collective raises `message` (one
 * or more lines, 4,000 bytes in total). Works for a rank that could not join; no effect in other
 * processes that have not joined. An invalid `kind` is MS_RUNTIME_ERROR. @return true if this is
 * the job's failure, false if another one came first */
MS_API bool ms_dist_abort(ms_status kind, MS_NULLABLE const char *message);
/** Flush stdio and end the process with `code`, without the launcher's exit handlers (for a forked
 * rank whose script ends). An error of ms_dist_leave() is printed, reported to the job, and makes
 * `code` 0 a 1. exit(0) of a thread with an open device, before ms_close(), does the same before
 * the host's handlers run; with another code pending device work is dropped. */
MS_API void ms_dist_exit(int32_t code);
/**
 * Agree whether to stop after this step (a stop signal reached any rank or the launcher).
 * Collective over the world.
 * @param signal  0: go on; otherwise the signal's number, equal on all ranks
 */
MS_API ms_status ms_dist_stop_agreed(int32_t *signal);
/** Catch SIGINT, SIGTERM, SIGHUP and SIGUSR1 (unless ignored) for ms_dist_stop_agreed(); a second
 * SIGINT or SIGTERM ends the job without saving. */
MS_API ms_status ms_dist_catch_signals(void);

#ifndef MS_FFI_CDEF
/** Run `fn(user, rank)` on `n` threads of this process, each a rank with its own context, joined by
 * shared memory. @return the first failure, with that rank's ms_error_message(); it ends the other
 * ranks */
MS_API ms_status ms_dist_threads(int32_t n, ms_status (*fn)(void *user, int32_t rank), void *user);
#endif

#ifdef __cplusplus
}
#endif

#endif
