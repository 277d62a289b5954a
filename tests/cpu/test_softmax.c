/* kernels/cpu/softmax.c: softmax, its logarithm and their gradients against plain loops in f64,
 * from any start.
 */
#include "kernel_test.h"

typedef struct rows {
    int64_t rows, cols, start;
    bool accumulate;
    int32_t dtype;
    double factor; /* of the logits */
} rows;

static void check_forward(const rows *r)
{
    const int64_t n = r->rows * r->cols;
    placed x = placed_read(r->dtype, n, r->start, 1);
    placed y = placed_written(r->dtype, n, r->start, 2);
    typed old = typed_copy(&y.t);
    msi_softmax_args args = {.rows = r->rows,
                             .cols = r->cols,
                             .x = x.t.data,
                             .out = y.t.data,
                             .accumulate = r->accumulate};

    for (int64_t i = 0; i < n; i++) {
        typed_set(&x.t, i, typed_get(&x.t, i) * r->factor);
    }
    run_placed(MSI_K_log_softmax, r->dtype, &args, (placed *[]){&y}, 1);
    for (int64_t i = 0; i < r->rows; i++) {
        const double lse = log_sum_exp_of(&x.t, i * r->cols, r->cols);
        const double inner = 40 * compute_epsilon(r->dtype) * (fabs(lse) + r->factor + 1);

        for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
            double want = typed_get(&x.t, j) - lse + (r->accumulate ? typed_get(&old, j) : 0);

            check_element("y", j, typed_get(&y.t, j), want,
                          inner + 1.01 * typed_rounding(r->dtype, want));
        }
    }
    placed_free(&x);
    placed_free(&y);
    typed_free(&old);
}

/* Row i of dx = dy - exp(y) sum(dy) [+ old]. */
static void check_gradient_row(const rows *r, int64_t i, const typed *y, const typed *dy,
                               const typed *dx, const typed *old)
{
    double sum = 0, size = 0;

    for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
        sum += typed_get(dy, j);
        size += fabs(typed_get(dy, j));
    }
    for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
        double want =
            typed_get(dy, j) - exp(typed_get(y, j)) * sum + (r->accumulate ? typed_get(old, j) : 0);

        check_element("dx", j, typed_get(dx, j), want,
                      40 * compute_epsilon(r->dtype) * (2 + size) +
                          1.01 * typed_rounding(r->dtype, want));
    }
}

static void check_gradient(const rows *r)
{
    const int64_t n = r->rows * r->cols;
    placed y = placed_read(r->dtype, n, r->start, 1);
    placed dy = placed_read(r->dtype, n, r->start, 2);
    placed dx = placed_written(r->dtype, n, r->start, 3);
    typed old = typed_copy(&dx.t);
    msi_softmax_args args = {.rows = r->rows,
                             .cols = r->cols,
                             .y = y.t.data,
                             .dy = dy.t.data,
                             .out = dx.t.data,
                             .accumulate = r->accumulate};

    for (int64_t i = 0; i < n; i++) { /* log probabilities of every size */
        typed_set(&y.t, i, (typed_get(&y.t, i) - 1) * r->factor / 2);
    }
    run_placed(MSI_K_log_softmax_grad, r->dtype, &args, (placed *[]){&dx}, 1);
    for (int64_t i = 0; i < r->rows; i++) {
        check_gradient_row(r, i, &y.t, &dy.t, &dx.t, &old);
    }
    placed_free(&y);
    placed_free(&dy);
    placed_free(&dx);
    typed_free(&old);
}

/* Row i of dx = y (dy - sum(y dy)) [+ old]. */
static void check_softmax_gradient_row(const rows *r, int64_t i, const typed *y, const typed *dy,
                                       const typed *dx, const typed *old)
{
    double sum = 0, size = 0;

    for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
        sum += typed_get(y, j) * typed_get(dy, j);
        size += fabs(typed_get(y, j) * typed_get(dy, j));
    }
    for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
        const double before = r->accumulate ? typed_get(old, j) : 0;
        const double want = typed_get(y, j) * (typed_get(dy, j) - sum) + before;

        check_element("dx of softmax", j, typed_get(dx, j), want,
                      40 * compute_epsilon(r->dtype) * (2 + size) +
                          1.01 * typed_rounding(r->dtype, want));
    }
}

static void check_softmax(const rows *r)
{
    const int64_t n = r->rows * r->cols;
    placed x = placed_read(r->dtype, n, r->start, 1), dy = placed_read(r->dtype, n, r->start, 2);
    placed y = placed_written(r->dtype, n, r->start, 3);
    typed old = typed_copy(&y.t);
    msi_softmax_args args = {.rows = r->rows,
                             .cols = r->cols,
                             .x = x.t.data,
                             .y = x.t.data,
                             .dy = dy.t.data,
                             .out = y.t.data,
                             .accumulate = r->accumulate};

    run_placed(MSI_K_softmax, r->dtype, &args, (placed *[]){&y}, 1);
    for (int64_t i = 0; i < n; i++) {
        const double lse = log_sum_exp_of(&x.t, i / r->cols * r->cols, r->cols);
        const double want =
            exp(typed_get(&x.t, i) - lse) + (r->accumulate ? typed_get(&old, i) : 0);

        check_element("softmax", i, typed_get(&y.t, i), want,
                      40 * compute_epsilon(r->dtype) * (1 + fabs(want)) +
                          1.01 * typed_rounding(r->dtype, want));
        typed_set(&y.t, i, typed_get(&old, i));
    }
    run_placed(MSI_K_softmax_grad, r->dtype, &args, (placed *[]){&y}, 1);
    for (int64_t i = 0; i < r->rows; i++) {
        check_softmax_gradient_row(r, i, &x.t, &dy.t, &y.t, &old);
    }
    placed_free(&x);
    placed_free(&dy);
    placed_free(&y);
    typed_free(&old);
}

