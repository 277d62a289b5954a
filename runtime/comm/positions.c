/* The ranks' positions in their calls: for waits that are long or fail. */
#include "group.h"

#include <stdio.h>

/* " (pid 4711)", " (pid 4711, stopped)"; "" for a thread or ended process. True: stopped. */
static bool process_text(const msi_job *job, int32_t rank, char *buffer, size_t nbytes)
{
    const int32_t pid = atomic_load(&job->block->rank[rank].pid);
    pid_t parent;
    char state = 0;

    buffer[0] = '\0';
    if (job->threads || pid <= 0 || !msi_process_look(pid, &state, &parent)) {
        return false;
    }
    const bool stopped = state == 'T' || state == 't';

    snprintf(buffer, nbytes, " (pid %d%s)", (int)pid, stopped ? ", stopped" : "");
    return stopped;
}

/* True if others wait for member q: it does not wait for them, or is stopped. */
static bool is_waited_for(const ms_comm *c, int32_t q)
{
    const msi_job_rank *its = &c->job->block->rank[c->in_job[q]];
    const int32_t state = atomic_load(&its->state);
    char ignored[64];

    return q != c->own && state != MSI_RANK_LEFT && state != MSI_RANK_DEAD &&
           (atomic_load(&its->waiting) != msi_wait_word(c) ||
            process_text(c->job, c->in_job[q], ignored, sizeof(ignored)));
}

void msi_positions_text(const ms_comm *c, char *buffer, size_t nbytes)
{
    size_t at = 0;

    buffer[0] = '\0';
    for (int32_t q = 0; q < c->n_members && at < nbytes; q++) {
        const uint64_t seq = atomic_load(&c->members[q].published);
        const int32_t state = atomic_load(&c->job->block->rank[c->in_job[q]].state);
        char call[MSI_CALL_TEXT] = "nothing", process[64];
        msi_fingerprint fp;
        uint64_t hash;

        if (msi_record_read(&c->members[q], seq, &fp, &hash)) {
            msi_fingerprint_text(&fp, call, sizeof(call));
        }
        process_text(c->job, c->in_job[q], process, sizeof(process));
        at += (size_t)snprintf(buffer + at, nbytes - at, "%srank %d%s%s %s (sequence %llu)",
                               at > 0 ? ", " : "", (int)c->in_job[q], process,
                               state == MSI_RANK_STARTING ? " has not joined:"
                               : state == MSI_RANK_LEFT   ? " left after"
                                                          : ":",
                               call, (unsigned long long)seq);
    }
}

/* "ranks 1, 3" */
static const char *waited_for_text(const ms_comm *c, char *buffer, size_t nbytes)
{
    bool late[c->n_members], any = false;

    for (int32_t q = 0; q < c->n_members; q++) {
        late[q] = is_waited_for(c, q);
        any = any || late[q];
    }
    return any ? msi_ranks_text(c, late, buffer, nbytes) : "the others";
}

void msi_announce(const ms_comm *c, uint64_t seq, int64_t waited_ns)
{
    const int64_t limit = c->job->block->announce_ns, now = msi_now_ns();
    int64_t quiet = atomic_load(&c->job->block->quiet_until);

    /* One rank warns for all, the first if it waits. */
    if (limit <= 0 || waited_ns < limit + c->own * MSI_LOOK_MS * 1000000LL || now < quiet ||
        !atomic_compare_exchange_strong(&c->job->block->quiet_until, &quiet, now + 4 * waited_ns)) {
        return;
    }
    char operation[MSI_OPERATION_TEXT], late[MSI_RANKS_TEXT], positions[1024], text[1664];

    msi_positions_text(c, positions, sizeof(positions));
    snprintf(text, sizeof(text), "rank %d has waited %lld s in %s for %s; last calls: %s",
             (int)c->in_job[c->own], (long long)(waited_ns / 1000000000),
             msi_operation_text(c, seq, operation, sizeof(operation)),
             waited_for_text(c, late, sizeof(late)), positions);
    ms_warn("UserWarning", text);
}
