/* runtime/comm/wait.c, record.c: records, waits, and the errors that end them. */
#include "rank_test.h"

#include "group.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

static void sleep_ms(int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

static msi_fingerprint unshard_of(const char *unit, int64_t count)
{
    msi_fingerprint fp = {.kind = MSI_COLL_UNSHARD,
                          .dtype = MS_DTYPE_F32,
                          .ndim = -1,
                          .count = count,
                          .slot = 1,
                          .generation = 7};

    msi_label_set(&fp.name, unit);
    return fp;
}

/* -- words ------------------------------------------------------------------------------------- */

static void test_comm_wait__describes_every_kind(void **state)
{
    static const struct {
        msi_fingerprint fp;
        const char *text;
    } cases[] = {
        {{.kind = MSI_COLL_ALL_GATHER, .dtype = MS_DTYPE_F32, .ndim = 1, .slot = -1, .shape = {9}},
         "all_gather(f32 (9))"},
        {{.kind = MSI_COLL_ALL_GATHER,
          .dtype = -1,
          .ndim = -1,
          .count = 4,
          .slot = -1,
          .name = {.text = "stop_requested"}},
         "all_gather(4 bytes, in stop_requested)"},
        {{.kind = MSI_COLL_REDUCE_SCATTER,
          .dtype = MS_DTYPE_BF16,
          .ndim = 2,
          .slot = -1,
          .root = MS_REDUCE_AVG,
          .shape = {2, 4}},
         "reduce_scatter(bf16 (2, 4), avg)"},
        {{.kind = MSI_COLL_ALL_REDUCE, .dtype = MS_DTYPE_F64, .slot = -1, .root = MS_REDUCE_MAX},
         "all_reduce(f64 (), max)"},
        {{.kind = MSI_COLL_BROADCAST,
          .dtype = MS_DTYPE_I64,
          .ndim = 8,
          .slot = -1,
          .root = 2,
          .shape = {1, 2, 3, 4, 5, 6, 7, 8}},
         "broadcast(i64 (1, 2, 3, 4, 5, 6, 7, 8), root 2)"},
        {{.kind = MSI_COLL_BARRIER, .dtype = -1, .ndim = -1, .slot = -1}, "barrier()"},
        {{.kind = MSI_COLL_UNSHARD,
          .dtype = MS_DTYPE_BF16,
          .ndim = -1,
          .count = 5,
          .slot = 1,
          .generation = 7,
          .name = {.text = "h.0"}},
         "unshard(bf16, 5 elements, unit 'h.0', slot 1, generation 7)"},
        {{.kind = MSI_COLL_REDUCE_UNIT,
          .dtype = MS_DTYPE_F32,
          .ndim = -1,
          .count = 5,
          .model = 2,
          .slot = 0,
          .generation = 3,
          .name = {.text = "h.0"}},
         "reduce(f32, 5 elements, unit 'h.0' of model 2, slot 0, generation 3)"},
        {{.kind = MSI_COLL_ALL_GATHER,
          .dtype = -1,
          .ndim = -1,
          .count = 4,
          .model = 1,
          .slot = -1,
          .name = {.text = "hash of unit 'h.0'"}},
         "all_gather(4 bytes, in hash of unit 'h.0')"},
        {{.kind = MSI_COLL_SEGMENT, .dtype = -1, .ndim = -1, .count = 4096, .slot = -1},
         "segment(4096 bytes)"},
    };
    char text[MSI_CALL_TEXT];

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(cases); i++) {
        assert_string_equal(msi_fingerprint_text(&cases[i].fp, text, sizeof(text)), cases[i].text);
    }
}

/* -- records ----------------------------------------------------------------------------------- */

