/* runtime/autograd/backward.c: several backwards over one graph. */
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
    ms_tensor_free(y);
    ms_tensor_free(a);
    ms_tensor_free(x);
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
    ms_tensor_free(first);
    ms_tensor_free(second);
    ms_tensor_free(y);
    ms_tensor_free(leaf);
    ms_tensor_free(t);
    ms_tensor_free(x);
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
    ms_tensor_free(z);
    ms_tensor_free(g);
    ms_tensor_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_backward__over_a_retained_graph_gives_the_same_again),
        BOOKED_TEST(test_autograd_backward__retained_tensors_are_not_written),
        BOOKED_TEST(test_autograd_backward__a_retained_graph_keeps_what_it_saved),
    };
    return cmocka_run_group_tests_name("autograd/backward", tests, NULL, NULL);
}
