/* A process that a rank forks: it is no rank, and what it does reaches nobody. */
#include "rank_test.h"

#include "device.h"
#include "group.h"
#include "moonshard/ops.h"

enum { N = 64 };

/* In the child of rank 1. */
static ms_status act_as_the_rank(ms_comm *world, msi_segment *s)
{
    static const char told[] = "this process was forked by rank 1 and is no rank itself";
    ms_comm *again;

    EXPECT(ms_comm_barrier(world) == MS_COMM_ERROR);
    EXPECT(strstr(ms_error_message(), told) != NULL);
    EXPECT(ms_comm_world(&again) == MS_COMM_ERROR);
    EXPECT(strstr(ms_error_message(), told) != NULL);
    EXPECT(!ms_dist_abort(MS_VALUE_ERROR, "the child's own failure"));
    MS_TRY(ms_comm_same(world, "step", "2", NULL, 0));
    ms_comm_failed(world, "the child's own failure");
    memset(s->rw, 0x77, N);
    EXPECT(s->ro[N / 2] != 0x77 || s->ro == s->rw);
    atomic_store(&world->job->block->abort, 1);
    ms_dist_leave();
    ms_close();
    return MS_OK;
}

static ms_status fork_in_a_rank(void *user, int32_t rank)
{
    ms_comm *world;
    msi_segment s;
    int status = -1;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(msi_segment_new(&s, world, N));
    memset(s.rw + rank * N / 2, 'a' + rank, N / 2);
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        pid_t pid = fork();

        if (pid == 0) {
            if (act_as_the_rank(world, &s) != MS_OK) {
                fprintf(stderr, "%s\n", ms_error_message());
                _exit(1);
            }
            _exit(0);
        }
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
    }
    MS_TRY(ms_comm_barrier(world));
    EXPECT(s.ro[0] == 'a' && s.ro[N / 2 - 1] == 'a' && s.ro[N / 2] == 'b' && s.ro[N - 1] == 'b');
    msi_segment_free(&s);
    return ms_comm_barrier(world);
}

static void test_job_fork__of_a_rank_is_no_rank(void **state)
{
    (void)state;
    run_only_processes(2, fork_in_a_rank, NULL);
}

/* Streams and what lies in them are not copied by a fork. */
static void test_job_fork__of_ranks_is_refused_once_a_device_is_open(void **state)
{
    ms_launch *launch;
    ms_tensor *t;
    int32_t rank = -1;

    (void)state;
    assert_ok(ms_close());
    setenv("MS_DEVICE", "fake", 1);
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    ms_tensor_free(t); /* no tensor is left, but the device */
    assert_fails(MS_RUNTIME_ERROR, "cannot fork ranks: this process has opened its device",
                 ms_launch_fork(&launch, 2, &rank));
    assert_true(rank < 0);
    unsetenv("MS_DEVICE");
    assert_ok(ms_close());
}

/* In the child: what the parent has enqueued is not run a second time, and nothing is said of it.
 */
static int use_what_was_forked(ms_tensor *t)
{
    static const char told[] = "this process was forked from the one that opened device 'fake'";
    ms_tensor *twice;
    double value;

    return ms_tensor_to_doubles(t, &value, 1) == MS_DEVICE_ERROR &&
                   strstr(ms_error_message(), told) != NULL &&
                   ms_op_add(&twice, t, t) == MS_DEVICE_ERROR &&
                   strstr(ms_error_message(), told) != NULL && ms_close() == MS_OK
               ? 0
               : 1;
}

static void test_job_fork__leaves_the_device_to_the_process_that_opened_it(void **state)
{
    _Atomic uint64_t *word;
    ms_tensor *t;
    double value;
    int status = -1;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    word = mmap(NULL, sizeof(*word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ok(ms_close());
    setenv("MS_DEVICE", "fake", 1);
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 3));
    msi_device *d = msi_context()->device;

    assert_int_equal(d->ops->post(d, MSI_STREAM_COMPUTE, word, 1), MSI_DEV_OK);
    pid_t pid = fork();

    if (pid == 0) {
        _exit(use_what_was_forked(t) == 0 && atomic_load(word) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(ms_tensor_to_doubles(t, &value, 1));
    assert_true(value == 3 && atomic_load(word) == 1);
    ms_tensor_free(t);
    unsetenv("MS_DEVICE");
    assert_ok(ms_close());
    munmap(word, sizeof(*word));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_fork__of_a_rank_is_no_rank),
        cmocka_unit_test(test_job_fork__of_ranks_is_refused_once_a_device_is_open),
        cmocka_unit_test(test_job_fork__leaves_the_device_to_the_process_that_opened_it),
    };

    return cmocka_run_group_tests_name("job/fork", tests, NULL, NULL);
}
