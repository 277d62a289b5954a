/* kernels/cpu/gemm.c: the own matrix product, against plain loops in f64 and against itself on
 * every instruction set and from every place in a larger product. */
#include "backend.h"
#include "ms_test.h"
#include "typed.h"

typedef struct problem {
    int64_t m, n, k, batch;
    bool a_transposed, b_transposed, bias, accumulate, wide_c;
    int32_t dtype;
    int64_t pad; /* extra elements per row of every matrix */
} problem;

typedef struct operands {
    msi_gemm_args args;
    typed a, b, c, bias;
} operands;

static void make_operands(operands *o, const problem *p)
{
    int64_t a_ld = (p->a_transposed ? p->m : p->k) + p->pad;
    int64_t b_ld = (p->b_transposed ? p->k : p->n) + p->pad, c_ld = p->n + p->pad;
    int64_t a_size = a_ld * (p->a_transposed ? p->k : p->m);
    int64_t b_size = b_ld * (p->b_transposed ? p->n : p->k), c_size = c_ld * p->m;
    int32_t c_dtype = p->wide_c ? MS_DTYPE_F32 : p->dtype;

    o->a = typed_filled(p->dtype, a_size * p->batch, 1);
    o->b = typed_filled(p->dtype, b_size * p->batch, 2);
    o->c = typed_filled(c_dtype, c_size * p->batch, 3);
    o->bias = typed_filled(p->dtype, p->n, 4);
    o->args = (msi_gemm_args){.m = p->m,
                              .n = p->n,
                              .k = p->k,
                              .a = o->a.data,
                              .b = o->b.data,
                              .c = o->c.data,
                              .a_row = p->a_transposed ? 1 : a_ld,
                              .a_col = p->a_transposed ? a_ld : 1,
                              .b_row = p->b_transposed ? 1 : b_ld,
                              .b_col = p->b_transposed ? b_ld : 1,
                              .c_row = c_ld,
                              .batch = p->batch,
                              .a_batch = a_size,
                              .b_batch = b_size,
                              .c_batch = c_size,
                              .dtype = p->dtype,
                              .c_dtype = c_dtype,
                              .bias = p->bias ? o->bias.data : NULL,
                              .accumulate = p->accumulate};
}

static void free_operands(operands *o)
{
    typed_free(&o->a);
    typed_free(&o->b);
    typed_free(&o->c);
    typed_free(&o->bias);
}

/* What C must hold, and how far off it may be; everything outside the matrix stays. */
static void oracle(const operands *o, double *want, double *bound)
{
    const msi_gemm_args *g = &o->args;
    double eps = typed_epsilon(g->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);
    double out_eps = typed_epsilon(g->c_dtype);

    for (int64_t i = 0; i < o->c.n; i++) {
        want[i] = typed_get(&o->c, i);
        bound[i] = 0;
    }
    for (int64_t p = 0; p < g->batch; p++) {
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j++) {
                int64_t at = p * g->c_batch + i * g->c_row + j;
                double sum = 0, size = 0;

                for (int64_t k = 0; k < g->k; k++) {
                    double x = typed_get(&o->a, p * g->a_batch + i * g->a_row + k * g->a_col);
                    double y = typed_get(&o->b, p * g->b_batch + k * g->b_row + j * g->b_col);

                    sum += x * y;
                    size += fabs(x * y);
                }
                if (g->bias != NULL) {
                    sum += typed_get(&o->bias, j);
                    size += fabs(typed_get(&o->bias, j));
                }
                if (g->accumulate) {
                    sum += want[at];
                    size += fabs(want[at]);
                }
                want[at] = sum;
                bound[at] = (double)(g->k + 3) * eps * size + out_eps * fabs(sum);
            }
        }
    }
}

static void check_against_oracle(const problem *p, const operands *o, const double *want,
                                 const double *bound)
{
    for (int64_t i = 0; i < o->c.n; i++) {
        double got = typed_get(&o->c, i);

        if (!(fabs(got - want[i]) <= bound[i])) {
            fail_msg("%lldx%lldx%lld: element %lld is %.17g, expected %.17g +- %g", (long long)p->m,
                     (long long)p->n, (long long)p->k, (long long)i, got, want[i], bound[i]);
        }
    }
}

