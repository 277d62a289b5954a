/* kernels/cpu/gemm.c: the own matrix product, against plain loops in f64 from any start, and
 * against itself on every instruction set and from every place in a larger product. */
#include "kernel_test.h"

typedef struct problem {
    int64_t m, n, k, batch;
    bool a_transposed, b_transposed, bias, accumulate, wide_c;
    int32_t dtype;
    int64_t pad; /* extra elements per row of every matrix */
    int64_t start;
} problem;

typedef struct operands {
    msi_gemm_args args;
    placed a, b, c, bias;
} operands;

static void make_operands(operands *o, const problem *p)
{
    int64_t a_ld = (p->a_transposed ? p->m : p->k) + p->pad;
    int64_t b_ld = (p->b_transposed ? p->k : p->n) + p->pad, c_ld = p->n + p->pad;
    int64_t a_size = a_ld * (p->a_transposed ? p->k : p->m);
    int64_t b_size = b_ld * (p->b_transposed ? p->n : p->k), c_size = c_ld * p->m;
    int32_t c_dtype = p->wide_c ? MS_DTYPE_F32 : p->dtype;

    o->a = placed_read(p->dtype, a_size * p->batch, p->start, 1);
    o->b = placed_read(p->dtype, b_size * p->batch, p->start, 2);
    o->c = placed_written(c_dtype, c_size * p->batch, p->start, 3);
    o->bias = placed_read(p->dtype, p->n, p->start, 4);
    o->args = (msi_gemm_args){.m = p->m,
                              .n = p->n,
                              .k = p->k,
                              .a = o->a.t.data,
                              .b = o->b.t.data,
                              .c = o->c.t.data,
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
                              .bias = p->bias ? o->bias.t.data : NULL,
                              .accumulate = p->accumulate};
}

static void free_operands(operands *o)
{
    placed_free(&o->a);
    placed_free(&o->b);
    placed_free(&o->c);
    placed_free(&o->bias);
}

static double *doubles_of(const typed *t)
{
    double *x = malloc((size_t)(t->n + 1) * sizeof(double));

    for (int64_t i = 0; i < t->n; i++) {
        x[i] = typed_get(t, i);
    }
    return x;
}

/* Element (i, j) of product p, `*want` before the call and as it must become, and how far off it
 * may be. `a` and `b` are all of A and B. */
static void oracle(const operands *o, const double *a, const double *b, int64_t p, int64_t i,
                   int64_t j, double *want, double *bound)
{
    const msi_gemm_args *g = &o->args;
    double sum = g->accumulate ? *want : 0, size = fabs(sum);

    a += p * g->a_batch + i * g->a_row;
    b += p * g->b_batch + j * g->b_col;
    for (int64_t k = 0; k < g->k; k++) {
        const double term = a[k * g->a_col] * b[k * g->b_row];

        sum += term;
        size += fabs(term);
    }
    if (g->bias != NULL) {
        sum += typed_get(&o->bias.t, j);
        size += fabs(typed_get(&o->bias.t, j));
    }
    *want = sum;
    *bound =
        (double)(g->k + 3) * compute_epsilon(g->dtype) * size + typed_rounding(g->c_dtype, sum);
}

/* All of C, whose elements before the call are in `want`; what lies between its rows stays. */
static void oracle_of_all(const operands *o, double *want, double *bound)
{
    const msi_gemm_args *g = &o->args;
    double *a = doubles_of(&o->a.t), *b = doubles_of(&o->b.t);

    for (int64_t p = 0; p < g->batch; p++) {
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j++) {
                const int64_t at = p * g->c_batch + i * g->c_row + j;

                oracle(o, a, b, p, i, j, want + at, bound + at);
            }
        }
    }
    free(a);
    free(b);
}

static void check(const problem *p)
{
    operands o;

    make_operands(&o, p);
    double *want = doubles_of(&o.c.t), *bound = calloc((size_t)o.c.t.n + 1, sizeof(double));

    name_case("%lldx%lldx%lld from %lld", (long long)p->m, (long long)p->n, (long long)p->k,
              (long long)p->start);
    oracle_of_all(&o, want, bound);
    run_placed(MSI_K_gemm, p->dtype, &o.args, (placed *[]){&o.c}, 1);
    for (int64_t i = 0; i < o.c.t.n; i++) {
        check_element("c", i, typed_get(&o.c.t, i), want[i], bound[i]);
    }
    free(want);
    free(bound);
    free_operands(&o);
}

