/* What ranks exchange to agree: their failure so far, and their next action. Without allocation, so
 * that a rank without memory can take part. */
#ifndef MSI_OUTCOME_H
#define MSI_OUTCOME_H

#include "comm.h"
#include "io.h"

typedef struct msi_outcome {
    int32_t status; /* this rank's first failure, or MS_OK */
    char message[1000];
    /* Compared or passed on at the current point; zero if unused. */
    char name[208]; /* of a path; the end, if longer */
    char nonce[MSI_NONCE_ROOM];
    int64_t step, n_bytes;
    uint64_t hash, path; /* of contents; of the whole path of `name` */
} msi_outcome;

/* MS_RUNTIME_ERROR in a fake group, whose other ranks store nothing. Call first. */
ms_status msi_outcome_check_group(const ms_comm *comm, const char *what);
/* Store a failure with the thread's message, unless one is stored. */
void msi_outcome_keep(msi_outcome *own, ms_status status);
/* Set this rank's path. */
void msi_outcome_path(msi_outcome *own, const char *path);
/* MS_VALUE_ERROR, equal on all ranks, if the ranks' paths differ: "rank 1 <does> '<path>', rank 0
 * '<path>'". */
ms_status msi_outcome_same_path(const msi_outcome *all, const ms_comm *comm, const char *does);
/* Exchange outcomes: `all` (one per rank) gets every rank's. Fails equally on all ranks if one has
 * failed; MS_COMM_ERROR if one has died. Collective. */
ms_status msi_outcome_agree(ms_comm *comm, const char *what, const msi_outcome *own,
                            msi_outcome *all);

#endif
