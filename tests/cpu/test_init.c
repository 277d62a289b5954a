/* kernels/cpu/init.c: an element's first value depends on seed, key and its index alone. */
#include "kernel_test.h"
#include "philox_oracle.h"

/* Random123's published vectors: they pin the oracle, which pins the kernel. */
static void test_cpu_init__the_oracle_is_philox4x32_10(void **state)
{
    uint32_t zeros[4] = {0, 0, 0, 0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t of_zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};

    philox_oracle(zeros, 0, 0);
    philox_oracle(ones, ~0u, ~0u);
    assert_memory_equal(of_zeros, zeros, sizeof(zeros));
    assert_memory_equal(of_ones, ones, sizeof(ones));
}

static double unit(uint32_t high, uint32_t low)
{
    return ldexp((double)(((uint64_t)high << 32 | low) >> 11), -53);
}

/* Element i, from the words of counter i / 2. */
static double oracle(const msi_init_args *a, int64_t i)
{
    const uint64_t key = oracle_key(a->seed, a->key, 0);
    uint32_t w[4];
    double u, v, radius;

    for (int j = 0; j < 4; j++) {
        w[j] = oracle_word((uint64_t)i / 2, 0, key, j);
    }
    u = unit(w[0], w[1]);
    v = unit(w[2], w[3]);
    if (a->kind == MS_INIT_CONSTANT) {
        return a->a;
    }
    if (a->kind == MS_INIT_UNIFORM) {
        return a->a + (i % 2 ? v : u) * (a->b - a->a);
    }
    radius = sqrt(-2 * log(1 - u));
    return a->a + a->b * radius * (i % 2 ? sin(2 * M_PI * v) : cos(2 * M_PI * v));
}

/* What an element may differ by: rounding to its dtype, and where normal values are computed in f32
 * six roundings of that. */
static double bound_of(const msi_init_args *a, int32_t dtype, double want)
{
    const bool in_f32 = a->kind == MS_INIT_NORMAL && dtype != MS_DTYPE_F64;
    const double computed = in_f32 ? 6 * 0x1p-24 * fabs(want - a->a) : 0;

    return 1e-13 + 1.01 * typed_rounding(dtype, want) + 1.01 * computed;
}

static void check(int32_t dtype, int32_t kind, int64_t first, int64_t n, int64_t start)
{
    typed out = typed_filled(dtype, start + n, 1);
    msi_init_args args = {.first = first,
                          .n = n,
                          .out = (char *)out.data + start * dtype_bytes(dtype),
                          .kind = kind,
                          .a = -0.5,
                          .b = 0.75,
                          .seed = 123,
                          .key = 0xfeedfacecafebeefu};

    run_on_all_isas(&(kernel_call){MSI_K_init, dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "init");
    for (int64_t i = 0; i < n; i++) {
        double want = oracle(&args, first + i);

        check_element("init", first + i, typed_get(&out, start + i), want,
                      bound_of(&args, dtype, want));
    }
    typed_free(&out);
}

static void test_cpu_init__follows_the_definition_for_any_stretch(void **state)
{
    const int32_t kinds[] = {MS_INIT_CONSTANT, MS_INIT_UNIFORM, MS_INIT_NORMAL};

    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t n = 0; n <= 130; n++) {
            check(float_dtypes[d], kinds[n % 3], n * 17 % 101, n, n * 29 % 64);
        }
        for (int64_t start = 0; start < 64; start++) {
            check(float_dtypes[d], kinds[start % 3], INT64_C(0x3fffffff0) + start, 40, start);
        }
    }
}

static void test_cpu_init__pieces_have_the_bits_of_the_whole(void **state)
{
    enum { N = 300 };
    float whole[N], piece[N];
    msi_init_args args = {
        .n = N, .out = whole, .kind = MS_INIT_NORMAL, .b = 0.02, .seed = 9, .key = 4};

    msi_kernels()->fn[MSI_K_init][MS_DTYPE_F32](&args);
    for (int64_t first = 0; first < N; first += 7) {
        args.first = first;
        args.n = 7 < N - first ? 7 : N - first;
        args.out = piece + first;
        msi_kernels()->fn[MSI_K_init][MS_DTYPE_F32](&args);
    }
    assert_memory_equal(whole, piece, sizeof(whole));
}

/* An end that no narrow number reaches: the largest that is finite is the last below it. */
static void test_cpu_init__uniform_values_of_narrow_types_stay_finite(void **state)
{
    static const int32_t dtypes[] = {MS_DTYPE_F16, MS_DTYPE_BF16};
    static const double largest[] = {65504, 0x1.fep127};

    for (int32_t d = 0; d < 2; d++) {
        typed out = typed_filled(dtypes[d], 64, 1);
        msi_init_args args = {
            .n = 64, .out = out.data, .kind = MS_INIT_UNIFORM, .a = largest[d], .b = 1e300};

        msi_kernels()->fn[MSI_K_init][dtypes[d]](&args);
        for (int64_t i = 0; i < 64; i++) {
            assert_true(typed_get(&out, i) == largest[d]);
        }
        typed_free(&out);
    }
}

