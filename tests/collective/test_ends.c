/* runtime/collective: ranks that differ in forward or in backward, and groups that are gone. */
#include "collectives.h"

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

static const struct {
    int32_t k;
    bool in_forward;
    const char *text;
} differences[] = {
    {0, true, "all_reduce(f64 (4, 2), sum), rank 1 calls all_reduce(f64 (2, 4), sum)"},
    {0, false, "all_reduce(f64 (4, 2), sum, backward of sequence 1), rank 1 calls barrier()"},
    {1, false, "all_reduce(f64 (4, 2), avg, backward of sequence 1), rank 1 calls barrier()"},
    {4, false, "reduce_scatter(f64 (4, 2), sum, backward of sequence 1), rank 1 calls barrier()"},
    {5, false, "all_gather(f64 (2, 2), backward of sequence 1), rank 1 calls barrier()"},
    {9, false, "all_reduce(f64 (4, 2), sum, backward of sequence 1), rank 1 calls barrier()"},
};

static void test_ends__name_the_calls_of_ranks_that_differ(void **state)
{
    report *reports = reports_new(2);

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(differences); i++) {
        const difference d = {reports, &collectives[differences[i].k], differences[i].in_forward};

        assert_fails(MS_COMM_ERROR, differences[i].text,
                     ms_dist_threads(2, report_difference, (void *)(uintptr_t)&d));
        for (int32_t rank = 0; rank < 2; rank++) {
            assert_int_equal(reports[rank].status, MS_COMM_ERROR);
            assert_true(reports[rank].seconds < SOON_S);
        }
    }
    reports_free(reports, 2);
}

/* -- a graph outlives its group ---------------------------------------------------------------- */

enum { TRIES = 50 };

/* Fake groups, until one lies at the address of the freed one, or TRIES are made: malloc decides.
 */
static int32_t make_groups(ms_comm **out, const ms_comm *place, int32_t world)
{
    for (int32_t i = 0; i < TRIES; i++) {
        assert_ok(ms_comm_fake(&out[i], 0, world));
        if (out[i] == place) {
            return i + 1;
        }
    }
    return TRIES;
}

static void test_ends__backward_takes_no_other_group_for_its_own(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2 * MSI_COUNT(collectives); i++) {
        const collective *k = &collectives[i / 2];
        ms_comm *own, *others[TRIES];
        ms_tensor *x, *y, *loss;

        if (!k->differentiable) {
            continue;
        }
        assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, (const int64_t[]){4}, 1));
        assert_ok(ms_tensor_set_requires_grad(x, true));
        assert_ok(ms_comm_fake(&own, 0, 2));
        assert_ok(k->run(&y, own, x, k->a));
        assert_ok(ms_op_sum(&loss, y, 0, false));
        ms_comm_free(own);
        const int32_t n = make_groups(others, own, 2 + i % 2);

        assert_fails(MS_RUNTIME_ERROR, "its group was freed", ms_backward(loss, NULL));
        for (int32_t g = 0; g < n; g++) {
            ms_comm_free(others[g]);
        }
        ms_tensor_free(loss);
        ms_tensor_free(y);
        ms_tensor_free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends__name_the_calls_of_ranks_that_differ),
        cmocka_unit_test(test_ends__backward_takes_no_other_group_for_its_own),
    };

    return cmocka_run_group_tests_name("collective/ends", tests, NULL, NULL);
}
