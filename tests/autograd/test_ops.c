/* Every operator: values and gradients, in every dtype, on every kind of operand.
 *
 * To add an operator:
 *   1. declare ms_op_<name> in runtime/include/moonshard/ops.h;
 *   2. write runtime/autograd/ops/<name>.c: check, make the output, dispatch, save; the gradient
 * rule beside it;
 *   3. if it needs a kernel of its own: a row in MSI_KERNELS and an argument struct
 *      (runtime/backend), kernels/cpu/<name>.c, and the same for the other devices;
 *   4. add rows to a table in tests/autograd/ops: a call, plain loops, shapes.
 * Step 4 cannot be forgotten: the last test walks the kernel table and fails for every (kernel,
 * dtype) no row reached. It knows because this test's linker puts the two functions all
 * kernels pass through, msi_dispatch() and msi_gemm(), behind the ones below.
 *
 * Checked of every row, for several seeds:
 *   - f64 values against the plain loops, f64 gradients of sum(result * weights) against central
 *     finite differences of the plain loops;
 *   - f32 and bf16 values and gradients against f64 on the same (rounded) operands, within a bound
 *     made of the dtype's epsilon and the length of the longest sum;
 *   - rows of integers: exact values;
 *   - allocation k fails, for every k: an error that says so, nothing left behind;
 *   - gradients of results of other operators (not leaves), gradients that add up within one
 *     backward and over two, gradients born in a wider or narrower dtype than the operand's. */
#include "books.h"
#include "ops/op_test.h"

#include "backend.h"

#include <unistd.h>

enum { SEEDS = 3, MAX_TESTS = 512 };

static const double epsilon[] = {[MS_DTYPE_F32] = 0x1p-23,
                                 [MS_DTYPE_F64] = 0x1p-52,
                                 [MS_DTYPE_BF16] = 0x1p-8,
                                 [MS_DTYPE_F16] = 0x1p-11};

/* -- which kernels ran ------------------------------------------------------------------------- */

static bool ran[MSI_K_COUNT][MS_DTYPE_COUNT];

ms_status __real_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __real_msi_gemm(ms_context *ctx, const msi_gemm_args *args);
ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args);

ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args)
{
    ran[kernel][dtype] = true;
    return __real_msi_dispatch(op, kernel, dtype, args);
}

ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args)
{
    ran[MSI_K_gemm][args->dtype] |= args->m * args->n * args->k > 0;
    return __real_msi_gemm(ctx, args);
}

/* -- comparing --------------------------------------------------------------------------------- */

static double largest(const double *x, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; i < n; i++) {
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    }
    return most;
}

/* |actual - expected| <= rtol max|expected| + atol for every element. */
static void compare(const char *what, int32_t dtype, const double *actual, const double *expected,
                    int64_t n, double rtol, double atol)
{
    const double bound = rtol * largest(expected, n) + atol;

    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(actual[i] - expected[i]) <= bound)) {
            fail_msg("%s in %s, element %lld: %.17g, expected %.17g within %g", what,
                     ms_dtype_name(dtype), (long long)i, actual[i], expected[i], bound);
        }
    }
}

static void compare_results(const op_case *c, const char *what, int32_t dtype,
                            const results *actual, const results *expected, double rtol)
{
    const double atol = rtol > 0 ? epsilon[dtype] : 0; /* operands are of order 1 */
    char text[64];

    snprintf(text, sizeof(text), "%s: result", what);
    compare(text, dtype, actual->out, expected->out, numel_of(&c->out), rtol, atol);
    for (int32_t i = 0; i < c->n_in; i++) {
        if (c->in[i].values != VALUES_IDS) {
            snprintf(text, sizeof(text), "%s: gradient of operand %d", what, (int)i);
            compare(text, dtype, actual->grad[i], expected->grad[i], numel_of(&c->in[i]), rtol,
                    atol);
        }
    }
}

/* What rounding may do: a few units in the last place, growing with the root of the number of
 * terms (rounding errors are not all of one sign). */
