/* A graph may outlive the group of its collectives: its backward says so, also where another group
 * lies at that address since. */
#include "ms_test.h"

#include "comm.h"
#include "moonshard/autograd.h"
#include "moonshard/ops.h"
#include "tensor.h"

enum { RANKS = 2, N = 4, TRIES = 50 };

static ms_status all_reduce(ms_tensor **out, ms_comm *c, ms_tensor *x)
{
    return ms_op_all_reduce(out, c, x, MS_REDUCE_SUM);
}

static ms_status reduce_scatter(ms_tensor **out, ms_comm *c, ms_tensor *x)
{
    return ms_op_reduce_scatter(out, c, x, MS_REDUCE_AVG);
}

static ms_status broadcast(ms_tensor **out, ms_comm *c, ms_tensor *x)
{
    return ms_op_broadcast(out, c, x, 1);
}

static const struct {
    ms_status (*run)(ms_tensor **out, ms_comm *c, ms_tensor *x);
    const char *error;
} ops[] = {
    {all_reduce, "all_reduce: its group was freed; keep it until backward has run"},
    {ms_op_all_gather, "all_gather: its group was freed"},
    {reduce_scatter, "reduce_scatter: its group was freed"},
    {broadcast, "broadcast: its group was freed"},
};

/* Groups of other ranks, until one lies at `place`, or so many are made: malloc decides. */
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

/* Of as many ranks (nothing would look wrong), and of others. */
static void test_collective_group_lives__backward_takes_no_other_group_for_its_own(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2 * MSI_COUNT(ops); i++) {
        ms_comm *own, *others[TRIES];
        ms_tensor *x, *y, *loss;

        assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, (const int64_t[]){N}, 1));
        assert_ok(ms_tensor_set_requires_grad(x, true));
        assert_ok(ms_comm_fake(&own, 0, RANKS));
        assert_ok(ops[i / 2].run(&y, own, x));
        assert_ok(ms_op_sum(&loss, y, 0, false));
        ms_comm_free(own);
        const int32_t n = make_groups(others, own, i % 2 == 0 ? RANKS : RANKS + 1);

        assert_fails(MS_RUNTIME_ERROR, ops[i / 2].error, ms_backward(loss, NULL));
        for (int32_t k = 0; k < n; k++) {
            ms_comm_free(others[k]);
        }
        ms_tensor_free(loss);
        ms_tensor_free(y);
        ms_tensor_free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collective_group_lives__backward_takes_no_other_group_for_its_own),
    };

    return cmocka_run_group_tests_name("collective/group_lives", tests, NULL, NULL);
}
