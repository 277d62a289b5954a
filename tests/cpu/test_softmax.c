/* kernels/cpu/softmax.c: log softmax and its gradient against plain loops in f64. */
#include "backend.h"
#include "ms_test.h"
#include "typed.h"

typedef struct rows {
    int64_t rows, cols;
    bool accumulate;
    int32_t dtype;
    double factor; /* of the logits */
} rows;

static void expect(double got, double want, double bound, const char *what, int64_t i)
{
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s %lld is %.17g, expected %.17g +- %g", what, (long long)i, got, want, bound);
    }
}

static typed scaled(const rows *r, uint64_t stream)
{
    typed x = typed_filled(r->dtype, r->rows * r->cols, stream);

    for (int64_t i = 0; i < x.n; i++) {
        typed_set(&x, i, typed_get(&x, i) * r->factor);
    }
    return x;
}

static double log_sum_exp(const typed *x, int64_t first, int64_t n)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++) {
        double v = typed_get(x, first + j);

        largest = v > largest ? v : largest;
    }
    for (int64_t j = 0; j < n; j++) {
        sum += exp(typed_get(x, first + j) - largest);
    }
    return largest + log(sum);
}

static void check(const rows *r)
{
    typed x = scaled(r, 1), y = typed_filled(r->dtype, x.n, 2), old = typed_copy(&y);
    typed dy = typed_filled(r->dtype, x.n, 3), dx = typed_copy(&old);
    double inner = 40 * typed_epsilon(r->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);
    double outer = 1.01 * typed_epsilon(r->dtype);
    msi_softmax_args args = {
        .rows = r->rows, .cols = r->cols, .x = x.data, .out = y.data, .accumulate = r->accumulate};

    msi_kernels()->fn[MSI_K_log_softmax][r->dtype](&args);
    for (int64_t i = 0; i < r->rows; i++) {
        double lse = log_sum_exp(&x, i * r->cols, r->cols);

        for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
            double want = typed_get(&x, j) - lse + (r->accumulate ? typed_get(&old, j) : 0);

            expect(typed_get(&y, j), want, inner * (fabs(lse) + r->factor + 1) + outer * fabs(want),
                   "y", j);
        }
    }
    if (r->accumulate) { /* y must be log probabilities for the gradient */
        args.accumulate = false;
        msi_kernels()->fn[MSI_K_log_softmax][r->dtype](&args);
        args.accumulate = true;
    }
    args.y = y.data;
    args.dy = dy.data;
    args.out = dx.data;
    msi_kernels()->fn[MSI_K_log_softmax_grad][r->dtype](&args);
    for (int64_t i = 0; i < r->rows; i++) {
        double sum = 0, size = 0;

        for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
            sum += typed_get(&dy, j);
            size += fabs(typed_get(&dy, j));
        }
        for (int64_t j = i * r->cols; j < (i + 1) * r->cols; j++) {
            double want = typed_get(&dy, j) - exp(typed_get(&y, j)) * sum +
                          (r->accumulate ? typed_get(&old, j) : 0);

            expect(typed_get(&dx, j), want, inner * (2 + size) + outer * fabs(want), "dx", j);
        }
    }
    typed_free(&x);
    typed_free(&y);
    typed_free(&old);
    typed_free(&dy);
    typed_free(&dx);
}

static void test_cpu_softmax__equals_plain_loops(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        for (int64_t cols = 1; cols <= 130; cols++) {
            const rows r = {.rows = 1 + cols % 4,
                            .cols = cols,
                            .accumulate = cols % 2,
                            .dtype = dtype,
                            .factor = cols % 3 ? 5 : 60};

            check(&r);
        }
        for (int64_t cols = 1020; cols <= 3100; cols += 519) { /* around the chunk of a row */
            const rows r = {.rows = 3, .cols = cols, .dtype = dtype, .factor = 30};

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
        expect(typed_get(&dx, i), (sum[0] - sum[1]) / 2e-5, 1e-8, "gradient", i);
    }
    typed_free(&x);
    typed_free(&y);
    typed_free(&dy);
    typed_free(&dx);
}

static void test_cpu_softmax__bits_are_equal_on_every_instruction_set(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        for (int64_t cols = 1; cols <= 1100; cols += cols < 70 ? 1 : 83) {
            const rows r = {.rows = 2, .cols = cols, .dtype = dtype, .factor = 10};
            typed x = scaled(&r, 1), dy = typed_filled(dtype, x.n, 3), first[2] = {{0}};

            for (int32_t isa = 2; isa <= 4; isa++) {
                const msi_kernel_table *table = msi_kernels_of(isa);
                typed y = typed_copy(&x), dx = typed_copy(&x);
                msi_softmax_args args = {.rows = 2, .cols = cols, .x = x.data, .out = y.data};
                msi_softmax_args back = {
                    .rows = 2, .cols = cols, .y = y.data, .dy = dy.data, .out = dx.data};

                if (table != NULL) {
                    table->fn[MSI_K_log_softmax][dtype](&args);
                    table->fn[MSI_K_log_softmax_grad][dtype](&back);
                }
                if (table != NULL && first[0].data == NULL) {
                    first[0] = y;
                    first[1] = dx;
                    continue;
                }
                if (table != NULL) {
                    assert_memory_equal(first[0].data, y.data, (size_t)typed_nbytes(&y));
                    assert_memory_equal(first[1].data, dx.data, (size_t)typed_nbytes(&dx));
                }
                typed_free(&y);
                typed_free(&dx);
            }
            typed_free(&first[0]);
            typed_free(&first[1]);
            typed_free(&x);
            typed_free(&dy);
        }
    }
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
    double lse = log_sum_exp(&x, 0, COLS);

    msi_kernels()->fn[MSI_K_log_softmax][MS_DTYPE_F32](&args);
    for (int64_t j = 0; j < COLS; j++) {
        if (j < COLS - 7) {
            assert_true(typed_get(&y, j) == -INFINITY);
        } else {
            expect(typed_get(&y, j), typed_get(&x, j) - lse, 1e-6, "y", j);
        }
    }
    typed_free(&x);
    typed_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_softmax__equals_plain_loops),
        cmocka_unit_test(test_cpu_softmax__gradient_equals_finite_differences),
        cmocka_unit_test(test_cpu_softmax__bits_are_equal_on_every_instruction_set),
        cmocka_unit_test(test_cpu_softmax__masked_entries_stay_masked),
    };

    return cmocka_run_group_tests_name("cpu/softmax", tests, NULL, NULL);
}
