/* Waiting for words that other ranks store, without a hang and without a lost wake-up.
 *
 * [Note: doorbells] A waiter raises `waiting`, reads its doorbell, looks once more, and sleeps on
 * the doorbell. Whoever stored something loads `waiting` of its peers and changes the doorbells of
 * those who sleep. Store and load on both sides are sequentially consistent, so at least one of the
 * two sees the other. Before it sleeps a rank spins briefly, if every rank has its own core.
 *
 * [Note: stuck] Sleepers look again every 100 ms and count the looks. When every rank alive is in
 * the same sleeping wait as before and has looked since, nobody is left who could store anything:
 * that is an error at once, not a timeout. A rank that is merely slow, stopped or starved does not
 * look, so it is never mistaken for one that waits in vain. */
#include "control.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAUSES_PER_CLOCK = 16 };

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec limit = {.tv_nsec = MSI_LOOK_MS * 1000000L};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void msi_doorbell_ring(msi_slot_rank *slot)
{
    atomic_fetch_add(&slot->doorbell, 1);
    syscall(SYS_futex, &slot->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void msi_comm_ring(ms_comm *c)
{
    for (int32_t q = 0; q < c->size; q++) {
        msi_slot_rank *slot = &c->job->block->slot[c->slot[q]];

        if (q != c->rank && atomic_load(&slot->waiting) != 0) {
            msi_doorbell_ring(slot);
        }
    }
}

bool msi_comm_broken(ms_comm *c)
{
    return !c->is_self && atomic_load_explicit(&c->job->block->abort, memory_order_acquire) != 0;
}

/* -- can the others still answer? -------------------------------------------------------------- */

/* A member that left before it published `seq`, or -1. */
static int32_t member_gone(ms_comm *c, uint64_t seq)
{
    for (int32_t q = 0; q < c->size; q++) {
        int32_t state = atomic_load(&c->job->block->slot[c->slot[q]].state);

        if (q != c->rank && (state == MSI_RANK_LEFT || state == MSI_RANK_DEAD) &&
            atomic_load_explicit(&c->members[q].published, memory_order_acquire) < seq) {
            return q;
        }
    }
    return -1;
}

typedef struct watch {
    int64_t looked_at;
    int64_t waited_ns; /* while this process ran: when all of a job is stopped nobody is late */
    bool set;
    uint64_t waits[MSI_MAX_RANKS], checks[MSI_MAX_RANKS];
} watch;

/* Order matters, as figures of several ranks are no moment in time: `waits` of all ranks are taken
 * before `checks` of any, and looked at again after them. So whoever looked twice since did it
 * after everybody had come to the wait in which all are found again. */
static bool everybody_waits_in_vain(const ms_comm *c, watch *w)
{
    bool same = w->set, looked = true;
    uint64_t checks[MSI_MAX_RANKS];

    for (int32_t r = 0; r < c->job->world; r++) {
        checks[r] = atomic_load(&c->job->block->slot[r].checks);
    }
    for (int32_t r = 0; r < c->job->world; r++) {
        msi_slot_rank *slot = &c->job->block->slot[r];
        int32_t state = atomic_load(&slot->state);

        if (r == c->slot[c->rank] || state == MSI_RANK_LEFT || state == MSI_RANK_DEAD) {
            continue;
        }
        same = same && atomic_load(&slot->waiting) != 0 && atomic_load(&slot->waits) == w->waits[r];
        looked = looked && checks[r] >= w->checks[r] + 2;
    }
    if (!same) { /* some rank has moved: take all figures anew */
        w->set = true;
        for (int32_t r = 0; r < c->job->world; r++) {
            w->waits[r] = atomic_load(&c->job->block->slot[r].waits);
        }
        for (int32_t r = 0; r < c->job->world; r++) {
            w->checks[r] = atomic_load(&c->job->block->slot[r].checks);
        }
    }
    return same && looked;
}

static void report_stuck(ms_comm *c, const char *what)
{
    char positions[1024];

    msi_positions_text(c, positions, sizeof(positions));
    msi_job_abort(c->job, c->slot[c->rank], -1, MSI_CAUSE_STUCK, MS_COMM_ERROR,
                  "%s; last calls: %s", what, positions);
}

/* What became of those we wait for. [Note: judge first] A rank may answer and leave at any moment,
 * so this is asked before the last look: whoever had left by then had answered before, and the
 * look sees it. The other way round an answer in between would be taken for none. */
typedef struct fate {
    enum { FATE_OPEN, FATE_LEFT, FATE_STUCK, FATE_TIMEOUT } verdict;
    int32_t member; /* FATE_LEFT: which */
} fate;

static fate judge_others(ms_comm *c, uint64_t seq, watch *w)
{
    int32_t gone = member_gone(c, seq);
    int64_t since = msi_now_ns() - w->looked_at;

    if (gone >= 0) {
        return (fate){FATE_LEFT, gone};
    }
    if (since < MSI_LOOK_MS * 1000000) {
        return (fate){FATE_OPEN, -1};
    }
    w->looked_at += since;
    w->waited_ns += msi_looked_ns(since);
    if (w->waited_ns > c->job->block->timeout_ns) {
        return (fate){FATE_TIMEOUT, -1};
    }
    if (!everybody_waits_in_vain(c, w)) {
        msi_announce(c, seq, w->waited_ns);
        return (fate){FATE_OPEN, -1};
    }
    gone = member_gone(c, UINT64_MAX); /* it owes a store of this call, not the call itself */
    return gone >= 0 ? (fate){FATE_LEFT, gone} : (fate){FATE_STUCK, -1};
}

static void report_fate(ms_comm *c, fate f)
{
    char what[64], failure[MSI_FAILURE_TEXT];

    switch (f.verdict) {
    case FATE_LEFT:
        msi_failure_text(c, f.member, c->rank, failure, sizeof(failure));
        msi_job_abort(c->job, c->slot[c->rank], c->slot[f.member],
                      failure[0] != '\0' ? MSI_CAUSE_FAILED : MSI_CAUSE_LEFT, MS_COMM_ERROR,
                      "rank %d left the job%s", (int)c->slot[f.member], failure);
        break;
    case FATE_STUCK:
        report_stuck(c, "every rank waits for another");
        break;
    case FATE_TIMEOUT:
        snprintf(what, sizeof(what), "no progress for %lld s (MS_COMM_TIMEOUT)",
                 (long long)(c->job->block->timeout_ns / 1000000000));
        report_stuck(c, what);
        break;
    default:
        break;
    }
}

/* -- waiting ----------------------------------------------------------------------------------- */

enum { LOOK_READY, LOOK_FAILED, LOOK_WAIT };

/* What is ready stays so even if the job has failed since: the next operation will tell. */
static int32_t look(ms_comm *c, bool (*ready)(void *user), void *user)
{
    bool broken = msi_comm_broken(c), is_ready = ready(user);

    if (!msi_members_agree(c)) {
        return LOOK_FAILED;
    }
    return is_ready ? LOOK_READY : broken ? LOOK_FAILED : LOOK_WAIT;
}

static int32_t spin(ms_comm *c, bool (*ready)(void *user), void *user, int64_t begin)
{
    int32_t seen = LOOK_WAIT;

    if (c->job->block->spin_ns <= 0) {
        return seen;
    }
    do {
        /* Others' records are looked at once a turn: their writers have to wait for the line. */
        for (int32_t i = 0; i < PAUSES_PER_CLOCK && !ready(user); i++) {
            cpu_pause();
        }
        seen = look(c, ready, user);
    } while (seen == LOOK_WAIT && msi_now_ns() - begin < c->job->block->spin_ns);
    return seen;
}

static int32_t sleep_until(ms_comm *c, uint64_t seq, bool (*ready)(void *user), void *user,
                           int64_t begin)
{
    msi_slot_rank *me = &c->job->block->slot[c->slot[c->rank]];
    watch others = {.looked_at = begin};
    int32_t seen;

    atomic_fetch_add(&me->waits, 1);
    atomic_store(&me->waiting, 1);
    for (;;) {
        uint32_t bell = atomic_load(&me->doorbell);
        fate f = judge_others(c, seq, &others);

        seen = look(c, ready, user);
        if (seen == LOOK_WAIT && f.verdict != FATE_OPEN) {
            report_fate(c, f);
            seen = LOOK_FAILED;
        }
        if (seen != LOOK_WAIT) {
            break;
        }
        atomic_fetch_add(&me->checks, 1);
        futex_wait(&me->doorbell, bell);
    }
    atomic_store(&me->waiting, 0);
    return seen;
}

ms_status msi_comm_wait(ms_comm *c, uint64_t seq, bool (*ready)(void *user), void *user)
{
    if (MSI_UNLIKELY(c->gone != 0)) {
        return msi_gone_error(c);
    }
    int32_t seen = look(c, ready, user);

    if (seen == LOOK_WAIT) {
        int64_t begin = msi_now_ns();

        seen = spin(c, ready, user, begin);
        if (seen == LOOK_WAIT) {
            seen = sleep_until(c, seq, ready, user, begin);
        }
        c->wait_ns += msi_now_ns() - begin;
    }
    if (seen == LOOK_FAILED) {
        char operation[MSI_OPERATION_TEXT];

        return msi_comm_fail(c, "waited in",
                             msi_operation_text(c, seq, operation, sizeof(operation)));
    }
    return MS_OK;
}
