/* Ranks as child processes: what starting (launch.c), supervising (supervise.c), what they print
 * (output.c) and what they leave behind (strays.c) share. */
#ifndef MSI_LAUNCH_H
#define MSI_LAUNCH_H

#include "control.h"

#include <poll.h>
#include <signal.h>

enum { MSI_GRACE_MS = 1000 }; /* between asking a process to end and killing it */

typedef struct msi_output msi_output;

typedef struct msi_child {
    pid_t pid;
    bool running; /* started and not reaped */
    bool killed;  /* by its launcher */
    int32_t code; /* exit code or 128 + signal, once reaped */
} msi_child;

struct ms_launch {
    msi_live live;
    msi_dist *owner;
    msi_job *job;
    msi_output *output; /* what the ranks print; NULL: they do it themselves */
    int32_t n;
    char program[128];    /* that the ranks run, cut; "": this one */
    bool adopts, adopted; /* orphans of ranks come to this process; they did before the launch */
    /* [Note: signals] Signals that are relayed to the ranks wait from before the first rank starts
     * until the launcher reads them, so that none ends the launcher alone. SIGCHLD waits with them:
     * it says that a process has ended. */
    sigset_t held, before;         /* ... and the mask that launcher and ranks go back to */
    struct sigaction child_before; /* how this process took SIGCHLD */
    int32_t signal_fd;             /* what the launcher reads them from */
    msi_child child[MSI_MAX_RANKS];
};

/* -- launch.c ---------------------------------------------------------------------------------- */
void msi_launch_free(ms_launch *launch);
/* Kill and reap what runs, then free. */
void msi_launch_kill(ms_launch *launch);

/* -- supervise.c ------------------------------------------------------------------------------- */
/* Hold back SIGCHLD and the signals to be relayed; of those that the process does not ignore. When
 * that fails signals are taken as before. */
ms_status msi_launch_hold_signals(ms_launch *launch);
/* Take signals as before again: the launcher's last step, a rank's first. */
void msi_launch_hear_signals(const ms_launch *launch);

/* -- output.c: lines of ranks, with "[rank N] " in front --------------------------------------- */
enum { MSI_OUTPUT_FDS = 2 * MSI_MAX_RANKS + 2 };
ms_status msi_output_new(msi_output **out, int32_t n);
void msi_output_free(msi_output *o);
/* Pipes for what a rank prints; `ends` gets the rank's ends, the caller's to close. */
ms_status msi_output_open(msi_output *o, int32_t rank, int32_t *ends);
/* The rank has ended: what stands there without an end is a line. */
void msi_output_end(msi_output *o, int32_t rank);
/* Take and print what can be without waiting. True: there is more, but nobody reads us now. */
bool msi_output_move(msi_output *o);
/* Has something been lost that could not be written, as to a full disk? */
bool msi_output_lost(const msi_output *o);
/* What to sleep on until msi_output_move() can do something; gives their number. */
nfds_t msi_output_poll(const msi_output *o, struct pollfd *fds);

/* -- strays.c: what ranks started and left behind ---------------------------------------------- */
/* From now on orphans of ranks become children of this process, unless it has children of its own:
 * those could not be told apart. */
void msi_strays_adopt(ms_launch *launch);
/* Reap strays that have ended. True: some are there, running. */
bool msi_strays_reap(const ms_launch *launch);
/* No rank runs any more: ask the strays to end, and kill those that have not a second later. */
void msi_strays_end(ms_launch *launch);

#endif
