/* Ranks started by another launcher (torchrun, mpirun, srun, or by hand): the rank of this process,
 * and a rendezvous with the other ranks before the job exists.
 *
 * Order: msi_place_find(), msi_rendezvous_open(), msi_rendezvous_same() for whatever must be equal,
 * msi_rendezvous_places(), msi_rendezvous_share(), any exchanges, msi_rendezvous_close(). All ranks
 * make the same calls in the same order. Every call has the time limit given to open. */
#ifndef MSI_RENDEZVOUS_H
#define MSI_RENDEZVOUS_H

#include "base.h"

enum { MSI_RENDEZVOUS_BYTES = 4096, MSI_RENDEZVOUS_KEY = 64 };

/* How ranks find each other. */
enum {
    MSI_MEET_MASTER, /* rank 0 listens on `master` */
    MSI_MEET_STORE,  /* clients of PyTorch's TCPStore at `master` */
    MSI_MEET_PMIX
};

/* Who this process is. */
typedef struct msi_place {
    int32_t rank, world, local_rank, local_world;
    int32_t host, n_hosts; /* -1: not known before msi_rendezvous_places() */
    char launcher[16];     /* "torchrun", "mpirun", "srun", "plain" */
    char source[64];       /* the variables of rank and world, for errors and the start line */
    char run[64];          /* id of the run and restart: equal on all ranks */
    int32_t meet;          /* MSI_MEET_* */
    int32_t port;
    char master[256];     /* host name or number; "": none, which one rank alone may have */
    char master_from[48]; /* the variables of master and port, for errors */
} msi_place;

/* -- rendezvous_place.c ------------------------------------------------------------------------ */
/* From the environment. MS_VALUE_ERROR: a variable is missing or wrong, or two launchers' variables
 * disagree. `*found` false: no launcher's variables are set. */
ms_status msi_place_find(msi_place *out, bool *found);
/* True if every host has the same number L of ranks, host h those from h L on, in the order of
 * their local ranks. `all`: from msi_rendezvous_places(). */
bool msi_place_is_contiguous(const msi_place *all);

/* -- rendezvous.c ------------------------------------------------------------------------------ */
typedef struct msi_rendezvous msi_rendezvous;

/* Returns when all ranks have come. Failures are MS_COMM_ERROR. */
ms_status msi_rendezvous_open(msi_rendezvous **out, const msi_place *place, int64_t timeout_ns);
/* All-gather of `nbytes` (at most MSI_RENDEZVOUS_BYTES) of every rank, in rank order. `key`:
 * another one for every call, at most MSI_RENDEZVOUS_KEY - 1 bytes. */
ms_status msi_rendezvous_exchange(msi_rendezvous *r, const char *key, const void *in,
                                  int64_t nbytes, void *all);
/* Fail on all ranks unless all have the same text (at most 127 bytes); names both and `what`. */
ms_status msi_rendezvous_same(msi_rendezvous *r, const char *what, const char *text);
/* The places of all ranks, `all[world]`: hosts are numbered by their first ranks. Fills host and
 * n_hosts of `own`. Fails if hosts have different numbers of ranks, or local ranks are not those of
 * the host. A host is a network namespace of a running kernel. */
ms_status msi_rendezvous_places(msi_rendezvous *r, msi_place *own, msi_place *all);
/* NULL does nothing. */
void msi_rendezvous_close(msi_rendezvous *r);

/* -- rendezvous_share.c ------------------------------------------------------------------------ */
/* Local rank 0 gives `n` file descriptors to the other ranks of its host, which receive their own
 * copies (closed on exec). `p`: with the host from msi_rendezvous_places(). */
ms_status msi_rendezvous_share(msi_rendezvous *r, const msi_place *p, int32_t *fds, int32_t n);

#endif
