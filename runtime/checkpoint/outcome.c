/* One outcome for all ranks. */
#include "outcome.h"

#include <stdio.h>

void msi_outcome_keep(msi_outcome *own, ms_status status)
{
    if (status != MS_OK && own->status == MS_OK) {
        own->status = status;
        snprintf(own->message, sizeof(own->message), "%s", ms_error_message());
    }
}

ms_status msi_outcome_agree(ms_comm *comm, const char *what, const msi_outcome *own,
                            msi_outcome *all)
{
    const int32_t world = ms_comm_size(comm);

    if (own->status != MS_OK) {
        ms_comm_failed(comm, own->message);
    }
    MS_TRY(msi_comm_gather_bytes(comm, what, own, sizeof(*own), all));
    for (int32_t r = 0; r < world; r++) {
        if (all[r].status != MS_OK) {
            return world == 1 ? MS_FAIL(all[r].status, "%s", all[r].message)
                              : MS_FAIL(all[r].status, "rank %d: %s", r, all[r].message);
        }
    }
    return MS_OK;
}