static void test_cpu_init__uniform_values_stay_below_the_open_end(void **state)
{
    enum { N = 20000 };
    const double ends[][2] = {{0, 1}, {-0.1, 0.1}, {1, 1.001}, {-3, -2}, {100, 100.5}, {-1, 0}};

    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int32_t e = 0; e < 6; e++) {
            typed out = typed_filled(float_dtypes[d], N, 1);
            msi_init_args args = {
                .n = N, .out = out.data, .kind = MS_INIT_UNIFORM, .a = ends[e][0], .b = ends[e][1]};

            msi_kernels()->fn[MSI_K_init][float_dtypes[d]](&args);
            for (int64_t i = 0; i < N; i++) {
                double ulp = 2 * typed_rounding(float_dtypes[d], ends[e][0]);

                assert_true(typed_get(&out, i) < ends[e][1]);
                assert_true(typed_get(&out, i) >= ends[e][0] - ulp);
            }
            typed_free(&out);
        }
    }
}

/* However near to 0 or far out: the f32 path forms logarithm and angle without cancellation. */
static void test_cpu_init__normal_f32_keeps_its_relative_accuracy(void **state)
{
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof(float));
    double *want = malloc(N * sizeof(double)), smallest = INFINITY, largest = 0;
    msi_init_args args = {.n = N, .out = x, .kind = MS_INIT_NORMAL, .b = 1, .seed = 8};

    msi_kernels()->fn[MSI_K_init][MS_DTYPE_F32](&args);
    args.out = want;
    msi_kernels()->fn[MSI_K_init][MS_DTYPE_F64](&args); /* the C library */
    for (int64_t i = 0; i < N; i++) {
        check_element("normal", i, x[i], want[i], 6 * 0x1p-24 * fabs(want[i]));
        smallest = fmin(smallest, fabs(want[i]));
        largest = fmax(largest, fabs(want[i]));
    }
    assert_true(smallest < 1e-5 && largest > 4.5);
    free(x);
    free(want);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The largest distance between the share of x (n, sorted here) below a value and what the standard
 * normal distribution says (Kolmogorov and Smirnov). */
static double distance_from_normal(double *x, int64_t n)
{
    double largest = 0;

    qsort(x, (size_t)n, sizeof(*x), ascending);
    for (int64_t i = 0; i < n; i++) {
        double p = 0.5 * erfc(-x[i] / sqrt(2)), below = (double)i / (double)n;

        largest = fmax(largest, fmax(p - below, below + 1.0 / (double)n - p));
    }
    return largest;
}

/* Numbers beyond `edge` either way, against their expected count: five standard deviations. */
static void check_tails(const double *x, int64_t n, double edge)
{
    double expected = (double)n * erfc(edge / sqrt(2)), found = 0;

    for (int64_t i = 0; i < n; i++) {
        found += fabs(x[i]) > edge;
    }
    check_element("numbers beyond the edge", (int64_t)edge, found, expected, 5 * sqrt(expected));
}

static void test_cpu_init__normal_values_are_normally_distributed(void **state)
{
    enum { N = 1 << 19 };
    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64};

    for (int32_t d = 0; d < 2; d++) {
        typed out = typed_make(dtypes[d], N);
        double *x = malloc(N * sizeof(double)), mean = 0, square = 0, fourth = 0;
        msi_init_args args = {
            .n = N, .out = out.data, .kind = MS_INIT_NORMAL, .a = 3, .b = 0.5, .seed = 11};

        msi_kernels()->fn[MSI_K_init][dtypes[d]](&args);
        for (int64_t i = 0; i < N; i++) {
            x[i] = (typed_get(&out, i) - 3) / 0.5;
            mean += x[i] / N;
            square += x[i] * x[i] / N;
            fourth += x[i] * x[i] * x[i] * x[i] / N;
        }
        check_element("mean", 0, mean, 0, 5 / sqrt(N)); /* five standard deviations, as below */
        check_element("variance", 0, square, 1, 5 * sqrt(2.0 / N));
        check_element("fourth moment", 0, fourth, 3, 5 * sqrt(96.0 / N));
        for (double edge = 1; edge <= 4; edge++) {
            check_tails(x, N, edge);
        }
        assert_true(distance_from_normal(x, N) < 1.95 / sqrt(N)); /* one in a thousand is beyond */
        free(x);
        typed_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_init__the_oracle_is_philox4x32_10),
        cmocka_unit_test(test_cpu_init__follows_the_definition_for_any_stretch),
        cmocka_unit_test(test_cpu_init__pieces_have_the_bits_of_the_whole),
        cmocka_unit_test(test_cpu_init__uniform_values_of_narrow_types_stay_finite),
        cmocka_unit_test(test_cpu_init__uniform_values_stay_below_the_open_end),
        cmocka_unit_test(test_cpu_init__normal_f32_keeps_its_relative_accuracy),
        cmocka_unit_test(test_cpu_init__normal_values_are_normally_distributed),
    };

    return cmocka_run_group_tests_name("cpu/init", tests, NULL, NULL);
}