static ms_status publish_many(void *user, int32_t rank)
{
    ms_comm *world;
    msi_fingerprint fp, read;
    uint64_t seq, hash, hash_before = 0;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    for (int64_t i = 1; i <= 3 * MSI_RING; i++) {
        fp = unshard_of("h.3", i);
        MS_TRY(msi_comm_publish(world, &fp, &seq));
        EXPECT(seq == (uint64_t)i);
        EXPECT(msi_record_read(&world->members[world->rank], seq, &read, &hash));
        EXPECT(read.count == i && memcmp(&read.name, &fp.name, sizeof(fp.name)) == 0);
        EXPECT(hash != hash_before);
        hash_before = hash;
    }
    EXPECT(msi_record_read(&world->members[world->rank], seq - MSI_RING + 1, &read, &hash));
    EXPECT(!msi_record_read(&world->members[world->rank], seq - MSI_RING, &read, &hash));
    EXPECT(!msi_record_read(&world->members[world->rank], seq + 1, &read, &hash));
    return MS_OK;
}

static void test_comm_wait__keeps_the_latest_records(void **state)
{
    (void)state;
    assert_ok(ms_dist_threads(1, publish_many, NULL));
}

/* -- waiting
 * --------------------------------------------------------------------------------------- */

/* A token goes round: rank r may store k * n + r only after its left neighbour stored its own. */
typedef struct ring {
    _Alignas(64) _Atomic uint64_t word[8];
    int32_t n;
    bool lazy;
} ring;

typedef struct ring_wait {
    ring *ring;
    int32_t who;
    uint64_t value;
} ring_wait;

static bool neighbour_is_there(void *user)
{
    ring_wait *w = user;

    return atomic_load(&w->ring->word[w->who]) >= w->value;
}

static ms_status pass_token(void *user, int32_t rank)
{
    ring *r = user;
    ms_comm *world;
    uint64_t seq;

    MS_TRY(ms_comm_world(&world));
    for (uint64_t k = 1; k <= (r->lazy ? 20 : 1000); k++) {
        msi_fingerprint fp = unshard_of("ring", (int64_t)k);
        ring_wait w = {r, (rank + r->n - 1) % r->n, rank == 0 ? k - 1 : k};

        MS_TRY(msi_comm_publish(world, &fp, &seq));
        MS_TRY(msi_comm_wait(world, seq, neighbour_is_there, &w));
        EXPECT(atomic_load(&r->word[w.who]) == w.value);
        if (r->lazy && k % (uint64_t)r->n == (uint64_t)rank) {
            sleep_ms(2); /* longer than anybody spins */
        }
        atomic_store(&r->word[rank], k);
        msi_comm_ring(world);
    }
    return MS_OK;
}

static void test_comm_wait__passes_a_token_round(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 4; n++) {
        ring *r = (ring *)(void *)reports_new(8);

        for (int32_t lazy = 0; lazy < 2; lazy++) {
            memset((void *)r, 0, sizeof(*r));
            r->n = n;
            r->lazy = lazy;
            assert_ok(ms_dist_threads(n, pass_token, r));
            if (CAN_FORK) {
                const char *cause;

                memset((void *)r, 0, sizeof(*r));
                r->n = n;
                r->lazy = lazy;
                if (run_processes(n, pass_token, r, &cause) != 0) {
                    fail_msg("%s", cause);
                }
            }
        }
        reports_free((report *)(void *)r, 8);
    }
}

/* -- what ends a wait
 * ------------------------------------------------------------------------------ */

static bool never(void *user)
{
    (void)user;
    return false;
}

static ms_status wait_in_vain(void *user, int32_t rank)
{
    report *r = user;
    msi_fingerprint fp = unshard_of("h.0", 3);
    ms_comm *world;
    uint64_t seq;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    MS_TRY(msi_comm_publish(world, &fp, &seq));
    report_write(&r[rank], msi_comm_wait(world, seq, never, NULL), begin);
    EXPECT(msi_comm_broken(world));
    EXPECT(msi_comm_publish(world, &fp, &seq) == MS_COMM_ERROR);
    EXPECT(strstr(ms_error_message(), "this rank called unshard of unit 'h.0' (sequence 2)"));
    return MS_OK;
}

