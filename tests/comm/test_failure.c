/* runtime/comm/failure.c: a rank that fails alone says why, and its peers' errors bring it. */
#include "rank_test.h"

#include <sched.h>
#include <stdatomic.h>

enum { RANKS = 3, ODD = 1 };

#define WHY "ValueError: x has shape (2, 5)"

/* What rank 1 does after two barriers, what the others do, and what is told ("": all goes well). */
typedef struct scene {
    const char *name;
    ms_status (*odd)(ms_comm *c), (*most)(ms_comm *c);
    const char *told;
    bool to_all; /* that return from a call; else only the job is told */
} scene;

typedef struct play {
    const scene *scene;
    report *reports;
} play;

static ms_status meet_twice(ms_comm *c)
{
    MS_TRY(ms_comm_barrier(c));
    return ms_comm_barrier(c);
}

static ms_status give_up(ms_comm *c)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_RESET, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    uint64_t seq;

    ms_comm_failed(c, WHY "\n\tin a main chunk");
    MS_TRY(msi_comm_publish(c, &fp, &seq));
    ms_comm_failed(c, "again, on the way up");
    return meet_twice(c);
}

static ms_status fail_and_meet(ms_comm *c)
{
    ms_comm_failed(c, WHY);
    return meet_twice(c);
}

static ms_status fail_and_gather(ms_comm *c)
{
    char mine[8] = "", all[8 * RANKS];

    ms_comm_failed(c, "an earlier failure");
    ms_comm_failed(c, WHY);
    return msi_comm_gather_bytes(c, "clip", mine, sizeof(mine), all);
}

static ms_status fail_only(ms_comm *c)
{
    ms_comm_failed(c, WHY);
    return MS_OK;
}

static ms_status fail_job(ms_comm *c)
{
    (void)c;
    ms_dist_abort(MS_KEY_ERROR, "no such key 'lr'");
    return MS_COMM_ERROR;
}

static ms_status fail_and_say(ms_comm *c)
{
    ms_comm_failed(c, WHY);
    return ms_comm_same(c, "step", "2", NULL, 0);
}

static ms_status say(ms_comm *c)
{
    return ms_comm_same(c, "step", "1", NULL, 0);
}

static const scene scenes[] = {
    {"gives up", give_up, meet_twice, "rank 1 failed: " WHY, true},
    {"gives up as all do", give_up, give_up, "", false},
    {"goes on", fail_and_meet, meet_twice, "", false},
    {"calls something else", fail_and_gather, meet_twice,
     "; rank 1 had failed before its call 3: " WHY, true},
    {"leaves", fail_only, meet_twice,
     "rank 1 left the job; rank 1 had failed before its call 3: " WHY, true},
    {"fails the job", fail_job, meet_twice, "rank 1 failed: no such key 'lr'", true},
    {"leaves with other notes", fail_and_say, say,
     "(found when they had left); rank 1 had failed before its call 3: " WHY, false},
};

static ms_status act(void *user, int32_t rank)
{
    const play *p = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(meet_twice(world));
    double begin = ms_time();
    ms_status status = rank == ODD ? p->scene->odd(world) : p->scene->most(world);

    report_write(&p->reports[rank], status, begin);
    return MS_OK; /* as one that catches its errors */
}

static void check(const play *p, const char *cause)
{
    const scene *s = p->scene;

    for (int32_t r = 0; r < RANKS; r++) {
        const report *told = &p->reports[r];
        bool is_told = s->to_all && !(r == ODD && s->odd == fail_only);

        if (r == ODD && s->odd == fail_job) {
            continue; /* it called nothing */
        }

        if (is_told ? told->status != MS_COMM_ERROR || told->seconds > SOON_S ||
                          strstr(told->message, s->told) == NULL
                    : told->status != MS_OK) {
            fail_msg("rank 1 %s: rank %d got %s after %.3f s: '%s'", s->name, (int)r,
                     ms_status_name(told->status), told->seconds, told->message);
        }
    }
    if (s->told[0] == '\0' ? cause[0] != '\0' : strstr(cause, s->told) == NULL) {
        fail_msg("rank 1 %s: the job ends with '%s'", s->name, cause);
    }
}