static double rounding(const op_case *c, int32_t dtype)
{
    return epsilon[dtype] * (3 + 2 * sqrt(c->terms > 0 ? c->terms : 1));
}

static real weighted_sum(const op_case *c, const numbers *n, const real *const *in)
{
    static real out[OP_MAX_NUMEL];
    real sum = 0;

    c->oracle(c, in, out);
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        sum += out[i] * n->weight[i];
    }
    return sum;
}

static void compare_with_plain_loops(const op_case *c, const numbers *n, const results *r)
{
    static real in[OP_MAX_IN][OP_MAX_NUMEL], out[OP_MAX_NUMEL];
    static double expected[OP_MAX_NUMEL];
    const real *const operands[OP_MAX_IN] = {in[0], in[1], in[2]};
    const real step = 1e-5L;

    for (int32_t k = 0; k < c->n_in; k++) {
        for (int64_t i = 0; i < numel_of(&c->in[k]); i++) {
            in[k][i] = n->in[k][i];
        }
    }
    c->oracle(c, operands, out);
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        expected[i] = (double)out[i];
    }
    compare("result against plain loops", MS_DTYPE_F64, r->out, expected, numel_of(&c->out),
            4 * rounding(c, MS_DTYPE_F64), epsilon[MS_DTYPE_F64]);
    for (int32_t k = 0; k < c->n_in; k++) {
        for (int64_t i = 0; c->in[k].values != VALUES_IDS && i < numel_of(&c->in[k]); i++) {
            const real x = in[k][i];
            real up, down;

            in[k][i] = x + step;
            up = weighted_sum(c, n, operands);
            in[k][i] = x - step;
            down = weighted_sum(c, n, operands);
            in[k][i] = x;
            expected[i] = (double)((up - down) / (2 * step));
        }
        if (c->in[k].values != VALUES_IDS) {
            compare("gradient against finite differences", MS_DTYPE_F64, r->grad[k], expected,
                    numel_of(&c->in[k]), 1e-6, 1e-9);
        }
    }
}

/* -- the test of a row ------------------------------------------------------------------------- */

static double value_of(const operand *o, uint64_t stream, int64_t i)
{
    double x = filler(stream, i);

    switch (o->values) {
    case VALUES_POSITIVE:
        return 1.25 + 0.75 * x;
    case VALUES_IDS:
        return floor((x + 1) / 2 * (double)o->limit);
    default:
        return 1.5 * x;
    }
}

/* Operands of one seed, rounded to `dtype`. */
static void draw(const op_case *c, uint64_t seed, int32_t dtype, numbers *n)
{
    for (int32_t k = 0; k < c->n_in; k++) {
        const int64_t numel = numel_of(&c->in[k]);

        assert_true(numel <= OP_MAX_NUMEL);
        for (int64_t i = 0; i < numel; i++) {
            n->in[k][i] = value_of(&c->in[k], seed * 16 + (uint64_t)k, i);
        }
        if (c->in[k].values != VALUES_IDS) {
            ms_tensor *rounded;

            assert_ok(ms_tensor_from_doubles(&rounded, dtype, 1, &numel, n->in[k], numel));
            assert_ok(ms_tensor_to_doubles(rounded, n->in[k], numel));
            ms_tensor_free(rounded);
        }
    }
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        n->weight[i] = floor(filler(seed * 16 + 15, i) * 8) / 8; /* exact in every dtype */
    }
}

static void twice(const op_case *c, const results *r, results *doubled)
{
    *doubled = *r;
    for (int32_t k = 0; k < c->n_in; k++) {
        for (int64_t i = 0; i < numel_of(&c->in[k]); i++) {
            doubled->grad[k][i] = 2 * r->grad[k][i];
        }
    }
}