static void test_comm_wait__finds_ranks_that_all_wait(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 3; n++) {
        report *r = reports_new(n);

        assert_fails(MS_COMM_ERROR, "every rank waits for another",
                     ms_dist_threads(n, wait_in_vain, r));
        for (int32_t q = 0; q < n; q++) {
            assert_int_equal(r[q].status, MS_COMM_ERROR);
            assert_non_null(strstr(r[q].message, "rank 0: unshard(f32, 3 elements, unit 'h.0'"));
            assert_non_null(
                strstr(r[q].message, "this rank waited in unshard of unit 'h.0' (sequence 1)"));
            assert_true(r[q].seconds < SOON_S);
        }
        reports_free(r, n);
    }
}

static ms_status first_rank_is_slow(void *user, int32_t rank)
{
    (void)user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    if (rank == 0) {
        sleep_ms(700); /* others look again seven times and must not lose patience */
    }
    return ms_comm_barrier(world);
}

static void test_comm_wait__waits_for_a_slow_rank(void **state)
{
    (void)state;
    run_ranks(2, first_rank_is_slow, NULL);
}

/* Rank 0 answers and leaves just when the other looks whether anybody is left to wait for. */
static ms_status first_rank_leaves_at_a_look(void *user, int32_t rank)
{
    const int64_t *late_us = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    if (rank == 0) {
        usleep((useconds_t)*late_us);
    }
    return ms_comm_barrier(world);
}

typedef struct leaver {
    pthread_t thread;
    int64_t late_us;
    ms_status status;
    char message[256];
} leaver;

static void *run_leaver(void *p)
{
    leaver *l = p;

    l->status = ms_dist_threads(2, first_rank_leaves_at_a_look, &l->late_us);
    if (l->status != MS_OK) {
        snprintf(l->message, sizeof(l->message), "%s", ms_error_message());
    }
    ms_close();
    return NULL;
}

static void test_comm_wait__hears_a_rank_that_answers_and_leaves(void **state)
{
    enum { JOBS = 40, ROUNDS = 5 };
    leaver l[JOBS];

    (void)state;
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t i = 0; i < JOBS; i++) { /* looks come every 100 ms, and a little later */
            l[i] = (leaver){.late_us = 199800 + 50 * i};
            assert_int_equal(pthread_create(&l[i].thread, NULL, run_leaver, &l[i]), 0);
        }
        for (int32_t i = 0; i < JOBS; i++) {
            pthread_join(l[i].thread, NULL);
        }
        for (int32_t i = 0; i < JOBS; i++) {
            if (l[i].status != MS_OK) {
                fail_msg("%d us late: %s", (int)l[i].late_us, l[i].message);
            }
        }
    }
}

/* "<cause> this rank waited in <operation>", or "called" if it came later. */
static void assert_told(const char *message, ms_status status, const char *cause,
                        const char *operation)
{
    char waited[256], called[256];

    snprintf(waited, sizeof(waited), "%s this rank waited in %s", cause, operation);
    snprintf(called, sizeof(called), "%s this rank called %s", cause, operation);
    if (status != MS_COMM_ERROR || (strcmp(message, waited) != 0 && strcmp(message, called) != 0)) {
        fail_msg("%s: '%s', expected '%s'", ms_status_name(status), message, waited);
    }
}

static ms_status leave_early(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        return MS_OK;
    }
    report_write(&r[rank], ms_comm_barrier(world), begin);
    return MS_OK;
}

static void test_comm_wait__names_a_rank_that_left_early(void **state)
{
    report *r = reports_new(3);
    const char *cause;

    (void)state;
    for (int32_t mode = 0; mode < (CAN_FORK ? 2 : 1); mode++) {
        memset(r, 0, 3 * sizeof(*r));
        if (mode == 0) {
            assert_fails(MS_COMM_ERROR, "rank 1 left the job", ms_dist_threads(3, leave_early, r));
        } else {
            assert_int_not_equal(run_processes(3, leave_early, r, &cause), 0);
            assert_string_equal(without_pid(cause), "rank 1 left the job while others needed it");
        }
        for (int32_t q = 0; q < 3; q += 2) {
            assert_told(mode == 0 ? r[q].message : without_pid(r[q].message), r[q].status,
                        "rank 1 left the job while", "barrier (sequence 2)");
            assert_true(r[q].seconds < SOON_S);
        }
    }
    reports_free(r, 3);
}

