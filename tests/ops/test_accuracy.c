/* Functions of one tensor over bit patterns spread over all of f32: units in the last place,
 * special values, and the same bits on every instruction set. */
#include "row.h"
#include "rows/unary_oracle.h"

#include "backend.h"
#include "tensor.h"

enum { N = 1 << 14 };

const msi_kernel_table *__real_msi_kernels(void);
const msi_kernel_table *__wrap_msi_kernels(void);

static int32_t isa; /* 0: the machine's best */

const msi_kernel_table *__wrap_msi_kernels(void)
{
    return isa != 0 ? msi_kernels_of(isa) : __real_msi_kernels();
}

static const unary_oracle functions[] = {
#define FUNCTION(f, plan, smooth, VALUE, ERROR, ULPS)                                              \
    {"ms_op_" #f, ms_op_##f, unary_value_##f, ULPS},
    UNARY_ORACLES(FUNCTION)
#undef FUNCTION
};

static double ulp(float x)
{
    float a = fabsf(x);

    return a < 0x1p-126f ? 0x1p-149 : (double)nextafterf(a, INFINITY) - (double)a;
}

static void check_ulps(const unary_oracle *f, const float *x, const double *y)
{
    for (int64_t i = 0; i < N; i++) {
        const double want = (double)f->value((long double)x[i]);
        const bool same = isnan(want) ? isnan(y[i]) : (float)want == (float)y[i];

        if (same && (isnan(want) || want != 0 || !signbit(y[i]) == !signbit(want))) {
            continue;
        }
        if (isnan(y[i]) || isinf((float)want) || isinf(y[i]) ||
            !(fabs(want - y[i]) <= f->ulps * ulp((float)want))) {
            fail_msg("%s(%a) is %a, expected %a", f->name, (double)x[i], y[i], want);
        }
    }
}

/* Call the function, or x^p, on x on every instruction set. */
static void call_on_all(const unary_oracle *f, double p, const double *x, double *y)
{
    static double other[N];
    const int64_t n = N;
    ms_tensor *in, *out;
    int32_t lowest = 0; /* instruction set */

    assert_ok(ms_tensor_from_doubles(&in, MS_DTYPE_F32, 1, &n, x, n));
    for (isa = 2; isa <= 4; isa++) {
        if (msi_kernels_of(isa) == NULL) {
            print_message("skipped: this machine does not run x86-64-v%d\n", (int)isa);
            continue;
        }
        assert_ok(f != NULL ? f->run(&out, in) : ms_op_pow(&out, in, p));
        assert_ok(ms_tensor_to_doubles(out, lowest == 0 ? y : other, n));
        ms_tensor_free(out);
        assert_true(lowest == 0 || memcmp(y, other, sizeof(other)) == 0);
        lowest = lowest == 0 ? isa : lowest;
    }
    isa = 0;
    ms_tensor_free(in);
}

static void draw_bits(uint64_t first, uint64_t step, float *single, double *x)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1, -1, 0x1p-149f};

    for (uint64_t i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)(first + step * i);

        memcpy(&single[i], &bits, sizeof(bits));
        single[i] = i < COUNT(special) ? special[i] : single[i];
        x[i] = single[i];
    }
}

static void test_ops_accuracy__functions_are_within_their_ulps(void **state)
{
    static float single[N];
    static double x[N], y[N];

    (void)state;
    for (int32_t k = 0; k < COUNT(functions); k++) {
        for (uint64_t first = 0; first < 1ull << 32; first += 5003ull * N) {
            draw_bits(first, 5003, single, x);
            call_on_all(&functions[k], 0, x, y);
            check_ulps(&functions[k], single, y);
        }
    }
}

/* The header promises one rounding for exponents that are no small integers. */
static void test_ops_accuracy__powers_round_once(void **state)
{
    static const double p[] = {1.0 / 3, -1.0 / 3, 1.5, 2.7, -0.9, 12.3, 1e-4};
    static float single[N];
    static double x[N], y[N];

    (void)state;
    for (int32_t k = 0; k < COUNT(p); k++) {
        for (uint32_t first = 0; first < 0x7f800000u - 15013u * N; first += 15013u * N) {
            draw_bits(first, 15013, single, x);
            call_on_all(NULL, p[k], x, y);
            for (int32_t i = 0; i < N; i++) {
                const double want = pow(x[i], p[k]);
                const double bound = 1.01 * (0x1p-24 * want + 0x1p-150);

                if (isnan(want) ? !isnan(y[i])
                                : !agrees(MS_DTYPE_F32, y[i], (real)want, 0) ||
                                      (isfinite(y[i]) && !(fabs(y[i] - want) <= bound) &&
                                       want < 0x1.ffffffp127)) {
                    fail_msg("%a^%g is %a, expected %a within %g", x[i], p[k], y[i], want, bound);
                }
            }
        }
    }
}

/* Where nothing is rounded C's pow() is the truth, sign included. */
static void test_ops_accuracy__powers_follow_c_at_the_edges(void **state)
{
    const double x[] = {0, -0.0, 1, -1, 2, -2, 0.5, -0.5, INFINITY, -INFINITY, NAN};
    const double p[] = {0,   1,  2,   3,    -1,    -2,     -3,     32,      -32,    33,
                        -33, 34, 1.5, -1.5, 1e300, -1e300, 1e-300, -1e-300, 0x1p60, 4097};
    const int32_t floats[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16};
    const int64_t n = COUNT(x);

    (void)state;
    for (int32_t k = 0; k < COUNT(floats) * COUNT(p); k++) {
        const double power = p[k / COUNT(floats)];
        double y[COUNT(x)];
        ms_tensor *in, *out;

        assert_ok(ms_tensor_from_doubles(&in, floats[k % COUNT(floats)], 1, &n, x, n));
        assert_ok(ms_op_pow(&out, in, power));
        assert_ok(ms_tensor_to_doubles(out, y, n));
        for (int64_t i = 0; i < n; i++) {
            const double want = pow(x[i], power);
            const bool exact = isnan(want) || isinf(want) || want == 0 || fabs(want) == 1;

            if ((exact && (isnan(want) ? !isnan(y[i]) : y[i] != want)) ||
                (!isnan(want) && !signbit(y[i]) != !signbit(want))) {
                fail_msg("%g^%g is %g, expected %g", x[i], power, y[i], want);
            }
        }
        ms_tensor_free(out);
        ms_tensor_free(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_accuracy__functions_are_within_their_ulps),
        cmocka_unit_test(test_ops_accuracy__powers_round_once),
        cmocka_unit_test(test_ops_accuracy__powers_follow_c_at_the_edges),
    };

    return cmocka_run_group_tests_name("ops/accuracy", tests, NULL, NULL);
}
