/* When hooks go, and what they held with them: runtime/autograd/{hooks,tape,engine}.c. */
#include "values.h"

#include "autograd.h"

typedef struct counts {
    int calls, drops;
} counts;

static void dropped(void *user)
{
    ((counts *)user)->drops++;
}

static ms_status look(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    ((counts *)user)->calls++;
    return MS_OK;
}

static ms_status look_before(void *user)
{
    ((counts *)user)->calls++;
    return MS_OK;
}

static void test_autograd_hook_lives__go_with_a_graph_nobody_differentiates(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    counts s = {0}, before = {0};

    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, look, &s, dropped, NULL));
    assert_ok(msi_autograd_pre_hook(y, (msi_pre_hook){look_before, &before, NULL, NULL}));
    assert_fails(MS_RUNTIME_ERROR, "no result of a recorded op",
                 msi_autograd_pre_hook(x, (msi_pre_hook){look_before, &before, NULL, NULL}));
    ms_tensor_free(y);
    assert_int_equal(s.drops, 1);
    assert_int_equal(s.calls + before.calls, 0);
}

static void test_autograd_hook_lives__go_with_the_graph_that_backward_uses_up(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *y;
    counts inner = {0}, root = {0}, before = {0}, leaf = {0}, late = {0};

    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_op_exp(&y, z));
    assert_ok(ms_tensor_hook(x, look, &leaf, dropped, NULL));
    assert_ok(ms_tensor_hook(z, look, &inner, dropped, NULL));
    assert_ok(ms_tensor_hook(y, look, &root, dropped, NULL));
    assert_ok(msi_autograd_pre_hook(z, (msi_pre_hook){look_before, &before, dropped, NULL}));
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(inner.calls + root.calls + before.calls + leaf.calls, 4);
    assert_int_equal(inner.drops, 1); /* though its tensor is held */
    assert_int_equal(root.drops, 1);
    assert_int_equal(before.drops, 1);
    assert_int_equal(leaf.drops, 0);
    assert_fails(MS_RUNTIME_ERROR, "cannot hook the gradient of a result of 'affine' whose graph",
                 ms_tensor_hook(z, look, &inner, dropped, NULL));
    assert_int_equal(inner.drops, 1);
    assert_ok(msi_autograd_pre_hook(z, (msi_pre_hook){look_before, &late, dropped, NULL}));
    assert_int_equal(late.drops, 1); /* it can never run */
    assert_int_equal(late.calls, 0);
    ms_tensor_free(y);
    ms_tensor_free(z);
    assert_int_equal(inner.drops + root.drops + before.drops, 3);
}

static ms_status object(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return ms_error_set(MS_HOOK_ERROR, "no");
}

static void test_autograd_hook_lives__stay_with_what_a_failed_backward_has_not_reached(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *w = LEAF(MS_DTYPE_F64, 5), *aside, *below, *z, *y;
    counts waits = {0}, unreached = {0}, failed = {0}, ran = {0};

    assert_ok(ms_op_exp(&aside, w));
    assert_ok(ms_op_exp(&below, x));
    assert_ok(ms_op_mul(&z, below, below));
    assert_ok(ms_op_mul(&y, z, aside));
    assert_ok(ms_tensor_hook(aside, look, &waits, dropped, NULL)); /* has its gradient by then */
    assert_ok(ms_tensor_hook(below, look, &unreached, dropped, NULL));
    assert_ok(ms_tensor_hook(z, object, &failed, dropped, NULL)); /* of a node that ran */
    assert_ok(ms_tensor_hook(y, look, &ran, dropped, NULL));
    assert_fails(MS_HOOK_ERROR, "no", ms_backward(y, NULL));
    assert_int_equal(ran.calls, 1);
    assert_int_equal(waits.calls + unreached.calls, 0);
    assert_int_equal(ran.drops, 1);
    assert_int_equal(failed.drops, 1);
    assert_int_equal(waits.drops + unreached.drops, 0);
    assert_ok(ms_backward(below, NULL));
    assert_ok(ms_backward(aside, NULL));
    assert_int_equal(waits.calls + unreached.calls, 2);
    assert_int_equal(waits.drops + unreached.drops, 2);
}

static void test_autograd_hook_lives__stay_when_backward_could_not_begin(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    counts s = {0};

    assert_ok(ms_op_affine(&y, x, 2, 0));
    assert_ok(ms_tensor_hook(y, look, &s, dropped, NULL));
    msi_alloc_fail_at(msi_context(), 0); /* the root's gradient */
    assert_int_equal(ms_backward(y, NULL), MS_OUT_OF_MEMORY);
    msi_alloc_fail_at(msi_context(), -1);
    assert_int_equal(s.drops, 0);
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s.calls, 1);
    EXPECT_GRAD(x, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_hook_lives__go_with_a_graph_nobody_differentiates),
        BOOKED_TEST(test_autograd_hook_lives__go_with_the_graph_that_backward_uses_up),
        BOOKED_TEST(test_autograd_hook_lives__stay_with_what_a_failed_backward_has_not_reached),
        BOOKED_TEST(test_autograd_hook_lives__stay_when_backward_could_not_begin),
    };
    return cmocka_run_group_tests_name("autograd/hook_lives", tests, NULL, NULL);
}
