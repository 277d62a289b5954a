/* runtime/optim/clip.c and tensor/norm.c: total norms and the scaling by them. */
#include "ms_test.h"

#include "norm.h"
#include "optim.h"

static ms_tensor *with_grad(int32_t dtype, const double *values, int64_t n)
{
    ms_tensor *t, *grad;

    assert_ok(ms_tensor_full(&t, dtype, 1, &n, 0));
    assert_ok(ms_tensor_make_parameter(t));
    if (values != NULL) {
        assert_ok(ms_tensor_from_doubles(&grad, dtype, 1, &n, values, n));
        assert_ok(msi_tensor_new_internal(&t->grad, t->ctx, &grad->v));
        ms_tensor_free(grad);
    }
    return t;
}

/* Clip them; the norm before. */
static double clip(ms_tensor *const *t, int32_t n, double max_norm, double norm_type)
{
    int32_t dtype = MS_DTYPE_F32;
    ms_tensor *total;
    double value;

    for (int32_t i = 0; i < n; i++) { /* f32 beside bf16 is f32 */
        dtype = t[i]->v.dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : dtype;
    }
    assert_ok(ms_clip_grad_norm(&total, t, n, max_norm, norm_type, false));
    assert_int_equal(total->v.dtype, dtype);
    assert_int_equal(total->v.ndim, 0);
    assert_ok(ms_tensor_item(total, &value));
    ms_tensor_free(total);
    return value;
}

static void free_all(ms_tensor **t, int n)
{
    for (int i = 0; i < n; i++) {
        ms_tensor_free(t[i]);
    }
}

/* 3-4-12-13: exact in every arithmetic. */
static void test_optim_clip__scales_by_max_norm_over_the_total(void **state)
{
    const double a[] = {3, 0, -4}, b[] = {12};
    ms_tensor *t[3] = {with_grad(MS_DTYPE_F64, a, 3), with_grad(MS_DTYPE_F64, b, 1),
                       with_grad(MS_DTYPE_F64, NULL, 5)};
    double seen[3], coefficient = 2.0 / (13 + 1e-6);

    assert_true(clip(t, 3, 2, 2) == 13);
    assert_ok(ms_tensor_to_doubles(t[0]->grad, seen, 3));
    assert_true(seen[0] == 3 * coefficient && seen[1] == 0 && seen[2] == -4 * coefficient);
    assert_ok(ms_tensor_to_doubles(t[1]->grad, seen, 1));
    assert_true(seen[0] == 12 * coefficient);
    assert_null(t[2]->grad);
    free_all(t, 3);
}

static void test_optim_clip__leaves_small_gradients(void **state)
{
    const double a[] = {3, -4};
    ms_tensor *t = with_grad(MS_DTYPE_F32, a, 2);
    double seen[2];

    assert_true(clip(&t, 1, 5.1, 2) == 5);
    assert_ok(ms_tensor_to_doubles(t->grad, seen, 2));
    assert_true(seen[0] == 3 && seen[1] == -4);
    ms_tensor_free(t);
}

static void test_optim_clip__knows_the_largest_element(void **state)
{
    const double a[] = {3, -40}, b[] = {7};
    ms_tensor *t[2] = {with_grad(MS_DTYPE_BF16, a, 2), with_grad(MS_DTYPE_F32, b, 1)};
    ms_tensor *total;
    double seen[1];

    assert_true(clip(t, 2, 4, HUGE_VAL) == 40);
    assert_ok(ms_tensor_to_doubles(t[1]->grad, seen, 1));
    assert_close(seen, &(double){7 * (4 / (40 + 1e-6))}, 1, 1e-7, 0);
    assert_fails(MS_VALUE_ERROR, "norm_type is -1, expected 0 or more",
                 ms_clip_grad_norm(&total, t, 2, 4, -1, false));
    free_all(t, 2);
}

