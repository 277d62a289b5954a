/* kernels/cpu/layer_norm.c: against plain loops in f64, the gradient against finite differences,
 * the same bits from every instruction set and address. */
#include "backend.h"
#include "ms_test.h"
#include "typed.h"

typedef struct norm {
    int64_t rows, cols;
    bool w, b, accumulate, wide; /* wide: dw and db in f32 for bf16 */
    int32_t dtype;
} norm;

typedef struct buffers {
    typed x, w, b, y, mean, rstd, dy, dx, dw, db;
} buffers;

static void make(buffers *m, const norm *n)
{
    int32_t stat = n->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
    int32_t dw = n->wide ? stat : n->dtype;

    m->x = typed_filled(n->dtype, n->rows * n->cols, 1);
    m->w = typed_filled(n->dtype, n->cols, 2);
    m->b = typed_filled(n->dtype, n->cols, 3);
    m->y = typed_filled(n->dtype, n->rows * n->cols, 4);
    m->mean = typed_filled(stat, n->rows, 5);
    m->rstd = typed_filled(stat, n->rows, 6);
    m->dy = typed_filled(n->dtype, n->rows * n->cols, 7);
    m->dx = typed_filled(n->dtype, n->rows * n->cols, 8);
    m->dw = typed_filled(dw, n->cols, 9);
    m->db = typed_filled(dw, n->cols, 10);
}

static void discard(buffers *m)
{
    typed *const all[] = {&m->x,    &m->w,  &m->b,  &m->y,  &m->mean,
                          &m->rstd, &m->dy, &m->dx, &m->dw, &m->db};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        typed_free(all[i]);
    }
}

static void run_forward(buffers *m, const norm *n, const msi_kernel_table *table)
{
    msi_layer_norm_args args = {.rows = n->rows,
                                .cols = n->cols,
                                .x = m->x.data,
                                .w = n->w ? m->w.data : NULL,
                                .b = n->b ? m->b.data : NULL,
                                .y = m->y.data,
                                .mean = m->mean.data,
                                .rstd = m->rstd.data,
                                .eps = 1e-5};

    table->fn[MSI_K_layer_norm][n->dtype](&args);
}

static void run_backward(buffers *m, const norm *n, const msi_kernel_table *table)
{
    msi_layer_norm_grad_args args = {.rows = n->rows,
                                     .cols = n->cols,
                                     .dy = m->dy.data,
                                     .x = m->x.data,
                                     .w = n->w ? m->w.data : NULL,
                                     .mean = m->mean.data,
                                     .rstd = m->rstd.data,
                                     .dx = m->dx.data,
                                     .dw = n->w ? m->dw.data : NULL,
                                     .db = n->b ? m->db.data : NULL,
                                     .dw_dtype = m->dw.dtype,
                                     .dx_accumulate = n->accumulate,
                                     .dw_accumulate = n->accumulate,
                                     .db_accumulate = n->accumulate};

    table->fn[MSI_K_layer_norm_grad][n->dtype](&args);
}

static void expect(double got, double want, double bound, const char *what, int64_t i)
{
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s %lld is %.17g, expected %.17g +- %g", what, (long long)i, got, want, bound);
    }
}

/* Mean and 1/deviation of a row, in f64. */
static void statistics(const buffers *m, const norm *n, int64_t i, double *mean, double *rstd)
{
    double sum = 0, squares = 0;

    for (int64_t j = 0; j < n->cols; j++) {
        sum += typed_get(&m->x, i * n->cols + j);
    }
    *mean = sum / (double)n->cols;
    for (int64_t j = 0; j < n->cols; j++) {
        double d = typed_get(&m->x, i * n->cols + j) - *mean;

        squares += d * d;
    }
    *rstd = 1 / sqrt(squares / (double)n->cols + 1e-5);
}

