/* kernels/cpu/copy.c: every pair of dtypes, accumulation, fill; lengths, starts, strides. */
#include "kernel_test.h"

/* What is stored under a dtype, as a long double (which holds every i64). */
static long double get(int32_t dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case MS_DTYPE_I64:
        return ((const int64_t *)p)[i];
    case MS_DTYPE_I32:
        return ((const int32_t *)p)[i];
    case MS_DTYPE_U8:
        return ((const uint8_t *)p)[i];
    case MS_DTYPE_BOOL:
        return ((const uint8_t *)p)[i] != 0;
    default: {
        typed t = {.dtype = dtype, .data = (void *)p};

        return typed_get(&t, i);
    }
    }
}

static void set(int32_t dtype, void *p, int64_t i, long double x)
{
    switch (dtype) {
    case MS_DTYPE_I64:
        ((int64_t *)p)[i] = (int64_t)x;
        break;
    case MS_DTYPE_I32:
        ((int32_t *)p)[i] = (int32_t)(int64_t)x;
        break;
    case MS_DTYPE_U8:
        ((uint8_t *)p)[i] = (uint8_t)(int64_t)x;
        break;
    case MS_DTYPE_BOOL:
        ((uint8_t *)p)[i] = x != 0;
        break;
    case MS_DTYPE_F32:
        ((float *)p)[i] = (float)x;
        break;
    default: {
        typed t = {.dtype = dtype, .data = p};

        typed_set(&t, i, (double)x);
        break;
    }
    }
}

/* Element i of a source: halves, negatives and zeros where the dtype has them. */
static long double sample(int32_t dtype, int64_t i)
{
    double x = filler(5, i);

    switch (dtype) {
    case MS_DTYPE_I64:
    case MS_DTYPE_I32:
        return (int64_t)(x * 1000) / 7 * (i % 5 ? 1 : 0);
    case MS_DTYPE_U8:
        return (int64_t)((x + 1) * 127) * (i % 5 ? 1 : 0);
    case MS_DTYPE_BOOL:
        return x > 0;
    default:
        return i % 5 ? x * 100 : 0;
    }
}

/* x in the arithmetic of `dtype`: integers truncate, bool is "not zero". */
static long double convert(int32_t dtype, long double x)
{
    return dtype == MS_DTYPE_BOOL ? x != 0 : !ms_dtype_is_floating(dtype) ? (int64_t)x : x;
}

static void check(int32_t to, int32_t from, int64_t n, int64_t start, int64_t out_stride,
                  int64_t in_stride, bool accumulate)
{
    int64_t out_n = start + 1 + n * out_stride, in_n = start + 1 + n * in_stride;
    void *in = calloc((size_t)in_n, (size_t)dtype_bytes(from));
    void *out = calloc((size_t)out_n, (size_t)dtype_bytes(to));
    void *want = calloc((size_t)out_n, (size_t)dtype_bytes(to));
    msi_ew_args args = {.out = (char *)out + start * dtype_bytes(to),
                        .in = {(char *)in + start * dtype_bytes(from)},
                        .in_dtype = from,
                        .accumulate = accumulate,
                        .loop = {.ndim = 1, .shape = {n}, .stride = {{out_stride}, {in_stride}}}};

    for (int64_t i = 0; i < in_n; i++) {
        set(from, in, i, sample(from, i));
    }
    for (int64_t i = 0; i < out_n; i++) {
        set(to, out, i, sample(to, i + 1));
        set(to, want, i, sample(to, i + 1));
    }
    for (int64_t i = 0; i < n; i++) {
        long double x = convert(to, get(from, in, start + i * in_stride));
        long double old = get(to, out, start + i * out_stride);

        /* one rounding in the compute type: sums of f32 and narrower are exact in long double */
        if (to != MS_DTYPE_F64) {
            x = ms_dtype_is_floating(to) ? (float)x : x;
        }
        if (accumulate) {
            x = to == MS_DTYPE_BOOL ? x != 0 || old != 0 : x + old;
        }
        set(to, want, start + i * out_stride, ms_dtype_is_narrow(to) ? (long double)(float)x : x);
    }
    run_on_all_isas(&(kernel_call){MSI_K_copy, to, &args, {out}, {out_n * dtype_bytes(to)}},
                    ms_dtype_name(from));
    for (int64_t i = 0; i < out_n; i++) {
        if (get(to, out, i) != get(to, want, i)) {
            fail_msg("%s to %s, n %lld start %lld strides %lld %lld: element %lld is %Lg, "
                     "expected %Lg",
                     ms_dtype_name(from), ms_dtype_name(to), (long long)n, (long long)start,
                     (long long)out_stride, (long long)in_stride, (long long)i, get(to, out, i),
                     get(to, want, i));
        }
    }
    free(in);
    free(out);
    free(want);
}

