/* Dropout: what its mask depends on, and what happens at the ends of its range. */
#include "base.h"
#include "books.h"

enum { SAMPLES = 4, PER_SAMPLE = 500, MASK = SAMPLES * PER_SAMPLE };

/* Which elements of (n, PER_SAMPLE) ones survive. */
static void mask_of(int64_t n, double p, uint64_t site, int64_t call, double *mask)
{
    const int64_t shape[2] = {n, PER_SAMPLE};
    ms_tensor *ones, *out;

    assert_ok(ms_tensor_full(&ones, MS_DTYPE_F32, 2, shape, 1));
    assert_ok(ms_op_dropout(&out, ones, p, site, call));
    assert_ok(ms_tensor_to_doubles(out, mask, n * PER_SAMPLE));
    ms_tensor_free(out);
    ms_tensor_free(ones);
}

static void test_autograd_dropout__masks_follow_the_sample(void **state)
{
    double whole[MASK], half[MASK / 2];

    assert_ok(ms_samples_begin(8));
    mask_of(4, 0.3, 1, 0, whole);
    for (int part = 0; part < 2; part++) { /* two ranks of two samples each draw the same */
        assert_ok(ms_samples_begin(8 + 2 * part));
        mask_of(2, 0.3, 1, 0, half);
        assert_memory_equal(half, whole + part * MASK / 2, sizeof(half));
    }
    assert_ok(ms_samples_begin(0));
}

static void test_autograd_dropout__masks_differ_in_all_else(void **state)
{
    double first[MASK], other[MASK];

    ms_seed(1);
    mask_of(SAMPLES, 0.5, 1, 0, first);
    mask_of(SAMPLES, 0.5, 1, 0, other);
    assert_memory_equal(first, other, sizeof(first));
    for (int change = 0; change < 4; change++) {
        int equal = 0;

        ms_seed(change == 0 ? 2 : 1);
        assert_ok(ms_samples_begin(change == 1 ? SAMPLES : 0));
        mask_of(SAMPLES, 0.5, change == 2 ? 2 : 1, change == 3 ? 1 : 0, other);
        for (int i = 0; i < MASK; i++) {
            equal += first[i] == other[i];
        }
        /* independent masks agree in half of 2,000 places: six deviations of 22.4 */
        assert_in_range(equal, MASK / 2 - 135, MASK / 2 + 135);
    }
    ms_seed(0);
    assert_ok(ms_samples_begin(0));
}

static void test_autograd_dropout__keeps_the_mean(void **state)
{
    double mask[MASK];

    for (int i = 1; i < 10; i++) {
        const double p = i / 10.0;
        int dropped = 0;

        mask_of(SAMPLES, p, 5, 0, mask);
        for (int k = 0; k < MASK; k++) {
            assert_true(mask[k] == 0 || fabs(mask[k] * (1 - p) - 1) < 1e-6);
            dropped += mask[k] == 0;
        }
        assert_true(fabs(dropped - p * MASK) < 5 * sqrt(MASK * p * (1 - p)));
    }
}

static void test_autograd_dropout__repeats_its_mask_in_backward(void **state)
{
    double out_values[MASK], grad_values[MASK];
    const int64_t shape[2] = {SAMPLES, PER_SAMPLE};
    ms_tensor *ones, *out, *grad;

    assert_ok(ms_tensor_full(&ones, MS_DTYPE_F32, 2, shape, 1));
    assert_ok(ms_tensor_set_requires_grad(ones, true));
    assert_ok(ms_samples_begin(100));
    assert_ok(ms_op_dropout(&out, ones, 0.4, 3, 7));
    assert_ok(ms_samples_begin(0)); /* what comes later must not matter */
    ms_seed(9);
    assert_ok(ms_backward(out, ones));
    assert_ok(ms_tensor_grad(&grad, ones));
    assert_ok(ms_tensor_to_doubles(out, out_values, MASK));
    assert_ok(ms_tensor_to_doubles(grad, grad_values, MASK));
    assert_memory_equal(out_values, grad_values, sizeof(out_values));
    ms_seed(0);
    ms_tensor_free(grad);
    ms_tensor_free(out);
    ms_tensor_free(ones);
}

static void test_autograd_dropout__at_its_limits(void **state)
{
    double mask[MASK];
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 2, 3), *out;
    ms_tensor_info from, to;

    mask_of(SAMPLES, 1, 1, 0, mask);
    for (int i = 0; i < MASK; i++) {
        assert_true(mask[i] == 0);
    }
    assert_ok(ms_op_dropout(&out, x, 0, 1, 0)); /* no copy */
    assert_ok(ms_tensor_describe(x, &from));
    assert_ok(ms_tensor_describe(out, &to));
    assert_ptr_equal(from.data, to.data);
    ms_tensor_free(out);
    assert_fails(MS_VALUE_ERROR, "probability is 1.5", ms_op_dropout(&out, x, 1.5, 1, 0));
    assert_null(out);
    assert_fails(MS_VALUE_ERROR, "probability is -0.1", ms_op_dropout(&out, x, -0.1, 1, 0));
    assert_fails(MS_VALUE_ERROR, "probability is", ms_op_dropout(&out, x, NAN, 1, 0));
    ms_tensor_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_dropout__masks_follow_the_sample),
        BOOKED_TEST(test_autograd_dropout__masks_differ_in_all_else),
        BOOKED_TEST(test_autograd_dropout__keeps_the_mean),
        BOOKED_TEST(test_autograd_dropout__repeats_its_mask_in_backward),
        BOOKED_TEST(test_autograd_dropout__at_its_limits),
    };
    return cmocka_run_group_tests_name("autograd/dropout", tests, NULL, NULL);
}
