/* runtime/autograd/backward.c, walk.c: several backwards over one graph, gradients that are
 * returned. */
#include "values.h"

#include "autograd.h"
#include "backend.h"

static int64_t live_bytes(void)
{
    ms_memory_stats now;

    ms_memory_stats_get(&now);
    return now.live_total;
}

/* -- graphs that stay -------------------------------------------------------------------------- */

static void test_autograd_backward__over_a_retained_graph_gives_the_same_again(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *a, *y; /* y = (3 x + 1) x */

    assert_ok(ms_op_affine(&a, x, 3, 1));
    assert_ok(ms_op_mul(&y, a, x));
    assert_ok(ms_backward_with(y, NULL, MS_RETAIN_GRAPH));
    EXPECT_GRAD(x, 13);
    assert_ok(ms_backward_with(y, NULL, MS_RETAIN_GRAPH));
    EXPECT_GRAD(x, 26);
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 39);
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'mul'", ms_backward(y, NULL));
    assert_fails(MS_VALUE_ERROR, "'flags' is 64", ms_backward_with(y, NULL, 64));
}

/* Rules that may turn what they saved into a gradient must leave it as it is. */
static void test_autograd_backward__retained_tensors_are_not_written(void **state)
{
    const int64_t shape[] = {2, 3}, one = 1;
    ms_tensor *x, *t, *y, *first, *second;
    double a[6], b[6];

    assert_ok(ms_tensor_from_doubles(&x, MS_DTYPE_F64, 2, shape, (double[]){1, 2, 3, 4, 6, 5}, 6));
    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_I64, 1, &shape[0], (double[]){0, 2}, 2));
    require(x);
    affine(&x, 1, 0); /* so that nobody else has what cross_entropy saves */
    ms_tensor *leaf = LEAF(MS_DTYPE_F64, 1);

    assert_ok(ms_op_mul(&y, x, leaf));
    ms_tensor *logits = y;

    assert_ok(ms_op_cross_entropy(&y, logits, t, -100, MS_REDUCTION_MEAN));
    ms_tensor_free(logits);
    assert_ok(ms_backward_with(y, NULL, MS_RETAIN_GRAPH));
    assert_ok(ms_tensor_grad(&first, leaf));
    assert_ok(ms_tensor_to_doubles(first, a, one));
    assert_ok(ms_backward(y, NULL));
    assert_ok(ms_tensor_grad(&second, leaf));
    assert_ok(ms_tensor_to_doubles(second, b, one));
    assert_true(b[0] == 2 * a[0]);
}

static void test_autograd_backward__a_retained_graph_keeps_what_it_saved(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2, 3), *g = VECTOR(MS_DTYPE_F64, 1, 1), *y, *z;

    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_op_mul(&z, y, y));
    ms_tensor_free(y);
    assert_ok(ms_backward_with(z, g, MS_RETAIN_GRAPH));
    const int64_t kept = live_bytes();

    assert_ok(ms_backward(z, g));
    assert_true(live_bytes() == kept - 2 * (int64_t)sizeof(double)); /* exp(x) */
}

/* -- gradients that are returned --------------------------------------------------------------- */

static ms_status count(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    ++*(int *)user;
    return MS_OK;
}

static void test_autograd_backward__grad_returns_what_lies_between_and_adds_nothing(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *w = LEAF(MS_DTYPE_F64, 5), *h, *y, *grads[3];
    int seen = 0;

    assert_ok(ms_op_mul(&h, x, x));
    assert_ok(ms_op_mul(&y, h, w)); /* x x w */
    assert_ok(ms_tensor_hook(h, count, &seen, NULL, NULL));
    ms_tensor *inputs[] = {x, h, x};

    assert_ok(ms_grad(grads, &y, NULL, 1, inputs, 3, MS_RETAIN_GRAPH));
    EXPECT_VALUES(grads[0], 20);
    EXPECT_VALUES(grads[1], 5);
    EXPECT_VALUES(grads[2], 20);
    assert_int_equal(seen, 1);
    expect_no_grad(x);
    expect_no_grad(w);
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 20);
    EXPECT_GRAD(w, 4);
}

static void test_autograd_backward__grad_uses_up_what_it_differentiates_alone(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *w = LEAF(MS_DTYPE_F64, 5), *h, *y, *grad;

    assert_ok(ms_op_exp(&h, x));
    assert_ok(ms_op_mul(&y, h, w));
    assert_ok(ms_grad(&grad, &y, NULL, 1, &h, 1, 0));
    EXPECT_VALUES(grad, 5);
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'mul'", ms_grad(&grad, &y, NULL, 1, &h, 1, 0));
    assert_ok(ms_backward(h, NULL));
    EXPECT_GRAD(x, 7.38905609893065);
    expect_no_grad(w);
}