static void check(const norm *n)
{
    buffers m, before;
    double inner = 64 * typed_epsilon(n->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);
    double outer = typed_epsilon(n->dtype);

    make(&m, n);
    make(&before, n);
    run_forward(&m, n, msi_kernels());
    run_backward(&m, n, msi_kernels());
    double *dw = calloc((size_t)(4 * n->cols + 1), sizeof(double)), *db = dw + n->cols;
    double *dw_size = db + n->cols, *db_size = dw_size + n->cols;

    for (int64_t i = 0; i < n->rows; i++) {
        double mean, rstd, mean_g = 0, mean_gx = 0;

        statistics(&m, n, i, &mean, &rstd);
        expect(typed_get(&m.mean, i), mean, inner, "mean", i);
        expect(typed_get(&m.rstd, i), rstd, inner * rstd * (1 + rstd * rstd), "rstd", i);
        /* what follows starts from the kernel's own statistics, as they are saved for backward */
        mean = typed_get(&m.mean, i);
        rstd = typed_get(&m.rstd, i);
        for (int64_t j = 0; j < n->cols; j++) {
            double xhat = (typed_get(&m.x, i * n->cols + j) - mean) * rstd;
            double w = n->w ? typed_get(&m.w, j) : 1, b = n->b ? typed_get(&m.b, j) : 0;
            double dy = typed_get(&m.dy, i * n->cols + j);

            expect(typed_get(&m.y, i * n->cols + j), xhat * w + b,
                   (inner + outer) * (fabs(xhat * w) + fabs(b)), "y", i * n->cols + j);
            mean_g += dy * w / (double)n->cols;
            mean_gx += dy * w * xhat / (double)n->cols;
            dw[j] += dy * xhat;
            dw_size[j] += fabs(dy * xhat);
            db[j] += dy;
            db_size[j] += fabs(dy);
        }
        for (int64_t j = 0; j < n->cols; j++) {
            double xhat = (typed_get(&m.x, i * n->cols + j) - mean) * rstd;
            double w = n->w ? typed_get(&m.w, j) : 1, dy = typed_get(&m.dy, i * n->cols + j);
            double dx = rstd * (dy * w - mean_g - xhat * mean_gx);
            double old = n->accumulate ? typed_get(&before.dx, i * n->cols + j) : 0;

            expect(typed_get(&m.dx, i * n->cols + j), dx + old,
                   inner * rstd * (3 + fabs(xhat)) + outer * fabs(dx + old) + inner * fabs(old),
                   "dx", i * n->cols + j);
        }
    }
    outer = typed_epsilon(m.dw.dtype);
    for (int64_t j = 0; j < n->cols; j++) {
        double old_w = n->accumulate ? typed_get(&before.dw, j) : 0;
        double old_b = n->accumulate ? typed_get(&before.db, j) : 0;

        if (n->w) {
            expect(typed_get(&m.dw, j), dw[j] + old_w,
                   inner * (dw_size[j] + fabs(old_w)) + outer * fabs(dw[j] + old_w), "dw", j);
        }
        if (n->b) {
            expect(typed_get(&m.db, j), db[j] + old_b,
                   inner * (db_size[j] + fabs(old_b)) + outer * fabs(db[j] + old_b), "db", j);
        }
    }
    free(dw);
    discard(&m);
    discard(&before);
}

static void run_all(int32_t dtype)
{
    static const int64_t rows[] = {1, 2, 31, 32, 33, 70, 0};

    for (int64_t cols = 1; cols <= 130; cols += cols < 35 || cols > 125 ? 1 : 9) {
        for (int32_t v = 0; v < 16; v++) {
            norm n = {.rows = rows[(cols + v) % 7],
                      .cols = cols,
                      .w = v & 1,
                      .b = v & 2,
                      .accumulate = v & 4,
                      .wide = v & 8,
                      .dtype = dtype};

            check(&n);
        }
    }
    const norm large = {.rows = 40, .cols = 1027, .w = true, .b = true, .dtype = dtype};

    check(&large);
}

static void test_cpu_layer_norm__f32_equals_plain_loops(void **state)
{
    (void)state;
    run_all(MS_DTYPE_F32);
}

static void test_cpu_layer_norm__f64_equals_plain_loops(void **state)
{
    (void)state;
    run_all(MS_DTYPE_F64);
}