static ms_status abort_on_one(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    if (rank == 2) {
        sleep_ms(20);
        return MS_FAIL(MS_KEY_ERROR, "no such key 'lr'");
    }
    report_write(&r[rank], ms_comm_barrier(world), begin);
    return r[rank].status;
}

static void test_comm_wait__tells_all_ranks_why_one_failed(void **state)
{
    report *r = reports_new(3);
    const char *cause;

    (void)state;
    for (int32_t mode = 0; mode < (CAN_FORK ? 2 : 1); mode++) {
        memset(r, 0, 3 * sizeof(*r));
        if (mode == 0) {
            assert_fails(MS_KEY_ERROR, "rank 2 failed: no such key 'lr'",
                         ms_dist_threads(3, abort_on_one, r));
        } else {
            assert_int_equal(run_processes(3, abort_on_one, r, &cause), 1);
            assert_string_equal(without_pid(cause), "rank 2 failed: no such key 'lr'");
        }
        for (int32_t q = 0; q < 2; q++) {
            assert_told(mode == 0 ? r[q].message : without_pid(r[q].message), r[q].status,
                        "rank 2 failed: no such key 'lr';", "barrier (sequence 1)");
            assert_true(r[q].seconds < SOON_S);
        }
    }
    reports_free(r, 3);
}

static ms_status wait_past_the_limit(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    if (rank == 1) {
        sleep_ms(1600);
    }
    report_write(&r[rank], ms_comm_barrier(world), begin);
    return MS_OK;
}

static ms_status meet(void *user, int32_t rank)
{
    const msi_job *job;
    ms_comm *world;

    (void)rank;
    MS_TRY(ms_comm_world(&world));
    job = world->job;
    EXPECT(job->block->timeout_ns == ((const int64_t *)user)[0]);
    EXPECT(job->block->announce_ns == ((const int64_t *)user)[1]);
    return ms_comm_barrier(world);
}

static void test_comm_wait__keeps_limits_within_bounds(void **state)
{
    static const char *const said[] = {
        "MS_COMM_SPIN_US is -1, expected 0 to 1000000; using 0",
        "MS_COMM_TIMEOUT is 9300000000, expected 1 to 1000000000; using 1000000000",
        "MS_COMM_ANNOUNCE is '1m', expected a whole number; using 15",
    };
    const char *kind, *message;

    (void)state;
    setenv("MS_COMM_SPIN_US", "-1", 1);
    setenv("MS_COMM_TIMEOUT", "9300000000", 1);
    setenv("MS_COMM_ANNOUNCE", "1m", 1);
    ms_warnings_capture(true);
    assert_ok(ms_dist_threads(2, meet, (int64_t[]){1000000000000000000, 15000000000}));
    for (int32_t i = 0; i < MSI_COUNT(said); i++) {
        assert_true(ms_warning_take(&kind, &message));
        assert_string_equal(message, said[i]);
    }
    assert_false(ms_warning_take(&kind, &message)); /* once, not by every rank */
    ms_warnings_capture(false);
    unsetenv("MS_COMM_SPIN_US");
    unsetenv("MS_COMM_TIMEOUT");
    unsetenv("MS_COMM_ANNOUNCE");
}

