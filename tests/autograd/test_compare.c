/* Questions about whole tensors: equal, allclose, all, any. */
#include "values.h"

#include "tensor.h"

#include <math.h>

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
    assert_ok(ms_tensor_fill(b, 1));
    assert_false(equal(a, b));
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

    ms_tensor *f = VECTOR(MS_DTYPE_F32, 1, 0);

    assert_fails(MS_TYPE_ERROR, "all: the tensor is f32, expected bool", ms_tensor_all(f, &answer));
    assert_fails(MS_TYPE_ERROR, "any: the tensor is f32, expected bool", ms_tensor_any(f, &answer));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_compare__equal_means_shape_dtype_and_values),
        BOOKED_TEST(test_autograd_compare__allclose_weighs_by_the_second),
        BOOKED_TEST(test_autograd_compare__all_and_any_read_views),
    };

    return cmocka_run_group_tests_name("autograd/compare", tests, NULL, NULL);
}