/* A tensor without elements other than 0 does not count in order 0. */
static void test_optim_clip__takes_other_orders(void **state)
{
    const double a[] = {3, -4, 0}, b[] = {5}, none[] = {0, 0};
    ms_tensor *t[3] = {with_grad(MS_DTYPE_F64, a, 3), with_grad(MS_DTYPE_F64, b, 1),
                       with_grad(MS_DTYPE_F64, none, 2)};

    assert_true(clip(t, 3, 100, 1) == 12);
    assert_true(fabs(clip(t, 3, 100, 3) - 6) < 1e-14); /* 27 + 64 + 125 = 216 */
    assert_true(clip(t, 3, 100, 0) == 2);
    free_all(t, 3);
}

static void test_optim_clip__leaves_gradients_whose_norm_is_not_finite(void **state)
{
    const double bad[] = {1, INFINITY};
    ms_tensor *t = with_grad(MS_DTYPE_F32, bad, 2);
    ms_tensor *total;
    double seen[2];

    assert_fails(MS_RUNTIME_ERROR, "norm of order 2 for gradients from `parameters` is non-finite",
                 ms_clip_grad_norm(&total, &t, 1, 0.5, 2, true));
    assert_ok(ms_tensor_to_doubles(t->grad, seen, 2));
    assert_true(seen[0] == 1 && seen[1] == INFINITY);
    ms_tensor_free(t);
}

static void test_optim_clip__hides_no_bad_gradient(void **state)
{
    for (int largest = 0; largest < 2; largest++) {
        const double bad[] = {1, NAN, 2};
        ms_tensor *t = with_grad(MS_DTYPE_F32, bad, 3);
        double seen[3];

        assert_true(isnan(clip(&t, 1, 1, largest ? HUGE_VAL : 2)));
        assert_ok(ms_tensor_to_doubles(t->grad, seen, 3));
        assert_true(isnan(seen[0]) && isnan(seen[1]) && isnan(seen[2]));
        ms_tensor_free(t);
    }
}

static void test_optim_clip__is_zero_without_gradients(void **state)
{
    ms_tensor *t = with_grad(MS_DTYPE_F32, NULL, 3);

    assert_true(clip(&t, 1, 1, 2) == 0);
    assert_true(clip(NULL, 0, 1, 2) == 0);
    ms_tensor_free(t);
}

static void ignore_orphan(void *unit, int32_t index)
{
}

static void test_optim_clip__refuses_sharded_parameters(void **state)
{
    static const msi_param_ops ops = {.orphan = ignore_orphan};
    const double a[] = {30};
    ms_tensor *t = with_grad(MS_DTYPE_F32, a, 1);
    ms_tensor *total;
    double seen[1];

    t->param->unit = t;
    t->param->ops = &ops;
    assert_fails(MS_RUNTIME_ERROR, "is sharded", ms_clip_grad_norm(&total, &t, 1, 1, 2, false));
    assert_ok(ms_tensor_to_doubles(t->grad, seen, 1));
    assert_true(seen[0] == 30);
    ms_tensor_free(t);
}

/* Many blocks, the last one short, also with gaps between the elements. Blocks of 4,096 are summed
 * each for itself and then in order; how one block is summed inside is the kernel's affair, so the
 * comparison allows its rounding. */
static void test_optim_clip__folds_blocks_in_order(void **state)
{
    enum { ROWS = 1500, N = 2 * ROWS * 200 };
    double *values = malloc(N * sizeof(double)), folded = 0, total;
    const int64_t shape[2] = {ROWS, 400};
    ms_tensor *t, *wide, *half;

    for (int i = 0; i < N; i++) {
        values[i] = filler(3, i);
    }
    for (int block = 0; block < N; block += 4096) {
        double sum = 0;

        for (int i = block; i < N && i < block + 4096; i++) {
            sum += values[i] * values[i];
        }
        folded += sum;
    }
    t = with_grad(MS_DTYPE_F64, values, N);
    total = clip(&t, 1, 1e9, 2);
    folded = sqrt(folded);
    assert_close(&total, &folded, 1, 1e-14, 0);
    ms_tensor_free(t);

    /* the left half of a (1500, 400) matrix: rows of 200 with gaps of 200 */
    assert_ok(ms_tensor_from_doubles(&wide, MS_DTYPE_F64, 2, shape, values, N));
    assert_ok(ms_op_narrow(&half, wide, 1, 0, 200));
    t = with_grad(MS_DTYPE_F64, NULL, N / 2);
    assert_ok(msi_tensor_new_internal(&t->grad, t->ctx, &half->v));
    total = clip(&t, 1, 1e9, 2);
    for (int i = 0, k = 0; i < N; i++) {
        if (i % 400 < 200) {
            values[k++] = values[i];
        }
    }
    ms_tensor_free(t);
    t = with_grad(MS_DTYPE_F64, values, N / 2);
    assert_true(clip(&t, 1, 1e9, 2) == total); /* the same bits, whatever the strides */
    ms_tensor_free(t);
    ms_tensor_free(half);
    ms_tensor_free(wide);
    free(values);
}

