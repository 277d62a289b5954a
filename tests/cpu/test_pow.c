/* kernels/cpu/pow.c: powers and their gradients against long double, and the values at the edges.
 */
#include "kernel_test.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* Roundings of the compute type that may separate x^p from the truth. */
static double roundings(int32_t dtype, double p)
{
    const double size = fabs(p);

    if (size <= 32 && size == floor(size)) {
        return 2 * size;
    }
    if (size == 0.5) {
        return 2;
    }
    return dtype == MS_DTYPE_F64 ? 2 : 1;
}

/* Positive values, and all signs where p is an integer. */
static typed bases(int32_t dtype, int64_t n, double p)
{
    typed x = typed_filled(dtype, n, 40);

    for (int64_t i = 0; i < n; i++) {
        const double value = typed_get(&x, i);

        typed_set(&x, i, p == floor(p) ? 1.5 * value + (value < 0 ? -0.25 : 0.25) : value + 1.25);
    }
    return x;
}

typedef struct grid {
    int32_t dtype;
    int64_t n, start; /* elements; where they begin in their blocks */
    double p;
    bool gradient, accumulate;
    int64_t stride; /* of the base: 0 repeats one element */
} grid;

static long double expected_of(const grid *c, double g, double x, double *tolerance)
{
    const double q = c->gradient ? c->p - 1 : c->p;
    long double value = powl(x, q);

    if (c->gradient) {
        value = c->p == 0 ? 0 : g * c->p * value;
    }
    *tolerance = (roundings(c->dtype, q) + 2 * c->gradient) * compute_epsilon(c->dtype) *
                 (double)fabsl(value) * 1.01; /* the bounds are of first order */
    return value;
}

static void check_grid(const grid *c)
{
    typed x = bases(c->dtype, c->start + c->n, c->p), g = typed_filled(c->dtype, x.n, 41);
    typed out = typed_filled(c->dtype, x.n, 42), old = typed_copy(&out);
    const int64_t offset = c->start * dtype_bytes(c->dtype);
    msi_ew_args args = {
        .out = (char *)out.data + offset,
        .accumulate = c->accumulate,
        .scalar = {c->p, 0},
        .loop = {.ndim = 1, .shape = {c->n}, .stride = {{1}, {1}, {1}}},
    };
    const int32_t base = c->gradient ? 1 : 0;

    args.in[0] = (char *)g.data + offset;
    args.in[base] = (char *)x.data + offset;
    args.loop.stride[base + 1][0] = c->stride;
    run_on_all_isas(&(kernel_call){c->gradient ? MSI_K_pow_grad : MSI_K_pow,
                                   c->dtype,
                                   &args,
                                   {out.data},
                                   {typed_nbytes(&out)}},
                    "pow");
    for (int64_t i = 0; i < out.n; i++) {
        double tolerance;

        if (i < c->start) {
            assert_true(typed_get(&out, i) == typed_get(&old, i));
            continue;
        }
        const double at = typed_get(&x, c->start + (i - c->start) * c->stride);
        long double want = expected_of(c, typed_get(&g, i), at, &tolerance);

        if (c->accumulate) {
            want += typed_get(&old, i);
            tolerance += compute_epsilon(c->dtype) * (double)fabsl(want);
        }
        want = (long double)typed_held(c->dtype, (double)want);
        check_element(c->gradient ? "pow_grad" : "pow", i, typed_get(&out, i), (double)want,
                      tolerance + typed_rounding(c->dtype, (double)want));
    }
    typed_free(&x);
    typed_free(&g);
    typed_free(&out);
    typed_free(&old);
}

static const double exponents[] = {0,    1,  2,   3,   5,   16,   31,   32,   -1,
                                   -2,   -7, -16, -32, 0.5, -0.5, 1.5,  -1.5, 0.1,
                                   -2.7, 33, 34,  -33, 7.5, 1e-3, 10.25};

static void test_cpu_pow__is_right_for_lengths_0_to_130(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t k = 0; k < COUNT(exponents); k++) {
        for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
            for (int64_t n = 0; n <= 130; n++) {
                check_grid(&(grid){float_dtypes[d], n, (n * 29) % 64, exponents[k], n & 1,
                                   n % 3 == 1, n % 5 != 4});
            }
        }
    }
}

static void test_cpu_pow__is_right_from_starts_0_to_63(void **state)
{
    (void)state;
    for (int32_t k = 0; k < COUNT(exponents); k++) {
        for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
            for (int64_t start = 0; start < 64; start++) {
                check_grid(&(grid){float_dtypes[d], 37, start, exponents[k], start % 3 == 0,
                                   start & 1, 1});
            }
        }
    }
}

/* -- accuracy ---------------------------------------------------------------------------------- */

