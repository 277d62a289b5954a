/* A rank that goes: what its device found wrong with the last that it was given, and nobody has
 * waited for, is what the job fails with. */
#include "rank_test.h"

#include "moonshard/ops.h"
#include "tensor.h"

enum { RANKS = 2, ROWS = 7 };

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
        EXPECT(rank == 0 || strcmp(ms_error_message(), wrong) == 0);
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
    assert_null(msi_context_peek());
    assert_ok(look_up(0));
    assert_ok(ms_close());
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
    };

    return cmocka_run_group_tests_name("comm/exit", tests, use_device, leave_device);
}