/* The first build against the oracle, the others bit for bit against the first. */
static void check(const problem *p)
{
    operands first = {0};

    for (int32_t isa = 2; isa <= 4; isa++) {
        const msi_kernel_table *table = msi_kernels_of(isa);
        operands o;

        if (table == NULL) {
            continue;
        }
        make_operands(&o, p);
        if (first.c.data != NULL) {
            table->fn[MSI_K_gemm][p->dtype](&o.args);
            assert_memory_equal(first.c.data, o.c.data, (size_t)typed_nbytes(&o.c));
            free_operands(&o);
            continue;
        }
        double *want = malloc((size_t)o.c.n * sizeof(double) + 8);
        double *bound = malloc((size_t)o.c.n * sizeof(double) + 8);

        oracle(&o, want, bound);
        table->fn[MSI_K_gemm][p->dtype](&o.args);
        check_against_oracle(p, &o, want, bound);
        free(want);
        free(bound);
        first = o;
    }
    free_operands(&first);
}

static const int64_t shapes[][3] = {
    {1, 1, 1},   {1, 7, 3},   {7, 1, 3},      {3, 5, 0},      {8, 8, 8},     {9, 17, 33},
    {4, 3, 130}, {65, 33, 7}, {64, 128, 128}, {70, 129, 131}, {130, 5, 300}, {2, 140, 257},
};

static void run_shapes(int32_t dtype)
{
    for (int32_t s = 0; s < (int32_t)(sizeof(shapes) / sizeof(shapes[0])); s++) {
        for (int32_t variant = 0; variant < 32; variant++) {
            problem p = {.m = shapes[s][0],
                         .n = shapes[s][1],
                         .k = shapes[s][2],
                         .batch = 1 + (variant & 1 ? s % 3 : 0),
                         .a_transposed = variant & 2,
                         .b_transposed = variant & 4,
                         .bias = variant & 8,
                         .accumulate = variant & 16,
                         .wide_c = dtype == MS_DTYPE_BF16 && (variant ^ s) & 1,
                         .dtype = dtype,
                         .pad = variant % 3};

            check(&p);
        }
    }
}

static void test_cpu_gemm__f64_equals_plain_loops_on_every_instruction_set(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_F64);
}

static void test_cpu_gemm__f32_equals_plain_loops_on_every_instruction_set(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_F32);
}

static void test_cpu_gemm__bf16_rounds_once_on_every_instruction_set(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_BF16);
}

/* Row i and column j alone give the bits they give inside the whole. */
static void test_cpu_gemm__an_element_does_not_depend_on_its_neighbours(void **state)
{
    (void)state;
    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16};

    for (int32_t d = 0; d < 3; d++) {
        problem p = {.m = 75, .n = 139, .k = 301, .batch = 1, .dtype = dtypes[d]};
        operands o;

        make_operands(&o, &p);
        int64_t bytes = ms_dtype_size(p.dtype);

        msi_kernels()->fn[MSI_K_gemm][p.dtype](&o.args);
        for (int64_t i = 0; i < p.m; i += 7) {
            for (int64_t j = 0; j < p.n; j += 5) {
                msi_gemm_args one = o.args;
                double c = 0;

                one.m = one.n = 1;
                one.a = (char *)o.a.data + i * o.args.a_row * bytes;
                one.b = (char *)o.b.data + j * bytes;
                one.c = &c;
                msi_kernels()->fn[MSI_K_gemm][p.dtype](&one);
                assert_memory_equal(&c, (char *)o.c.data + (i * o.args.c_row + j) * bytes,
                                    (size_t)bytes);
            }
        }
        free_operands(&o);
    }
}

static void test_cpu_gemm__nan_and_infinity_stay_in_their_row_and_column(void **state)
{
    (void)state;
    problem p = {.m = 9, .n = 21, .k = 5, .batch = 1, .dtype = MS_DTYPE_F32};
    operands o;

    make_operands(&o, &p);
    ((float *)o.a.data)[8 * 5 + 2] = INFINITY; /* the last row, which is repeated as padding */
    ((float *)o.b.data)[3 * 21 + 20] = NAN;    /* the last column, beside zero padding */
    msi_kernels()->fn[MSI_K_gemm][p.dtype](&o.args);
    for (int64_t i = 0; i < 9; i++) {
        for (int64_t j = 0; j < 21; j++) {
            double got = typed_get(&o.c, i * 21 + j);

            assert_int_equal(j == 20, isnan(got) != 0);
            if (j != 20) {
                assert_int_equal(i == 8, isinf(got) != 0);
            }
        }
    }
    free_operands(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_gemm__f64_equals_plain_loops_on_every_instruction_set),
        cmocka_unit_test(test_cpu_gemm__f32_equals_plain_loops_on_every_instruction_set),
        cmocka_unit_test(test_cpu_gemm__bf16_rounds_once_on_every_instruction_set),
        cmocka_unit_test(test_cpu_gemm__an_element_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_cpu_gemm__nan_and_infinity_stay_in_their_row_and_column),
    };

    return cmocka_run_group_tests_name("cpu/gemm", tests, NULL, NULL);
}
