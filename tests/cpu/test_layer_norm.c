/* kernels/cpu/layer_norm.c: against plain loops in f64 from any start, the gradient against finite
 * differences, the same bits from every instruction set. */
#include "kernel_test.h"

typedef struct norm {
    int64_t rows, cols, start;
    bool w, b, accumulate, wide; /* wide: dw and db in f32 for bf16 */
    int32_t dtype;
} norm;

typedef struct buffers {
    placed x, w, b, y, mean, rstd, dy, dx, dw, db;
} buffers;

static void make(buffers *m, const norm *n)
{
    const int32_t stat = n->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
    const int32_t dw = n->wide ? stat : n->dtype;

    m->x = placed_read(n->dtype, n->rows * n->cols, n->start, 1);
    m->w = placed_read(n->dtype, n->cols, n->start, 2);
    m->b = placed_read(n->dtype, n->cols, n->start, 3);
    m->y = placed_written(n->dtype, n->rows * n->cols, n->start, 4);
    m->mean = placed_written(stat, n->rows, n->start, 5);
    m->rstd = placed_written(stat, n->rows, n->start, 6);
    m->dy = placed_read(n->dtype, n->rows * n->cols, n->start, 7);
    m->dx = placed_written(n->dtype, n->rows * n->cols, n->start, 8);
    m->dw = placed_written(dw, n->cols, n->start, 9);
    m->db = placed_written(dw, n->cols, n->start, 10);
}

static void discard(buffers *m)
{
    placed *const all[] = {&m->x,    &m->w,  &m->b,  &m->y,  &m->mean,
                           &m->rstd, &m->dy, &m->dx, &m->dw, &m->db};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        placed_free(all[i]);
    }
}

static void run_forward(buffers *m, const norm *n)
{
    msi_layer_norm_args args = {.rows = n->rows,
                                .cols = n->cols,
                                .x = m->x.t.data,
                                .w = n->w ? m->w.t.data : NULL,
                                .b = n->b ? m->b.t.data : NULL,
                                .y = m->y.t.data,
                                .mean = m->mean.t.data,
                                .rstd = m->rstd.t.data,
                                .eps = 1e-5};

    run_placed(MSI_K_layer_norm, n->dtype, &args, (placed *[]){&m->y, &m->mean, &m->rstd}, 3);
}

static void run_backward(buffers *m, const norm *n)
{
    msi_layer_norm_grad_args args = {.rows = n->rows,
                                     .cols = n->cols,
                                     .dy = m->dy.t.data,
                                     .x = m->x.t.data,
                                     .w = n->w ? m->w.t.data : NULL,
                                     .mean = m->mean.t.data,
                                     .rstd = m->rstd.t.data,
                                     .dx = m->dx.t.data,
                                     .dw = n->w ? m->dw.t.data : NULL,
                                     .db = n->b ? m->db.t.data : NULL,
                                     .dw_dtype = m->dw.t.dtype,
                                     .dx_accumulate = n->accumulate,
                                     .dw_accumulate = n->accumulate,
                                     .db_accumulate = n->accumulate};

    run_placed(MSI_K_layer_norm_grad, n->dtype, &args, (placed *[]){&m->dx, &m->dw, &m->db}, 3);
}

static double inner_epsilon(const norm *n)
{
    return 64 * compute_epsilon(n->dtype);
}

/* Mean and 1/deviation of row i against f64. */
static void check_statistics(const buffers *m, const norm *n, int64_t i)
{
    double mean = 0, variance = 0;

    for (int64_t j = 0; j < n->cols; j++) {
        mean += typed_get(&m->x.t, i * n->cols + j);
    }
    mean /= (double)n->cols; /* of no columns: NaN, as are the kernel's */
    for (int64_t j = 0; j < n->cols; j++) {
        double d = typed_get(&m->x.t, i * n->cols + j) - mean;

        variance += d * d / (double)n->cols;
    }
    const double rstd = n->cols > 0 ? 1 / sqrt(variance + 1e-5) : NAN;

    check_element("mean", i, typed_get(&m->mean.t, i), mean, inner_epsilon(n));
    /* the variance is off by 2 deviation times the mean's error, and rstd deviation <= 1 */
    check_element("rstd", i, typed_get(&m->rstd.t, i), rstd,
                  inner_epsilon(n) * rstd * (1 + rstd + rstd * rstd * inner_epsilon(n)));
}

