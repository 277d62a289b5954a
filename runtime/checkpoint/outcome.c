/* One outcome for all ranks. */
#include "outcome.h"

#include <stdio.h>
#include <string.h>

ms_status msi_outcome_check_group(const ms_comm *comm, const char *what)
{
    return !ms_comm_is_fake(comm)
               ? MS_OK
               : MS_FAIL(MS_RUNTIME_ERROR,
                         "%s: the other ranks of a fake group are not there, and nobody writes or "
                         "checks their parts",
                         what);
}

void msi_outcome_keep(msi_outcome *own, ms_status status)
{
    if (status != MS_OK && own->status == MS_OK) {
        own->status = status;
        snprintf(own->message, sizeof(own->message), "%s", ms_error_message());
    }
}

void msi_outcome_path(msi_outcome *own, const char *path)
{
    const size_t n = strlen(path), room = sizeof(own->name) - 1;

    snprintf(own->name, sizeof(own->name), "%s", path + (n > room ? n - room : 0));
    own->path = ms_hash_bytes(path, (int64_t)n);
}

ms_status msi_outcome_same_path(const msi_outcome *all, const ms_comm *comm, const char *does)
{
    for (int32_t r = 1; r < ms_comm_size(comm); r++) {
        if (all[r].path != all[0].path) {
            return MS_FAIL(MS_VALUE_ERROR, "rank %d %s '%s', rank %d '%s'",
                           (int)msi_comm_rank_in_job(comm, r), does, all[r].name,
                           (int)msi_comm_rank_in_job(comm, 0), all[0].name);
        }
    }
    return MS_OK;
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
                              : MS_FAIL(all[r].status, "rank %d: %s",
                                        (int)msi_comm_rank_in_job(comm, r), all[r].message);
        }
    }
    return MS_OK;
}
