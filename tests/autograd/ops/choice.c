/* Choosing by a bool, and the comparisons that make them. */
#include "op_test.h"

#include <math.h>

/* The condition is drawn as an id, 0 or 1. */
static ms_status run_where(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    ms_tensor *cond;
    ms_status status = ms_op_cast(&cond, in[0], MS_DTYPE_BOOL);

    if (status != MS_OK) {
        *out = NULL;
        return status;
    }
    status = ms_op_where(out, cond, in[1], in[2]);
    ms_tensor_free(cond);
    return status;
}

static void oracle_where(const op_case *c, const real *const *in, real *out)
{
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        const int32_t from = in[0][broadcast_position(&c->out, i, &c->in[0])] != 0 ? 1 : 2;

        out[i] = in[from][broadcast_position(&c->out, i, &c->in[from])];
    }
}

static const op_case cases[] = {
    ROW3("where", where, IDS(2, 5, 7), SHAPE(5, 7), SHAPE(5, 7), SHAPE(5, 7)),
    ROW3("where, long", where, IDS(2, 131), SHAPE(131), SHAPE(131), SHAPE(131)),
    ROW3("where, a scalar", where, IDS(2, 5, 7), SCALAR, SHAPE(5, 7), SHAPE(5, 7), .terms = 35),
    ROW3("where, b a row", where, IDS(2, 5, 7), PERMUTED(5, 7), NARROWED(7), SHAPE(5, 7),
         .terms = 5),
    ROW3("where, all broadcast", where, IDS(2, 4, 1, 1), SHAPE(3, 1), SHAPE(5), SHAPE(4, 3, 5),
         .terms = 20),
    ROW3("where, empty", where, IDS(2, 0, 7), SHAPE(7), SHAPE(0, 7), SHAPE(0, 7)),
    ROW3("where, integers", where, IDS(2, 5, 7), SHAPE(5, 7), SHAPE(5, 1), SHAPE(5, 7),
         .integer = true),
};

const op_family choice_cases = {cases, COUNT(cases)};

/* -- comparisons ------------------------------------------------------------------------------- */

static bool holds(int32_t relation, double a, double b)
{
    const bool answers[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};

    return answers[relation];
}

static void check_bools(ms_tensor *result, const double *expected, int64_t n)
{
    ms_tensor_info info;
    double got[16];

    assert_ok(ms_tensor_describe(result, &info));
    assert_int_equal(info.dtype, MS_DTYPE_BOOL);
    assert_false(info.requires_grad);
    assert_ok(ms_tensor_to_doubles(result, got, n));
    assert_close(got, expected, n, 0, 0);
    ms_tensor_free(result);
}

static void check_relation(int32_t relation, ms_tensor *a, ms_tensor *b, const double *va,
                           const double *vb, int64_t n)
{
    ms_tensor *result;
    double expected[16];

    for (int64_t i = 0; i < n; i++) {
        expected[i] = holds(relation, va[i], vb[i]);
    }
    assert_ok(ms_op_compare(&result, a, b, relation));
    check_bools(result, expected, n);
    for (int64_t i = 0; i < n; i++) {
        expected[i] = holds(relation, va[i], 1);
    }
    assert_ok(ms_op_compare_number(&result, a, 1, relation));
    check_bools(result, expected, n);
}

static void check_classes(ms_tensor *x, const double *values, int64_t n)
{
    ms_tensor *result;
    double expected[3][16];

    for (int64_t i = 0; i < n; i++) {
        expected[0][i] = isnan(values[i]) != 0;
        expected[1][i] = isinf(values[i]) != 0;
        expected[2][i] = isfinite(values[i]) != 0;
    }
    assert_ok(ms_op_isnan(&result, x));
    check_bools(result, expected[0], n);
    assert_ok(ms_op_isinf(&result, x));
    check_bools(result, expected[1], n);
    assert_ok(ms_op_isfinite(&result, x));
    check_bools(result, expected[2], n);
}

/* What is no number, in every dtype that has such. */
void test_autograd_ops__what_is_no_number(void **state)
{
    const double values[] = {
        0, NAN, INFINITY, -INFINITY, -0.0, 65504, -1, NAN, 5.9604644775390625e-8};
    const int64_t n = COUNT(values);

    (void)state;
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        ms_tensor *x;

        if (ms_dtype_is_floating(dtype)) {
            assert_ok(ms_tensor_from_doubles(&x, dtype, 1, &n, values, n));
            check_classes(x, values, n);
            ms_tensor_free(x);
        }
    }
}

static void check_where(ms_tensor *a, ms_tensor *b, const double *va, const double *vb, int64_t n)
{
    const double chosen[] = {1, 0, 0, 1, 1, 0, 1};
    ms_tensor *cond, *result;
    double got[16], expected[16];

    for (int64_t i = 0; i < n; i++) {
        expected[i] = chosen[i] != 0 ? va[i] : vb[i];
    }
    assert_ok(ms_tensor_from_doubles(&cond, MS_DTYPE_BOOL, 1, &n, chosen, n));
    assert_ok(ms_op_where(&result, cond, a, b));
    assert_ok(ms_tensor_to_doubles(result, got, n));
    assert_close(got, expected, n, 0, 0);
    ms_tensor_free(result);
    ms_tensor_free(cond);
}

void test_autograd_ops__comparisons_in_all_dtypes(void **state)
{
    const double va[] = {0, 1, 1, 0, 1, 0, 1}, vb[] = {0, 1, 0, 1, 1, 1, 0};
    const int64_t n = COUNT(va);

    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        ms_tensor *a, *b;
        bool answer;

        assert_ok(ms_tensor_from_doubles(&a, dtype, 1, &n, va, n));
        assert_ok(ms_tensor_from_doubles(&b, dtype, 1, &n, vb, n));
        if (ms_dtype_is_floating(dtype)) {
            assert_ok(ms_tensor_set_requires_grad(a, true)); /* and nothing is recorded */
        }
        for (int32_t relation = MS_COMPARE_EQ; relation <= MS_COMPARE_GE; relation++) {
            check_relation(relation, a, b, va, vb, n);
        }
        check_where(a, b, va, vb, n);
        check_classes(a, va, n);
        assert_ok(ms_tensor_allclose(a, b, 0, 0.5, &answer));
        assert_false(answer);
        assert_ok(ms_tensor_allclose(a, b, 0, 1, &answer));
        assert_true(answer);
        ms_tensor_free(b);
        ms_tensor_free(a);
    }
}