static void test_cpu_copy__casts_every_pair_of_dtypes_at_lengths_0_to_130(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t to = 0; to < MS_DTYPE_COUNT; to++) {
        for (int32_t from = 0; from < MS_DTYPE_COUNT; from++) {
            for (int64_t n = 0; n <= 130; n++) {
                check(to, from, n, (n * 29) % 64, 1, 1, n & 1);
            }
            for (int64_t start = 0; start < 64; start++) {
                check(to, from, 35, start, 1, 1, !(start & 1));
            }
        }
    }
}

static void test_cpu_copy__casts_every_pair_with_strides_and_broadcasts(void **state)
{
    (void)state;
    for (int32_t to = 0; to < MS_DTYPE_COUNT; to++) {
        for (int32_t from = 0; from < MS_DTYPE_COUNT; from++) {
            for (int32_t variant = 0; variant < 12; variant++) {
                check(to, from, variant & 1 ? 300 : 19, variant, 1 + variant % 3, variant % 4,
                      variant & 2);
            }
        }
    }
}

static void test_cpu_copy__transposes(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 70 };
    static uint16_t in[ROWS * COLS], out[ROWS * COLS];
    msi_ew_args args = {.out = out, .in = {in}, .in_dtype = MS_DTYPE_BF16};

    args.loop = (msi_loop){.ndim = 2, .shape = {COLS, ROWS}, .stride = {{ROWS, 1}, {1, COLS}}};
    for (int i = 0; i < ROWS * COLS; i++) {
        in[i] = (uint16_t)i;
    }
    run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_BF16, &args, {out}, {sizeof(out)}}, "t");
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLS; c++) {
            assert_int_equal(in[r * COLS + c], out[c * ROWS + r]);
        }
    }
}

static void cast_one(void *out, int32_t to, const void *in, int32_t from)
{
    msi_ew_args args = {.out = out, .in = {in}, .in_dtype = from};

    run_on_all_isas(&(kernel_call){MSI_K_copy, to, &args, {out}, {dtype_bytes(to)}}, "one");
}

static void test_cpu_copy__rounds_to_bf16_to_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } cases[] = {
        {0x3f808000, 0x3f80}, /* 1 + half a unit: ties to even, down */
        {0x3f818000, 0x3f82}, /* ties to even, up */
        {0x3f808001, 0x3f81}, /* just above the tie */
        {0x7f7fffff, 0x7f80}, /* the largest f32 rounds to infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f800001, 0x7fc0}, /* a signalling NaN whose payload would vanish */
        {0xffc12345, 0xffc1}, {0x80000000, 0x8000},
        {0x00008000, 0x0000}, /* denormal tie, down */
        {0x00018000, 0x0002},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t out = 1;

        cast_one(&out, MS_DTYPE_BF16, &cases[i].f32, MS_DTYPE_F32);
        assert_int_equal(cases[i].bf16, out);
    }
}

/* Runs of 32-bit patterns: all that lie at the ends of f16's ranges, and as many from elsewhere. */
static uint32_t pattern(int64_t i, int64_t *run)
{
    static const uint32_t edges[] = {0x0,        0x33000000, 0x387fe000, 0x38800000, 0x47000000,
                                     0x477fe000, 0x47800000, 0x7f000000, 0x7f800000};
    enum { EDGE = 1 << 15 };

    *run = i / EDGE;
    if (*run < 2 * MSI_COUNT(edges)) {
        return (edges[*run / 2] | (uint32_t)(*run % 2) << 31) + (uint32_t)(i % EDGE) - EDGE / 2;
    }
    return (uint32_t)(i * 2654435761u);
}

/* f32 to f16 rounds to nearest even, and all f16 widen exactly; by the compiler's own conversions.
 * Of a NaN the upper bits stay. */
