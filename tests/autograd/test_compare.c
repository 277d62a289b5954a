/* What the table of the op test cannot say about comparisons, where and pow: numbers of another
 * kind, NaN, errors, gradients that must not leak; and the questions about whole tensors. */
#include "values.h"

#include "tensor.h"

#include <math.h>

#define EXPECT_COMPARED(t, relation, value, ...)                                                   \
    do {                                                                                           \
        ms_tensor *r_;                                                                             \
        assert_ok(ms_op_compare_number(&r_, (t), (value), (relation)));                            \
        EXPECT_VALUES(r_, __VA_ARGS__);                                                            \
        ms_tensor_free(r_);                                                                        \
    } while (0)

/* -- comparing --------------------------------------------------------------------------------- */

static void test_autograd_compare__integers_with_fractions(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_I64, 1, 2, 3);

    EXPECT_COMPARED(x, MS_COMPARE_EQ, 2.5, 0, 0, 0);
    EXPECT_COMPARED(x, MS_COMPARE_NE, 2.5, 1, 1, 1);
    EXPECT_COMPARED(x, MS_COMPARE_LT, 2.5, 1, 1, 0);
    EXPECT_COMPARED(x, MS_COMPARE_LE, 2.5, 1, 1, 0);
    EXPECT_COMPARED(x, MS_COMPARE_GT, 2.5, 0, 0, 1);
    EXPECT_COMPARED(x, MS_COMPARE_GE, 2.5, 0, 0, 1);
    EXPECT_COMPARED(x, MS_COMPARE_LT, 2, 1, 0, 0);
    EXPECT_COMPARED(x, MS_COMPARE_GE, 2, 0, 1, 1);
    EXPECT_COMPARED(x, MS_COMPARE_LT, NAN, 0, 0, 0);
    EXPECT_COMPARED(x, MS_COMPARE_GE, NAN, 0, 0, 0);
    EXPECT_COMPARED(x, MS_COMPARE_NE, NAN, 1, 1, 1);
    ms_tensor_free(x);
}

static void test_autograd_compare__numbers_outside_an_integer_dtype(void **state)
{
    ms_tensor *u = VECTOR(MS_DTYPE_U8, 0, 44, 255), *b = VECTOR(MS_DTYPE_BOOL, 0, 1);
    ms_tensor *x = VECTOR(MS_DTYPE_I64, -0x1p62, 0, 0x1p62);

    EXPECT_COMPARED(u, MS_COMPARE_LT, 300, 1, 1, 1); /* 300 is 44 in a u8 */
    EXPECT_COMPARED(u, MS_COMPARE_EQ, 300, 0, 0, 0);
    EXPECT_COMPARED(u, MS_COMPARE_GE, 256, 0, 0, 0);
    EXPECT_COMPARED(u, MS_COMPARE_GE, 255, 0, 0, 1);
    EXPECT_COMPARED(u, MS_COMPARE_GT, -0.5, 1, 1, 1);
    EXPECT_COMPARED(u, MS_COMPARE_LE, -1, 0, 0, 0);
    EXPECT_COMPARED(u, MS_COMPARE_NE, -1, 1, 1, 1);
    EXPECT_COMPARED(b, MS_COMPARE_EQ, 1, 0, 1);
    EXPECT_COMPARED(b, MS_COMPARE_EQ, 2, 0, 0);
    EXPECT_COMPARED(x, MS_COMPARE_LT, 0x1p63, 1, 1, 1);
    EXPECT_COMPARED(x, MS_COMPARE_GE, -0x1p63, 1, 1, 1);
    EXPECT_COMPARED(x, MS_COMPARE_GT, -INFINITY, 1, 1, 1);
    EXPECT_COMPARED(x, MS_COMPARE_GE, INFINITY, 0, 0, 0);
    ms_tensor_free(x);
    ms_tensor_free(b);
    ms_tensor_free(u);
}

