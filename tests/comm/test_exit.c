/* A rank that goes: what its device found wrong with the last that it was given, and nobody has
 * waited for, is what the job fails with. */
#include "rank_test.h"

#include "device.h"
#include "moonshard/ops.h"
#include "tensor.h"

#include <stdlib.h>

enum { RANKS = 2, ROWS = 7, SEEDS = 12, DROPPED = 4 };

static const char wrong[] = "embedding: id 7, number 1 of 1, is outside [0, 7)";

static ms_status look_up(int64_t row)
{
    ms_tensor *table, *id, *y;
    ms_status status;

    MS_TRY(ms_tensor_full(&table, MS_DTYPE_F32, 2, (const int64_t[]){ROWS, 2}, 1));
    MS_TRY(ms_tensor_full(&id, MS_DTYPE_I64, 1, (const int64_t[]){1}, (double)row));
    status = ms_op_embedding(&y, table, id);
    ms_tensor_free(y);
    ms_tensor_free(id);
    ms_tensor_free(table);
    return status;
}

static ms_status end_wrong(void *user, int32_t rank)
{
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    MS_TRY(look_up(rank == 1 ? ROWS : 0));
    if (user != NULL) {
        EXPECT(ms_dist_leave() == (rank == 1 ? MS_INDEX_ERROR : MS_OK));
        EXPECT(rank == 0 || strstr(ms_error_message(), wrong) != NULL);
        EXPECT(ms_dist_leave() == MS_OK); /* told once */
        return rank == 1 ? MS_FAIL(MS_INDEX_ERROR, "%s", wrong) : MS_OK;
    }
    return MS_OK;
}

static void test_comm_exit__a_rank_that_returns_fails_the_job(void **state)
{
    bool leaves = true;

    (void)state;
    assert_fails(MS_INDEX_ERROR,
                 "rank 1 failed: IndexError: embedding: id 7, number 1 of 1, is outside [0, 7)",
                 ms_dist_threads(RANKS, end_wrong, NULL));
    assert_fails(MS_INDEX_ERROR, "rank 1 failed: embedding: id 7",
                 ms_dist_threads(RANKS, end_wrong, &leaves));
}

static void test_comm_exit__a_context_closes_and_tells(void **state)
{
    (void)state;
    assert_ok(look_up(ROWS));
    assert_fails(MS_INDEX_ERROR, wrong, ms_close());
    assert_false(ms_is_open());
    assert_ok(look_up(0));
    assert_ok(ms_close());
    assert_ok(look_up(0));
    msi_device *d = msi_context()->device;

    snprintf(d->why_failed, sizeof(d->why_failed), "a product failed");
    *d->fault = (msi_fault){1, MSI_K_gemm, .status = MS_RUNTIME_ERROR}; /* of any kind */
    assert_fails(MS_RUNTIME_ERROR,
                 "a product failed; the device went on with wrong values: load a checkpoint",
                 ms_close());
    assert_false(ms_is_open());
}

/* -- a process that ends with products pending ------------------------------------------------- */

static ms_tensor *last;

static ms_status multiply(int64_t m)
{
    const int64_t left[] = {m, 256}, right[] = {256, 256};
    ms_tensor *a, *b;

    MS_TRY(ms_tensor_full(&a, MS_DTYPE_F32, 2, left, 1));
    MS_TRY(ms_tensor_full(&b, MS_DTYPE_F32, 2, right, 1));
    return ms_op_matmul(&last, a, b);
}

/* What a program's own handler finds that was there before the matrix library was opened: that
 * library is torn down. */
static void look_late(int code, void *expected)
{
    double values[32 * 256] = {0};
    const ms_status status = ms_tensor_to_doubles(last, values, MSI_COUNT(values));
    const bool dropped = status == MS_DEVICE_ERROR &&
                         strstr(ms_error_message(), "this process ends by an error") != NULL;

    if (code != *(const int *)expected || ms_close() != MS_OK) {
        _exit(99);
    }
    _exit(dropped ? DROPPED : status == MS_OK && values[0] == 256 ? code : 98);
}

/* @return what look_late() ends it with, or what it dies of */
static int ends_by(int code, int seed)
{
    char text[16];
    int status = -1;

    snprintf(text, sizeof(text), "%d", seed);
    fflush(NULL);
    pid_t pid = fork();

    if (pid == 0) {
        alarm(30);
        setenv("MS_FAKE_SEED", text, 1);
        on_exit(look_late, &code);
        if (multiply(64) == MS_OK && ms_tensor_wait(last) == MS_OK && multiply(96) == MS_OK &&
            multiply(48) == MS_OK && multiply(32) == MS_OK) {
            exit(code);
        }
        _exit(97);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_comm_exit__a_process_that_ends_well_has_computed(void **state)
{
    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    for (int seed = 1; seed <= SEEDS; seed++) {
        assert_int_equal(ends_by(0, seed), 0);
    }
}

static void test_comm_exit__a_process_that_fails_computes_nothing_more(void **state)
{
    int32_t n_dropped = 0;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    for (int seed = 1; seed <= SEEDS; seed++) {
        const int end = ends_by(3, seed);

        assert_true(end == 3 || end == DROPPED);
        n_dropped += end == DROPPED;
    }
    assert_true(n_dropped > 0);
}

static int use_device(void **state)
{
    (void)state;
    return setenv("MS_DEVICE", "fake", 1);
}

static int leave_device(void **state)
{
    (void)state;
    return unsetenv("MS_DEVICE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_exit__a_rank_that_returns_fails_the_job),
        cmocka_unit_test(test_comm_exit__a_context_closes_and_tells),
        cmocka_unit_test(test_comm_exit__a_process_that_ends_well_has_computed),
        cmocka_unit_test(test_comm_exit__a_process_that_fails_computes_nothing_more),
    };

    return cmocka_run_group_tests_name("comm/exit", tests, use_device, leave_device);
}
