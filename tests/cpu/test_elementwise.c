/* kernels/cpu/{ew,arithmetic,activations}.c: every elementwise kernel against long double, from any
 * start, with any strides. */
#include "kernel_test.h"
#include "unary_oracle.h"

typedef long double real;

typedef struct op {
    int32_t kernel;
    int32_t n_in;
    bool positive; /* the domain: in[last] in (1/4, 9/4) */
    real (*value)(const real *in, const real *s);
    real (*size)(const real *in, const real *s); /* of what cancels; NULL: |value| */
} op;

#define A in[0]
#define B in[1]
#define C in[2]
#define FN(name, EXPR)                                                                             \
    static real name(const real *in, const real *s)                                                \
    {                                                                                              \
        return (void)in, (void)s, (EXPR);                                                          \
    }

static const real pi = 3.14159265358979323846264338327950288L;

static real normal_below(real x)
{
    return 0.5L * erfcl(-x * sqrtl(0.5L));
}

static real gelu_u(real x)
{
    return sqrtl(2 / pi) * (x + 0.044715L * x * x * x);
}

static real gelu_tanh_slope(real x)
{
    real t = tanhl(gelu_u(x));

    return 0.5L * (1 + t) + 0.5L * x * (1 - t * t) * sqrtl(2 / pi) * (1 + 3 * 0.044715L * x * x);
}

FN(add, A + B)
FN(sub, A - B)
FN(both, fabsl(A) + fabsl(B))
FN(mul, A *B)
FN(divide, A / B)
FN(maximum, A > B ? A : B)
FN(minimum, A < B ? A : B)
FN(clamp, fminl(fmaxl(A, s[0]), s[1]))
FN(maximum_grad, B > C ? A : B == C ? A / 2 : 0)
FN(minimum_grad, B < C ? A : B == C ? A / 2 : 0)
FN(affine, s[0] * A + s[1])
FN(affine_size, fabsl(s[0] * A) + fabsl(s[1]))
FN(reciprocal, s[0] / A)
FN(gelu, A *normal_below(A))
FN(first, fabsl(A))
FN(softplus, s[0] * A > s[1] ? A : log1pl(expl(s[0] * A)) / s[0])
FN(softplus_size, (1 + fabsl(s[0] * A)) * fabsl(softplus(in, s)))
FN(softplus_grad, A *(s[0] * B > s[1] ? 1 : 1 / (1 + expl(-s[0] * B))))
FN(softplus_grad_size, (1 + fabsl(s[0] * B)) * fabsl(softplus_grad(in, s)))
FN(gelu_tanh, 0.5L * A * (1 + tanhl(gelu_u(A))))
FN(mul_neg, -A *B *C)
FN(div_neg, -A *B / C)
FN(gelu_grad, A *(normal_below(B) + B * expl(-B * B / 2) / sqrtl(2 * pi)))
FN(gelu_tanh_grad, A *gelu_tanh_slope(B))
FN(mse, (A - B) * (A - B))
FN(mse_size, (fabsl(A) + fabsl(B)) * (fabsl(A) + fabsl(B)))
FN(scaled, 3 * A)
FN(mse_grad, 3 * s[0] * (A - B))
FN(mse_grad_size, fabsl(3 * s[0]) * (fabsl(A) + fabsl(B)))

/* The functions of unary.h, and the gradients that are kernels of their own. Sizes are eighths of
 * the errors that are allowed. */
