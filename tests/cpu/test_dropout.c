/* kernels/cpu/dropout.c and philox.h: which elements fall is a pure function of seed, site, call,
 * sample and element. */
#include "kernel_test.h"
#include "philox_oracle.h"

/* Random123's published vectors: they pin the oracle, which pins the kernel. */
static void test_cpu_dropout__the_oracle_is_philox4x32_10(void **state)
{
    (void)state;
    uint32_t zeros[4] = {0, 0, 0, 0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t of_zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};

    philox_oracle(zeros, 0, 0);
    philox_oracle(ones, ~0u, ~0u);
    assert_memory_equal(of_zeros, zeros, sizeof(zeros));
    assert_memory_equal(of_ones, ones, sizeof(ones));
}

static void check(int32_t dtype, int64_t samples, int64_t per_sample, int64_t start, double p,
                  msi_dropout_args args)
{
    const int64_t n = samples * per_sample;
    typed x = typed_filled(dtype, start + n, 1), out = typed_filled(dtype, start + n, 2);
    typed old = typed_copy(&out);
    const uint64_t key = oracle_key(args.seed, args.site, (uint64_t)args.call);
    const double scale = p < 1 ? 1 / (1 - p) : 0;

    args.samples = samples;
    args.per_sample = per_sample;
    args.p = p;
    args.x = (char *)x.data + start * dtype_bytes(dtype);
    args.out = (char *)out.data + start * dtype_bytes(dtype);
    run_on_all_isas(&(kernel_call){MSI_K_dropout, dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "dropout");
    for (int64_t i = 0; i < n; i++) {
        const int64_t b = i / per_sample, e = i % per_sample;
        uint32_t word = oracle_word((uint64_t)e / 4, (uint64_t)(args.sample_base + b), key, e % 4);
        double want = (double)word < p * 0x1p32 ? 0 : typed_get(&x, start + i) * scale;
        double before = args.accumulate ? typed_get(&old, start + i) : 0;

        check_element("dropout", i, typed_get(&out, start + i), want + before,
                      4 * compute_epsilon(dtype) * (fabs(want) + fabs(before)) +
                          typed_rounding(dtype, want + before));
    }
    typed_free(&x);
    typed_free(&out);
    typed_free(&old);
}

static void test_cpu_dropout__follows_the_definition_for_lengths_0_to_130(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t n = 0; n <= 130; n++) {
            msi_dropout_args args = {.seed = 7, .site = 0xabcdef0123456789u, .call = n};

            args.sample_base = n % 2 ? INT64_C(0x1fffffffe) : 3; /* carries into the upper word */
            args.accumulate = n % 3 == 0;
            check(float_dtypes[d], 1 + n % 4, n, n * 29 % 64, 0.1 + 0.3 * (double)(n % 3), args);
        }
        for (int64_t start = 0; start < 64; start++) {
            check(float_dtypes[d], 2, 70, start, 0.5, (msi_dropout_args){.seed = 1});
        }
    }
}

static void test_cpu_dropout__p_of_0_keeps_and_p_of_1_drops_everything(void **state)
{
    (void)state;
    check(MS_DTYPE_F32, 2, 100, 0, 0, (msi_dropout_args){.seed = 1});
    check(MS_DTYPE_F32, 2, 100, 0, 1, (msi_dropout_args){.seed = 1});
}

/* Rows 2 and 3 of a batch of four are a batch of two with sample base 2. */
static void test_cpu_dropout__samples_may_be_dealt_to_any_batches(void **state)
{
    (void)state;
    enum { PER = 83 };
    float x[4 * PER], whole[4 * PER], part[2 * PER];
    msi_dropout_args args = {.samples = 4,
                             .per_sample = PER,
                             .x = x,
                             .out = whole,
                             .p = 0.5,
                             .seed = 3,
                             .site = 5,
                             .sample_base = 40};

    for (int i = 0; i < 4 * PER; i++) {
        x[i] = (float)(i + 1);
    }
    msi_kernels()->fn[MSI_K_dropout][MS_DTYPE_F32](&args);
    args.samples = 2;
    args.sample_base = 42;
    args.x = x + 2 * PER;
    args.out = part;
    msi_kernels()->fn[MSI_K_dropout][MS_DTYPE_F32](&args);
    assert_memory_equal(whole + 2 * PER, part, sizeof(part));
}

static void test_cpu_dropout__a_share_p_falls_and_streams_differ(void **state)
{
    (void)state;
    enum { N = 100000 };
    static float x[N], out[2][N];
    msi_dropout_args args = {.samples = 1, .per_sample = N, .x = x, .p = 0.1, .seed = 11};
    int64_t dropped = 0, both = 0;

    for (int i = 0; i < N; i++) {
        x[i] = 1;
    }
    for (int k = 0; k < 2; k++) {
        args.call = k;
        args.out = out[k];
        msi_kernels()->fn[MSI_K_dropout][MS_DTYPE_F32](&args);
    }
    for (int i = 0; i < N; i++) {
        dropped += out[0][i] == 0;
        both += out[0][i] == 0 && out[1][i] == 0;
    }
    /* means 10,000 and 1,000; five standard deviations */
    assert_in_range(dropped, 10000 - 475, 10000 + 475);
    assert_in_range(both, 1000 - 158, 1000 + 158);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_dropout__the_oracle_is_philox4x32_10),
        cmocka_unit_test(test_cpu_dropout__follows_the_definition_for_lengths_0_to_130),
        cmocka_unit_test(test_cpu_dropout__p_of_0_keeps_and_p_of_1_drops_everything),
        cmocka_unit_test(test_cpu_dropout__samples_may_be_dealt_to_any_batches),
        cmocka_unit_test(test_cpu_dropout__a_share_p_falls_and_streams_differ),
    };

    return cmocka_run_group_tests_name("cpu/dropout", tests, NULL, NULL);
}