/* 0.1 is no bf16 and no f32: it is compared as the dtype has it. */
static void test_autograd_compare__numbers_are_rounded_to_a_floating_dtype(void **state)
{
    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16};

    for (int32_t d = 0; d < 4; d++) {
        ms_tensor *x = VECTOR(dtypes[d], 0.1, 0.2, NAN);

        EXPECT_COMPARED(x, MS_COMPARE_EQ, 0.1, 1, 0, 0);
        EXPECT_COMPARED(x, MS_COMPARE_GT, 0.1, 0, 1, 0);
        EXPECT_COMPARED(x, MS_COMPARE_NE, 0.1, 0, 1, 1);
        ms_tensor_free(x);
    }
}

static void test_autograd_compare__broadcasts_and_refuses(void **state)
{
    const int64_t column[2] = {2, 1};
    ms_tensor *row = VECTOR(MS_DTYPE_F32, 1, 2, 3), *two = VECTOR(MS_DTYPE_F32, 2, 3), *tall, *r;
    ms_tensor *other = VECTOR(MS_DTYPE_F64, 1, 2, 3);

    assert_ok(ms_op_reshape(&tall, two, 2, column));
    assert_ok(ms_op_compare(&r, row, tall, MS_COMPARE_GE));
    EXPECT_VALUES(r, 0, 1, 1, 0, 0, 1);
    ms_tensor_free(r);
    assert_fails(MS_VALUE_ERROR, "ge: shapes (3) and (2) do not broadcast",
                 ms_op_compare(&r, row, two, MS_COMPARE_GE));
    assert_null(r);
    assert_fails(MS_TYPE_ERROR, "lt: a is f32 and b is f64",
                 ms_op_compare(&r, row, other, MS_COMPARE_LT));
    assert_fails(MS_VALUE_ERROR, "relation 6 is none", ms_op_compare(&r, row, row, 6));
    assert_fails(MS_VALUE_ERROR, "relation -1 is none", ms_op_compare_number(&r, row, 0, -1));
    ms_tensor_free(other);
    ms_tensor_free(tall);
    ms_tensor_free(two);
    ms_tensor_free(row);
}

/* -- where ------------------------------------------------------------------------------------- */

/* The usual guard: where(x > 0, sqrt(x), 0). What was not chosen must not turn the gradient to NaN
 * on its way through where; an infinite gradient stays where it belongs. */
static void test_autograd_compare__where_keeps_gradients_apart(void **state)
{
    ms_tensor *a = LEAF(MS_DTYPE_F64, 1, 2, 3), *b = LEAF(MS_DTYPE_F64, 4, 5, 6), *y;
    ms_tensor *cond = VECTOR(MS_DTYPE_BOOL, 1, 0, 1), *g = VECTOR(MS_DTYPE_F64, 2, INFINITY, NAN);

    assert_ok(ms_op_where(&y, cond, a, b));
    EXPECT_VALUES(y, 1, 5, 3);
    assert_ok(ms_backward(y, g));

    ms_tensor *grad;
    double got[3];

    assert_ok(ms_tensor_grad(&grad, a));
    assert_ok(ms_tensor_to_doubles(grad, got, 3));
    assert_true(got[0] == 2 && got[1] == 0 && isnan(got[2]));
    ms_tensor_free(grad);
    assert_ok(ms_tensor_grad(&grad, b));
    assert_ok(ms_tensor_to_doubles(grad, got, 3));
    assert_true(got[0] == 0 && got[1] == INFINITY && got[2] == 0);
    ms_tensor_free(grad);
    ms_tensor_free(y);
    ms_tensor_free(g);
    ms_tensor_free(cond);
    ms_tensor_free(b);
    ms_tensor_free(a);
}

