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

/* -- waiting ----------------------------------------------------------------------------------- */

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

/* -- what ends a wait -------------------------------------------------------------------------- */

static bool never(void *user)
{
    (void)user;
    return false;
}

static ms_status wait_in_a_deadlock(void *user, int32_t rank)
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
    for (int32_t n = 1; n <= 3; n += 2) {
        report *r = reports_new(n);

        assert_fails(MS_COMM_ERROR, "every rank waits for another",
                     ms_dist_threads(n, wait_in_a_deadlock, r));
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
        sleep_ms(250); /* others look twice meanwhile, and go on waiting */
    }
    return ms_comm_barrier(world);
}

static void test_comm_wait__waits_for_a_slow_rank(void **state)
{
    (void)state;
    assert_ok(ms_dist_threads(2, first_rank_is_slow, NULL));
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
    enum { JOBS = 40 };
    leaver l[JOBS];

    (void)state;
    for (int32_t i = 0; i < JOBS; i++) { /* looks come every 100 ms, and a little later */
        l[i] = (leaver){.late_us = 99900 + 25 * i};
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

static ms_status wait_past_the_limit(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    if (rank == ms_comm_size(world) - 1) {
        sleep_ms(1200);
    }
    report_write(&r[rank], ms_comm_barrier(world), begin);
    return MS_OK;
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
    report *many = reports_new(40); /* more ranks than the message has room for */
    assert_fails(MS_COMM_ERROR, "last calls: rank 39: nothing (sequence 0), rank 0: ",
                 ms_dist_threads(40, wait_past_the_limit, many));
    assert_true(strstr(ms_error_message(), " more") != NULL);
    reports_free(many, 40);
    unsetenv("MS_COMM_TIMEOUT");
    assert_int_equal(r[0].status, MS_COMM_ERROR);
    assert_int_equal(r[1].status, MS_COMM_ERROR);
    assert_true(r[0].seconds >= 1 && r[0].seconds < 1 + SOON_S);
    reports_free(r, 2);
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
        cmocka_unit_test(test_comm_wait__keeps_the_latest_records),
        cmocka_unit_test(test_comm_wait__passes_a_token_round),
        cmocka_unit_test(test_comm_wait__finds_ranks_that_all_wait),
        cmocka_unit_test(test_comm_wait__waits_for_a_slow_rank),
        cmocka_unit_test(test_comm_wait__hears_a_rank_that_answers_and_leaves),
        cmocka_unit_test(test_comm_wait__gives_up_after_the_limit),
        cmocka_unit_test(test_comm_wait__refuses_collectives_after_leaving),
    };

    return cmocka_run_group_tests_name("comm/wait", tests, NULL, NULL);
}