static const int64_t shapes[][3] = {
    {1, 1, 1},   {1, 7, 3},   {7, 1, 3},      {3, 5, 0},      {8, 8, 8},     {9, 17, 33},
    {4, 3, 130}, {65, 33, 7}, {64, 128, 128}, {70, 129, 131}, {130, 5, 300}, {2, 140, 257},
};

/* All options of a product: 16 variants, and as many with a wide C for narrow dtypes. */
static int32_t n_variants(int32_t dtype)
{
    return ms_dtype_is_narrow(dtype) ? 32 : 16;
}

static problem variant_of(int32_t dtype, int32_t variant)
{
    return (problem){.batch = 1,
                     .a_transposed = variant & 1,
                     .b_transposed = variant & 2,
                     .bias = variant & 4,
                     .accumulate = variant & 8,
                     .wide_c = variant & 16,
                     .dtype = dtype};
}

/* Sizes around the blocks of M, N and K, with all options. */
static void run_shapes(int32_t dtype)
{
    for (int32_t s = 0; s < (int32_t)(sizeof(shapes) / sizeof(shapes[0])); s++) {
        for (int32_t variant = 0; variant < n_variants(dtype); variant++) {
            problem p = variant_of(dtype, variant);

            p.m = shapes[s][0];
            p.n = shapes[s][1];
            p.k = shapes[s][2];
            p.batch = variant % 3 == 1 ? 1 + s % 3 : 1;
            p.pad = variant % 5;
            check(&p);
        }
    }
}

static void test_cpu_gemm__equals_plain_loops_around_its_blocks(void **state)
{
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        run_shapes(float_dtypes[d]);
    }
}

/* Row i and column j alone give the bits they give inside the whole. */
static void test_cpu_gemm__an_element_does_not_depend_on_its_neighbours(void **state)
{
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        problem p = {.m = 75, .n = 139, .k = 301, .batch = 1, .dtype = float_dtypes[d]};
        operands o;

        make_operands(&o, &p);
        int64_t bytes = dtype_bytes(p.dtype);

        msi_kernels()->fn[MSI_K_gemm][p.dtype](&o.args);
        for (int64_t i = 0; i < p.m; i += 7) {
            for (int64_t j = 0; j < p.n; j += 5) {
                msi_gemm_args one = o.args;
                double c = 0;

                one.m = one.n = 1;
                one.a = (char *)o.a.t.data + i * o.args.a_row * bytes;
                one.b = (char *)o.b.t.data + j * bytes;
                one.c = &c;
                msi_kernels()->fn[MSI_K_gemm][p.dtype](&one);
                assert_memory_equal(&c, (char *)o.c.t.data + (i * o.args.c_row + j) * bytes,
                                    (size_t)bytes);
            }
        }
        free_operands(&o);
    }
}

static void test_cpu_gemm__nan_and_infinity_stay_in_their_row_and_column(void **state)
{
    problem p = {.m = 9, .n = 21, .k = 5, .batch = 1, .dtype = MS_DTYPE_F32};
    operands o;

    make_operands(&o, &p);
    ((float *)o.a.t.data)[8 * 5 + 2] = INFINITY; /* the last row, which is repeated as padding */
    ((float *)o.b.t.data)[3 * 21 + 20] = NAN;    /* the last column, beside zero padding */
    msi_kernels()->fn[MSI_K_gemm][p.dtype](&o.args);
    for (int64_t i = 0; i < 9; i++) {
        for (int64_t j = 0; j < 21; j++) {
            double got = typed_get(&o.c.t, i * 21 + j);

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
        cmocka_unit_test(test_cpu_gemm__equals_plain_loops_around_its_blocks),
        cmocka_unit_test(test_cpu_gemm__an_element_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_cpu_gemm__nan_and_infinity_stay_in_their_row_and_column),
    };

    return cmocka_run_group_tests_name("cpu/gemm", tests, NULL, NULL);
}
