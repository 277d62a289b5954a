/* kernels/cpu/tree.c: the fixed tree, bit for bit against a recursive definition of it. */
#include "kernel_test.h"

/* Tree over leaves [first, first + n), n a power of two: both halves, then their sum. */
static double balanced(const double *leaf, int32_t n, bool single)
{
    double x;

    if (n == 1) {
        return leaf[0];
    }
    x = balanced(leaf, n / 2, single) + balanced(leaf + n / 2, n / 2, single);
    return single ? (double)(float)x : x;
}

/* A binary counter over n leaves holds one balanced tree per bit of n, the largest first; they fold
 * from the smallest. */
static double counter(const double *leaf, int32_t n, bool single)
{
    int32_t largest = 1;
    double x, rest;

    while (largest * 2 <= n) {
        largest *= 2;
    }
    x = balanced(leaf, largest, single);
    if (largest == n) {
        return x;
    }
    rest = counter(leaf + largest, n - largest, single);
    x = x + rest;
    return single ? (double)(float)x : x;
}

static double rounded(int32_t dtype, double x)
{
    char bytes[8];
    typed t = {.dtype = dtype, .n = 1, .data = bytes};

    if (ms_dtype_is_narrow(dtype)) {
        x = (float)x;
    }
    typed_set(&t, 0, x);
    return typed_get(&t, 0);
}

typedef struct problem {
    int32_t dtype, round_dtype, n_src;
    int32_t src_dtype[2]; /* taken in turn */
    int64_t n, start;
    double factor;
    bool accumulate;
} problem;

static void check(const problem *p)
{
    const bool single = p->dtype != MS_DTYPE_F64; /* nodes are f32 */
    typed src[p->n_src], out = typed_filled(p->dtype, p->start + p->n, 90);
    typed old = typed_copy(&out);
    msi_tree_source sources[p->n_src];
    msi_tree_args args = {.n = p->n,
                          .n_src = p->n_src,
                          .src = sources,
                          .out = (char *)out.data + p->start * dtype_bytes(p->dtype),
                          .round_dtype = p->round_dtype,
                          .factor = p->factor,
                          .accumulate = p->accumulate};

    for (int32_t k = 0; k < p->n_src; k++) {
        int32_t dtype = p->src_dtype[k % 2];

        src[k] = typed_filled(dtype, p->start + p->n, (uint64_t)k);
        sources[k] = (msi_tree_source){(char *)src[k].data + p->start * dtype_bytes(dtype), dtype};
    }
    run_on_all_isas(&(kernel_call){MSI_K_tree, p->dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "tree");
    for (int64_t i = p->start; i < p->start + p->n; i++) {
        double leaf[p->n_src], want;

        for (int32_t k = 0; k < p->n_src; k++) {
            leaf[k] = typed_get(&src[k], i);
        }
        want = counter(leaf, p->n_src, single);
        if (single) {
            want = (double)(float)(want * (double)(float)p->factor);
        } else {
            want *= p->factor;
        }
        want = rounded(p->round_dtype, want);
        if (p->accumulate) {
            want += typed_get(&old, i);
        }
        want = rounded(p->dtype, want);
        if (typed_get(&out, i) != want) {
            fail_msg("%d sources, n %lld start %lld: element %lld is %a, expected %a",
                     (int)p->n_src, (long long)p->n, (long long)p->start, (long long)i,
                     typed_get(&out, i), want);
        }
    }
    for (int32_t k = 0; k < p->n_src; k++) {
        typed_free(&src[k]);
    }
    typed_free(&out);
    typed_free(&old);
}

static const int32_t layouts[][4] = {
    /* out, rounded to, sources */
    {MS_DTYPE_F32, MS_DTYPE_F32, MS_DTYPE_F32, MS_DTYPE_F32},
    {MS_DTYPE_F32, MS_DTYPE_BF16, MS_DTYPE_BF16, MS_DTYPE_BF16},
    {MS_DTYPE_F32, MS_DTYPE_F32, MS_DTYPE_BF16, MS_DTYPE_BF16},
    {MS_DTYPE_F32, MS_DTYPE_F32, MS_DTYPE_F32, MS_DTYPE_BF16},
    {MS_DTYPE_BF16, MS_DTYPE_BF16, MS_DTYPE_BF16, MS_DTYPE_BF16},
    {MS_DTYPE_BF16, MS_DTYPE_BF16, MS_DTYPE_F32, MS_DTYPE_BF16},
    {MS_DTYPE_F64, MS_DTYPE_F64, MS_DTYPE_F64, MS_DTYPE_F64},
    {MS_DTYPE_F64, MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_F32},
    {MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_BF16, MS_DTYPE_F64},
    {MS_DTYPE_F32, MS_DTYPE_F16, MS_DTYPE_F16, MS_DTYPE_F16},
    {MS_DTYPE_F16, MS_DTYPE_F16, MS_DTYPE_F16, MS_DTYPE_F16},
    {MS_DTYPE_F16, MS_DTYPE_F16, MS_DTYPE_F32, MS_DTYPE_BF16},
    {MS_DTYPE_F64, MS_DTYPE_F16, MS_DTYPE_F16, MS_DTYPE_F64},
};

static problem make(int32_t layout, int32_t n_src, int64_t n, int64_t start)
{
    const int32_t *l = layouts[layout];

    return (problem){.dtype = l[0],
                     .round_dtype = l[1],
                     .n_src = n_src,
                     .src_dtype = {l[2], l[3]},
                     .n = n,
                     .start = start,
                     .factor = n % 3 ? 0.3 : 1,
                     .accumulate = n % 4 == 1};
}

static void test_cpu_tree__merges_as_a_binary_counter_for_any_number_of_sources(void **state)
{
    report_missing_isas();
    for (int32_t layout = 0; layout < 9; layout++) {
        for (int32_t n_src = 1; n_src <= 20; n_src++) {
            problem p = make(layout, n_src, 50 + n_src % 5, n_src % 7);

            check(&p);
        }
        problem most = make(layout, 1024, 33, 0), odd = make(layout, 127, 17, 1);

        check(&most);
        check(&odd);
    }
}

static void test_cpu_tree__is_right_for_lengths_0_to_130_and_starts_0_to_63(void **state)
{
    for (int32_t layout = 0; layout < 9; layout++) {
        for (int64_t n = 0; n <= 130; n++) {
            problem p = make(layout, 1 + (int32_t)(n % 5), n, n * 29 % 64);

            check(&p);
        }
        for (int64_t start = 0; start < 64; start++) {
            problem p = make(layout, 2, 41, start);

            check(&p);
        }
    }
}

static void test_cpu_tree__out_may_be_a_source(void **state)
{
    float a[21], b[21];
    const msi_tree_source src[] = {{a, MS_DTYPE_F32}, {b, MS_DTYPE_F32}};
    msi_tree_args args = {.n = 21, .n_src = 2, .src = src, .out = b, .factor = 0.5};

    for (int i = 0; i < 21; i++) {
        a[i] = (float)i;
        b[i] = (float)(3 * i);
    }
    run_on_all_isas(&(kernel_call){MSI_K_tree, MS_DTYPE_F32, &args, {b}, {sizeof(b)}}, "in place");
    for (int i = 0; i < 21; i++) {
        assert_true(b[i] == (float)(2 * i));
    }
}

static void test_cpu_tree__max_and_min_ignore_the_factor_and_keep_nan(void **state)
{
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int32_t nan_at = -1; nan_at < 3; nan_at++) {
            typed src[3], out = typed_filled(float_dtypes[d], 19, 9);
            msi_tree_source sources[3];
            msi_tree_args args = {.n = 19,
                                  .n_src = 3,
                                  .src = sources,
                                  .out = out.data,
                                  .round_dtype = float_dtypes[d],
                                  .factor = 0.5,
                                  .reduce = MS_REDUCE_MAX};

            for (int32_t k = 0; k < 3; k++) {
                src[k] = typed_filled(float_dtypes[d], 19, (uint64_t)k);
                sources[k] = (msi_tree_source){src[k].data, float_dtypes[d]};
            }
            if (nan_at >= 0) {
                typed_set(&src[nan_at], 18, NAN);
            }
            for (int32_t pass = 0; pass < 2; pass++) {
                run_on_all_isas(
                    &(kernel_call){
                        MSI_K_tree, float_dtypes[d], &args, {out.data}, {typed_nbytes(&out)}},
                    "extremes");
                for (int64_t i = 0; i < 19; i++) {
                    double want = typed_get(&src[0], i);

                    for (int32_t k = 1; k < 3; k++) {
                        double x = typed_get(&src[k], i);

                        want = pass == 0 ? fmax(want, x) : fmin(want, x);
                    }
                    check_element("extreme", i, typed_get(&out, i),
                                  i == 18 && nan_at >= 0 ? NAN : want, 0);
                }
                args.reduce = MS_REDUCE_MIN;
            }
            for (int32_t k = 0; k < 3; k++) {
                typed_free(&src[k]);
            }
            typed_free(&out);
        }
    }
}

