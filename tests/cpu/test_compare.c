/* kernels/cpu/compare.c: comparisons and choices in every dtype, from any start, with any strides.
 */
#include "kernel_test.h"

enum { N_VALUES = 8, MAX_N = 200 };

/* -- elements of any dtype --------------------------------------------------------------------- */

/* Few values, so that equal ones meet; those of one dtype are its own edges. */
static long double value_at(int32_t dtype, uint64_t pick)
{
    static const double floats[N_VALUES] = {0, -0.0, 1, -1.5, 0.25, INFINITY, -INFINITY, NAN};
    static const int64_t longs[N_VALUES] = {
        0, 1, -1, INT64_MAX, INT64_MAX - 1, INT64_MIN, (int64_t)1 << 53, ((int64_t)1 << 53) + 1};
    static const uint8_t bytes[N_VALUES] = {0, 1, 2, 127, 128, 254, 255, 7};

    switch (dtype) {
    case MS_DTYPE_I64:
        return longs[pick % N_VALUES];
    case MS_DTYPE_I32:
        return (int32_t)(uint32_t)(uint64_t)longs[pick % N_VALUES];
    case MS_DTYPE_U8:
        return bytes[pick % N_VALUES];
    case MS_DTYPE_BOOL:
        return (long double)(pick % 2);
    default:
        return floats[pick % N_VALUES];
    }
}

static void put(int32_t dtype, void *data, int64_t i, long double value)
{
    typed t = {.dtype = dtype, .data = data};

    switch (dtype) {
    case MS_DTYPE_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case MS_DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case MS_DTYPE_U8:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    case MS_DTYPE_BOOL: /* anything but 0 is true */
        ((uint8_t *)data)[i] = value != 0 ? (uint8_t)(1 + i % 200) : 0;
        break;
    default:
        typed_set(&t, i, (double)value);
        break;
    }
}

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* n elements of stream `k`: what memory holds, and the values. */
typedef struct block {
    void *data;
    long double value[MAX_N];
} block;

static void block_make(block *b, int32_t dtype, int64_t n, uint64_t k)
{
    assert_true(n <= MAX_N);
    b->data = malloc((size_t)(n * dtype_bytes(dtype)) + 1);
    assert_non_null(b->data);
    for (int64_t i = 0; i < n; i++) {
        b->value[i] = value_at(dtype, mixed(k * 1000 + (uint64_t)i + 1));
        put(dtype, b->data, i, b->value[i]);
    }
}

static const void *element(const block *b, int32_t dtype, int64_t i)
{
    return (const char *)b->data + i * dtype_bytes(dtype);
}

/* -- comparisons ------------------------------------------------------------------------------- */

static const double relative = 0.5, absolute = 0.25;

static bool holds(int32_t kernel, long double a, long double b)
{
    switch (kernel) {
    case MSI_K_eq:
        return a == b;
    case MSI_K_ne:
        return a != b;
    case MSI_K_lt:
        return a < b;
    case MSI_K_le:
        return a <= b;
    default:
        return a == b || (isfinite(a - b) && fabsl(a - b) <= absolute + relative * fabsl(b));
    }
}

static const int32_t kernels[] = {MSI_K_eq, MSI_K_ne, MSI_K_lt, MSI_K_le, MSI_K_close};

/* The loop of `args` over blocks a and b that begin `start` elements into their memory. */
static void check_comparison(int32_t kernel, int32_t dtype, const msi_loop *loop, int64_t start,
                             bool accumulate)
{
    const int64_t rows = loop->ndim > 1 ? loop->shape[0] : 1;
    const int64_t cols = loop->ndim > 0 ? loop->shape[loop->ndim - 1] : 1;
    uint8_t out[MAX_N], old[MAX_N];
    block a, b;
    msi_ew_args args = {.loop = *loop,
                        .out = out + start,
                        .in_dtype = dtype,
                        .accumulate = accumulate,
                        .scalar = {relative, absolute}};

    block_make(&a, dtype, MAX_N, 1);
    block_make(&b, dtype, MAX_N, 2);
    args.in[0] = element(&a, dtype, start);
    args.in[1] = element(&b, dtype, start);
    for (int64_t i = 0; i < MAX_N; i++) {
        out[i] = old[i] = accumulate ? i % 3 == 0 : 0xaa;
    }
    run_on_all_isas(&(kernel_call){kernel, MS_DTYPE_BOOL, &args, {out}, {sizeof(out)}}, "compare");
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            int64_t at[3];

            for (int32_t k = 0; k < 3; k++) {
                at[k] = start + (loop->ndim > 1 ? r * loop->stride[k][0] : 0) +
                        (loop->ndim > 0 ? c * loop->stride[k][loop->ndim - 1] : 0);
            }
            const bool want =
                holds(kernel, a.value[at[1]], b.value[at[2]]) || (accumulate && old[at[0]]);

            if (out[at[0]] != want) {
                fail_msg("%s of %s: (%lld, %lld) is %d, expected %d for %Lg and %Lg",
                         msi_kernel_name(kernel), ms_dtype_name(dtype), (long long)r, (long long)c,
                         out[at[0]], want, a.value[at[1]], b.value[at[2]]);
            }
            old[at[0]] = out[at[0]];
        }
    }
    assert_memory_equal(out, old, sizeof(out)); /* nothing else was written */
    free(a.data);
    free(b.data);
}

