/* Sleeping until a peer stores something, and detecting deadlock.
 *
 * [Note: wake-ups] A waiter sets `waiting`, reads its wakeups, checks once more, and sleeps on
 * its word of wakeups. A rank that stores something then loads its peers' `waiting` and wakes the
 * sleepers. Stores and loads on both sides are sequentially consistent, so at least one
 * side sees the other.
 *
 * [Note: stuck] Sleepers check every 100 ms and count the checks. If every live rank is in the same
 * sleeping wait as before and has checked since, none can store anything: an error at once, without
 * a timeout. A slow, stopped or starved rank does not check, so it is not mistaken for a stuck one.
 * A rank whose communicator of devices is incomplete counts each check as a new wait. */
#include "job.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void msi_wake(msi_job_rank *rank)
{
    atomic_fetch_add(&rank->wakeups, 1);
    syscall(SYS_futex, &rank->wakeups, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void msi_sleep_unless_woken(msi_job_rank *rank, uint32_t seen, int64_t most_ns)
{
    const struct timespec limit = {.tv_nsec = most_ns};

    syscall(SYS_futex, &rank->wakeups, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Order matters, since counters of several ranks are not a snapshot: all `waits` are read before
 * any `checks`, and again after them. So a rank that checked twice did so after all ranks had
 * entered the waits they are still in. */
bool msi_job_is_deadlocked(const msi_job *job, int32_t rank, msi_watch *w)
{
    if (job->block->n_hosts > 1) { /* a word may be on its way: the launchers decide */
        return false;
    }
    bool same = w->set, looked = w->set;
    uint64_t checks[job->world];

    for (int32_t r = 0; r < job->world; r++) {
        checks[r] = atomic_load(&job->block->rank[r].checks);
    }
    for (int32_t r = 0; r < job->world; r++) {
        msi_job_rank *its = &job->block->rank[r];
        int32_t state = atomic_load(&its->state);

        if (r == rank || state == MSI_RANK_LEFT || state == MSI_RANK_DEAD) {
            continue;
        }
        same = same && atomic_load(&its->waiting) != 0 && atomic_load(&its->waits) == w->waits[r];
        looked = looked && checks[r] >= w->checks[r] + 2;
    }
    if (!same) { /* a rank has moved: restart */
        w->set = true;
        for (int32_t r = 0; r < job->world; r++) {
            w->waits[r] = atomic_load(&job->block->rank[r].waits);
        }
        for (int32_t r = 0; r < job->world; r++) {
            w->checks[r] = atomic_load(&job->block->rank[r].checks);
        }
    }
    return same && looked;
}
