/* The ranks' positions in their calls: for waits that are long or fail. */
#include "group.h"

#include <stdio.h>

/* " (pid 4711)", " (pid 4711, stopped)"; "" for a thread or ended process. True: stopped. A process
 * of another host is not looked at. */
static bool process_text(const msi_job *job, int32_t rank, char *buffer, size_t nbytes)
{
    const int32_t pid = atomic_load(&job->block->rank[rank].pid);
    pid_t parent;
    char state = 0;

    buffer[0] = '\0';
    if (job->threads || pid <= 0 ||
        (msi_job_is_local(job, rank) && !msi_process_look(pid, &state, &parent))) {
        return false;
    }
    const bool stopped = state == 'T' || state == 't';

    snprintf(buffer, nbytes, " (pid %d%s)", (int)pid, stopped ? ", stopped" : "");
    return stopped;
}

/* Sequence number of this rank's call; in the launcher, of the latest call of any rank. */
static uint64_t current_call(const ms_comm *c)
{
    uint64_t latest = 0;

    if (c->own >= 0) {
        return atomic_load(&c->members[c->own].published);
    }
    for (int32_t q = 0; q < c->n_members; q++) {
        const uint64_t published = atomic_load(&c->members[q].published);

        latest = published > latest ? published : latest;
    }
    return latest;
}

/* True if others wait for member q: it does not wait for them, or is stopped. */
static bool is_waited_for(const ms_comm *c, int32_t q)
{
    const msi_job_rank *its = &c->job->block->rank[c->in_job[q]];
    const int32_t state = atomic_load(&its->state);
    char ignored[64];

    if (!msi_job_is_local(c->job, c->in_job[q])) {
        return state != MSI_RANK_LEFT && state != MSI_RANK_DEAD &&
               atomic_load(&c->members[q].published) < current_call(c);
    }
    return q != c->own && state != MSI_RANK_LEFT && state != MSI_RANK_DEAD &&
           (atomic_load(&its->waiting) != msi_wait_word(c) ||
            process_text(c->job, c->in_job[q], ignored, sizeof(ignored)));
}

/* "rank 1 (pid 4711, stopped): barrier() (sequence 3)" */
static size_t position_text(const ms_comm *c, int32_t q, char *buffer, size_t nbytes)
{
    const uint64_t seq = atomic_load(&c->members[q].published);
    const int32_t state = atomic_load(&c->job->block->rank[c->in_job[q]].state);
    char call[MSI_CALL_TEXT] = "nothing", process[64];
    msi_fingerprint fp;
    uint64_t hash;

    if (msi_record_read(&c->members[q], seq, &fp, &hash)) {
        msi_fingerprint_text(&fp, call, sizeof(call));
    }
    process_text(c->job, c->in_job[q], process, sizeof(process));
    return (size_t)snprintf(buffer, nbytes, "rank %d%s%s %s (sequence %llu)", (int)c->in_job[q],
                            process,
                            state == MSI_RANK_STARTING ? " has not joined:"
                            : state == MSI_RANK_LEFT   ? " left after"
                                                       : ":",
                            call, (unsigned long long)seq);
}

void msi_positions_text(const ms_comm *c, char *buffer, size_t nbytes)
{
    static const char more[] = " and %d more";
    bool late[c->n_members];
    size_t at = 0;

    buffer[0] = '\0';
    for (int32_t q = 0; q < c->n_members; q++) {
        late[q] = is_waited_for(c, q);
    }
    for (int32_t i = 0, done = 0; i < 2 * c->n_members; i++) { /* late ranks first */
        const int32_t q = i % c->n_members;
        char text[MSI_CALL_TEXT + 128];

        if (late[q] != (i < c->n_members)) {
            continue;
        }
        const size_t n = position_text(c, q, text, sizeof(text));

        if (at + n + sizeof(", ") + sizeof(more) + 3 > nbytes) {
            snprintf(buffer + at, nbytes - at, more, (int)(c->n_members - done));
            return;
        }
        at += (size_t)snprintf(buffer + at, nbytes - at, "%s%s", at > 0 ? ", " : "", text);
        done++;
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