static void test_cpu_layer_norm__bf16_equals_plain_loops(void **state)
{
    (void)state;
    run_all(MS_DTYPE_BF16);
}

static double objective(buffers *m, const norm *n)
{
    double sum = 0;

    run_forward(m, n, msi_kernels());
    for (int64_t i = 0; i < m->y.n; i++) {
        sum += typed_get(&m->y, i) * typed_get(&m->dy, i);
    }
    return sum;
}

static void test_cpu_layer_norm__gradients_equal_finite_differences(void **state)
{
    (void)state;
    const norm n = {.rows = 35, .cols = 21, .w = true, .b = true, .dtype = MS_DTYPE_F64};
    buffers m;

    make(&m, &n);
    run_forward(&m, &n, msi_kernels());
    run_backward(&m, &n, msi_kernels());
    typed *const in[] = {&m.x, &m.w, &m.b};
    const typed *const grad[] = {&m.dx, &m.dw, &m.db};

    for (int32_t k = 0; k < 3; k++) {
        for (int64_t i = 0; i < in[k]->n; i += k == 0 ? 17 : 1) {
            double x = typed_get(in[k], i), step = 1e-5;

            typed_set(in[k], i, x + step);
            double plus = objective(&m, &n);

            typed_set(in[k], i, x - step);
            double minus = objective(&m, &n);

            typed_set(in[k], i, x);
            expect(typed_get(grad[k], i), (plus - minus) / (2 * step), 1e-7, "gradient", i);
        }
    }
    discard(&m);
}

static void test_cpu_layer_norm__bits_are_equal_on_every_instruction_set(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        for (int64_t cols = 1; cols <= 300; cols += 13) {
            const norm n = {.rows = 37,
                            .cols = cols,
                            .w = true,
                            .b = true,
                            .accumulate = cols % 2,
                            .wide = cols % 3,
                            .dtype = dtype};
            buffers first = {0};

            for (int32_t isa = 2; isa <= 4; isa++) {
                const msi_kernel_table *table = msi_kernels_of(isa);
                buffers m;

                if (table == NULL) {
                    continue;
                }
                make(&m, &n);
                run_forward(&m, &n, table);
                run_backward(&m, &n, table);
                if (first.x.data == NULL) {
                    first = m;
                    continue;
                }
                assert_memory_equal(first.y.data, m.y.data, (size_t)typed_nbytes(&m.y));
                assert_memory_equal(first.dx.data, m.dx.data, (size_t)typed_nbytes(&m.dx));
                assert_memory_equal(first.dw.data, m.dw.data, (size_t)typed_nbytes(&m.dw));
                assert_memory_equal(first.db.data, m.db.data, (size_t)typed_nbytes(&m.db));
                discard(&m);
            }
            discard(&first);
        }
    }
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
    run_forward(&m, &n, msi_kernels());
    run_backward(&m, &n, msi_kernels());
    run_forward(&in_place, &n, msi_kernels());
    free(in_place.dx.data);
    in_place.dx = in_place.dy;
    run_backward(&in_place, &n, msi_kernels());
    assert_memory_equal(m.dx.data, in_place.dx.data, (size_t)typed_nbytes(&m.dx));
    assert_memory_equal(m.dw.data, in_place.dw.data, (size_t)typed_nbytes(&m.dw));
    in_place.dx.data = NULL;
    discard(&m);
    discard(&in_place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_layer_norm__f32_equals_plain_loops),
        cmocka_unit_test(test_cpu_layer_norm__f64_equals_plain_loops),
        cmocka_unit_test(test_cpu_layer_norm__bf16_equals_plain_loops),
        cmocka_unit_test(test_cpu_layer_norm__gradients_equal_finite_differences),
        cmocka_unit_test(test_cpu_layer_norm__bits_are_equal_on_every_instruction_set),
        cmocka_unit_test(test_cpu_layer_norm__gradient_may_lie_on_its_input),
    };

    return cmocka_run_group_tests_name("cpu/layer_norm", tests, NULL, NULL);
}
