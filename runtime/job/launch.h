/* Ranks as child processes: shared by starting (launch.c, keeper.c), supervising (supervise.c) and
 * printing (output.c). */
#ifndef MSI_LAUNCH_H
#define MSI_LAUNCH_H

#include "job.h"

#include <poll.h>
#include <signal.h>

enum { MSI_GRACE_MS = 1000 }; /* between asking a process to end and killing it */

typedef struct msi_output msi_output;

typedef struct msi_child {
    bool running; /* started and not known to have ended */
    bool killed;  /* by its launcher */
    int32_t code; /* exit code or 128 + signal, once it has ended */
    pid_t pid;    /* the keeper's alone; 0: has ended */
} msi_child;

struct ms_launch {
    uint32_t magic;
    msi_dist *owner;
    msi_job *job;
    msi_output *output; /* what the ranks print; NULL: they do it themselves */
    int32_t n;
    char *program; /* that the ranks run; NULL: this one */
    pid_t host;    /* the process that launches: in its copies a launch means nothing */
    pid_t keeper;
    int32_t line; /* to the keeper; -1: there is none */
    /* [Note: signals] Signals that are relayed to the ranks wait from before the first rank starts
     * until the launcher reads them, so that none ends the launcher alone. */
    sigset_t held, before; /* ... and the mask that launcher and ranks go back to */
    int32_t signal_fd;     /* what the launcher reads them from */
    msi_child child[];     /* (n) */
};

/* -- launch.c ---------------------------------------------------------------------------------- */
void msi_launch_free(ms_launch *launch);
/* Why the program could not be run, by execve()'s `error`. */
const char *msi_launch_why(const ms_launch *launch, int error);

/* -- relay.c ----------------------------------------------------------------------------------- */
/* Hold back the signals to be relayed, but those that the process ignores. When that fails signals
 * are taken as before. */
ms_status msi_launch_block_signals(ms_launch *launch);
/* Take signals as before again: the launcher's last step, a rank's first. */
void msi_launch_catch_signals(const ms_launch *launch);

/* -- output.c: lines of ranks, with "[rank N] " in front --------------------------------------- */
/* Pipes for what ranks print. */
ms_status msi_output_new(msi_output **out, int32_t n);
void msi_output_free(msi_output *o);
/* In a rank: print into its pipes. Async-signal-safe. False: errno has the reason. */
bool msi_output_enter(const msi_output *o, int32_t rank);
/* All ranks have been started: close their ends. */
void msi_output_started(msi_output *o);
/* The rank has ended: what it printed without an end is a line. */
void msi_output_end(msi_output *o, int32_t rank);
/* No rank runs any more: take what their pipes hold, though processes they left may print on. */
void msi_output_finish(msi_output *o);
/* Take and print a piece of what each rank prints, without waiting. True: there may be more. */
bool msi_output_move(msi_output *o);
/* Has something been lost that could not be written, as to a full disk? */
bool msi_output_lost(const msi_output *o);
/* For how long something has waited to be printed without progress. */
int64_t msi_output_stuck_ns(const msi_output *o);
/* The descriptors to poll until msi_output_move() can do something: at most two for each rank, and
 * two; returns their number. */
nfds_t msi_output_poll(msi_output *o, struct pollfd *fds);

/* -- keeper.c: the parent of the ranks, and of what they leave behind -------------------------- */
/* Start the ranks. In a rank: `*rank` is its rank; in the launcher -1. */
ms_status msi_keeper_start(ms_launch *launch, int32_t *rank);
/* Send a signal to a rank, unless it has ended. */
void msi_keeper_signal(const ms_launch *launch, int32_t rank, int32_t signal);
/* True: rank `*rank` has ended, with this status of waitpid(). False: no news; with `line` -1 the
 * keeper has ended. */
bool msi_keeper_read_end(ms_launch *launch, int32_t *rank, int32_t *status);
/* Kill the ranks and wait until nothing is left. */
void msi_keeper_end(ms_launch *launch);

#endif