static void check_integers(const op_case *c, uint64_t seed)
{
    static numbers n;
    static real in[OP_MAX_IN][OP_MAX_NUMEL], expected[OP_MAX_NUMEL];
    static double out[OP_MAX_NUMEL];
    const real *const operands[OP_MAX_IN] = {in[0], in[1], in[2]};

    for (int32_t k = 0; k < c->n_in; k++) {
        for (int64_t i = 0; i < numel_of(&c->in[k]); i++) {
            n.in[k][i] = floor(1e6 * filler(seed * 16 + (uint64_t)k, i));
            in[k][i] = n.in[k][i];
        }
    }
    c->oracle(c, operands, expected);
    for (int32_t pass = 0; pass < 2; pass++) {
        const bool wraps =
            run_integers(c, pass == 0 ? MS_DTYPE_I64 : MS_DTYPE_I32, &n, out) == MS_DTYPE_I32;

        for (int64_t i = 0; i < numel_of(&c->out); i++) {
            const int64_t want = (int64_t)expected[i];

            assert_true(out[i] == (wraps ? (double)(int32_t)(uint32_t)want : (double)expected[i]));
        }
    }
}

/* Of bytes and of bool, whatever byte stands for true, in i64; along rows and columns. */
static void test_autograd_ops__sums_of_bytes_and_of_what_is_true(void **state)
{
    enum { ROWS = 70, COLS = 37 };
    const int64_t shape[2] = {ROWS, COLS};
    double values[ROWS * COLS], got[ROWS];
    ms_tensor_info info;
    ms_tensor *t, *sums;

    (void)state;
    for (int32_t pass = 0; pass < 4; pass++) {
        const int32_t dtype = pass < 2 ? MS_DTYPE_U8 : MS_DTYPE_BOOL, dim = pass % 2;
        double want[ROWS] = {0};

        for (int64_t i = 0; i < ROWS * COLS; i++) {
            values[i] = (double)(i * i % (dtype == MS_DTYPE_U8 ? 256 : 2));
            want[dim == 0 ? i % COLS : i / COLS] += values[i];
        }
        assert_ok(ms_tensor_from_doubles(&t, dtype, 2, shape, values, ROWS * COLS));
        assert_ok(ms_op_sum(&sums, t, 1u << dim, false));
        assert_ok(ms_tensor_describe(sums, &info));
        assert_int_equal(info.dtype, MS_DTYPE_I64);
        assert_ok(ms_tensor_to_doubles(sums, got, info.numel));
        assert_close(got, want, info.numel, 0, 0);
        ms_tensor_free(sums);
        ms_tensor_free(t);
    }
}

static void check_case(const op_case *c, uint64_t seed)
{
    static numbers n;
    static results exact, actual, doubled;

    draw(c, seed, MS_DTYPE_F64, &n);
    run_case(c, &n, MS_DTYPE_F64, RUN_PLAIN, &exact);
    compare_with_plain_loops(c, &n, &exact);
    run_case(c, &n, MS_DTYPE_F64, RUN_INNER, &actual);
    compare_results(c, "operands that are no leaves", MS_DTYPE_F64, &actual, &exact, 0);
    twice(c, &exact, &doubled);
    run_case(c, &n, MS_DTYPE_F64, RUN_TWICE, &actual);
    compare_results(c, "called twice", MS_DTYPE_F64, &actual, &doubled, 1e-14);
    run_case(c, &n, MS_DTYPE_F64, RUN_REPEATED, &actual);
    compare_results(c, "two backwards", MS_DTYPE_F64, &actual, &doubled, 1e-14);
    run_case(c, &n, MS_DTYPE_F64, RUN_BORN_ODD, &actual);
    compare_results(c, "gradients born in f32", MS_DTYPE_F64, &actual, &exact, 0x1p-23);

    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_BF16, MS_DTYPE_F16};

    for (int32_t d = 0; d < COUNT(dtypes); d++) {
        const double bound = rounding(c, dtypes[d]);

        draw(c, seed, dtypes[d], &n);
        run_case(c, &n, MS_DTYPE_F64, RUN_PLAIN, &exact);
        run_case(c, &n, dtypes[d], RUN_PLAIN, &actual);
        compare_results(c, "against f64", dtypes[d], &actual, &exact, bound);
        run_case(c, &n, dtypes[d], RUN_BORN_WIDE, &actual);
        compare_results(c, "gradients born wide", dtypes[d], &actual, &exact, bound);
        run_case(c, &n, dtypes[d], RUN_BORN_ODD, &actual);
        compare_results(c, "gradients born in f64", dtypes[d], &actual, &exact, bound);
        if (seed == 1) {
            run_out_of_memory(c, &n, dtypes[d]);
        }
    }
}