static void test_autograd_compare__where_refuses(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2), *d = VECTOR(MS_DTYPE_F64, 1, 2), *y;
    ms_tensor *cond = VECTOR(MS_DTYPE_BOOL, 1, 0, 1);

    assert_fails(MS_TYPE_ERROR, "where: cond is f32, expected bool", ms_op_where(&y, x, x, x));
    assert_fails(MS_TYPE_ERROR, "where: a is f32 and b is f64", ms_op_where(&y, cond, x, d));
    assert_fails(MS_VALUE_ERROR, "where: shapes (3) and (2) do not broadcast",
                 ms_op_where(&y, cond, x, x));
    ms_tensor_free(cond);
    ms_tensor_free(d);
    ms_tensor_free(x);
}

/* -- pow --------------------------------------------------------------------------------------- */

static void test_autograd_compare__pow_differentiates_at_zero(void **state)
{
    const double p[] = {0, 1, 2, 3}, slope[] = {0, 1, 0, 0};

    for (int32_t i = 0; i < 4; i++) {
        ms_tensor *x = LEAF(MS_DTYPE_F32, 0), *y;

        assert_ok(ms_op_pow(&y, x, p[i]));
        assert_ok(ms_backward(y, NULL));
        EXPECT_GRAD(x, slope[i]);
        ms_tensor_free(y);
        ms_tensor_free(x);
    }
}

static void test_autograd_compare__pow_refuses(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2), *ids = VECTOR(MS_DTYPE_I64, 1, 2), *y;

    assert_fails(MS_VALUE_ERROR, "the exponent is inf", ms_op_pow(&y, x, INFINITY));
    assert_fails(MS_VALUE_ERROR, "expected a finite number", ms_op_pow(&y, x, NAN));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "pow is not implemented for dtype i64",
                 ms_op_pow(&y, ids, 2));
    ms_tensor_free(ids);
    ms_tensor_free(x);
}

/* -- whole tensors ----------------------------------------------------------------------------- */

static bool equal(const ms_tensor *a, const ms_tensor *b)
{
    bool answer = true;

    assert_ok(ms_tensor_equal(a, b, &answer));
    return answer;
}

static bool close_to(const ms_tensor *a, const ms_tensor *b, double rtol, double atol)
{
    bool answer = true;

    assert_ok(ms_tensor_allclose(a, b, rtol, atol, &answer));
    return answer;
}

static void test_autograd_compare__equal_means_shape_dtype_and_values(void **state)
{
    const int64_t column[2] = {3, 1}, nothing[2] = {0, 3};
    const int32_t swap[2] = {1, 0};
    ms_tensor *a = VECTOR(MS_DTYPE_F32, 1, 0, 3), *b = VECTOR(MS_DTYPE_F32, 1, -0.0, 3), *c, *row;
    ms_tensor *d = VECTOR(MS_DTYPE_F64, 1, 0, 3), *n = VECTOR(MS_DTYPE_F32, 1, NAN, 3), *e;

    assert_ok(ms_op_reshape(&c, a, 2, column));
    assert_ok(ms_op_permute(&row, c, 2, swap));
    assert_true(equal(a, b));
    assert_true(equal(c, c));
    assert_false(equal(a, c)); /* they would broadcast */
    assert_false(equal(c, row));
    assert_false(equal(a, d));
    assert_false(equal(n, n));
    assert_ok(ms_tensor_empty(&e, MS_DTYPE_F32, 2, nothing));
    assert_true(equal(e, e));
    ms_tensor_free(e);
    assert_ok(ms_tensor_fill(b, 1));
    assert_false(equal(a, b));
    ms_tensor_free(row);
    ms_tensor_free(c);
    ms_tensor_free(n);
    ms_tensor_free(d);
    ms_tensor_free(b);
    ms_tensor_free(a);
}

