/* Texts of the ranks' positions: for long waits and for those that fail. */
#include "group.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MORE " and %d more"

enum { MORE_ROOM = sizeof(" and 127 more"), SECOND = 1000000000 };

/* " (pid 4711, T stopped)", or "" for a thread or ended process; returns the state. */
static char process_text(const msi_job *job, int32_t rank, char *buffer, size_t nbytes)
{
    static const char letters[] = "RSDTtZ";
    static const char *const words[] = {"running", "asleep",  "in a system call",
                                        "stopped", "stopped", "dead"};
    int32_t pid = atomic_load(&job->block->rank[rank].pid);
    pid_t parent;
    char state;

    buffer[0] = '\0';
    if (job->threads || pid <= 0 || !msi_process_look(pid, &state, &parent)) {
        return 0;
    }
    if (pid == getpid()) { /* it runs now, but counts as waiting */
        snprintf(buffer, nbytes, " (pid %d)", (int)pid);
        return state;
    }
    const char *letter = strchr(letters, state);

    snprintf(buffer, nbytes, " (pid %d, %c%s%s)", (int)pid, state, letter != NULL ? " " : "",
             letter != NULL ? words[letter - letters] : "");
    return state;
}

/* True if others wait for member q: it does not wait for them, or is stopped. */
static bool is_waited_for(const ms_comm *c, int32_t q)
{
    const msi_job_rank *its = &c->job->block->rank[c->in_job[q]];
    int32_t state = atomic_load(&its->state);
    char ignored[64];

    if (q == c->own || state == MSI_RANK_LEFT || state == MSI_RANK_DEAD) {
        return false;
    }
    char process = process_text(c->job, c->in_job[q], ignored, sizeof(ignored));

    return atomic_load(&its->waiting) != msi_wait_word(c) || process == 'T' || process == 't';
}

static bool waits_elsewhere(const ms_comm *c, int32_t q)
{
    const uint32_t word = atomic_load(&c->job->block->rank[c->in_job[q]].waiting);

    return word != 0 && word != msi_wait_word(c);
}

/* "rank 1 (pid 4711, T stopped): barrier() (sequence 3)" */
static int position_text(const ms_comm *c, int32_t q, char *buffer, size_t nbytes)
{
    uint64_t seq = atomic_load(&c->members[q].published), hash;
    int32_t state = atomic_load(&c->job->block->rank[c->in_job[q]].state);
    char call[MSI_CALL_TEXT] = "nothing", process[64];
    msi_fingerprint fp;

    if (msi_record_read(&c->members[q], seq, &fp, &hash)) {
        msi_fingerprint_text(&fp, call, sizeof(call));
    }
    process_text(c->job, c->in_job[q], process, sizeof(process));
    if (state == MSI_RANK_STARTING) {
        return snprintf(buffer, nbytes, "rank %d%s has not joined", (int)c->in_job[q], process);
    }
    return snprintf(buffer, nbytes, "rank %d%s%s %s (sequence %llu)%s", (int)c->in_job[q], process,
                    state == MSI_RANK_LEFT ? " left after" : ":", call, (unsigned long long)seq,
                    waits_elsewhere(c, q) ? ", and waits in another group" : "");
}

void msi_positions_text(const ms_comm *c, char *buffer, size_t nbytes)
{
    bool late[c->n_members];
    int32_t told = 0;
    size_t at = 0;

    buffer[0] = '\0';
    for (int32_t q = 0; q < c->n_members; q++) {
        late[q] = is_waited_for(c, q);
    }
    for (int32_t i = 0; i < 2 * c->n_members; i++) { /* the important ones first */
        int32_t q = i % c->n_members;
        char text[MSI_CALL_TEXT + 128];

        if (late[q] != (i < c->n_members)) {
            continue;
        }
        size_t n = (size_t)position_text(c, q, text, sizeof(text));

        if (at + n + sizeof(", ") + MORE_ROOM > nbytes) {
            snprintf(buffer + at, nbytes - at, MORE, (int)(c->n_members - told));
            return;
        }
        at += (size_t)snprintf(buffer + at, nbytes - at, "%s%s", at > 0 ? ", " : "", text);
        told++;
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
    if (!any) {
        return "the others";
    }
    return msi_ranks_text(c, late, buffer, nbytes);
}

/* Time until a wait is announced; 0: never. Shorter for ranks without a call, since starting takes
 * milliseconds. */
static int64_t patience_ns(const ms_comm *c)
{
    int64_t limit = c->job->block->announce_ns;
    int64_t sooner = limit / 3 > SECOND ? limit / 3 : SECOND;

    for (int32_t q = 0; q < c->n_members && limit > sooner; q++) {
        if (atomic_load(&c->members[q].published) == 0) {
            return sooner;
        }
    }
    return limit;
}

void msi_announce(const ms_comm *c, uint64_t seq, int64_t waited_ns)
{
    int64_t limit = patience_ns(c), now = msi_now_ns();
    int64_t quiet = atomic_load(&c->job->block->quiet_until);

    /* One rank warns for all, the first if it waits. */
    if (limit <= 0 || waited_ns < limit + c->own * MSI_LOOK_MS * 1000000LL || now < quiet ||
        !atomic_compare_exchange_strong(&c->job->block->quiet_until, &quiet, now + 4 * waited_ns)) {
        return;
    }
    char operation[MSI_OPERATION_TEXT], who[MSI_RANKS_TEXT], positions[1024], text[1664];

    msi_positions_text(c, positions, sizeof(positions));
    snprintf(text, sizeof(text), "rank %d has waited %lld s in %s for %s; last calls: %s",
             (int)c->in_job[c->own], (long long)(waited_ns / 1000000000),
             msi_operation_text(c, seq, operation, sizeof(operation)),
             waited_for_text(c, who, sizeof(who)), positions);
    ms_warn("UserWarning", text);
}