static void test_autograd_ops__row(void **state)
{
    const op_case *c = *state;
    ms_memory_stats before, after;

    ms_memory_stats_get(&before);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        c->integer ? check_integers(c, seed) : check_case(c, seed);
    }
    ms_memory_stats_get(&after);
    assert_int_equal(after.live_handles, before.live_handles);
    assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
}

/* -- filling and casting: every pair of dtypes, on values all of them hold
 * ------------------------------------
 */

static void test_autograd_ops__full_fills_all_dtypes(void **state)
{
    enum { N = 67 };
    const int64_t n = N;
    double ones[N], got[N];

    for (int64_t i = 0; i < n; i++) {
        ones[i] = 1;
    }
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        ms_tensor *t;

        assert_ok(ms_tensor_full(&t, dtype, 1, &n, 1));
        assert_ok(ms_tensor_to_doubles(t, got, n));
        assert_close(got, ones, n, 0, 0);
        ms_tensor_free(t);
    }
}

static void test_autograd_ops__cast_between_all_dtypes(void **state)
{
    const double values[] = {0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1};
    const int64_t n = COUNT(values);

    for (int32_t from = 0; from < MS_DTYPE_COUNT; from++) {
        for (int32_t to = 0; to < MS_DTYPE_COUNT; to++) {
            ms_tensor *x, *y;
            ms_tensor_info info;
            double got[COUNT(values)];

            assert_ok(ms_tensor_from_doubles(&x, from, 1, &n, values, n));
            assert_ok(ms_op_cast(&y, x, to));
            assert_ok(ms_tensor_describe(y, &info));
            assert_int_equal(info.dtype, to);
            assert_ok(ms_tensor_to_doubles(y, got, n));
            assert_close(got, values, n, 0, 0);
            ms_tensor_free(y);
            ms_tensor_free(x);
        }
    }
}

static void test_autograd_ops__cast_differentiates_into_the_first_dtype(void **state)
{
    const double values[] = {1.5, -2.25, 3, 1e-3}, weights[] = {1, -0.5, 2, 0.25};
    const int64_t n = COUNT(values);
    const int32_t pairs[][2] = {{MS_DTYPE_F32, MS_DTYPE_BF16}, {MS_DTYPE_F64, MS_DTYPE_F32},
                                {MS_DTYPE_BF16, MS_DTYPE_F64}, {MS_DTYPE_F32, MS_DTYPE_F16},
                                {MS_DTYPE_F16, MS_DTYPE_BF16}, {MS_DTYPE_F32, MS_DTYPE_F32}};

    for (int32_t i = 0; i < COUNT(pairs); i++) {
        ms_tensor *x, *y, *weight, *grad;
        double got[COUNT(values)];

        assert_ok(ms_tensor_from_doubles(&x, pairs[i][0], 1, &n, values, n));
        assert_ok(ms_tensor_set_requires_grad(x, true));
        assert_ok(ms_op_cast(&y, x, pairs[i][1]));
        assert_ok(ms_tensor_to_doubles(y, got, n));
        assert_close(got, values, n, 0x1p-8, 0);
        assert_ok(ms_tensor_from_doubles(&weight, pairs[i][1], 1, &n, weights, n));
        assert_ok(ms_backward(y, weight));
        assert_ok(ms_tensor_grad(&grad, x));
        assert_ok(ms_tensor_to_doubles(grad, got, n));
        assert_close(got, weights, n, 0, 0);
        ms_tensor_free(grad);
        ms_tensor_free(weight);
        ms_tensor_free(y);
        ms_tensor_free(x);
    }
}

