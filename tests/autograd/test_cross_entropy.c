/* Cross-entropy beyond its values: memory, extreme logits, rows that do not count. */
#include "books.h"

static uint64_t hash_of(ms_tensor *t)
{
    uint64_t hash;

    assert_ok(ms_tensor_hash(t, &hash));
    return hash;
}

static void test_autograd_cross_entropy__keeps_one_copy_of_the_logits(void **state)
{
    enum { ROWS = 64, VOCAB = 1000, WIDTH = 4, BYTES = ROWS * VOCAB * 4 };
    double targets[ROWS];
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, ROWS, WIDTH), *w = FILLED(MS_DTYPE_F32, 2, VOCAB, WIDTH);
    ms_tensor *logits, *loss;

    for (int i = 0; i < ROWS; i++) {
        targets[i] = i;
    }
    ms_tensor *t = ids(ROWS, targets);
    const ms_memory_stats before = start_peaks();
    ms_memory_stats after;

    assert_ok(ms_tensor_set_requires_grad(w, true));
    assert_ok(ms_op_linear(&logits, x, w, NULL));
    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_MEAN));
    ms_tensor_free(logits);
    assert_ok(ms_backward(loss, NULL));
    ms_memory_stats_get(&after);
    const int64_t peak = after.peak[MS_MEM_ACTIVATION] - before.live[MS_MEM_ACTIVATION];

    assert_in_range(peak, BYTES, BYTES + BYTES / 4);
    ms_tensor_free(loss);
    ms_tensor_free(t);
    ms_tensor_free(w);
    ms_tensor_free(x);
}

static void test_autograd_cross_entropy__leaves_logits_alone_that_are_held(void **state)
{
    const double targets[] = {1, 0, 2};
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 3, 4), *t = ids(3, targets), *logits, *loss;

    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_op_affine(&logits, x, 2, 0));
    uint64_t before = hash_of(logits);

    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_MEAN));
    assert_ok(ms_backward(loss, NULL));
    assert_true(hash_of(logits) == before);
    ms_tensor_free(loss);
    ms_tensor_free(logits);
    ms_tensor_free(t);
    ms_tensor_free(x);
}

static void test_autograd_cross_entropy__over_no_counted_row(void **state)
{
    const double ignored[] = {-100, -100};
    double value, grad_values[6];
    const double zeros[6] = {0};
    ms_tensor *logits = FILLED(MS_DTYPE_F32, 1, 2, 3), *t = ids(2, ignored), *loss, *grad;

    assert_ok(ms_tensor_set_requires_grad(logits, true));
    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_MEAN));
    assert_ok(ms_tensor_item(loss, &value));
    assert_true(isnan(value));
    assert_ok(ms_backward(loss, NULL));
    assert_ok(ms_tensor_grad(&grad, logits));
    assert_ok(ms_tensor_to_doubles(grad, grad_values, 6));
    assert_close(grad_values, zeros, 6, 0, 0);
    ms_tensor_free(grad);
    ms_tensor_free(loss);
    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_SUM));
    assert_ok(ms_tensor_item(loss, &value));
    assert_true(value == 0);
    ms_tensor_free(loss);
    ms_tensor_free(t);
    ms_tensor_free(logits);
}

static void test_autograd_cross_entropy__survives_huge_logits(void **state)
{
    const int64_t shape[2] = {2, 3};
    const double values[] = {30000, 29999, -30000, -20000, -20000, -20000}, targets[] = {1, 2};
    double value, got[6];
    /* softmax rows: (e, 1, 0) / (e + 1) and thirds */
    const double e = exp(1), third = 1.0 / 3;
    const double expected[] = {e / (e + 1) / 2, (1 / (e + 1) - 1) / 2, 0, third / 2,
                               third / 2,       (third - 1) / 2};
    ms_tensor *logits, *t = ids(2, targets), *loss, *grad;

    assert_ok(ms_tensor_from_doubles(&logits, MS_DTYPE_F32, 2, shape, values, 6));
    assert_ok(ms_tensor_set_requires_grad(logits, true));
    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_MEAN));
    assert_ok(ms_tensor_item(loss, &value));
    assert_true(fabs(value - (log(e + 1) + log(3)) / 2) < 2e-3); /* f32 spacing near 30,000 */
    assert_ok(ms_backward(loss, NULL));
    assert_ok(ms_tensor_grad(&grad, logits));
    assert_ok(ms_tensor_to_doubles(grad, got, 6));
    assert_close(got, expected, 6, 3e-3, 1e-6);
    ms_tensor_free(grad);
    ms_tensor_free(loss);
    ms_tensor_free(t);
    ms_tensor_free(logits);
}

static void test_autograd_cross_entropy__of_bf16_logits_is_f32(void **state)
{
    const double targets[] = {1, 2};
    ms_tensor *logits = FILLED(MS_DTYPE_BF16, 1, 2, 3), *t = ids(2, targets), *loss;
    ms_tensor_info info;

    assert_ok(ms_op_cross_entropy(&loss, logits, t, -100, MS_REDUCTION_MEAN));
    assert_ok(ms_tensor_describe(loss, &info));
    assert_int_equal(info.dtype, MS_DTYPE_F32);
    assert_int_equal(info.ndim, 0);
    ms_tensor_free(loss);
    ms_tensor_free(t);
    ms_tensor_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_cross_entropy__keeps_one_copy_of_the_logits),
        BOOKED_TEST(test_autograd_cross_entropy__leaves_logits_alone_that_are_held),
        BOOKED_TEST(test_autograd_cross_entropy__over_no_counted_row),
        BOOKED_TEST(test_autograd_cross_entropy__survives_huge_logits),
        BOOKED_TEST(test_autograd_cross_entropy__of_bf16_logits_is_f32),
    };
    return cmocka_run_group_tests_name("autograd/cross_entropy", tests, NULL, NULL);
}
