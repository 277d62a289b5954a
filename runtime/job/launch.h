/* Ranks as child processes: shared by launch.c, reaper.c, supervise.c and output.c. */
#ifndef MSI_LAUNCH_H
#define MSI_LAUNCH_H

#include "agent.h"
#include "job.h"

#include <poll.h>
#include <signal.h>

enum { MSI_TEST_HOSTS = 8 };
enum { MSI_GRACE_MS = 1000 }; /* between SIGTERM and SIGKILL */

typedef struct msi_output msi_output;

typedef struct msi_child {
    bool running; /* started, end not yet known */
    bool killed;  /* by its launcher */
    int32_t code; /* exit code or 128 + signal, after its end */
    pid_t pid;    /* in the reaper only; 0: ended */
} msi_child;

struct ms_launch {
    uint32_t magic;
    msi_dist *owner;
    msi_job *job;
    msi_output *output; /* prefixed output; NULL: ranks print directly */
    int32_t n, first;   /* ranks of this host: first .. first + n - 1, children 0 .. n - 1 */
    msi_agent *agent;   /* to other hosts' launchers; NULL: none */
    pid_t beside[MSI_TEST_HOSTS]; /* launchers of other hosts, which MS_TEST_HOSTS started */
    int32_t *listeners;           /* (n) of ranks that receive from other hosts; NULL: none */
    char *program;                /* program of the ranks; NULL: this one */
    pid_t host;                   /* the launching process; forked copies must not use it */
    pid_t reaper;
    int32_t line; /* socket to the reaper; -1: closed */
    /* [Note: signals] Relayed signals are blocked from before the first rank starts until the
     * launcher reads them, so that none ends the launcher alone. */
    sigset_t held, before; /* blocked signals; the mask to restore */
    int32_t signal_fd;     /* for reading them */
    msi_child child[];     /* (n) */
};

/* -- launch.c ---------------------------------------------------------------------------------- */
void msi_launch_free(ms_launch *launch);

/* What to start on this host. */
typedef struct msi_start {
    const msi_job_guest *guest;
    int32_t n;
    const char *const *argv; /* NULL: fork */
    bool prefix;
} msi_start;

/* Can this process start it? */
ms_status msi_launch_check(const msi_dist *d, const msi_start *s);
/* @param hosts  NULL: this host alone
 * @param rank  of the job, in a forked rank; else -1 */
ms_status msi_launch_start(ms_launch **out, msi_dist *d, const msi_start *s, const ms_hosts *hosts,
                           int32_t *rank);

/* -- relay.c ----------------------------------------------------------------------------------- */
/* Block the relayed signals that the process does not ignore. On failure the mask is unchanged. */
ms_status msi_launch_block_signals(ms_launch *launch);
/* Restore the mask: the launcher's last step, a rank's first. */
void msi_launch_catch_signals(const ms_launch *launch);

/* -- output.c: lines of ranks, with "[rank N] " in front --------------------------------------- */
/* Pipes for the output of this host's ranks. */
ms_status msi_output_new(msi_output **out, const msi_block *b);
void msi_output_free(msi_output *o);
/* In a rank: redirect output to its pipes. Async-signal-safe. False: see errno. */
bool msi_output_enter(const msi_output *o, int32_t rank);
/* All ranks have started: close their ends. */
void msi_output_started(msi_output *o);
/* The rank has ended: print its unfinished line. */
void msi_output_end(msi_output *o, int32_t rank);
/* No rank runs: read what the pipes have, though orphans may still print. */
void msi_output_finish(msi_output *o);
/* Read and print some of each rank's output without waiting. True: there may be more. */
bool msi_output_move(msi_output *o);
/* Why output could not be written (errno), as on a full disk; 0: it was. */
int32_t msi_output_lost(const msi_output *o);
/* Time for which pending output made no progress. */
int64_t msi_output_stuck_ns(const msi_output *o);
/* Descriptors to poll before msi_output_move(): at most two per rank, and two. Returns their
 * number. */
nfds_t msi_output_poll(msi_output *o, struct pollfd *fds);

/* -- reaper.c: the parent of ranks and orphans ------------------------------------------------- */
/* Start the ranks. `*child` is the child's number in a rank, -1 in the launcher. */
ms_status msi_reaper_start(ms_launch *launch, int32_t *child);
/* Send a signal to a child, unless it has ended. */
void msi_reaper_signal(const ms_launch *launch, int32_t child, int32_t signal);
/* True: child `*child` has ended, with this waitpid() status. False: no news; `line` -1: the reaper
 * has ended. */
bool msi_reaper_read_end(ms_launch *launch, int32_t *child, int32_t *status);
/* Kill the ranks and wait until no process is left. */
void msi_reaper_end(ms_launch *launch);

#endif
