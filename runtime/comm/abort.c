/* Telling all ranks that this one has failed, and whose failure it is. */
#include "group.h"

static const char NO_REASON[] = "no reason given";

bool ms_dist_abort(ms_status kind, const char *message)
{
    const msi_dist *d = msi_dist_peek();
    const ms_comm *world = msi_comm_world_peek();

    kind = msi_kind_of_host(kind);
    if (d == NULL || d->job == NULL) {
        return msi_dist_abort_unjoined(&msi_job_of_groups, kind,
                                       message != NULL ? message : NO_REASON);
    }
    if (d->gone == MSI_GONE_FORKED) {
        return false;
    }
    int32_t owner = world != NULL ? msi_failure_owner(world) : d->rank;
    char text[MSI_TEXT];

    if (owner != d->rank && msi_failure_read(world, owner, text, sizeof(text)) != 0 &&
        (message == NULL || strstr(message, text) == NULL)) {
        message = text; /* its own words, where others do not repeat them */
    }
    return msi_job_abort(d->job, d->rank, owner, MSI_CAUSE_FAILED, kind, "rank %d failed: %s",
                         (int)owner, message != NULL ? message : NO_REASON);
}
