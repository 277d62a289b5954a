/* Sleeping until a peer has stored something, and finding out that nobody will.
 *
 * [Note: doorbells] A waiter raises `waiting`, reads its doorbell, looks once more, and sleeps on
 * the doorbell. Whoever stored something loads `waiting` of its peers and changes the doorbells of
 * those who sleep. Store and load on both sides are sequentially consistent, so at least one of the
 * two sees the other.
 *
 * [Note: stuck] Sleepers look again every 100 ms and count the looks. When every rank alive is in
 * the same sleeping wait as before and has looked since, nobody is left who could store anything:
 * that is an error at once, not a timeout. A rank that is merely slow, stopped or starved does not
 * look, so it is never mistaken for one that waits in vain. */
#include "job.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void msi_doorbell_ring(msi_job_rank *rank)
{
    atomic_fetch_add(&rank->doorbell, 1);
    syscall(SYS_futex, &rank->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void msi_doorbell_sleep(msi_job_rank *rank, uint32_t seen, int64_t most_ns)
{
    const struct timespec limit = {.tv_nsec = most_ns};

    syscall(SYS_futex, &rank->doorbell, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Order matters, as figures of several ranks are no moment in time: `waits` of all ranks are taken
 * before `checks` of any, and looked at again after them. So whoever looked twice since did it
 * after everybody had come to the wait in which all are found again. */
bool msi_job_waits_in_vain(const msi_job *job, int32_t rank, msi_watch *w)
{
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
    if (!same) { /* some rank has moved: take all figures anew */
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