static void test_cpu_copy__f16_is_binary16(void **state)
{
    enum { N = 1 << 16, ALL = 40 * N };
    float *wide = malloc(N * sizeof(*wide)), *back = malloc(N * sizeof(*back));
    _Float16 *narrow = malloc(N * sizeof(*narrow));
    msi_ew_args down = {.out = narrow, .in = {wide}, .in_dtype = MS_DTYPE_F32};
    msi_ew_args up = {.out = back, .in = {narrow}, .in_dtype = MS_DTYPE_F16};

    (void)state;
    down.loop = up.loop = (msi_loop){.ndim = 1, .shape = {N}, .stride = {{1}, {1}}};
    for (int64_t first = 0; first < ALL; first += N) {
        for (int64_t i = 0; i < N; i++) {
            int64_t run;
            const uint32_t bits = pattern(first + i, &run);

            memcpy(&wide[i], &bits, sizeof(bits));
        }
        run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_F16, &down, {narrow}, {2 * N}}, "f16");
        for (int64_t i = 0; i < N; i++) {
            const _Float16 want = (_Float16)wide[i];

            assert_true(isnan(wide[i]) ? isnan((float)narrow[i])
                                       : memcmp(&want, &narrow[i], sizeof(want)) == 0);
        }
    }
    for (int64_t i = 0; i < N; i++) {
        const uint16_t bits = (uint16_t)i;

        memcpy(&narrow[i], &bits, sizeof(bits));
    }
    run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_F32, &up, {back}, {4 * N}}, "f16");
    for (int64_t i = 0; i < N; i++) {
        const float want = (float)narrow[i];

        assert_true(isnan(want) ? isnan(back[i]) : memcmp(&want, &back[i], sizeof(want)) == 0);
    }
    const uint32_t nan = 0xff812345; /* signalling */
    uint16_t bits;

    memcpy(&wide[0], &nan, sizeof(nan));
    run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_F16, &down, {narrow}, {2 * N}}, "f16");
    memcpy(&bits, &narrow[0], sizeof(bits));
    assert_int_equal(0xfe09, bits);
    free(wide);
    free(back);
    free(narrow);
}

static void test_cpu_copy__special_values_cast_as_documented(void **state)
{
    (void)state;
    const float values[] = {NAN, INFINITY, -0.0f, 0.25f, -1.75f, 300.5f};
    const uint8_t truth[] = {1, 1, 0, 1, 1, 1};
    const double tiny = 1e-300, large = 1e300;
    const int64_t wide = ((int64_t)1 << 53) + 1;
    float f = 0;
    double d = 0;
    int64_t i = 0;
    uint8_t u = 0;

    for (int k = 0; k < 6; k++) {
        cast_one(&u, MS_DTYPE_BOOL, &values[k], MS_DTYPE_F32);
        assert_int_equal(truth[k], u);
    }
    cast_one(&u, MS_DTYPE_BOOL, &tiny, MS_DTYPE_F64);
    assert_int_equal(1, u); /* not zero, though it would be in f32 */
    cast_one(&i, MS_DTYPE_I64, &values[4], MS_DTYPE_F32);
    assert_int_equal(-1, i);
    cast_one(&u, MS_DTYPE_U8, &values[5], MS_DTYPE_F32);
    assert_int_equal(300 - 256, u);
    cast_one(&f, MS_DTYPE_F32, &large, MS_DTYPE_F64);
    assert_true(f == INFINITY);
    cast_one(&f, MS_DTYPE_F32, &values[0], MS_DTYPE_F32);
    assert_true(isnan(f));
    cast_one(&d, MS_DTYPE_F64, &wide, MS_DTYPE_I64);
    assert_true(d == 9007199254740992.0);
    u = 7; /* any byte but 0 is true */
    cast_one(&f, MS_DTYPE_F32, &u, MS_DTYPE_BOOL);
    assert_true(f == 1);
}

