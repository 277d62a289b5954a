/* Waiting for words that other ranks store, without hangs or lost wake-ups. Spins briefly before it
 * sleeps (wakeup.c), if every rank has its own core. */
#include "group.h"

#include "device_comm.h"

#include <stdio.h>
#include <time.h>

enum { PAUSES_PER_CLOCK = 16, POLL_NS = 50000, CAUSE_NS = 300000000 };

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* -- state of the peers ------------------------------------------------------------------------ */

bool msi_member_left(const ms_comm *c, int32_t q)
{
    const int32_t state = atomic_load(&c->job->block->rank[c->in_job[q]].state);

    return state == MSI_RANK_LEFT || state == MSI_RANK_DEAD ||
           atomic_load(&c->members[q].left) != MSI_MEMBER_THERE;
}

/* A member that left before it published `seq`, or -1. */
static int32_t member_gone(ms_comm *c, uint64_t seq)
{
    for (int32_t q = 0; q < c->n_members; q++) {
        if (q != c->own && msi_member_left(c, q) &&
            atomic_load_explicit(&c->members[q].published, memory_order_acquire) < seq) {
            return q;
        }
    }
    return -1;
}

typedef struct watch {
    int64_t looked_at;
    int64_t waited_ns; /* while this process ran, so that a stopped job does not time out */
    msi_watch others;
} watch;

static void report_stuck(ms_comm *c, const char *what)
{
    char positions[1024];

    msi_positions_text(c, positions, sizeof(positions));
    msi_job_abort(c->job, c->in_job[c->own], -1, MSI_CAUSE_STUCK, MS_COMM_ERROR,
                  "%s; last calls: %s", what, positions);
}

/* State of the awaited peers. [Note: status first] A rank may answer and leave at any moment, so
 * its state is read before the last look at the words: a rank that had left had answered before,
 * and the look sees it. In the other order an answer in between would be missed. */
typedef struct peer_status {
    enum { PEERS_OPEN, PEERS_LEFT, PEERS_STUCK, PEERS_TIMEOUT } state;
    int32_t member; /* PEERS_LEFT: the member */
} peer_status;

static peer_status look_at_peers(ms_comm *c, uint64_t seq, watch *w)
{
    int32_t gone = member_gone(c, seq);
    int64_t since = msi_now_ns() - w->looked_at;

    if (gone >= 0) {
        return (peer_status){PEERS_LEFT, gone};
    }
    if (since < MSI_LOOK_MS * 1000000) {
        return (peer_status){PEERS_OPEN, -1};
    }
    w->looked_at += since;
    w->waited_ns += msi_looked_ns(since);
    if (w->waited_ns > c->job->block->timeout_ns) {
        return (peer_status){PEERS_TIMEOUT, -1};
    }
    if (!msi_job_is_deadlocked(c->job, c->in_job[c->own], &w->others)) {
        msi_announce(c, seq, w->waited_ns);
        return (peer_status){PEERS_OPEN, -1};
    }
    gone = member_gone(c, UINT64_MAX); /* it owes a store of this call */
    return gone >= 0 ? (peer_status){PEERS_LEFT, gone} : (peer_status){PEERS_STUCK, -1};
}

/* Member q of another host may react to a failure before the launchers have sent it to this one:
 * wait for that, since it is the cause. */
static void await_cause(ms_comm *c, int32_t q)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    const int64_t deadline = msi_now_ns() + CAUSE_NS;

    while (!msi_job_is_local(c->job, c->in_job[q]) && !msi_comm_broken(c) &&
           msi_now_ns() < deadline) {
        nanosleep(&moment, NULL);
    }
}

static const char *how_left(const ms_comm *c, int32_t q)
{
    return atomic_load(&c->members[q].left) == MSI_MEMBER_FREED ? "freed the group"
                                                                : "left the job";
}