/* What lets ranks share the work: the blocks of two parts, cut at a block's end, are the blocks of
 * the whole. */
static void test_optim_clip__block_sums_do_not_depend_on_the_cut(void **state)
{
    enum { N = 5 * MSI_NORM_BLOCK + 77, CUT = 2 * MSI_NORM_BLOCK };
    double *values = malloc(N * sizeof(double)), whole[6], parts[6];
    const int64_t n = N, n_blocks = 6;
    ms_tensor *t, *of_whole, *of_parts;

    for (int i = 0; i < N; i++) {
        values[i] = filler(4, i);
    }
    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, 1, &n, values, n));
    assert_int_equal(6, msi_norm_n_blocks(n));
    assert_ok(ms_tensor_full(&of_whole, MS_DTYPE_F64, 1, &n_blocks, 0));
    assert_ok(ms_tensor_full(&of_parts, MS_DTYPE_F64, 1, &n_blocks, 0));
    double *to = msi_view_ptr(&of_parts->v);
    const double orders[] = {2, HUGE_VAL, 3};

    for (int k = 0; k < 3; k++) {
        const double order = orders[k];
        msi_view left = t->v, right = t->v;
        double total;
        msi_norm norm;

        left.shape[0] = CUT;
        right.offset = CUT;
        right.shape[0] = N - CUT;
        assert_ok(msi_norm_blocks(&t->v, order, msi_view_ptr(&of_whole->v)));
        assert_ok(msi_norm_blocks(&left, order, to));
        assert_ok(msi_norm_blocks(&right, order, to + 2));
        assert_ok(ms_tensor_to_doubles(of_whole, whole, 6));
        assert_ok(ms_tensor_to_doubles(of_parts, parts, 6));
        assert_memory_equal(whole, parts, sizeof(whole));
        assert_ok(msi_norm_open(&norm, t->ctx, 6, order, MS_DTYPE_F32));
        assert_ok(msi_norm_add(&norm, &left));
        assert_ok(msi_norm_add(&norm, &right));
        assert_ok(msi_norm_fold_blocks(&norm, 1));
        assert_ok(ms_tensor_item(norm.total, &total));
        msi_norm_release(&norm);
        assert_true(total == msi_norm_finish(msi_norm_fold(0, parts, 6, order), order));
    }
    ms_tensor_free(of_whole);
    ms_tensor_free(of_parts);
    ms_tensor_free(t);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_clip__scales_by_max_norm_over_the_total),
        cmocka_unit_test(test_optim_clip__leaves_small_gradients),
        cmocka_unit_test(test_optim_clip__knows_the_largest_element),
        cmocka_unit_test(test_optim_clip__takes_other_orders),
        cmocka_unit_test(test_optim_clip__leaves_gradients_whose_norm_is_not_finite),
        cmocka_unit_test(test_optim_clip__hides_no_bad_gradient),
        cmocka_unit_test(test_optim_clip__is_zero_without_gradients),
        cmocka_unit_test(test_optim_clip__refuses_sharded_parameters),
        cmocka_unit_test(test_optim_clip__folds_blocks_in_order),
        cmocka_unit_test(test_optim_clip__block_sums_do_not_depend_on_the_cut),
    };

    return cmocka_run_group_tests_name("optim/clip", tests, NULL, NULL);
}
