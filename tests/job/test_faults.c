/* Ranks killed at random moments: the others learn who and how at once, and nothing is left behind.
 */
#include "rank_test.h"

#include "launch.h"

#include <signal.h>
#include <time.h>

enum { KILLS = 40 };

typedef struct scene {
    report *reports;
    _Atomic int32_t *at_work; /* ranks in their loop */
} scene;

static void sleep_us(int64_t us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    nanosleep(&t, NULL);
}

/* All that ranks do together, over and over. */
static ms_status work(ms_comm *world, ms_tensor *all, ms_tensor *part)
{
    int32_t signal;
    msi_segment s;

    MS_TRY(ms_comm_all_gather(world, all, part));
    MS_TRY(ms_comm_reduce_scatter(world, part, all, MS_REDUCE_SUM));
    MS_TRY(ms_comm_all_reduce(world, all, MS_REDUCE_MAX));
    MS_TRY(ms_comm_broadcast(world, all, 1));
    MS_TRY(ms_dist_stop_agreed(&signal));
    MS_TRY(msi_segment_new(&s, world, 1 << 16));
    ms_status status = ms_comm_barrier(world);

    msi_segment_free(&s);
    return status;
}

static ms_status work_until_it_fails(void *user, int32_t rank)
{
    const scene *x = user;
    ms_tensor *all, *part;
    ms_comm *world;
    int64_t n = 30000;
    ms_status status;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_tensor_empty(&part, MS_DTYPE_F32, 1, &n));
    n *= ms_comm_size(world);
    MS_TRY(ms_tensor_empty(&all, MS_DTYPE_F32, 1, &n));
    atomic_fetch_add(x->at_work, 1);
    while ((status = work(world, all, part)) == MS_OK) {
    }
    x->reports[rank].value = msi_now_ns();
    report_write(&x->reports[rank], status, 0);
    ms_tensor_free(all);
    ms_tensor_free(part);
    return status;
}

static void kill_one(int32_t round, double *slowest)
{
    scene x = {.reports = reports_new(5)};
    int32_t n = 2 + round % 3, victim = (int32_t)((filler(5, round) + 1) / 2 * n), code;
    int32_t fds = count_entries("/proc/self/fd");
    const char *cause;
    char expected[64];

    x.at_work = (_Atomic int32_t *)(void *)&x.reports[4];
    ms_launch *launch = launch_processes(n, work_until_it_fails, &x);

    /* Every fourth before the ranks have even joined. */
    while (round % 4 != 0 && atomic_load(x.at_work) < n) {
        sleep_us(200);
    }
    sleep_us((int64_t)((filler(6, round) + 1) * 4000));
    const double stolen = stolen_seconds();
    int64_t killed_at = msi_now_ns();
    pid_t pid = atomic_load(&launch->job->block->rank[victim].pid);

    kill(pid, SIGKILL);
    assert_ok(ms_launch_wait(launch, &code, &cause));
    assert_int_equal(code, 128 + SIGKILL);
    snprintf(expected, sizeof(expected), "rank %d died (signal 9, Killed) (pid %d)", (int)victim,
             (int)pid);
    assert_string_equal(cause, expected);
    for (int32_t r = 0; r < n; r++) {
        double ms =
            (double)(x.reports[r].value - killed_at) * 1e-6 - (stolen_seconds() - stolen) * 1e3;

        if (r == victim) {
            assert_int_equal(x.reports[r].status, MS_OK); /* it never got to say anything */
            continue;
        }
        assert_int_equal(x.reports[r].status, MS_COMM_ERROR);
        if (strncmp(x.reports[r].message, expected, strlen(expected)) != 0 ||
            strstr(x.reports[r].message, " while this rank ") == NULL ||
            strstr(x.reports[r].message, "(sequence ") == NULL) {
            fail_msg("rank %d was told '%s'", (int)r, x.reports[r].message);
        }
        assert_true(ms < 1000);
        *slowest = ms > *slowest ? ms : *slowest;
    }
    assert_false(has_children());
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    reports_free(x.reports, 5);
}

static void test_job_faults__survive_kills_at_random_moments(void **state)
{
    int32_t segments = count_entries("/dev/shm");
    double slowest = 0;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    for (int32_t round = 0; round < KILLS; round++) {
        kill_one(round, &slowest);
    }
    assert_int_equal(count_entries("/dev/shm"), segments);
    print_message("%d kills, slowest report %.1f ms after the kill\n", KILLS, slowest);
}

/* -- a rank that fails in other ways
 * ------------------------------------------------------------------ */

static ms_status exit_with_three(void *user, int32_t rank)
{
    scene *x = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        _exit(3);
    }
    ms_status status = ms_comm_barrier(world);

    report_write(&x->reports[rank], status, 0);
    return status;
}

static void test_job_faults__name_the_rank_that_exits_with_a_code(void **state)
{
    scene x = {.reports = reports_new(3)};
    const char *cause;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    assert_int_equal(run_processes(3, exit_with_three, &x, &cause), 3);
    assert_string_equal(without_pid(cause), "rank 1 exited with code 3");
    for (int32_t q = 0; q < 3; q += 2) {
        assert_non_null(strstr(without_pid(x.reports[q].message),
                               "rank 1 exited with code 3 while this rank "));
    }
    reports_free(x.reports, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_faults__survive_kills_at_random_moments),
        cmocka_unit_test(test_job_faults__name_the_rank_that_exits_with_a_code),
    };

    return cmocka_run_group_tests_name("job/faults", tests, NULL, NULL);
}