static void check(const rows *r)
{
    name_case("%s (%lld, %lld) from %lld", ms_dtype_name(r->dtype), (long long)r->rows,
              (long long)r->cols, (long long)r->start);
    check_forward(r);
    check_gradient(r);
    check_softmax(r);
}

/* The whole square of lengths and starts for both kernels and every dtype. */
static void test_cpu_softmax__equals_plain_loops_at_any_length_from_any_start(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t cols = 0; cols < N_LENGTHS; cols++) {
            const rows none = {.cols = cols, .dtype = float_dtypes[d]};

            check(&none);
            for (int64_t start = 0; start < N_STARTS; start++) {
                const rows r = {.rows = 1 + (cols + start) % 3,
                                .cols = cols,
                                .start = start,
                                .accumulate = (cols + start / 4) % 2,
                                .dtype = float_dtypes[d],
                                .factor = start % 3 ? 5 : 60};

                check(&r);
            }
        }
    }
}

static void test_cpu_softmax__equals_plain_loops_around_the_chunk_of_a_row(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t cols = 1020; cols <= 3100; cols += cols < 1030 ? 1 : 519) {
            const rows r = {.rows = 3,
                            .cols = cols,
                            .start = cols % N_STARTS,
                            .dtype = float_dtypes[d],
                            .factor = 30};

            check(&r);
        }
    }
}

static void test_cpu_softmax__gradient_equals_finite_differences(void **state)
{
    (void)state;
    enum { COLS = 19 };
    typed x = typed_filled(MS_DTYPE_F64, COLS, 1), y = typed_copy(&x);
    typed dy = typed_filled(MS_DTYPE_F64, COLS, 3), dx = typed_copy(&x);
    msi_softmax_args args = {.rows = 1, .cols = COLS, .x = x.data, .out = y.data};
    msi_softmax_args back = {.rows = 1, .cols = COLS, .y = y.data, .dy = dy.data, .out = dx.data};

    msi_kernels()->fn[MSI_K_log_softmax][MS_DTYPE_F64](&args);
    msi_kernels()->fn[MSI_K_log_softmax_grad][MS_DTYPE_F64](&back);
    for (int64_t i = 0; i < COLS; i++) {
        double v = typed_get(&x, i), sum[2] = {0, 0};

        for (int32_t s = 0; s < 2; s++) {
            typed_set(&x, i, v + (s ? -1e-5 : 1e-5));
            msi_kernels()->fn[MSI_K_log_softmax][MS_DTYPE_F64](&args);
            for (int64_t j = 0; j < COLS; j++) {
                sum[s] += typed_get(&y, j) * typed_get(&dy, j);
            }
        }
        typed_set(&x, i, v);
        check_element("gradient", i, typed_get(&dx, i), (sum[0] - sum[1]) / 2e-5, 1e-8);
    }
    typed_free(&x);
    typed_free(&y);
    typed_free(&dy);
    typed_free(&dx);
}

static void test_cpu_softmax__masked_entries_stay_masked(void **state)
{
    (void)state;
    enum { COLS = 2100 };
    typed x = typed_filled(MS_DTYPE_F32, COLS, 1), y = typed_copy(&x);
    msi_softmax_args args = {.rows = 1, .cols = COLS, .x = x.data, .out = y.data};

    for (int64_t j = 0; j < COLS - 7; j++) { /* whole chunks of nothing but -inf */
        typed_set(&x, j, -INFINITY);
    }
    double lse = log_sum_exp_of(&x, 0, COLS);

    msi_kernels()->fn[MSI_K_log_softmax][MS_DTYPE_F32](&args);
    for (int64_t j = 0; j < COLS; j++) {
        if (j < COLS - 7) {
            assert_true(typed_get(&y, j) == -INFINITY);
        } else {
            check_element("y", j, typed_get(&y, j), typed_get(&x, j) - lse, 1e-6);
        }
    }
    typed_free(&x);
    typed_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_softmax__equals_plain_loops_at_any_length_from_any_start),
        cmocka_unit_test(test_cpu_softmax__equals_plain_loops_around_the_chunk_of_a_row),
        cmocka_unit_test(test_cpu_softmax__gradient_equals_finite_differences),
        cmocka_unit_test(test_cpu_softmax__masked_entries_stay_masked),
    };

    return cmocka_run_group_tests_name("cpu/softmax", tests, NULL, NULL);
}