static void report_peers(ms_comm *c, peer_status f)
{
    char what[64], failure[MSI_FAILURE_TEXT];

    switch (f.state) {
    case PEERS_LEFT:
        await_cause(c, f.member);
        msi_failure_text(c, f.member, c->own, failure, sizeof(failure));
        msi_job_abort(c->job, c->in_job[c->own], c->in_job[f.member],
                      failure[0] != '\0' ? MSI_CAUSE_FAILED : MSI_CAUSE_LEFT, MS_COMM_ERROR,
                      "rank %d %s%s", (int)c->in_job[f.member], how_left(c, f.member), failure);
        break;
    case PEERS_STUCK:
        report_stuck(c, "every rank waits for another");
        break;
    case PEERS_TIMEOUT:
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

/* A ready word counts even if the job has failed since; the next operation reports that. */
static int32_t look(ms_comm *c, bool (*ready)(void *user), void *user)
{
    msi_messages_progress();

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
        /* Other ranks' records are read once per turn, since reading slows their writers. */
        for (int32_t i = 0; i < PAUSES_PER_CLOCK && !ready(user); i++) {
            cpu_pause();
        }
        seen = look(c, ready, user);
    } while (seen == LOOK_WAIT && msi_now_ns() - begin < c->job->block->spin_ns);
    return seen;
}

/* True if peers may wait for device work that runs only when polled. */
static bool device_polls(void)
{
    const ms_context *ctx = msi_any_device() ? msi_context_peek() : NULL;

    return ctx != NULL && ctx->device != NULL && msi_device_polls(ctx->device);
}

/* True if a communicator's own threads may end this rank's wait, without a store of its peers. */
static bool device_connects(void)
{
    const ms_context *ctx = msi_any_device() ? msi_context_peek() : NULL;

    return ctx != NULL && ctx->device != NULL && msi_device_comms_incomplete(ctx->device);
}

static int32_t sleep_until(ms_comm *c, uint64_t seq, bool (*ready)(void *user), void *user,
                           int64_t begin)
{
    msi_job_rank *me = &c->job->block->rank[c->in_job[c->own]];
    uint64_t waits[c->job->world], checks[c->job->world];
    watch w = {.looked_at = begin, .others = {.waits = waits, .checks = checks}};
    int32_t seen;

    atomic_fetch_add(&me->waits, 1);
    atomic_store(&me->waiting, msi_wait_word(c));
    for (;;) {
        uint32_t seen_wakeups = atomic_load(&me->wakeups);

        if (device_connects()) { /* moves: neither this rank nor its peers wait in vain */
            atomic_fetch_add(&me->waits, 1);
            w.others.set = false;
        }
        peer_status f = look_at_peers(c, seq, &w);

        seen = look(c, ready, user);
        if (seen == LOOK_WAIT && f.state != PEERS_OPEN) {
            report_peers(c, f);
            seen = LOOK_FAILED;
        }
        if (seen != LOOK_WAIT) {
            break;
        }
        atomic_fetch_add(&me->checks, 1);
        msi_sleep_unless_woken(me, seen_wakeups, device_polls() ? POLL_NS : MSI_LOOK_MS * 1000000L);
    }
    atomic_store(&me->waiting, 0);
    return seen;
}

ms_status msi_member_left_error(ms_comm *c, int32_t q, const char *operation)
{
    if (msi_members_agree(c)) {
        report_peers(c, (peer_status){PEERS_LEFT, q});
    }
    return msi_comm_fail(c, "waited in", operation);
}

ms_status msi_comm_wait(ms_comm *c, uint64_t seq, bool (*ready)(void *user), void *user)
{
    return msi_comm_wait_in(c, seq, NULL, ready, user);
}

ms_status msi_comm_wait_in(ms_comm *c, uint64_t seq, const char *operation,
                           bool (*ready)(void *user), void *user)
{
    if (MSI_UNLIKELY(c->dist->gone != MSI_GONE_NOT)) {
        return msi_gone_error(c->dist);
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
        char text[MSI_OPERATION_TEXT];

        return msi_comm_fail(c, "waited in",
                             operation != NULL ? operation
                                               : msi_operation_text(c, seq, text, sizeof(text)));
    }
    return MS_OK;
}

/* Error if a group cannot do what was published. */
static ms_status check_members(ms_comm *c)
{
    char operation[MSI_OPERATION_TEXT];

    return c == NULL || (!msi_comm_broken(c) && msi_members_agree(c))
               ? MS_OK
               : msi_comm_fail(c, "waited in",
                               msi_operation_text(c, c->seq, operation, sizeof(operation)));
}

ms_status msi_groups_check(ms_context *ctx, int64_t waited_ns)
{
    const msi_groups *g = ctx->room[MSI_ROOM_COMM];

    if (g == NULL) {
        return MS_OK;
    }
    if (g->world != NULL && g->world->size > 1) {
        msi_announce(g->world, g->world->seq, waited_ns);
        if (waited_ns > g->world->job->block->timeout_ns) {
            report_peers(g->world, (peer_status){PEERS_TIMEOUT, -1});
        }
    }
    MS_TRY(check_members(g->world));
    for (ms_comm *c = g->others; c != NULL; c = c->next) {
        MS_TRY(check_members(c));
    }
    return MS_OK;
}

ms_status msi_comm_dropped(ms_comm *c, uint64_t seq, int32_t q)
{
    char operation[MSI_OPERATION_TEXT], failure[MSI_FAILURE_TEXT];

    msi_operation_text(c, seq, operation, sizeof(operation));
    if (msi_members_agree(c)) {
        await_cause(c, q);
        msi_failure_text(c, c->own, q, failure, sizeof(failure));
        msi_job_abort(c->job, c->in_job[c->own], c->in_job[q],
                      failure[0] != '\0' ? MSI_CAUSE_FAILED : MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                      "rank %d dropped %s, which rank %d uses%s", (int)c->in_job[q], operation,
                      (int)c->in_job[c->own], failure);
    }
    return msi_comm_fail(c, "waited in", operation);
}
