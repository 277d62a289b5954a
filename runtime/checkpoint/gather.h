/* Files of a checkpoint that are in another host's folder. */
#ifndef MSI_GATHER_H
#define MSI_GATHER_H

#include "outcome.h"
#include "reader.h"

/* Copy the files that a rank lacks from ranks that have them, into unnamed files which last as long
 * as the checkpoint is open. A failure of this rank is kept in `own`. Collective.
 * @param lacks  (n_files) needed by this rank, and not here; NULL: none
 * @return MS_COMM_ERROR, MS_OUT_OF_MEMORY: the ranks cannot go on together */
ms_status msi_checkpoint_gather_files(ms_checkpoint *c, ms_comm *comm, const bool *lacks,
                                      msi_outcome *own);

#endif
