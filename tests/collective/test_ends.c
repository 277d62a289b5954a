/* runtime/collective: ranks that differ in forward or in backward, and groups that are gone. */
#include "collectives.h"

#include "books.h"

typedef struct difference {
    report *reports;
    const collective *k;
    bool in_forward; /* else rank 1 does not differentiate */
} difference;

static ms_status differ(ms_comm *c, const difference *d, int32_t rank)
{
    const int64_t shape[2] = {4, 2}, other[2] = {2, 4};
    ms_tensor *x, *loss, *y;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F64, 2, rank == 1 && d->in_forward ? other : shape, 1));
    MS_TRY(ms_tensor_set_requires_grad(x, true));
    MS_TRY(d->k->run(&y, c, x, d->k->a));
    MS_TRY(ms_op_sum(&loss, y, 0, false));
    if (rank == 1) {
        return ms_comm_barrier(c);
    }
    return ms_backward(loss, NULL);
}

static ms_status report_difference(void *user, int32_t rank)
{
    const difference *d = user;
    const double since = ms_time();
    ms_comm *c;

    MS_TRY(ms_comm_world(&c));
    report_write(&d->reports[rank], differ(c, d, rank), since);
    return MS_OK;
}

static void expect_difference(int32_t k, bool in_forward, const char *text)
{
    difference d = {reports_new(2), &collectives[k], in_forward};
    const char *cause = "";

    for (int32_t processes = 0; processes < 1 + CAN_FORK; processes++) {
        memset(d.reports, 0, 2 * sizeof(report));
        if (processes) {
            assert_int_not_equal(run_processes(2, report_difference, &d, &cause), 0);
        } else {
            assert_int_equal(ms_dist_threads(2, report_difference, &d), MS_COMM_ERROR);
        }
        for (int32_t rank = 0; rank < 2; rank++) {
            if (d.reports[rank].status != MS_COMM_ERROR || d.reports[rank].seconds > SOON_S ||
                strstr(d.reports[rank].message, text) == NULL) {
                fail_msg("rank %d got %s after %.3f s: '%s', expected '%s'", (int)rank,
                         ms_status_name(d.reports[rank].status), d.reports[rank].seconds,
                         d.reports[rank].message, text);
            }
        }
    }
    reports_free(d.reports, 2);
}

static void test_ends__tell_of_ranks_that_differ_in_forward_and_in_backward(void **state)
{
    (void)state;
    expect_difference(0, true,
                      "rank 0 calls all_reduce(f64 (4, 2), sum), rank 1 calls "
                      "all_reduce(f64 (2, 4), sum)");
    expect_difference(
        0, false,
        "rank 0 calls all_reduce(f64 (4, 2), sum, backward of sequence 1), rank 1 calls barrier()");
    expect_difference(
        1, false,
        "rank 0 calls all_reduce(f64 (4, 2), avg, backward of sequence 1), rank 1 calls barrier()");
    expect_difference(4, false,
                      "rank 0 calls reduce_scatter(f64 (4, 2), sum, backward of sequence 1), rank "
                      "1 calls barrier()");
    expect_difference(
        5, false,
        "rank 0 calls all_gather(f64 (2, 2), backward of sequence 1), rank 1 calls barrier()");
    expect_difference(
        9, false,
        "rank 0 calls all_reduce(f64 (4, 2), sum, backward of sequence 1), rank 1 calls barrier()");
}

static ms_status outlive(void *user, int32_t rank)
{
    ms_tensor *x = filled(MS_DTYPE_F32, 1, (const int64_t[]){2}, (uint64_t)rank), *y, *loss;
    ms_comm *world, *pair;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&pair, world, 0, 0));
    MS_TRY(ms_tensor_set_requires_grad(x, true));
    for (int32_t k = 0; k < MSI_COUNT(collectives); k++) {
        MS_TRY(collectives[k].run(&y, pair, x, collectives[k].a));
        MS_TRY(ms_op_sum(&loss, y, 0, false));
        ms_tensor_free(y);
        if (loss->requires_grad && k + 1 == MSI_COUNT(collectives)) {
            ms_comm_free(pair);
            EXPECT(ms_backward(loss, NULL) == MS_RUNTIME_ERROR);
            EXPECT(strstr(ms_error_message(), "broadcast: its group was freed; keep it until "
                                              "backward has run") != NULL);
        }
        ms_tensor_free(loss);
    }
    ms_tensor_free(x);
    return MS_OK;
}

static void test_ends__tell_of_a_group_that_is_gone_in_backward(void **state)
{
    (void)state;
    run_ranks(2, outlive, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends__tell_of_ranks_that_differ_in_forward_and_in_backward),
        cmocka_unit_test(test_ends__tell_of_a_group_that_is_gone_in_backward),
    };

    return cmocka_run_group_tests_name("collective/ends", tests, NULL, NULL);
}