/* What C leaves undefined has one result, the same in the body of a loop and in its tail. */
static void test_cpu_copy__numbers_without_an_integer_have_one_result(void **state)
{
    (void)state;
    enum { CASES = 12, N = 5 * CASES };
    static const double from[CASES] = {NAN,    INFINITY, -INFINITY, 0x1p63,  -0x1p63, -0x1.8p63,
                                       0x1p80, -0.9,     -3e9,      -1.0e30, 0x1p40,  255.99};
    static const int64_t whole[CASES] = {0,           INT64_MAX, INT64_MIN,        INT64_MAX,
                                         INT64_MIN,   INT64_MIN, INT64_MAX,        0,
                                         -3000000000, INT64_MIN, INT64_C(1) << 40, 255};
    static const int32_t floats[3] = {MS_DTYPE_F64, MS_DTYPE_F32, MS_DTYPE_BF16};

    for (int32_t f = 0; f < 3; f++) {
        typed in = typed_make(floats[f], N);
        int64_t out[N], want[N];
        uint8_t low[N];
        msi_ew_args args = {.in = {in.data}, .in_dtype = floats[f]};

        args.loop = (msi_loop){.ndim = 1, .shape = {N}, .stride = {{1}, {1}}};
        for (int32_t i = 0; i < N; i++) {
            const bool exact = floats[f] == MS_DTYPE_F64 || (i % CASES != 8 && i % CASES != 11);

            typed_set(&in, i, from[i % CASES]);
            want[i] = exact ? whole[i % CASES] : (int64_t)typed_get(&in, i);
        }
        args.out = out;
        run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_I64, &args, {out}, {sizeof(out)}},
                        ms_dtype_name(floats[f]));
        assert_memory_equal(want, out, sizeof(out));
        args.out = low;
        run_on_all_isas(&(kernel_call){MSI_K_copy, MS_DTYPE_U8, &args, {low}, {sizeof(low)}},
                        ms_dtype_name(floats[f]));
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal((uint8_t)want[i], low[i]);
        }
        typed_free(&in);
    }
    for (int32_t i = 0; i < CASES; i++) {
        int64_t out[3] = {1, 2, 3};
        msi_ew_args args = {.out = out, .scalar = {from[i]}};

        args.loop = (msi_loop){.ndim = 1, .shape = {3}, .stride = {{1}}};
        run_on_all_isas(&(kernel_call){MSI_K_fill, MS_DTYPE_I64, &args, {out}, {sizeof(out)}},
                        "fill");
        assert_true(out[0] == whole[i] && out[2] == whole[i]);
    }
}

static void test_cpu_copy__fill_sets_or_adds_in_every_dtype(void **state)
{
    (void)state;
    for (int32_t to = 0; to < MS_DTYPE_COUNT; to++) {
        for (int64_t n = 0; n <= 130; n++) {
            bool accumulate = n % 2;
            int64_t stride = 1 + n % 3, total = n * stride + 1;
            void *out = calloc((size_t)total, (size_t)dtype_bytes(to));
            msi_ew_args args = {.out = out, .scalar = {2.5}, .accumulate = accumulate};
            long double x = to == MS_DTYPE_BOOL ? 1 : !ms_dtype_is_floating(to) ? 2 : 2.5L;

            args.loop = (msi_loop){.ndim = 1, .shape = {n}, .stride = {{stride}}};
            for (int64_t i = 0; i < total; i++) {
                set(to, out, i, (int64_t)i % 4);
            }
            run_on_all_isas(&(kernel_call){MSI_K_fill, to, &args, {out}, {total * dtype_bytes(to)}},
                            "fill");
            for (int64_t i = 0; i < total; i++) {
                long double old = to == MS_DTYPE_BOOL ? i % 4 != 0 : i % 4, want = old;

                if (i % stride == 0 && i / stride < n) {
                    want = !accumulate ? x : to == MS_DTYPE_BOOL ? 1 : old + x;
                }
                assert_true(get(to, out, i) == want);
            }
            free(out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_copy__casts_every_pair_of_dtypes_at_lengths_0_to_130),
        cmocka_unit_test(test_cpu_copy__casts_every_pair_with_strides_and_broadcasts),
        cmocka_unit_test(test_cpu_copy__transposes),
        cmocka_unit_test(test_cpu_copy__rounds_to_bf16_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(test_cpu_copy__f16_is_binary16),
        cmocka_unit_test(test_cpu_copy__special_values_cast_as_documented),
        cmocka_unit_test(test_cpu_copy__numbers_without_an_integer_have_one_result),
        cmocka_unit_test(test_cpu_copy__fill_sets_or_adds_in_every_dtype),
    };

    return cmocka_run_group_tests_name("cpu/copy", tests, NULL, NULL);
}
