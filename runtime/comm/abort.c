/* Reporting this rank's failure to all ranks, with its cause. */
#include "group.h"

static const char NO_REASON[] = "no reason given";

/* The group whose members just received a failure, and that failure's owner; or NULL. */
static const ms_comm *failed_group(int32_t *owner)
{
    const msi_groups *g = msi_groups_peek();
    const ms_comm *c = g != NULL ? g->world : NULL;

    if (c != NULL && (*owner = msi_failure_owner(c)) != c->own) {
        return c;
    }
    for (c = g != NULL ? g->others : NULL; c != NULL; c = c->next) {
        if ((*owner = msi_failure_owner(c)) != c->own) {
            return c;
        }
    }
    return NULL;
}

bool ms_dist_abort(ms_status kind, const char *message)
{
    const msi_dist *d = msi_dist_peek();

    kind = msi_kind_of_host(kind);
    if (d == NULL || d->job == NULL) {
        return msi_dist_abort_unjoined(&msi_job_of_groups, kind,
                                       message != NULL ? message : NO_REASON);
    }
    if (d->gone == MSI_GONE_FORKED) {
        return false;
    }
    int32_t owner, rank = d->rank;
    const ms_comm *group = failed_group(&owner);
    char text[MSI_TEXT];

    if (group != NULL) {
        rank = group->in_job[owner];
    }
    if (group != NULL && msi_failure_read(group, owner, text, sizeof(text)) != 0 &&
        (message == NULL || strstr(message, text) == NULL)) {
        message = text; /* the owner's message, unless `message` has it */
    }
    return msi_job_abort(d->job, d->rank, rank, MSI_CAUSE_FAILED, kind, "rank %d failed: %s",
                         (int)rank, message != NULL ? message : NO_REASON);
}
