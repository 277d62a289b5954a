/* kernels/cpu/norm.c: sums of powers and largest magnitudes per block. */
#include "kernel_test.h"

static const double ORDERS[] = {2, HUGE_VAL, 1, 3, 2.5, 0};
enum { N_ORDERS = sizeof(ORDERS) / sizeof(*ORDERS) };

static void check(int32_t dtype, int64_t n, int64_t block, int64_t start, double order)
{
    const int64_t n_blocks = n == 0 ? 0 : (n + block - 1) / block;
    typed x = typed_filled(dtype, start + n, 6);
    double *out = calloc((size_t)n_blocks + 1, sizeof(double));
    msi_norm_args args = {.n = n,
                          .block = block,
                          .x = (char *)x.data + start * dtype_bytes(dtype),
                          .out = out,
                          .order = order};

    run_on_all_isas(&(kernel_call){MSI_K_norm, dtype, &args, {out}, {(n_blocks + 1) * 8}}, "norm");
    for (int64_t b = 0; b < n_blocks; b++) {
        long double want = 0;

        for (int64_t i = b * block; i < n && i < (b + 1) * block; i++) {
            long double v = fabsl((long double)typed_get(&x, start + i));

            want =
                order == HUGE_VAL ? fmaxl(want, v) : want + (order == 0 ? v != 0 : powl(v, order));
        }
        check_element("norm", b, out[b], (double)want,
                      order == HUGE_VAL ? 0 : (double)(block + 4) * 0x1p-53 * (double)want);
    }
    assert_true(out[n_blocks] == 0); /* nothing past the last block */
    typed_free(&x);
    free(out);
}

static void test_cpu_norm__blocks_of_any_length_from_any_start(void **state)
{
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t n = 0; n <= 130; n++) {
            check(float_dtypes[d], n, 130, n * 29 % 64, ORDERS[n % N_ORDERS]);
            check(float_dtypes[d], n, 1 + n % 37, n * 29 % 64, ORDERS[(n + 1) % N_ORDERS]);
        }
        for (int64_t start = 0; start < 64; start++) {
            check(float_dtypes[d], 9000, 4096, start, ORDERS[start % N_ORDERS]);
        }
    }
}

static void test_cpu_norm__squares_of_f32_neither_overflow_nor_vanish(void **state)
{
    const float x[3] = {1e30f, 3e-30f, 0};
    double out[2] = {0};
    msi_norm_args args = {.n = 3, .block = 1, .x = x, .order = 2};
    double blocks[3];

    args.out = blocks;
    msi_kernels()->fn[MSI_K_norm][MS_DTYPE_F32](&args);
    out[0] = blocks[0] / ((double)1e30f * (double)1e30f);
    out[1] = blocks[1] / ((double)3e-30f * (double)3e-30f);
    assert_true(out[0] == 1 && out[1] == 1 && blocks[2] == 0);
}

static void test_cpu_norm__nan_and_infinity_reach_the_result_of_their_block(void **state)
{
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t at = 0; at < 39; at += 13) {
            typed x = typed_filled(float_dtypes[d], 80, 2);
            double out[2];
            msi_norm_args args = {.n = 80, .block = 40, .x = x.data, .out = out};

            for (int32_t k = 0; ORDERS[k] != 0; k++) {
                args.order = ORDERS[k];
                typed_set(&x, at, NAN);
                typed_set(&x, 39, 100); /* a number after it must not win */
                run_on_all_isas(
                    &(kernel_call){MSI_K_norm, float_dtypes[d], &args, {out}, {sizeof(out)}},
                    "nan");
                assert_true(isnan(out[0]) && isfinite(out[1]));
                typed_set(&x, at, -INFINITY);
                run_on_all_isas(
                    &(kernel_call){MSI_K_norm, float_dtypes[d], &args, {out}, {sizeof(out)}},
                    "inf");
                assert_true(out[0] == INFINITY && isfinite(out[1]));
            }
            typed_free(&x);
        }
    }
}

static void check_fold(const double *blocks, int64_t n, double order, double max_norm, double norm,
                       double coefficient)
{
    double got[2] = {-1, -1};
    msi_norm_fold_args args = {.n = n,
                               .blocks = blocks,
                               .order = order,
                               .max_norm = max_norm,
                               .norm = &got[0],
                               .coefficient = &got[1]};

    run_on_all_isas(&(kernel_call){MSI_K_norm_fold, MS_DTYPE_F64, &args, {got}, {sizeof(got)}},
                    "fold");
    assert_true(isnan(norm) ? isnan(got[0]) : got[0] == norm);
    assert_true(isnan(coefficient) ? isnan(got[1]) : got[1] == coefficient);
}

/* 1e16 + 1 is 1e16, so the order shows. */
static void test_cpu_norm__blocks_fold_in_order(void **state)
{
    const double squares[] = {1, 1e16, 1, 1, -1e16, 6, 2}, wild[] = {3, NAN, 5};

    check_fold(squares, 7, 2, 2, sqrt(8), 2 / (sqrt(8) + 1e-6));
    check_fold(squares, 7, HUGE_VAL, 1e17, 1e16, 1);
    check_fold(squares, 1, 2, 0, 1, 0);
    check_fold(squares, 0, 2, 1, 0, 1);
    check_fold(wild, 1, HUGE_VAL, 1, 3, 1 / (3 + 1e-6));
    check_fold(wild, 3, HUGE_VAL, 1, NAN, NAN);
    check_fold(wild, 3, 2, 1, NAN, NAN);
    check_fold(squares, 2, 1, 1, 1e16 + 1, 1 / (1e16 + 1));
    check_fold(squares, 3, 3, 1e9, pow(1e16, 1.0 / 3), 1);
    check_fold(wild, 3, 0, 6, 3, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_norm__blocks_of_any_length_from_any_start),
        cmocka_unit_test(test_cpu_norm__squares_of_f32_neither_overflow_nor_vanish),
        cmocka_unit_test(test_cpu_norm__nan_and_infinity_reach_the_result_of_their_block),
        cmocka_unit_test(test_cpu_norm__blocks_fold_in_order),
    };

    return cmocka_run_group_tests_name("cpu/norm", tests, NULL, NULL);
}
