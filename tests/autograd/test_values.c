/* Values where a formula that is right on paper loses digits, signs or NaN. Expected ones are those
 * of real arithmetic, rounded once, and of IEEE 754 for zeros and NaN. */
#include "bytes.h"
#include "values.h"

#include "tensor.h"

static ms_tensor *matrix(int32_t dtype, int64_t rows, int64_t cols, const double *values)
{
    ms_tensor *t;

    assert_ok(
        ms_tensor_from_doubles(&t, dtype, 2, (const int64_t[]){rows, cols}, values, rows * cols));
    return require(t);
}

static void expect_near(ms_tensor *t, int64_t n, const double *want, double rtol)
{
    double got[64];

    assert_non_null(t);
    assert_ok(ms_tensor_to_doubles(t, got, n));
    assert_close(got, want, n, rtol, 0);
}

static void expect_grad_near(ms_tensor *leaf, int64_t n, const double *want, double rtol)
{
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, leaf));
    expect_near(grad, n, want, rtol);
    ms_tensor_free(grad);
}

/* A leaf's one gradient. */
static double grad_of(ms_tensor *leaf)
{
    ms_tensor *grad;
    double value;

    assert_ok(ms_tensor_grad(&grad, leaf));
    assert_non_null(grad);
    assert_ok(ms_tensor_item(grad, &value));
    ms_tensor_free(grad);
    return value;
}

static double item_of(ms_tensor *t)
{
    double value;

    assert_ok(ms_tensor_item(t, &value));
    return value;
}

/* A constant added to all logits changes nothing: log(1 + 1/e) and 1 / (1 + e) wherever they lie.
 */
static void test_autograd_values__losses_keep_their_digits_under_a_shift(void **state)
{
    static const double shifts[] = {0, 100, 10000, -10000, 1e6};
    const double loss = 0.31326168751822286, q = 0.26894142136999512;

    (void)state;
    for (size_t k = 0; k < 5; k++) {
        const double logits[2] = {shifts[k], shifts[k] - 1};
        ms_tensor *x = matrix(MS_DTYPE_F32, 1, 2, logits), *t = ids(1, (const double[]){0}), *y;

        assert_ok(ms_op_cross_entropy(&y, x, t, -100, MS_REDUCTION_MEAN));
        expect_near(y, 1, &loss, 3e-7);
        assert_ok(ms_backward(y, NULL));
        expect_grad_near(x, 2, (const double[]){-q, q}, 5e-7);
        ms_tensor_free(y);
        assert_ok(ms_tensor_set_grad(x, NULL));
        assert_ok(ms_op_log_softmax(&y, x));
        expect_near(y, 2, (const double[]){-loss, -loss - 1}, 3e-7);
        ms_tensor *seed = matrix(MS_DTYPE_F32, 1, 2, (const double[]){-1, 0});

        assert_ok(ms_backward(y, seed));
        expect_grad_near(x, 2, (const double[]){-q, q}, 5e-7);
        ms_tensor_free(seed);
        ms_tensor_free(y);
        ms_tensor_free(t);
        ms_tensor_free(x);
    }
}

/* The same in bf16, where a shift of 256 is a number and 256 + log(1 + 1/e) is not. */
static void test_autograd_values__bf16_losses_keep_their_digits_under_a_shift(void **state)
{
    const double loss = 0.12692801104297252, q = 0.11920292202211755; /* of a distance of 2 */
    ms_tensor *x = matrix(MS_DTYPE_BF16, 1, 2, (const double[]){256, 254});
    ms_tensor *t = ids(1, (const double[]){0}), *y;

    (void)state;
    assert_ok(ms_op_cross_entropy(&y, x, t, -100, MS_REDUCTION_MEAN));
    expect_near(y, 1, &loss, 5e-7);
    assert_ok(ms_backward(y, NULL));
    expect_grad_near(x, 2, (const double[]){-q, q}, 0x1p-8);
    ms_tensor_free(y);
    assert_ok(ms_op_log_softmax(&y, x));
    expect_near(y, 2, (const double[]){-loss, -loss - 2}, 0x1p-8);
    ms_tensor_free(y);
    ms_tensor_free(t);
    ms_tensor_free(x);
}

