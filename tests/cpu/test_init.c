/* kernels/cpu/init.c: an element's first value depends on seed, key and its index alone. */
#include "kernel_test.h"
#include "philox_oracle.h"

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
                      1e-13 + 1.01 * typed_epsilon(dtype) * fabs(want));
    }
    typed_free(&out);
}

static void test_cpu_init__follows_the_definition_for_any_stretch(void **state)
{
    (void)state;
    const int32_t kinds[] = {MS_INIT_CONSTANT, MS_INIT_UNIFORM, MS_INIT_NORMAL};

    report_missing_isas();
    for (int32_t d = 0; d < 3; d++) {
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
    (void)state;
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

static void test_cpu_init__uniform_values_stay_below_the_open_end(void **state)
{
    (void)state;
    enum { N = 20000 };
    const double ends[][2] = {{0, 1}, {-0.1, 0.1}, {1, 1.001}, {-3, -2}, {100, 100.5}};

    for (int32_t d = 0; d < 3; d++) {
        for (int32_t e = 0; e < 5; e++) {
            typed out = typed_filled(float_dtypes[d], N, 1);
            msi_init_args args = {
                .n = N, .out = out.data, .kind = MS_INIT_UNIFORM, .a = ends[e][0], .b = ends[e][1]};

            msi_kernels()->fn[MSI_K_init][float_dtypes[d]](&args);
            for (int64_t i = 0; i < N; i++) {
                double ulp = 2 * typed_epsilon(float_dtypes[d]) * fabs(ends[e][0]);

                assert_true(typed_get(&out, i) < ends[e][1]);
                assert_true(typed_get(&out, i) >= ends[e][0] - ulp);
            }
            typed_free(&out);
        }
    }
}

static void test_cpu_init__moments_are_those_of_the_distributions(void **state)
{
    (void)state;
    enum { N = 200000 };
    double *x = malloc(N * sizeof(double));
    msi_init_args args = {.n = N, .out = x, .kind = MS_INIT_NORMAL, .b = 1, .seed = 5};

    for (int32_t pass = 0; pass < 2; pass++) {
        double mean = 0, square = 0, pairs = 0;

        args.kind = pass == 0 ? MS_INIT_NORMAL : MS_INIT_UNIFORM;
        args.a = pass == 0 ? 0 : -1;
        msi_kernels()->fn[MSI_K_init][MS_DTYPE_F64](&args);
        for (int i = 0; i < N; i++) {
            mean += x[i] / N;
            square += x[i] * x[i] / N;
            pairs += i % 2 ? x[i] * x[i - 1] / (N / 2) : 0;
        }
        assert_true(fabs(mean) < 5 / sqrt(N)); /* five standard deviations at least */
        assert_true(fabs(square - (pass == 0 ? 1 : 1.0 / 3)) < 5 * sqrt(2.0 / N));
        assert_true(fabs(pairs) < 5 * sqrt(2.0 / N));
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_init__follows_the_definition_for_any_stretch),
        cmocka_unit_test(test_cpu_init__pieces_have_the_bits_of_the_whole),
        cmocka_unit_test(test_cpu_init__uniform_values_stay_below_the_open_end),
        cmocka_unit_test(test_cpu_init__moments_are_those_of_the_distributions),
    };

    return cmocka_run_group_tests_name("cpu/init", tests, NULL, NULL);
}