static void test_cpu_tree__integers_are_exact(void **state)
{
    const int64_t big = (int64_t)1 << 60;
    int64_t a[2] = {big + 1, -7}, b[2] = {5, 3}, c[2] = {-2, INT64_MIN}, out[2];
    const msi_tree_source src[] = {{a, MS_DTYPE_I64}, {b, MS_DTYPE_I64}, {c, MS_DTYPE_I64}};
    msi_tree_args args = {.n = 2, .n_src = 3, .src = src, .out = out, .factor = 1};
    kernel_call call = {MSI_K_tree, MS_DTYPE_I64, &args, {out}, {sizeof(out)}};

    memset(out, 0, sizeof(out));
    run_on_all_isas(&call, "i64");
    assert_true(out[0] == big + 4 && out[1] == INT64_MAX - 3); /* wrapped */
    args.reduce = MS_REDUCE_MAX;
    run_on_all_isas(&call, "i64");
    assert_true(out[0] == big + 1 && out[1] == 3);
    args.reduce = MS_REDUCE_MIN;
    run_on_all_isas(&call, "i64");
    assert_true(out[0] == -2 && out[1] == INT64_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_tree__merges_as_a_binary_counter_for_any_number_of_sources),
        cmocka_unit_test(test_cpu_tree__is_right_for_lengths_0_to_130_and_starts_0_to_63),
        cmocka_unit_test(test_cpu_tree__out_may_be_a_source),
        cmocka_unit_test(test_cpu_tree__max_and_min_ignore_the_factor_and_keep_nan),
        cmocka_unit_test(test_cpu_tree__integers_are_exact),
    };

    return cmocka_run_group_tests_name("cpu/tree", tests, NULL, NULL);
}