static void test_comm_failure__is_told_to_those_who_go_on(void **state)
{
    play p = {.reports = reports_new(RANKS)};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(scenes); i++) {
        const char *cause = "";

        p.scene = &scenes[i];
        check(&p, ms_dist_threads(RANKS, act, &p) != MS_OK ? ms_error_message() : "");
        if (CAN_FORK) {
            memset(p.reports, 0, sizeof(report) * RANKS);
            bool failed = run_processes(RANKS, act, &p, &cause) != 0;

            assert_int_equal(failed, p.scene->told[0] != '\0');
            check(&p, cause);
        }
    }
    reports_free(p.reports, RANKS);
}

/* -- an outcome that all ranks learn ----------------------------------------------------------- */

/* All raise what two of them have failed with; the last is the first to tell the job. */
static ms_status raise_together(void *user, int32_t rank)
{
    ms_comm *world;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 0 || rank == 1) {
        ms_comm_failed(world, "disk full");
    }
    MS_TRY(ms_comm_barrier(world)); /* the outcome */
    if (rank == 2) {
        EXPECT(ms_dist_abort(MS_IO_ERROR, "save: disk full"));
    }
    return MS_OK;
}

/* The same, but rank 2 has something of its own to say after its next call. */
static ms_status raise_alone(void *user, int32_t rank)
{
    ms_comm *world;

    MS_TRY(raise_together(user, rank == 2 ? 3 : rank));
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 2) {
        EXPECT(ms_dist_abort(MS_IO_ERROR, "a bad day"));
    }
    return MS_OK;
}

static void test_comm_failure__belongs_to_the_rank_that_failed(void **state)
{
    (void)state;
    assert_fails(MS_IO_ERROR, "rank 0 failed: save: disk full",
                 ms_dist_threads(RANKS, raise_together, NULL));
    assert_fails(MS_IO_ERROR, "rank 2 failed: a bad day",
                 ms_dist_threads(RANKS, raise_alone, NULL));
}

/* -- a rank that leaves, and then fails -------------------------------------------------------- */

typedef struct leaver {
    atomic_bool found; /* the other rank has found that this one left */
    bool other_fails;  /* ... and fails by it, uncaught */
} leaver;

static ms_status fail_after_leaving(void *user, int32_t rank)
{
    leaver *l = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        ms_dist_leave();
        while (!atomic_load(&l->found)) {
            sched_yield();
        }
        EXPECT(ms_dist_abort(MS_VALUE_ERROR, "a bad day"));
        EXPECT(!ms_dist_abort(MS_VALUE_ERROR, "a worse one"));
        return MS_OK;
    }
    const ms_status status = ms_comm_barrier(world);

    const bool says = strstr(ms_error_message(), "rank 1 left the job") != NULL;
    const bool is_cause = l->other_fails && ms_dist_abort(status, ms_error_message());

    atomic_store(&l->found, true);
    EXPECT(status == MS_COMM_ERROR && says);
    EXPECT(!is_cause);
    return MS_OK;
}

static void test_comm_failure__after_leaving_is_the_cause(void **state)
{
    (void)state;
    for (int32_t other_fails = 0; other_fails < 2; other_fails++) {
        leaver l = {.other_fails = other_fails != 0};

        assert_fails(MS_VALUE_ERROR, "rank 1 failed: a bad day",
                     ms_dist_threads(2, fail_after_leaving, &l));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_failure__is_told_to_those_who_go_on),
        cmocka_unit_test(test_comm_failure__after_leaving_is_the_cause),
        cmocka_unit_test(test_comm_failure__belongs_to_the_rank_that_failed),
    };

    return cmocka_run_group_tests_name("comm/failure", tests, NULL, NULL);
}