/* Over bit patterns of positive f32 spread from denormals to the largest. */
static void check_general(double p)
{
    enum { N = 4096 };
    static float x[N], y[N];
    msi_ew_args args = {.out = y,
                        .in = {x},
                        .scalar = {p, 0},
                        .loop = {.ndim = 1, .shape = {N}, .stride = {{1}, {1}}}};

    for (uint32_t first = 0; first < 0x7f800000u - 7919u * N; first += 7919u * N) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t bits = first + 7919u * i;

            memcpy(&x[i], &bits, sizeof(bits));
        }
        run_on_all_isas(&(kernel_call){MSI_K_pow, MS_DTYPE_F32, &args, {y}, {sizeof(y)}}, "p");
        for (int i = 0; i < N; i++) {
            const double want = pow(x[i], p);
            const double bound = 1.01 * (0x1p-24 * want + 0x1p-150); /* half a unit, and little */

            if (fabs(want - 0x1.ffffffp127) <= bound) { /* where infinity begins */
                assert_true(y[i] >= 0x1.fffffep127f);
            } else if (want > 0x1.ffffffp127 ? y[i] != INFINITY : fabs(y[i] - want) > bound) {
                fail_msg("%a^%g = %a, expected %a within %g", x[i], p, y[i], want, bound);
            }
        }
    }
}

static void test_cpu_pow__rounds_once_over_all_of_f32(void **state)
{
    const double p[] = {1.0 / 3, -1.0 / 3, 1.5, 2.7, -0.9, 12.3, 1e-4};

    (void)state;
    for (int32_t k = 0; k < COUNT(p); k++) {
        check_general(p[k]);
    }
}

/* -- edges ------------------------------------------------------------------------------------- */

static double one(int32_t kernel, int32_t dtype, double g, double x, double p)
{
    return on_one_element(kernel, dtype, kernel == MSI_K_pow ? x : g, x, p);
}

/* Where nothing is rounded, C's pow() is the truth, sign and all. */
static void test_cpu_pow__follows_c_at_the_edges(void **state)
{
    const double x[] = {0, -0.0, 1, -1, 2, -2, 0.5, -0.5, INFINITY, -INFINITY, NAN};
    const double p[] = {0,   1,  2,   3,    -1,    -2,     -3,     32,      -32,    33,
                        -33, 34, 1.5, -1.5, 1e300, -1e300, 1e-300, -1e-300, 0x1p60, 4097};

    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int32_t i = 0; i < COUNT(x); i++) {
            for (int32_t k = 0; k < COUNT(p); k++) {
                const double want = pow(x[i], p[k]);
                const double got = one(MSI_K_pow, float_dtypes[d], 0, x[i], p[k]);
                const bool exact = isnan(want) || isinf(want) || want == 0 || fabs(want) == 1;

                if (exact && (isnan(want) ? !isnan(got) : got != want)) {
                    fail_msg("%g^%g = %g, expected %g (%s)", x[i], p[k], got, want,
                             ms_dtype_name(float_dtypes[d]));
                }
                if (!isnan(want)) {
                    assert_int_equal(signbit(got) != 0, signbit(want) != 0);
                }
            }
        }
    }
}

static void test_cpu_pow__takes_square_roots(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        assert_true(one(MSI_K_pow, float_dtypes[d], 0, 9, 0.5) == 3);
        assert_true(one(MSI_K_pow, float_dtypes[d], 0, 4, -0.5) == 0.5);
        assert_true(one(MSI_K_pow, float_dtypes[d], 0, 0, 0.5) == 0);
        assert_true(one(MSI_K_pow, float_dtypes[d], 0, 0, -0.5) == INFINITY);
        assert_true(isnan(one(MSI_K_pow, float_dtypes[d], 0, -1, 0.5)));
    }
}

static void test_cpu_pow__has_the_right_slope_at_zero(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        const int32_t t = float_dtypes[d];

        assert_true(one(MSI_K_pow_grad, t, 3, 0, 0) == 0);
        assert_true(one(MSI_K_pow_grad, t, INFINITY, NAN, 0) == 0);
        assert_true(one(MSI_K_pow_grad, t, 3, 0, 1) == 3);
        assert_true(one(MSI_K_pow_grad, t, 3, 0, 2) == 0);
        assert_true(one(MSI_K_pow_grad, t, 3, -2, 2) == -12);
        assert_true(one(MSI_K_pow_grad, t, 3, 0, 1.5) == 0);
        assert_true(one(MSI_K_pow_grad, t, 3, 0, 0.5) == INFINITY);
        assert_true(one(MSI_K_pow_grad, t, 3, 4, 0.5) == 0.75);
        assert_true(one(MSI_K_pow_grad, t, 3, 2, -1) == -0.75);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_pow__is_right_for_lengths_0_to_130),
        cmocka_unit_test(test_cpu_pow__is_right_from_starts_0_to_63),
        cmocka_unit_test(test_cpu_pow__rounds_once_over_all_of_f32),
        cmocka_unit_test(test_cpu_pow__follows_c_at_the_edges),
        cmocka_unit_test(test_cpu_pow__takes_square_roots),
        cmocka_unit_test(test_cpu_pow__has_the_right_slope_at_zero),
    };

    return cmocka_run_group_tests_name("cpu/pow", tests, NULL, NULL);
}
