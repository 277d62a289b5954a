/* What ranks exchange where they must agree: whether they have failed so far, and what they are
 * about to do. No allocation, so that a rank without memory can take part. */
#ifndef MSI_OUTCOME_H
#define MSI_OUTCOME_H

#include "comm.h"
#include "io.h"

typedef struct msi_outcome {
    int32_t status; /* the first failure of this rank, MS_OK so far */
    char message[1000];
    /* What the point at hand compares or passes on; zero where it needs nothing. */
    char name[208]; /* of a path that is longer: its end */
    char nonce[MSI_NONCE_ROOM];
    int64_t step, n_bytes;
    uint64_t hash, path; /* of contents; of the whole path of which `name` is the end */
} msi_outcome;

/* MS_RUNTIME_ERROR in a fake group, whose other ranks keep nothing anywhere. Asked first. */
ms_status msi_outcome_check_group(const ms_comm *comm, const char *what);
/* Take over a failure with the thread's message, unless there is one already. */
void msi_outcome_keep(msi_outcome *own, ms_status status);
/* Set the path that this rank means. */
void msi_outcome_path(msi_outcome *own, const char *path);
/* Do all ranks mean the same? MS_VALUE_ERROR, equal on all ranks, when not: "rank 1 <does>
 * '<path>', rank 0 '<path>'". */
ms_status msi_outcome_same_path(const msi_outcome *all, const ms_comm *comm, const char *does);
/* Exchange outcomes: `all` (one per rank) gets every rank's. Fails on all ranks, equally, when one
 * of them has failed; MS_COMM_ERROR when one is gone. Collective. */
ms_status msi_outcome_agree(ms_comm *comm, const char *what, const msi_outcome *own,
                            msi_outcome *all);

#endif