/* (1.0078125 - 0)^2 and (1.0234375 - 0)^2 need more than the 8 bits of bf16. */
static void test_autograd_values__bf16_squares_are_not_rounded_to_bf16(void **state)
{
    const double sum = 1.01568603515625 + 1.04742431640625;
    ms_tensor *x = LEAF(MS_DTYPE_BF16, 1.0078125, 1.0234375), *y = VECTOR(MS_DTYPE_BF16, 0, 0);
    ms_tensor *loss;

    (void)state;
    assert_ok(ms_op_mse_loss(&loss, x, y, MS_REDUCTION_SUM));
    expect_near(loss, 1, &sum, 1e-15);
    assert_ok(ms_backward(loss, NULL));
    EXPECT_GRAD(x, 2.015625, 2.046875);
    ms_tensor_free(loss);
    ms_tensor_free(y);
    ms_tensor_free(x);
}

static void test_autograd_values__relu_passes_nan_on_and_back(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        if (!ms_dtype_is_floating(dtype)) {
            continue;
        }
        ms_tensor *x = LEAF(dtype, NAN, -0.0, 0, -1, 2), *y, *seed = VECTOR(dtype, 3, 3, 3, 3, 3);
        ms_tensor *grad;
        double out[5];

        assert_ok(ms_op_relu(&y, x));
        assert_ok(ms_tensor_to_doubles(y, out, 5));
        assert_true(isnan(out[0]) && out[3] == 0 && out[4] == 2);
        assert_true(signbit(out[1]) && !signbit(out[2]) && out[1] == 0 && out[2] == 0);
        assert_ok(ms_backward(y, seed));
        assert_ok(ms_tensor_grad(&grad, x));
        assert_ok(ms_tensor_to_doubles(grad, out, 5));
        assert_true(out[0] == 3 && out[1] == 0 && out[2] == 0 && out[3] == 0 && out[4] == 3);
        ms_tensor_free(grad);
        ms_tensor_free(seed);
        ms_tensor_free(y);
        ms_tensor_free(x);
    }
}

/* A product has the sign of its factors; a sum of 0 and -0 is 0. */
static void test_autograd_values__products_keep_the_sign_of_zeros(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        if (!ms_dtype_is_floating(dtype)) {
            continue;
        }
        ms_tensor *x = LEAF(dtype, 0), *y, *zero = VECTOR(dtype, 0);

        assert_ok(ms_op_affine(&y, x, -2, -0.0));
        assert_true(signbit(item_of(y)));
        assert_ok(ms_backward(y, zero));
        assert_true(signbit(grad_of(x)));
        ms_tensor_free(y);
        assert_ok(ms_op_affine(&y, x, -2, 0));
        assert_true(!signbit(item_of(y)));
        ms_tensor_free(y);
        assert_ok(ms_tensor_set_requires_grad(x, false));
        assert_ok(ms_tensor_fill(x, -0.0));
        assert_ok(ms_tensor_add_scaled(x, zero, -1)); /* -0 + -0 */
        assert_true(signbit(item_of(x)));
        ms_tensor_free(zero);
        ms_tensor_free(x);
    }
}

/* 1 / b is infinite in f32, -g (a / b) / b is not. */
static void test_autograd_values__quotients_of_tiny_divisors_have_their_gradient(void **state)
{
    static const struct {
        double a, b, g, want;
    } cases[] = {{0, 1e-40, 1, 0}, {0x1p-100, 0x1p-130, 0x1p-60, -0x1p100}};

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        ms_tensor *a = VECTOR(MS_DTYPE_F32, cases[k].a), *b = LEAF(MS_DTYPE_F32, cases[k].b);
        ms_tensor *g = VECTOR(MS_DTYPE_F32, cases[k].g), *y;

        assert_ok(ms_op_div(&y, a, b));
        assert_ok(ms_backward(y, g));
        assert_true(grad_of(b) == cases[k].want);
        ms_tensor_free(y);
        ms_tensor_free(g);
        ms_tensor_free(b);
        ms_tensor_free(a);
    }
}