static void test_autograd_backward__grad_adds_over_outputs(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *g = VECTOR(MS_DTYPE_F64, 10, 100), *y, *z, *grad;

    assert_ok(ms_op_mul(&y, x, x));
    assert_ok(ms_op_affine(&z, x, 3, 0));
    ms_tensor *outputs[] = {y, x, z}, *given[] = {g, g, g};

    assert_ok(ms_grad(&grad, outputs, given, 3, &x, 1, 0)); /* (2 x + 1 + 3) g */
    EXPECT_VALUES(grad, 60, 800);
    EXPECT_VALUES(g, 10, 100);
}

static void test_autograd_backward__results_of_grad_share_no_memory(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *w = LEAF(MS_DTYPE_F64, 3, 4), *y, *z, *grads[2];

    assert_ok(ms_op_add(&y, x, w));
    assert_ok(ms_op_sum(&z, y, 0, false));
    ms_tensor *inputs[] = {x, w};

    assert_ok(ms_grad(grads, &z, NULL, 1, inputs, 2, 0));
    assert_ok(ms_tensor_fill(grads[0], 7));
    EXPECT_VALUES(grads[0], 7, 7);
    EXPECT_VALUES(grads[1], 1, 1);
}

static void test_autograd_backward__grad_refuses_what_has_no_gradient(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *w = LEAF(MS_DTYPE_F64, 5), *c = VECTOR(MS_DTYPE_F64, 1);
    ms_tensor *y, *grads[2];

    assert_ok(ms_op_exp(&y, x));
    ms_tensor *inputs[] = {x, w}, *constant[] = {x, c};

    assert_fails(MS_RUNTIME_ERROR, "input 2",
                 ms_grad(grads, &y, NULL, 1, inputs, 2, MS_RETAIN_GRAPH));
    assert_null(grads[0]);
    assert_fails(MS_RUNTIME_ERROR, "does not require grad: input 2",
                 ms_grad(grads, &y, NULL, 1, constant, 2, 0));
    assert_fails(MS_VALUE_ERROR, "'inputs' is empty", ms_grad(grads, &y, NULL, 1, inputs, 0, 0));
    assert_ok(ms_grad(grads, &y, NULL, 1, inputs, 2, MS_ALLOW_UNUSED));
    EXPECT_VALUES(grads[0], 7.38905609893065);
    assert_null(grads[1]);
}

static void test_autograd_backward__grad_survives_any_allocation_that_fails(void **state)
{
    ms_context *ctx = msi_context();
    ms_status status = MS_OUT_OF_MEMORY;
    int failures = 0;

    for (; status != MS_OK; failures++) {
        ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *w = LEAF(MS_DTYPE_F64, 3, 4), *h, *y, *grads[2];

        assert_ok(ms_op_exp(&h, x));
        assert_ok(ms_op_mul(&y, h, w));
        ms_tensor *inputs[] = {x, h}, *g = VECTOR(MS_DTYPE_F64, 1, 1);

        msi_alloc_fail_at(ctx, failures);
        status = ms_grad(grads, &y, &g, 1, inputs, 2, 0);
        msi_alloc_fail_at(ctx, -1);
        assert_true(status == MS_OK || status == MS_OUT_OF_MEMORY);
        assert_true((grads[0] != NULL) == (status == MS_OK));
    }
    assert_true(failures > 2);
}

/* The hook of the first output frees what was given for the second. */
static ms_status free_given(void *user, ms_tensor *grad, ms_tensor **replaced)
{
    ms_tensor **given = user;

    ms_tensor_free(*given);
    *given = NULL;
    return MS_OK;
}

static void test_autograd_backward__grad_keeps_what_it_was_given(void **state)
{
    ms_tensor *a = LEAF(MS_DTYPE_F32, 1, 1), *b = LEAF(MS_DTYPE_F32, 2, 2), *y, *out[2];
    ms_tensor *kept = VECTOR(MS_DTYPE_F32, 3, 3), *given[2] = {VECTOR(MS_DTYPE_F32, 1, 1), kept};

    assert_ok(ms_op_mul(&y, b, b));
    assert_ok(ms_tensor_hook(a, free_given, &kept, NULL, NULL));
    assert_ok(ms_grad(out, (ms_tensor *[]){a, y}, given, 2, (ms_tensor *[]){a, b}, 2, 0));
    EXPECT_VALUES(out[1], 12, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_backward__grad_keeps_what_it_was_given),
        BOOKED_TEST(test_autograd_backward__over_a_retained_graph_gives_the_same_again),
        BOOKED_TEST(test_autograd_backward__retained_tensors_are_not_written),
        BOOKED_TEST(test_autograd_backward__a_retained_graph_keeps_what_it_saved),
        BOOKED_TEST(test_autograd_backward__grad_returns_what_lies_between_and_adds_nothing),
        BOOKED_TEST(test_autograd_backward__grad_uses_up_what_it_differentiates_alone),
        BOOKED_TEST(test_autograd_backward__grad_adds_over_outputs),
        BOOKED_TEST(test_autograd_backward__results_of_grad_share_no_memory),
        BOOKED_TEST(test_autograd_backward__grad_refuses_what_has_no_gradient),
        BOOKED_TEST(test_autograd_backward__grad_survives_any_allocation_that_fails),
    };
    return cmocka_run_group_tests_name("autograd/backward", tests, NULL, NULL);
}