static void test_autograd_compare__allclose_weighs_by_the_second(void **state)
{
    ms_tensor *a = VECTOR(MS_DTYPE_F64, 1, 100), *b = VECTOR(MS_DTYPE_F64, 1.5, 150);
    ms_tensor *f = VECTOR(MS_DTYPE_F32, 1, 100), *one = VECTOR(MS_DTYPE_F64, 1);
    ms_tensor *inf = VECTOR(MS_DTYPE_F64, 1, INFINITY), *nan = VECTOR(MS_DTYPE_F64, 1, NAN);
    bool answer = true;

    assert_true(close_to(a, b, 0.34, 0)); /* 50 <= 51 */
    assert_false(close_to(b, a, 0.34, 0));
    assert_false(close_to(a, b, 0, 49));
    assert_true(close_to(a, b, 0, 50));
    assert_true(close_to(a, one, 0, 99)); /* broadcast */
    assert_true(close_to(inf, inf, 0, 0));
    assert_false(close_to(a, inf, 1, 1));
    assert_false(close_to(nan, nan, 1, 1));
    assert_fails(MS_TYPE_ERROR, "allclose: dtypes are f64 and f32",
                 ms_tensor_allclose(a, f, 0, 0, &answer));
    assert_false(answer);
    assert_fails(MS_VALUE_ERROR, "expected neither below 0",
                 ms_tensor_allclose(a, a, -1, 0, &answer));
    assert_fails(MS_VALUE_ERROR, "expected neither below 0",
                 ms_tensor_allclose(a, a, 0, NAN, &answer));
    ms_tensor_free(nan);
    ms_tensor_free(inf);
    ms_tensor_free(one);
    ms_tensor_free(f);
    ms_tensor_free(b);
    ms_tensor_free(a);
}

static void test_autograd_compare__all_and_any_read_views(void **state)
{
    const int64_t square[2] = {2, 2}, nothing = 0;
    ms_tensor *x = VECTOR(MS_DTYPE_BOOL, 1, 0, 1, 0), *t, *left, *right, *none;
    bool answer = false;

    assert_ok(ms_op_reshape(&t, x, 2, square));
    assert_ok(ms_op_select(&left, t, 1, 0));
    assert_ok(ms_op_select(&right, t, 1, 1));
    assert_ok(ms_tensor_all(left, &answer));
    assert_true(answer);
    assert_ok(ms_tensor_any(right, &answer));
    assert_false(answer);
    assert_ok(ms_tensor_all(x, &answer));
    assert_false(answer);
    assert_ok(ms_tensor_any(x, &answer));
    assert_true(answer);
    assert_ok(ms_tensor_empty(&none, MS_DTYPE_BOOL, 1, &nothing));
    assert_ok(ms_tensor_all(none, &answer));
    assert_true(answer);
    assert_ok(ms_tensor_any(none, &answer));
    assert_false(answer);
    ms_tensor_free(none);
    ms_tensor_free(right);
    ms_tensor_free(left);
    ms_tensor_free(t);
    ms_tensor_free(x);

    ms_tensor *f = VECTOR(MS_DTYPE_F32, 1, 0);

    assert_fails(MS_TYPE_ERROR, "all: the tensor is f32, expected bool", ms_tensor_all(f, &answer));
    assert_fails(MS_TYPE_ERROR, "any: the tensor is f32, expected bool", ms_tensor_any(f, &answer));
    ms_tensor_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_compare__integers_with_fractions),
        BOOKED_TEST(test_autograd_compare__numbers_outside_an_integer_dtype),
        BOOKED_TEST(test_autograd_compare__numbers_are_rounded_to_a_floating_dtype),
        BOOKED_TEST(test_autograd_compare__broadcasts_and_refuses),
        BOOKED_TEST(test_autograd_compare__where_keeps_gradients_apart),
        BOOKED_TEST(test_autograd_compare__where_refuses),
        BOOKED_TEST(test_autograd_compare__pow_differentiates_at_zero),
        BOOKED_TEST(test_autograd_compare__pow_refuses),
        BOOKED_TEST(test_autograd_compare__equal_means_shape_dtype_and_values),
        BOOKED_TEST(test_autograd_compare__allclose_weighs_by_the_second),
        BOOKED_TEST(test_autograd_compare__all_and_any_read_views),
    };

    return cmocka_run_group_tests_name("autograd/compare", tests, NULL, NULL);
}