static void test_comm_wait__gives_up_after_the_limit(void **state)
{
    report *r = reports_new(2);

    (void)state;
    setenv("MS_COMM_TIMEOUT", "1", 1);
    assert_fails(MS_COMM_ERROR,
                 "no progress for 1 s (MS_COMM_TIMEOUT); last calls: rank 1: nothing (sequence 0), "
                 "rank 0: barrier() (sequence 1)",
                 ms_dist_threads(2, wait_past_the_limit, r));
    unsetenv("MS_COMM_TIMEOUT");
    assert_int_equal(r[0].status, MS_COMM_ERROR);
    assert_int_equal(r[1].status, MS_COMM_ERROR);
    assert_true(r[0].seconds >= 1 && r[0].seconds < 1 + SOON_S);
    reports_free(r, 2);
}

static ms_status leave_while_another_is_stopped(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        return MS_OK;
    }
    if (rank == 2) {
        raise(SIGSTOP);
    }
    double begin = ms_time();

    report_write(&r[rank], ms_comm_barrier(world), begin);
    return MS_OK;
}

static void test_comm_wait__names_who_left_though_another_is_stopped(void **state)
{
    report *r = reports_new(3);
    const char *cause;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    assert_int_not_equal(run_processes(3, leave_while_another_is_stopped, r, &cause), 0);
    assert_string_equal(without_pid(cause), "rank 1 left the job while others needed it");
    assert_told(without_pid(r[0].message), r[0].status, "rank 1 left the job while",
                "barrier (sequence 2)");
    assert_true(r[0].seconds < SOON_S);
    reports_free(r, 3);
}

static ms_status use_after_leaving(void *user, int32_t rank)
{
    ms_comm *world;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    ms_dist_leave();
    EXPECT(ms_comm_barrier(world) == MS_RUNTIME_ERROR);
    EXPECT(strstr(ms_error_message(), "has left its job"));
    EXPECT(ms_comm_world(&world) == MS_RUNTIME_ERROR);
    return MS_OK;
}

/* A rank that has closed is no world of one: what it computes alone would be taken for the job's.
 */
static ms_status use_after_closing(void *user, int32_t rank)
{
    const int64_t two = 2;
    ms_dist_info info;
    ms_launch *launch;
    ms_comm *world;
    ms_tensor *t;
    int32_t started;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    MS_TRY(ms_close());
    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 1, &two, 1));
    ms_tensor_free(t);
    EXPECT(ms_comm_world(&world) == MS_RUNTIME_ERROR);
    EXPECT(strstr(ms_error_message(), "has left its job"));
    MS_TRY(ms_comm_self(&world));
    ms_dist_info_get(&info);
    EXPECT(info.rank == rank && info.world_size == 2 && !info.initialized);
    EXPECT(ms_launch_fork(&launch, 2, &started) == MS_RUNTIME_ERROR);
    EXPECT(strstr(ms_error_message(), rank == 0 ? "was rank 0 of 2" : "was rank 1 of 2"));
    return MS_OK;
}

static void test_comm_wait__refuses_collectives_after_leaving(void **state)
{
    (void)state;
    run_ranks(2, use_after_leaving, NULL);
    run_ranks(2, use_after_closing, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_wait__describes_every_kind),
        cmocka_unit_test(test_comm_wait__keeps_the_latest_records),
        cmocka_unit_test(test_comm_wait__passes_a_token_round),
        cmocka_unit_test(test_comm_wait__finds_ranks_that_all_wait),
        cmocka_unit_test(test_comm_wait__waits_for_a_slow_rank),
        cmocka_unit_test(test_comm_wait__hears_a_rank_that_answers_and_leaves),
        cmocka_unit_test(test_comm_wait__names_a_rank_that_left_early),
        cmocka_unit_test(test_comm_wait__tells_all_ranks_why_one_failed),
        cmocka_unit_test(test_comm_wait__keeps_limits_within_bounds),
        cmocka_unit_test(test_comm_wait__gives_up_after_the_limit),
        cmocka_unit_test(test_comm_wait__names_who_left_though_another_is_stopped),
        cmocka_unit_test(test_comm_wait__refuses_collectives_after_leaving),
    };

    return cmocka_run_group_tests_name("comm/wait", tests, NULL, NULL);
}