static msi_loop row_of(int64_t n, int64_t step_a, int64_t step_b)
{
    return (msi_loop){.ndim = 1, .shape = {n}, .stride = {{1}, {step_a}, {step_b}}};
}

static void test_cpu_compare__is_right_for_lengths_0_to_130(void **state)
{
    (void)state;
    report_missing_isas();
    for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
        for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
            for (int64_t n = 0; n <= 130; n++) {
                const msi_loop loop = row_of(n, n % 4 != 1, n % 4 != 2);

                check_comparison(kernels[k], dtype, &loop, (n * 29) % 64, n % 3 == 1);
            }
        }
    }
}

static void test_cpu_compare__is_right_from_starts_0_to_63(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
        for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
            for (int64_t start = 0; start < 64; start++) {
                const msi_loop loop = row_of(37, start % 5 != 1, start % 7 != 1);

                check_comparison(kernels[k], dtype, &loop, start, start & 1);
            }
        }
    }
}

/* Result row-major, column-major or with gaps; operands permuted, narrowed, broadcast. */
static const msi_loop layouts[] = {
    {.ndim = 0},
    {.ndim = 2, .shape = {5, 7}, .stride = {{7, 1}, {1, 5}, {9, 1}}},
    {.ndim = 2, .shape = {5, 7}, .stride = {{1, 5}, {7, 1}, {0, 1}}},
    {.ndim = 2, .shape = {6, 9}, .stride = {{20, 2}, {3, 0}, {1, 6}}},
    {.ndim = 2, .shape = {0, 9}, .stride = {{9, 1}, {9, 1}, {0, 1}}},
};

static void test_cpu_compare__strides_and_broadcasts_reach_the_right_elements(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
        for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
            for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
                check_comparison(kernels[k], dtype, &layouts[l], 11, l & 1);
            }
        }
    }
}

/* -- where ------------------------------------------------------------------------------------- */

/* Values whose sums are exact in every dtype (and wrap alike): small integers. */
static void small_integers(block *b, int32_t dtype, uint64_t k)
{
    for (int64_t i = 0; i < MAX_N; i++) {
        b->value[i] =
            (long double)(mixed(k * 777 + (uint64_t)i) % (dtype == MS_DTYPE_BOOL ? 2 : 50));
        put(dtype, b->data, i, b->value[i]);
    }
}

static double read_back(int32_t dtype, const void *data, int64_t i)
{
    typed t = {.dtype = dtype, .data = (void *)data};

    return dtype == MS_DTYPE_I64                            ? (double)((const int64_t *)data)[i]
           : dtype == MS_DTYPE_I32                          ? ((const int32_t *)data)[i]
           : dtype == MS_DTYPE_U8 || dtype == MS_DTYPE_BOOL ? ((const uint8_t *)data)[i]
                                                            : typed_get(&t, i);
}