/* There is no promotion: a fraction beside integers is refused under the name of what was called.
 */
static void test_autograd_values__integers_take_whole_numbers_only(void **state)
{
    static const char *const names[] = {"add: ", "sub: ", "sub: ", "mul: "};
    const int64_t n = 2;
    int64_t whole[2];
    double out[2];
    ms_tensor *x, *y;

    (void)state;
    assert_ok(ms_tensor_arange(&x, MS_DTYPE_I64, 0x1p53 - 1, 1, n));
    for (int32_t k = MS_NUMBER_ADD; k <= MS_NUMBER_MUL; k++) {
        assert_fails(MS_TYPE_ERROR, "the tensor is i64 and the number 1.5, expected a whole one",
                     ms_op_with_number(&y, x, 1.5, k));
        assert_ptr_equal(strstr(ms_error_message(), names[k]), ms_error_message());
        assert_fails(MS_VALUE_ERROR, "inf does not fit in i64",
                     ms_op_with_number(&y, x, INFINITY, k));
    }
    assert_fails(MS_TYPE_ERROR, "affine: ", ms_op_affine(&y, x, 1, 0.5));
    assert_fails(MS_TYPE_ERROR, "affine: ", ms_op_affine(&y, x, 0.5, 1));
    assert_fails(MS_TYPE_ERROR, "add_: ", ms_tensor_add_scaled(x, x, 0.5));
    assert_fails(MS_TYPE_ERROR, "mean: the tensor is i64", ms_op_mean(&y, x, 0, false));
    assert_fails(MS_TYPE_ERROR, "mse_loss: the tensors are i64, expected a floating dtype",
                 ms_op_mse_loss(&y, x, x, MS_REDUCTION_MEAN));
    assert_fails(MS_VALUE_ERROR, "operation 4 is none", ms_op_with_number(&y, x, 1, 4));
    assert_ok(ms_op_with_number(&y, x, 2, MS_NUMBER_ADD)); /* 2^53 + 1 is no double */
    read_bytes(y, whole);
    assert_int_equal(whole[0], ((int64_t)1 << 53) + 1);
    ms_tensor_free(y);
    assert_ok(ms_op_with_number(&y, x, 3, MS_NUMBER_MUL));
    read_bytes(y, whole);
    assert_int_equal(whole[1], (int64_t)3 << 53);
    ms_tensor_free(y);
    ms_tensor_free(x);
    assert_ok(ms_tensor_full(&x, MS_DTYPE_U8, 1, &n, 1));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "mul is not implemented for dtype u8",
                 ms_op_with_number(&y, x, 2, MS_NUMBER_MUL));
    assert_fails(MS_VALUE_ERROR, "mul: 300 does not fit in u8",
                 ms_op_with_number(&y, x, 300, MS_NUMBER_MUL));
    assert_fails(MS_TYPE_ERROR, "mean: the tensor is u8", ms_op_mean(&y, x, 0, false));
    assert_ok(ms_tensor_to_doubles(x, out, 2));
    assert_true(out[0] == 1 && out[1] == 1);
    ms_tensor_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_values__losses_keep_their_digits_under_a_shift),
        BOOKED_TEST(test_autograd_values__bf16_losses_keep_their_digits_under_a_shift),
        BOOKED_TEST(test_autograd_values__bf16_squares_are_not_rounded_to_bf16),
        BOOKED_TEST(test_autograd_values__relu_passes_nan_on_and_back),
        BOOKED_TEST(test_autograd_values__products_keep_the_sign_of_zeros),
        BOOKED_TEST(test_autograd_values__quotients_of_tiny_divisors_have_their_gradient),
        BOOKED_TEST(test_autograd_values__integers_take_whole_numbers_only),
    };

    return cmocka_run_group_tests_name("autograd/values", tests, NULL, NULL);
}
