/* Ranks as child processes: what starting (launch.c) and supervising (supervise.c) share. */
#ifndef MSI_LAUNCH_H
#define MSI_LAUNCH_H

#include "control.h"

#include <signal.h>

enum { MSI_LINE = 8192 }; /* longest line that is prefixed as one */

/* What a rank prints, until a line is whole. */
typedef struct msi_outlet {
    int32_t from, to; /* pipe of the rank, our descriptor; from = -1: closed */
    int32_t n;
    char line[MSI_LINE];
} msi_outlet;

typedef struct msi_child {
    pid_t pid;
    int32_t pidfd;      /* -1: reaped */
    int32_t code;       /* exit code or 128 + signal, once reaped */
    bool killed;        /* by its launcher */
    msi_outlet *outlet; /* (2): stdout, stderr; NULL without prefixes */
} msi_child;

struct ms_launch {
    msi_dist *owner;
    msi_job *job;
    int32_t n;
    /* [Note: signals] Signals that are relayed to the ranks wait from before the first rank starts
     * until the launcher reads them, so that none ends the launcher alone. */
    sigset_t relayed, before; /* ... and the mask that the launcher and its ranks go back to */
    msi_child child[MSI_MAX_RANKS];
};

/* Hold back the signals to be relayed; of those that the process does not ignore. */
void msi_launch_hold_signals(ms_launch *launch);

void msi_launch_free(ms_launch *launch);
/* Kill and reap what runs, then free. */
void msi_launch_kill(ms_launch *launch);

#endif