/* out (+)= cond ? a : b; steps of cond, a, b are 0, 1 or (gaps) 2; all begin at `start`. */
static void check_where(int32_t dtype, int64_t n, int64_t start, const int64_t *step,
                        bool accumulate)
{
    const size_t size = (size_t)dtype_bytes(dtype);
    block cond, a, b, out, old;
    msi_ew_args args = {
        .accumulate = accumulate,
        .loop = {.ndim = 1, .shape = {n}, .stride = {{step[3]}, {step[0]}, {step[1]}, {step[2]}}}};

    block_make(&cond, MS_DTYPE_BOOL, MAX_N, 3);
    block_make(&a, dtype, MAX_N, 4);
    block_make(&b, dtype, MAX_N, 5);
    block_make(&out, dtype, MAX_N, 6);
    block_make(&old, dtype, MAX_N, 6);
    if (accumulate) {
        small_integers(&a, dtype, 4);
        small_integers(&b, dtype, 5);
        small_integers(&out, dtype, 6);
        small_integers(&old, dtype, 6);
    }
    args.in[0] = element(&cond, MS_DTYPE_BOOL, start);
    args.in[1] = element(&a, dtype, start);
    args.in[2] = element(&b, dtype, start);
    args.out = (char *)out.data + (size_t)start * size;
    run_on_all_isas(
        &(kernel_call){MSI_K_where, dtype, &args, {out.data}, {(int64_t)(MAX_N * size)}}, "where");
    for (int64_t i = 0; i < n; i++) {
        const bool first = cond.value[start + i * step[0]] != 0;
        const block *from = first ? &a : &b;
        const int64_t at = start + i * (first ? step[1] : step[2]), to = start + i * step[3];

        if (!accumulate) { /* bits are moved: NaN, -0, odd bools */
            assert_memory_equal(element(&out, dtype, to), element(from, dtype, at), size);
        } else {
            const double sum = (double)(old.value[to] + from->value[at]);

            assert_true(read_back(dtype, out.data, to) ==
                        (dtype == MS_DTYPE_BOOL ? sum != 0 : sum));
        }
        memcpy((char *)old.data + (size_t)to * size, element(&out, dtype, to), size);
    }
    assert_memory_equal(out.data, old.data, MAX_N * size);
    free(cond.data);
    free(a.data);
    free(b.data);
    free(out.data);
    free(old.data);
}

static void test_cpu_compare__where_is_right_for_all_lengths_and_starts(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        for (int64_t n = 0; n <= 130; n++) {
            const int64_t step[4] = {n % 5 != 1, n % 4 != 1, n % 3 != 1, 1};

            check_where(dtype, n, (n * 29) % 64, step, n % 7 == 3);
        }
        for (int64_t start = 0; start < 64; start++) {
            const int64_t dense[4] = {1, 1, 1, 1};

            check_where(dtype, 37, start, dense, start & 1);
        }
    }
}

static void test_cpu_compare__where_walks_gaps(void **state)
{
    const int64_t steps[][4] = {{2, 1, 1, 1}, {1, 2, 0, 1}, {1, 1, 2, 2}, {2, 2, 2, 2},
                                {0, 2, 1, 1}, {0, 0, 0, 2}, {2, 0, 1, 1}};

    (void)state;
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
            check_where(dtype, 90, 5, steps[i], i & 1);
        }
    }
}

/* Two rows: the choice's element is a byte, its rows lie apart in steps of their own. */
static void test_cpu_compare__where_walks_rows(void **state)
{
    const uint8_t cond[6] = {1, 0, 0, 0, 1, 0}; /* rows start 3 apart */
    const double a[4] = {1, 2, 3, 4}, b[2] = {-1, -2};
    double out[4] = {0};
    msi_ew_args args = {
        .out = out,
        .in = {cond, a, b},
        .loop = {.ndim = 2, .shape = {2, 2}, .stride = {{2, 1}, {3, 1}, {1, 2}, {0, 1}}}};

    (void)state;
    run_on_all_isas(&(kernel_call){MSI_K_where, MS_DTYPE_F64, &args, {out}, {(int64_t)sizeof(out)}},
                    "rows");
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == -1 && out[3] == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_compare__is_right_for_lengths_0_to_130),
        cmocka_unit_test(test_cpu_compare__is_right_from_starts_0_to_63),
        cmocka_unit_test(test_cpu_compare__strides_and_broadcasts_reach_the_right_elements),
        cmocka_unit_test(test_cpu_compare__where_is_right_for_all_lengths_and_starts),
        cmocka_unit_test(test_cpu_compare__where_walks_gaps),
        cmocka_unit_test(test_cpu_compare__where_walks_rows),
    };

    return cmocka_run_group_tests_name("cpu/compare", tests, NULL, NULL);
}