/* From the kernel's own statistics, as they are saved for backward. */
static double normalized(const buffers *m, const norm *n, int64_t i, int64_t j)
{
    return (typed_get(&m->x.t, i * n->cols + j) - typed_get(&m->mean.t, i)) *
           typed_get(&m->rstd.t, i);
}

static double weight(const buffers *m, const norm *n, int64_t j)
{
    return n->w ? typed_get(&m->w.t, j) : 1;
}

static void check_y(const buffers *m, const norm *n, int64_t i)
{
    for (int64_t j = 0; j < n->cols; j++) {
        const double scaled = normalized(m, n, i, j) * weight(m, n, j);
        const double b = n->b ? typed_get(&m->b.t, j) : 0;

        check_element("y", i * n->cols + j, typed_get(&m->y.t, i * n->cols + j), scaled + b,
                      inner_epsilon(n) * (fabs(scaled) + fabs(b)) +
                          typed_rounding(n->dtype, fabs(scaled) + fabs(b)));
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) [+ old], g = dy w. */
static void check_dx(const buffers *m, const norm *n, const buffers *before, int64_t i)
{
    const double rstd = typed_get(&m->rstd.t, i);
    double mean_g = 0, mean_gx = 0;

    for (int64_t j = 0; j < n->cols; j++) {
        const double g = typed_get(&m->dy.t, i * n->cols + j) * weight(m, n, j);

        mean_g += g / (double)n->cols;
        mean_gx += g * normalized(m, n, i, j) / (double)n->cols;
    }
    for (int64_t j = 0; j < n->cols; j++) {
        const int64_t at = i * n->cols + j;
        const double xhat = normalized(m, n, i, j);
        const double g = typed_get(&m->dy.t, at) * weight(m, n, j);
        const double old = n->accumulate ? typed_get(&before->dx.t, at) : 0;
        const double want = rstd * (g - mean_g - xhat * mean_gx) + old;

        check_element("dx", at, typed_get(&m->dx.t, at), want,
                      inner_epsilon(n) * (rstd * (3 + fabs(xhat)) + fabs(old)) +
                          typed_rounding(n->dtype, want));
    }
}

/* Column j of dw (with `xhat`) or db, which is the sum of dy [xhat] over rows [+ old]; one that was
 * not asked for stays. */
static void check_column(const buffers *m, const norm *n, const buffers *before, int64_t j,
                         bool xhat)
{
    const typed *got = xhat ? &m->dw.t : &m->db.t;
    const double old = typed_get(xhat ? &before->dw.t : &before->db.t, j);
    double want = n->accumulate ? old : 0, size = fabs(want);

    if (!(xhat ? n->w : n->b)) {
        check_element("not asked for", j, typed_get(got, j), old, 0);
        return;
    }
    for (int64_t i = 0; i < n->rows; i++) {
        const double dy = typed_get(&m->dy.t, i * n->cols + j);
        const double term = xhat ? dy * normalized(m, n, i, j) : dy;

        want += term;
        size += fabs(term);
    }
    check_element(xhat ? "dw" : "db", j, typed_get(got, j), want,
                  inner_epsilon(n) * size + typed_rounding(got->dtype, want));
}

static void check(const norm *n)
{
    buffers m, before;

    make(&m, n);
    make(&before, n);
    name_case("%s (%lld, %lld) from %lld", ms_dtype_name(n->dtype), (long long)n->rows,
              (long long)n->cols, (long long)n->start);
    run_forward(&m, n);
    run_backward(&m, n);
    for (int64_t i = 0; i < n->rows; i++) {
        check_statistics(&m, n, i);
        check_y(&m, n, i);
        check_dx(&m, n, &before, i);
    }
    for (int64_t j = 0; j < n->cols; j++) {
        check_column(&m, n, &before, j, true);
        check_column(&m, n, &before, j, false);
    }
    discard(&m);
    discard(&before);
}

/* Bits 0 to 3 of `options`: w, b, adding to what is there, dw and db in f32. */
static void check_options(int32_t dtype, int64_t rows, int64_t cols, int64_t start, int64_t options)
{
    const norm n = {.rows = rows,
                    .cols = cols,
                    .start = start,
                    .w = options & 1,
                    .b = options & 2,
                    .accumulate = options & 4,
                    .wide = options & 8,
                    .dtype = dtype};

    check(&n);
}

/* The whole square of lengths and starts; its options take all 16 combinations at each length and
 * at each start. */
static void run_square(int32_t dtype)
{
    for (int64_t cols = 0; cols < N_LENGTHS; cols++) {
        for (int64_t start = 0; start < N_STARTS; start++) {
            check_options(dtype, 1 + start % 3, cols, start, cols + start);
        }
    }
}

/* Around the blocks of rows whose dw and db add in registers. */
static void run_rows(int32_t dtype)
{
    static const int64_t rows[] = {1, 2, 31, 32, 33, 70, 0};

    for (int64_t cols = 1; cols <= 130; cols += cols < 35 || cols > 125 ? 1 : 9) {
        for (int32_t v = 0; v < 16; v++) {
            check_options(dtype, rows[(cols + v) % 7], cols, 29 * cols % N_STARTS, v);
        }
    }
    const norm large = {.rows = 40, .cols = 1027, .w = true, .b = true, .dtype = dtype};

    check(&large);
}

static void test_cpu_layer_norm__f32_equals_plain_loops_at_any_length_from_any_start(void **state)
{
    (void)state;
    report_missing_isas();
    run_square(MS_DTYPE_F32);
    run_rows(MS_DTYPE_F32);
}

static void test_cpu_layer_norm__f64_equals_plain_loops_at_any_length_from_any_start(void **state)
{
    (void)state;
    run_square(MS_DTYPE_F64);
    run_rows(MS_DTYPE_F64);
}

static void
test_cpu_layer_norm__narrow_dtypes_equal_plain_loops_at_any_length_from_any_start(void **state)
{
    (void)state;
    run_square(MS_DTYPE_BF16);
    run_rows(MS_DTYPE_BF16);
    run_square(MS_DTYPE_F16);
    run_rows(MS_DTYPE_F16);
}

static double objective(buffers *m, const norm *n)
{
    double sum = 0;

    run_forward(m, n);
    for (int64_t i = 0; i < m->y.t.n; i++) {
        sum += typed_get(&m->y.t, i) * typed_get(&m->dy.t, i);
    }
    return sum;
}

static void test_cpu_layer_norm__gradients_equal_finite_differences(void **state)
{
    (void)state;
    const norm n = {.rows = 35, .cols = 21, .w = true, .b = true, .dtype = MS_DTYPE_F64};
    buffers m;

    make(&m, &n);
    run_forward(&m, &n);
    run_backward(&m, &n);
    typed *const in[] = {&m.x.t, &m.w.t, &m.b.t};
    const typed *const grad[] = {&m.dx.t, &m.dw.t, &m.db.t};

    for (int32_t k = 0; k < 3; k++) {
        for (int64_t i = 0; i < in[k]->n; i += k == 0 ? 17 : 1) {
            double x = typed_get(in[k], i), step = 1e-5;

            typed_set(in[k], i, x + step);
            double plus = objective(&m, &n);

            typed_set(in[k], i, x - step);
            double minus = objective(&m, &n);

            typed_set(in[k], i, x);
            check_element("gradient", i, typed_get(grad[k], i), (plus - minus) / (2 * step), 1e-7);
        }
    }
    discard(&m);
}

/* dx may take the place of dy. */
static void test_cpu_layer_norm__gradient_may_lie_on_its_input(void **state)
{
    (void)state;
    const norm n = {
        .rows = 70, .cols = 45, .w = true, .b = true, .wide = true, .dtype = MS_DTYPE_F32};
    buffers m, in_place;

    make(&m, &n);
    make(&in_place, &n);
    run_forward(&m, &n);
    run_backward(&m, &n);
    run_forward(&in_place, &n);
    placed_free(&in_place.dx);
    in_place.dx = in_place.dy;
    run_backward(&in_place, &n);
    in_place.dx = (placed){0};
    assert_memory_equal(m.dx.t.data, in_place.dy.t.data, (size_t)typed_nbytes(&m.dx.t));
    assert_memory_equal(m.dw.t.data, in_place.dw.t.data, (size_t)typed_nbytes(&m.dw.t));
    discard(&m);
    discard(&in_place);
}

/* Squares of distances leave the range of f32: the row is 0 before w and b, and has no slope. */
static void test_cpu_layer_norm__elements_too_far_apart_for_f32_are_normalized_to_0(void **state)
{
    (void)state;
    const norm n = {.rows = 3, .cols = 21, .w = true, .b = true, .dtype = MS_DTYPE_F32};
    buffers m;

    make(&m, &n);
    for (int64_t i = 0; i < m.x.t.n; i++) {
        typed_set(&m.x.t, i, 1e30 * typed_get(&m.x.t, i));
    }
    run_forward(&m, &n);
    run_backward(&m, &n);
    for (int64_t i = 0; i < m.x.t.n; i++) {
        assert_true(typed_get(&m.y.t, i) == typed_get(&m.b.t, i % n.cols));
        assert_true(typed_get(&m.dx.t, i) == 0);
    }
    discard(&m);
}

/* Results and gradients of a run that diverged show it. */
static void test_cpu_layer_norm__elements_too_large_to_add_are_normalized_to_nan(void **state)
{
    (void)state;
    static const int64_t cols[] = {2, 3, 16, 33, 1000};

    for (int32_t k = 0; k < 3 * 5 * 2; k++) {
        const norm n = {.rows = 2, .cols = cols[k % 5], .w = true, .dtype = float_dtypes[k / 10]};
        const double most = n.dtype == MS_DTYPE_F64 ? 1.5e308 : 3e38, sign = k / 5 % 2 ? -1 : 1;
        buffers m;

        make(&m, &n);
        for (int64_t i = 0; i < m.x.t.n; i++) {
            typed_set(&m.x.t, i, i % n.cols == 1 ? sign * most * 0.9 : sign * most);
        }
        run_forward(&m, &n);
        run_backward(&m, &n);
        for (int64_t i = 0; i < m.x.t.n; i++) {
            assert_true(isnan(typed_get(&m.y.t, i)) && isnan(typed_get(&m.dx.t, i)));
            assert_true(isnan(typed_get(&m.dw.t, i % n.cols)));
        }
        discard(&m);
    }
}

/* The rounding of their mean is not taken for what sets them apart. */
static void test_cpu_layer_norm__equal_elements_are_normalized_to_0(void **state)
{
    (void)state;
    static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16};
    static const double values[] = {0, 1000.1, -12345.67, 1e6 + 0.3, 1e8, 1.1e12, -3e38};
    static const int64_t cols[] = {1, 3, 16, 33, 768, 1000};

    for (int32_t k = 0; k < 3 * 7 * 6; k++) {
        const norm n = {.rows = 2, .cols = cols[k % 6], .dtype = dtypes[k / 42]};
        buffers m;

        make(&m, &n);
        for (int64_t i = 0; i < m.x.t.n; i++) {
            typed_set(&m.x.t, i, values[k / 6 % 7]);
        }
        run_forward(&m, &n);
        for (int64_t i = 0; i < m.x.t.n; i++) {
            assert_true(typed_get(&m.y.t, i) == 0);
        }
        discard(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_layer_norm__f32_equals_plain_loops_at_any_length_from_any_start),
        cmocka_unit_test(test_cpu_layer_norm__f64_equals_plain_loops_at_any_length_from_any_start),
        cmocka_unit_test(
            test_cpu_layer_norm__narrow_dtypes_equal_plain_loops_at_any_length_from_any_start),
        cmocka_unit_test(test_cpu_layer_norm__gradients_equal_finite_differences),
        cmocka_unit_test(test_cpu_layer_norm__gradient_may_lie_on_its_input),
        cmocka_unit_test(test_cpu_layer_norm__elements_too_far_apart_for_f32_are_normalized_to_0),
        cmocka_unit_test(test_cpu_layer_norm__elements_too_large_to_add_are_normalized_to_nan),
        cmocka_unit_test(test_cpu_layer_norm__equal_elements_are_normalized_to_0),
    };

    return cmocka_run_group_tests_name("cpu/layer_norm", tests, NULL, NULL);
}
