/* kernels/cpu/sum.c: sums over any dimensions against f64 loops; the order is that of the shapes.
 */
#include "kernel_test.h"

/* A (outer, rows, cols) array seen through strides; one or two dimensions are reduced. */
typedef struct problem {
    int32_t dtype, out_dtype;
    int64_t shape[3], stride[3];
    int32_t reduced; /* bit d: dimension d */
    bool accumulate;
    double scale;
    int64_t start;
} problem;

static int64_t span(const problem *p)
{
    int64_t n = 1;

    for (int32_t d = 0; d < 3; d++) {
        n += (p->shape[d] - 1) * p->stride[d];
    }
    return n < 1 ? 1 : n;
}

static void make_args(msi_sum_args *a, const problem *p)
{
    int64_t out_stride = 1;

    *a = (msi_sum_args){.out_dtype = p->out_dtype, .scale = p->scale, .accumulate = p->accumulate};
    for (int32_t d = 0; d < 3; d++) {
        msi_loop *loop = p->reduced >> d & 1 ? &a->reduced : &a->kept;

        loop->shape[loop->ndim] = p->shape[d];
        loop->stride[1][loop->ndim++] = p->stride[d];
    }
    for (int32_t d = a->kept.ndim - 1; d >= 0; d--) {
        a->kept.stride[0][d] = out_stride;
        out_stride *= a->kept.shape[d];
    }
}

static int64_t n_kept(const problem *p)
{
    int64_t n = 1;

    for (int32_t d = 0; d < 3; d++) {
        n *= p->reduced >> d & 1 ? 1 : p->shape[d];
    }
    return n;
}

static void check(const problem *p, typed *result)
{
    typed in = typed_filled(p->dtype, p->start + span(p), 3);
    typed out = typed_filled(p->out_dtype, n_kept(p), 4), old = typed_copy(&out);
    double *want = calloc((size_t)out.n + 1, sizeof(double)), *size = calloc((size_t)out.n + 1, 8);
    msi_sum_args args;

    make_args(&args, p);
    args.in = (char *)in.data + p->start * dtype_bytes(p->dtype);
    args.out = out.data;
    run_on_all_isas(&(kernel_call){MSI_K_sum, p->dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "sum");
    for (int64_t i = 0; i < p->shape[0]; i++) {
        for (int64_t j = 0; j < p->shape[1]; j++) {
            for (int64_t k = 0; k < p->shape[2]; k++) {
                const int64_t index[3] = {i, j, k};
                int64_t at = 0, from = p->start;

                for (int32_t d = 0; d < 3; d++) {
                    at = p->reduced >> d & 1 ? at : at * p->shape[d] + index[d];
                    from += index[d] * p->stride[d];
                }
                want[at] += typed_get(&in, from);
                size[at] += fabs(typed_get(&in, from));
            }
        }
    }
    for (int64_t i = 0; i < out.n; i++) {
        double before = p->accumulate ? typed_get(&old, i) : 0;

        check_element("sum", i, typed_get(&out, i), want[i] * p->scale + before,
                      (40 * compute_epsilon(p->dtype) * size[i] + 1e-15 * size[i]) *
                              fabs(p->scale) +
                          2 * typed_rounding(p->out_dtype, want[i] * p->scale + before) +
                          compute_epsilon(p->dtype) * fabs(before));
    }
    free(want);
    free(size);
    typed_free(&in);
    typed_free(&old);
    if (result != NULL) {
        *result = out;
    } else {
        typed_free(&out);
    }
}

static int32_t out_dtype_of(int32_t dtype, int64_t choice)
{
    return ms_dtype_is_narrow(dtype) && choice % 2 ? MS_DTYPE_F32 : dtype;
}

static void test_cpu_sum__rows_of_lengths_0_to_130_from_any_start(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t n = 0; n <= 130; n++) {
            problem p = {.dtype = float_dtypes[d],
                         .out_dtype = out_dtype_of(float_dtypes[d], n),
                         .shape = {1, 3, n},
                         .stride = {0, n + 1, 1},
                         .reduced = 4 | 1,
                         .accumulate = n % 3 == 0,
                         .scale = n % 5 ? 1 : 0.25,
                         .start = (n * 29) % 64};

            check(&p, NULL);
        }
        for (int64_t start = 0; start < 64; start++) {
            problem p = {.dtype = float_dtypes[d],
                         .out_dtype = float_dtypes[d],
                         .shape = {1, 2, 531},
                         .stride = {0, 531, 1},
                         .reduced = 4,
                         .scale = 1,
                         .start = start};

            check(&p, NULL);
        }
    }
}

static void test_cpu_sum__columns_of_any_count_and_length(void **state)
{
    (void)state;
    const int64_t rows[] = {0, 1, 2, 15, 16, 17, 64, 65, 130, 511, 512, 1100};

    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t cols = 1; cols <= 130; cols += cols < 40 ? 1 : 13) {
            problem p = {.dtype = float_dtypes[d],
                         .out_dtype = out_dtype_of(float_dtypes[d], cols),
                         .shape = {2, rows[cols % 12], cols},
                         .stride = {rows[cols % 12] * (cols + 3), cols + 3, 1},
                         .reduced = 2,
                         .accumulate = cols % 3 == 0,
                         .scale = 0.5,
                         .start = (cols * 29) % 64};

            check(&p, NULL);
        }
        problem wide = {.dtype = float_dtypes[d],
                        .out_dtype = float_dtypes[d],
                        .shape = {3, 70, 700},
                        .stride = {49000, 700, 1},
                        .reduced = 3,
                        .scale = 1};

        check(&wide, NULL);
    }
}