/* -- nothing is left out ----------------------------------------------------------------------- */

/* Kernels no operator reaches, and who tests them. */
static const struct {
    int32_t kernel;
    const char *test;
} elsewhere[] = {
    {MSI_K_init, "cpu/test_init.c"},         {MSI_K_sgd, "cpu/test_sgd.c"},
    {MSI_K_adam, "cpu/test_adam.c"},         {MSI_K_norm, "cpu/test_norm.c"},
    {MSI_K_tree, "cpu/test_tree.c"},         {MSI_K_norm_fold, "cpu/test_norm.c"},
    {MSI_K_scale, "cpu/test_elementwise.c"},
};

/* tests/, from the folder of fixtures that the test runner names. */
static bool test_exists(const char *name)
{
    const char *fixtures = getenv("MS_TEST_DATA");
    char path[512];

    snprintf(path, sizeof(path), "%s/../%s", fixtures != NULL ? fixtures : "tests/fixtures", name);
    return access(path, R_OK) == 0;
}

static void test_autograd_ops__every_kernel_of_the_table_was_reached(void **state)
{
    const msi_kernel_table *table = msi_kernels();
    int32_t missing = 0;

    for (int32_t k = 0; k < MSI_K_COUNT; k++) {
        const char *test = NULL;

        for (int32_t e = 0; e < COUNT(elsewhere); e++) {
            test = elsewhere[e].kernel == k ? elsewhere[e].test : test;
        }
        if (test != NULL && !test_exists(test)) {
            print_error("kernel %s: its test %s does not exist\n", msi_kernel_name(k), test);
            missing++;
        }
        for (int32_t d = 0; test == NULL && d < MS_DTYPE_COUNT; d++) {
            if (table->fn[k][d] != NULL && !ran[k][d]) {
                print_error("no case for kernel %s %s\n", msi_kernel_name(k), ms_dtype_name(d));
                missing++;
            }
        }
    }
    assert_int_equal(missing, 0);
}

int main(void)
{
    const op_family *const families[] = {&elementwise_cases, &choice_cases, &shape_cases,
                                         &matrix_cases,      &row_cases,    &attention_cases};
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_autograd_ops__full_fills_all_dtypes),
        cmocka_unit_test(test_autograd_ops__cast_between_all_dtypes),
        cmocka_unit_test(test_autograd_ops__comparisons_in_all_dtypes),
        cmocka_unit_test(test_autograd_ops__what_is_no_number),
        cmocka_unit_test(test_autograd_ops__cast_differentiates_into_the_first_dtype),
        cmocka_unit_test(test_autograd_ops__sums_of_bytes_and_of_what_is_true),
        cmocka_unit_test(test_autograd_ops__every_kernel_of_the_table_was_reached), /* last */
    };
    static struct CMUnitTest tests[MAX_TESTS];
    static char names[MAX_TESTS][96];
    size_t n = 0;

    for (int32_t f = 0; f < COUNT(families); f++) {
        for (int32_t i = 0; i < families[f]->n_cases && n < MAX_TESTS; i++, n++) {
            const op_case *c = &families[f]->cases[i];

            snprintf(names[n], sizeof(names[n]), "test_autograd_ops__row: %s", c->name);
            tests[n] = (struct CMUnitTest){names[n], test_autograd_ops__row, NULL, NULL, (void *)c};
        }
    }
    if (n + COUNT(others) > MAX_TESTS) {
        print_error("more than %d rows: raise MAX_TESTS\n", MAX_TESTS);
        return 1;
    }
    memcpy(tests + n, others, sizeof(others));
    return _cmocka_run_group_tests("autograd/ops", tests, n + COUNT(others), NULL, NULL);
}