#define FUNCTION(X, f, gradient, saved)                                                            \
    FN(f##_of, unary_value_##f(A))                                                                 \
    FN(f##_size, unary_error_##f(A, unary_value_##f(A)) / 8)
MSI_UNARY(FUNCTION, )
#define SLOPE(X, f, gradient, saved)                                                               \
    FN(f##_slope, A *unary_slope_##f(B))                                                           \
    FN(f##_slope_size, fabsl(A) * unary_slope_error_##f(B))
MSI_UNARY_BY_ITSELF(SLOPE, )

#define FUNCTION_ROW(X, f, gradient, saved) {MSI_K_##f, 1, unary_positive_##f, f##_of, f##_size},
#define SLOPE_ROW(X, f, gradient, saved)                                                           \
    {MSI_K_##gradient, 2, unary_positive_##f, f##_slope, f##_slope_size},

static const op ops[] = {
    MSI_UNARY(FUNCTION_ROW, )        /* all of them */
    MSI_UNARY_BY_ITSELF(SLOPE_ROW, ) /* with own gradients */
    {MSI_K_add, 2, false, add, both},
    {MSI_K_sub, 2, false, sub, both},
    {MSI_K_mul, 2, false, mul, NULL},
    {MSI_K_div, 2, true, divide, NULL},
    {MSI_K_affine, 1, false, affine, affine_size},
    {MSI_K_maximum, 2, false, maximum, NULL},
    {MSI_K_minimum, 2, false, minimum, NULL},
    {MSI_K_clamp, 1, false, clamp, NULL}, /* of exchanged bounds */
    {MSI_K_maximum_grad, 3, false, maximum_grad, NULL},
    {MSI_K_minimum_grad, 3, false, minimum_grad, NULL},
    {MSI_K_scale, 1, false, scaled, NULL},
    {MSI_K_reciprocal, 1, true, reciprocal, NULL},
    {MSI_K_gelu, 1, false, gelu, first},
    {MSI_K_gelu_tanh, 1, false, gelu_tanh, first},
    {MSI_K_softplus, 1, false, softplus, softplus_size},
    {MSI_K_softplus_grad, 2, false, softplus_grad, softplus_grad_size},
    {MSI_K_mul_neg, 3, false, mul_neg, NULL},
    {MSI_K_div_neg, 3, false, div_neg, NULL},
    {MSI_K_gelu_grad, 2, false, gelu_grad, first},
    {MSI_K_gelu_tanh_grad, 2, false, gelu_tanh_grad, first},
    {MSI_K_mse, 2, false, mse, mse_size},
    {MSI_K_mse_grad, 2, false, mse_grad, mse_grad_size},
};

static const op *op_of(int32_t kernel)
{
    const op *o = ops;

    while (o->kernel != kernel) {
        o++;
    }
    return o;
}

static typed filled(const op *o, int32_t dtype, int64_t n, int32_t operand)
{
    typed t = typed_filled(dtype, n, (uint64_t)(7 + operand));
    bool positive = o->positive && operand == o->n_in - 1;

    for (int64_t i = 0; i < n; i++) {
        double x = typed_get(&t, i);

        typed_set(&t, i, positive ? x + 1.25 : 4 * x); /* tanh and erf beyond their small range */
    }
    return t;
}
/* in[1] of scale, in[2] of mse_grad */
static const double three = 3;
static const float single_three = 3;

static const void *three_in(int32_t dtype)
{
    return dtype == MS_DTYPE_F64 ? (const void *)&three : &single_three;
}

/* Narrow numbers are squared in f32. */
static bool has_kernel(const op *o, int32_t dtype)
{
    return o->kernel != MSI_K_mse || !ms_dtype_is_narrow(dtype);
}

/* `n` elements that begin `start` elements into their blocks, against the oracle. */
static void check_dense(const op *o, int32_t dtype, int64_t n, int64_t start, bool accumulate)
{
    const double scalar[2] = {1.75, -0.375};
    const real s[2] = {1.75L, -0.375L};
    typed in[3], out = typed_filled(dtype, start + n, 30), old;
    msi_ew_args args = {.in_dtype = dtype,
                        .accumulate = accumulate,
                        .scalar = {scalar[0], scalar[1]},
                        .in = {[1] = &three, [2] = three_in(dtype)},
                        .loop = {.ndim = 1, .shape = {n}}};

    for (int32_t k = 0; k < o->n_in; k++) {
        in[k] = filled(o, dtype, start + n, k);
        args.in[k] = (char *)in[k].data + start * dtype_bytes(dtype);
        args.loop.stride[k + 1][0] = 1;
    }
    args.loop.stride[0][0] = 1;
    args.out = (char *)out.data + start * dtype_bytes(dtype);
    old = typed_copy(&out);
    run_on_all_isas(&(kernel_call){o->kernel, dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "dense");
    for (int64_t i = 0; i < start + n; i++) {
        real x[3] = {0}, want, size;

        if (i < start) {
            assert_true(typed_get(&out, i) == typed_get(&old, i));
            continue;
        }
        for (int32_t k = 0; k < o->n_in; k++) {
            x[k] = typed_get(&in[k], i);
        }
        want = o->value(x, s);
        size = o->size != NULL ? o->size(x, s) : fabsl(want);
        if (accumulate) {
            want += typed_get(&old, i);
            size += fabs(typed_get(&old, i));
        }
        check_element(
            msi_kernel_name(o->kernel), i, typed_get(&out, i), (double)want,
            (double)(8 * compute_epsilon(dtype) * size + typed_rounding(dtype, (double)(want))));
    }
    for (int32_t k = 0; k < o->n_in; k++) {
        typed_free(&in[k]);
    }
    typed_free(&out);
    typed_free(&old);
}

static void test_cpu_elementwise__every_op_is_right_for_lengths_0_to_130(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t o = 0; o < (int32_t)(sizeof(ops) / sizeof(ops[0])); o++) {
        for (int32_t d = 0; d < 3 && has_kernel(&ops[o], float_dtypes[d]); d++) {
            for (int64_t n = 0; n <= 130; n++) {
                check_dense(&ops[o], float_dtypes[d], n, (n * 29) % 64, n % 3 == 1);
            }
        }
    }
}

static void test_cpu_elementwise__every_op_is_right_from_starts_0_to_63(void **state)
{
    (void)state;
    for (int32_t o = 0; o < (int32_t)(sizeof(ops) / sizeof(ops[0])); o++) {
        for (int32_t d = 0; d < 3 && has_kernel(&ops[o], float_dtypes[d]); d++) {
            for (int64_t start = 0; start < 64; start++) {
                check_dense(&ops[o], float_dtypes[d], 37, start, start & 1);
            }
        }
    }
}

/* -- strides ----------------------------------------------------------------------------------- */

static int64_t pick(uint64_t *seed, int64_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*seed >> 33) % (uint64_t)n);
}

/* Give operand k strides over a permuted, padded layout; some dimensions broadcast in sources.
 * @return elements the layout spans */
static int64_t lay_out(msi_loop *loop, int32_t k, uint64_t *seed)
{
    int32_t order[MSI_LOOP_DIMS];
    int64_t span = 1;

    for (int32_t d = 0; d < loop->ndim; d++) {
        int32_t at = (int32_t)pick(seed, d + 1);

        order[d] = order[at];
        order[at] = d;
    }
    for (int32_t i = 0; i < loop->ndim; i++) {
        int32_t d = order[i];

        if (k > 0 && pick(seed, 4) == 0) {
            loop->stride[k][d] = 0;
            continue;
        }
        loop->stride[k][d] = span;
        span = span * loop->shape[d] + pick(seed, 3);
    }
    return span + 1;
}

static int64_t offset_of(const msi_loop *loop, int32_t k, int64_t flat)
{
    int64_t at = 0;

    for (int32_t d = loop->ndim - 1; d >= 0; d--) {
        at += flat % loop->shape[d] * loop->stride[k][d];
        flat /= loop->shape[d];
    }
    return at;
}

static void check_strided(const op *o, int32_t dtype, uint64_t seed)
{
    const real s[2] = {1.75L, -0.375L};
    msi_ew_args args = {
        .in_dtype = dtype, .scalar = {1.75, -0.375}, .in = {[1] = &three, [2] = three_in(dtype)}};
    typed in[3], out, want;
    int64_t n = 1;

    args.accumulate = pick(&seed, 2);
    args.loop.ndim = (int32_t)pick(&seed, 5);
    for (int32_t d = 0; d < args.loop.ndim; d++) {
        args.loop.shape[d] = pick(&seed, 6) == 0 ? 1 + pick(&seed, 300) : 1 + pick(&seed, 5);
        n *= args.loop.shape[d];
    }
    out = typed_filled(dtype, lay_out(&args.loop, 0, &seed), 31);
    args.out = out.data;
    for (int32_t k = 0; k < o->n_in; k++) {
        in[k] = filled(o, dtype, lay_out(&args.loop, k + 1, &seed), k);
        args.in[k] = in[k].data;
    }
    typed old = typed_copy(&out);

    run_on_all_isas(&(kernel_call){o->kernel, dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "strided");
    want = typed_copy(&old);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = offset_of(&args.loop, 0, i);
        real x[3] = {0}, y, size;

        for (int32_t k = 0; k < o->n_in; k++) {
            x[k] = typed_get(&in[k], offset_of(&args.loop, k + 1, i));
        }
        y = o->value(x, s);
        size = o->size != NULL ? o->size(x, s) : fabsl(y);
        if (args.accumulate) {
            y += typed_get(&old, at);
            size += fabs(typed_get(&old, at));
        }
        check_element(
            msi_kernel_name(o->kernel), at, typed_get(&out, at), (double)y,
            (double)(8 * compute_epsilon(dtype) * size + typed_rounding(dtype, (double)(y))));
        typed_set(&want, at, typed_get(&out, at));
    }
    assert_memory_equal(want.data, out.data, (size_t)typed_nbytes(&out)); /* gaps stay */
    for (int32_t k = 0; k < o->n_in; k++) {
        typed_free(&in[k]);
    }
    typed_free(&out);
    typed_free(&old);
    typed_free(&want);
}

static void test_cpu_elementwise__strides_and_broadcasts_reach_the_right_elements(void **state)
{
    (void)state;
    const op *const chosen[] = {op_of(MSI_K_affine), op_of(MSI_K_scale), op_of(MSI_K_add),
                                op_of(MSI_K_mse_grad), op_of(MSI_K_mul_neg)};

    for (uint64_t seed = 0; seed < 400; seed++) {
        for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
            check_strided(chosen[seed % 3], float_dtypes[d], seed * 977 + (uint64_t)d);
        }
    }
}

static void test_cpu_elementwise__works_in_place(void **state)
{
    (void)state;
    float x[45];
    msi_ew_args args = {
        .out = x, .in = {x, x}, .loop = {.ndim = 1, .shape = {45}, .stride = {{1}, {1}, {1}}}};

    for (int i = 0; i < 45; i++) {
        x[i] = (float)i;
    }
    run_on_all_isas(&(kernel_call){MSI_K_mul, MS_DTYPE_F32, &args, {x}, {sizeof(x)}}, "in place");
    for (int i = 0; i < 45; i++) {
        assert_true(x[i] == (float)(i * i));
    }
}

static void test_cpu_elementwise__i64_wraps_and_keeps_every_bit(void **state)
{
    (void)state;
    const int64_t big = INT64_MAX - 3, a[3] = {big, -5, (int64_t)1 << 53}, b[3] = {9, 3, 1};
    int64_t out[3] = {0};
    msi_ew_args args = {.out = out,
                        .in = {a, b},
                        .in_dtype = MS_DTYPE_I64,
                        .scalar = {3, -2},
                        .loop = {.ndim = 1, .shape = {3}, .stride = {{1}, {1}, {1}}}};
    kernel_call call = {MSI_K_add, MS_DTYPE_I64, &args, {out}, {sizeof(out)}};

    run_on_all_isas(&call, "i64");
    assert_true(out[0] == INT64_MIN + 5 && out[1] == -2 && out[2] == 9007199254740993);
    call.kernel = MSI_K_sub;
    run_on_all_isas(&call, "i64");
    assert_true(out[0] == big - 9 && out[1] == -8 && out[2] == 9007199254740991);
    call.kernel = MSI_K_mul;
    run_on_all_isas(&call, "i64");
    assert_true(out[0] == INT64_MAX - 35); /* 9 (2^63 - 4) = 2^63 - 36 modulo 2^64 */
    assert_true(out[1] == -15);
    call.kernel = MSI_K_affine;
    run_on_all_isas(&call, "i64");
    assert_true(out[1] == -17 && out[2] == 27021597764222974);
}

/* -- accuracy and special values --------------------------------------------------------------- */

static double ulp(float x)
{
    float a = fabsf(x);

    return a < 0x1p-126f ? 0x1p-149 : (double)nextafterf(a, INFINITY) - (double)a;
}

/* Over bit patterns of f32 spread over the whole line. */
static void check_ulps(int32_t kernel, real (*f)(real), double most)
{
    enum { N = 4096 };
    float x[N], y[N];
    msi_ew_args args = {
        .out = y, .in = {x}, .loop = {.ndim = 1, .shape = {N}, .stride = {{1}, {1}}}};

    for (uint64_t first = 0; first < (1ull << 32); first += 2503ull * N) {
        for (int i = 0; i < N; i++) {
            uint32_t bits = (uint32_t)(first + 2503ull * (uint64_t)i);

            memcpy(&x[i], &bits, sizeof(bits));
        }
        run_on_all_isas(&(kernel_call){kernel, MS_DTYPE_F32, &args, {y}, {sizeof(y)}}, "ulps");
        for (int i = 0; i < N; i++) {
            double want = (double)f(x[i]);

            if (isnan(want)) {
                assert_true(isnan(y[i]));
            } else if ((float)want != y[i]) {
                assert_false(isinf((float)want) || isinf(y[i]));
                if (fabs(want - y[i]) > most * ulp((float)want)) {
                    fail_msg("%s(%a) = %a is %.3g ulp off", msi_kernel_name(kernel), x[i], y[i],
                             fabs(want - y[i]) / ulp((float)want));
                }
            }
        }
    }
}

static void test_cpu_elementwise__functions_are_within_their_ulps_everywhere(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(unary_oracles) / sizeof(unary_oracles[0]); k++) {
        check_ulps(unary_oracles[k].kernel, unary_oracles[k].value, unary_oracles[k].ulps);
    }
}

static double one(int32_t kernel, int32_t dtype, double a, double b)
{
    return on_one_element(kernel, dtype, a, b, 0);
}

/* NaN, infinities and zeros with their signs as the function has them; close to it otherwise. */
static void check_special(const unary_oracle *o, int32_t dtype, double x)
{
    const double exact = (double)o->value(x), got = one(o->kernel, dtype, x, 0);
    const double want = dtype == MS_DTYPE_F16 && exact > 65520 ? INFINITY : exact;
    const bool same = isnan(want)                ? isnan(got)
                      : isinf(want) || want == 0 ? got == want && !signbit(got) == !signbit(want)
                                                 : fabs(got - want) <= 0x1p-7 * fabs(want);

    if (!same) {
        fail_msg("%s(%g) is %g, expected %g", msi_kernel_name(o->kernel), x, got, want);
    }
}

static void test_cpu_elementwise__nan_and_infinity_go_where_they_must(void **state)
{
    static const double special[] = {NAN,  INFINITY, -INFINITY, 0,
                                     -0.0, 9984,     -9984}; /* of all dtypes */

    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        const int32_t t = float_dtypes[d];

        for (size_t k = 0; k < sizeof(unary_oracles) / sizeof(unary_oracles[0]); k++) {
            for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++) {
                check_special(&unary_oracles[k], t, special[i]);
            }
        }
        assert_true(isnan(one(MSI_K_maximum, t, NAN, 1)) && isnan(one(MSI_K_maximum, t, 1, NAN)));
        assert_true(isnan(one(MSI_K_minimum, t, NAN, 1)) && isnan(one(MSI_K_minimum, t, 1, NAN)));
        assert_true(isnan(one(MSI_K_clamp, t, NAN, 0)));
        assert_true(one(MSI_K_clamp_grad, t, 3, 0) == 3); /* on both bounds, 0 */
        assert_true(one(MSI_K_clamp_grad, t, 3, NAN) == 0 && one(MSI_K_clamp_grad, t, 3, 1) == 0);
        assert_true(one(MSI_K_abs_grad, t, 3, NAN) == 0); /* nor above */
        assert_true(one(MSI_K_abs_grad, t, 3, -0.0) == 0);
        assert_true(one(MSI_K_sign_grad, t, NAN, 1) == 0);
        assert_true(isnan(one(MSI_K_silu_grad, t, 1, NAN)));
        assert_true(one(MSI_K_silu_grad, t, 1, 1e4) == 1 && one(MSI_K_silu_grad, t, 1, -1e4) == 0);
        assert_true(isnan(one(MSI_K_gelu, t, NAN, 0)));
        assert_true(isnan(one(MSI_K_gelu_tanh, t, NAN, 0)));
        assert_true(isnan(one(MSI_K_gelu_grad, t, 1, NAN)));
        assert_true(isnan(one(MSI_K_gelu_tanh_grad, t, 1, NAN)));
        assert_true(one(MSI_K_relu_grad, t, 3, NAN) == 3); /* NaN is not below 0 */
        assert_true(one(MSI_K_relu_grad, t, 3, 0) == 0);
        assert_true(isnan(one(MSI_K_relu_grad, t, NAN, 1)));
        assert_true(one(MSI_K_gelu, t, INFINITY, 0) == INFINITY);
        assert_true(one(MSI_K_gelu, t, -1e4, 0) == 0);
        assert_true(one(MSI_K_gelu_tanh, t, INFINITY, 0) == INFINITY);
        assert_true(one(MSI_K_gelu_tanh, t, -1e4, 0) == 0);
        assert_true(one(MSI_K_gelu_tanh_grad, t, 1, 1e30) == 1); /* x^2 would overflow f32 */
        assert_true(fabs(one(MSI_K_gelu_tanh_grad, t, 1, -1e30)) < 1e-35);
    }
    assert_true(one(MSI_K_exp, MS_DTYPE_F32, -87.5, 0) > 0 &&
                one(MSI_K_exp, MS_DTYPE_F32, -100, 0) == (float)exp(-100.0)); /* denormal */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_elementwise__every_op_is_right_for_lengths_0_to_130),
        cmocka_unit_test(test_cpu_elementwise__every_op_is_right_from_starts_0_to_63),
        cmocka_unit_test(test_cpu_elementwise__strides_and_broadcasts_reach_the_right_elements),
        cmocka_unit_test(test_cpu_elementwise__works_in_place),
        cmocka_unit_test(test_cpu_elementwise__i64_wraps_and_keeps_every_bit),
        cmocka_unit_test(test_cpu_elementwise__functions_are_within_their_ulps_everywhere),
        cmocka_unit_test(test_cpu_elementwise__nan_and_infinity_go_where_they_must),
    };

    return cmocka_run_group_tests_name("cpu/elementwise", tests, NULL, NULL);
}