static void test_cpu_sum__every_combination_of_dimensions_and_layouts(void **state)
{
    (void)state;
    const int64_t strides[4][3] = {{84, 12, 1}, {1, 5, 35}, {12, 60, 1}, {0, 3, 40}};

    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int32_t reduced = 0; reduced < 8; reduced++) {
            for (int32_t layout = 0; layout < 4; layout++) {
                problem p = {.dtype = float_dtypes[d],
                             .out_dtype = float_dtypes[d],
                             .shape = {5, 7, 12},
                             .reduced = reduced,
                             .accumulate = layout == 1,
                             .scale = 1};

                memcpy(p.stride, strides[layout], sizeof(p.stride));
                check(&p, NULL);
            }
        }
    }
}

/* The two ways to walk add in one order: a matrix and its transposed copy give equal bits. */
static void test_cpu_sum__layout_does_not_change_a_bit(void **state)
{
    (void)state;
    enum { ROWS = 1300, COLS = 21 };
    static float a[ROWS * COLS], t[COLS * ROWS], by_rows[COLS], by_columns[COLS];
    msi_sum_args args = {.out_dtype = MS_DTYPE_F32, .scale = 1};

    for (int i = 0; i < ROWS * COLS; i++) {
        a[i] = (float)filler(1, i);
        t[i % COLS * ROWS + i / COLS] = a[i];
    }
    args.kept = (msi_loop){.ndim = 1, .shape = {COLS}, .stride = {{1}, {1}}};
    args.reduced = (msi_loop){.ndim = 1, .shape = {ROWS}, .stride = {{0}, {COLS}}};
    args.in = a;
    args.out = by_columns;
    msi_kernels()->fn[MSI_K_sum][MS_DTYPE_F32](&args);
    args.kept.stride[1][0] = ROWS;
    args.reduced.stride[1][0] = 1;
    args.in = t;
    args.out = by_rows;
    msi_kernels()->fn[MSI_K_sum][MS_DTYPE_F32](&args);
    assert_memory_equal(by_columns, by_rows, sizeof(by_rows));
}

static void test_cpu_sum__long_f32_sums_stay_exact_to_a_few_units(void **state)
{
    (void)state;
    const int64_t n = 1 << 22;
    float *x = malloc((size_t)n * sizeof(float)), out = 0;
    msi_sum_args args = {.in = x, .out = &out, .out_dtype = MS_DTYPE_F32, .scale = 1};

    args.reduced = (msi_loop){.ndim = 1, .shape = {n}, .stride = {{0}, {1}}};
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0.1f; /* one running f32 sum would be wrong in the third digit */
    }
    msi_kernels()->fn[MSI_K_sum][MS_DTYPE_F32](&args);
    assert_true(fabs((double)out / ((double)0.1f * (double)n) - 1) < 4e-7);
    free(x);
}

static void test_cpu_sum__i64_is_exact_and_nan_stays(void **state)
{
    (void)state;
    int64_t x[40], sums[3] = {0, 0, 100};
    float f[5] = {1, NAN, 2, 3, 4}, sum = 0;
    msi_sum_args args = {.in = x, .out = &sums[0], .out_dtype = MS_DTYPE_I64, .scale = 1};

    for (int i = 0; i < 40; i++) {
        x[i] = ((int64_t)1 << 55) + i;
    }
    args.reduced = (msi_loop){.ndim = 1, .shape = {40}, .stride = {{0}, {1}}};
    run_on_all_isas(&(kernel_call){MSI_K_sum, MS_DTYPE_I64, &args, {sums}, {sizeof(sums)}}, "i64");
    assert_true(sums[0] == 40 * ((int64_t)1 << 55) + 780);
    args.accumulate = true;
    args.out = &sums[2];
    args.reduced.shape[0] = 0;
    msi_kernels()->fn[MSI_K_sum][MS_DTYPE_I64](&args);
    assert_true(sums[2] == 100);
    args = (msi_sum_args){.in = f, .out = &sum, .out_dtype = MS_DTYPE_F32, .scale = 1};
    args.reduced = (msi_loop){.ndim = 1, .shape = {5}, .stride = {{0}, {1}}};
    msi_kernels()->fn[MSI_K_sum][MS_DTYPE_F32](&args);
    assert_true(isnan(sum));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_sum__rows_of_lengths_0_to_130_from_any_start),
        cmocka_unit_test(test_cpu_sum__columns_of_any_count_and_length),
        cmocka_unit_test(test_cpu_sum__every_combination_of_dimensions_and_layouts),
        cmocka_unit_test(test_cpu_sum__layout_does_not_change_a_bit),
        cmocka_unit_test(test_cpu_sum__long_f32_sums_stay_exact_to_a_few_units),
        cmocka_unit_test(test_cpu_sum__i64_is_exact_and_nan_stays),
    };

    return cmocka_run_group_tests_name("cpu/sum", tests, NULL, NULL);
}
