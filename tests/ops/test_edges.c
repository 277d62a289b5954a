/* What the table's random operands do not reach: exact results at the edges of the dtypes, masks,
 * memory that fused operators must not take, and arguments that operators refuse. */
#include "bytes.h"
#include "row.h"
#include "values.h"

#include "base.h"
#include "tensor.h"

static const int32_t floats[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16};

static void read_grad(ms_tensor *leaf, double *values, int64_t n)
{
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, leaf));
    assert_non_null(grad);
    assert_ok(ms_tensor_to_doubles(grad, values, n));
}

static uint64_t hash_of(ms_tensor *t)
{
    uint64_t hash;

    assert_ok(ms_tensor_hash(t, &hash));
    return hash;
}

/* -- functions of one number ------------------------------------------------------------------- */

typedef struct edge {
    const char *name;
    ms_status (*run)(ms_tensor **out, ms_tensor *x, double p);
    double p, x, y, g, dx; /* y of x, and dx where g comes in; ANY is not checked */
} edge;

#define ANY 1234

#define EDGE(name, CALL)                                                                           \
    static ms_status name(ms_tensor **out, ms_tensor *x, double p)                                 \
    {                                                                                              \
        (void)p;                                                                                   \
        return (CALL);                                                                             \
    }
EDGE(run_abs, ms_op_abs(out, x))
EDGE(run_sign, ms_op_sign(out, x))
EDGE(run_relu, ms_op_relu(out, x))
EDGE(run_silu, ms_op_silu(out, x))
EDGE(run_gelu, ms_op_gelu(out, x, p != 0))
EDGE(run_clamp, ms_op_clamp(out, x, 0, p))
EDGE(run_clamp_max, ms_op_clamp(out, x, -INFINITY, p))
EDGE(run_leaky_relu, ms_op_leaky_relu(out, x, p))
EDGE(run_pow, ms_op_pow(out, x, p))
EDGE(run_scale, ms_op_affine(out, x, p, -0.0))

static const edge edges[] = {
    {"abs of NaN has no slope", run_abs, 0, NAN, NAN, 3, 0},
    {"abs of 0 has no slope", run_abs, 0, -0.0, 0, 3, 0},
    {"sign has no slope", run_sign, 0, 2, 1, NAN, 0},
    {"NaN passes relu and back", run_relu, 0, NAN, NAN, 3, 3},
    {"relu of -0", run_relu, 0, -0.0, -0.0, 3, 0},
    {"relu of 0", run_relu, 0, 0, 0, 3, 0},
    {"relu below 0", run_relu, 0, -1, ANY, 3, 0},
    {"silu of NaN", run_silu, 0, NAN, NAN, 1, NAN},
    {"silu far above 0", run_silu, 0, 9984, 9984, 1, 1},
    {"silu far below 0", run_silu, 0, -9984, ANY, 1, ANY},
    {"gelu of NaN", run_gelu, 0, NAN, NAN, 1, NAN},
    {"gelu of infinity", run_gelu, 0, INFINITY, INFINITY, 1, NAN},
    {"gelu of -infinity", run_gelu, 0, -INFINITY, NAN, 1, NAN},
    {"gelu far below 0", run_gelu, 0, -9984, ANY, 1, ANY},
    {"gelu_tanh of NaN", run_gelu, 1, NAN, NAN, 1, NAN},
    {"gelu_tanh of infinity", run_gelu, 1, INFINITY, INFINITY, 1, NAN},
    {"gelu_tanh of -infinity", run_gelu, 1, -INFINITY, NAN, 1, NAN},
    {"gelu_tanh far above 0", run_gelu, 1, 9984, 9984, 1, 1}, /* whose cube is no f16 */
    {"clamp on both bounds", run_clamp, 0, 0, 0, 3, 0},
    {"clamp on its lower bound", run_clamp, 1, -0.0, ANY, 3, 0},
    {"clamp between its bounds", run_clamp, 1, 0.5, 0.5, 3, 3},
    {"clamp on its upper bound", run_clamp, 1, 1, 1, 3, 0},
    {"clamp without a lower bound", run_clamp_max, 1, -INFINITY, -INFINITY, 3, 3},
    {"clamp without bounds", run_clamp_max, INFINITY, INFINITY, INFINITY, 3, 3},
    {"leaky_relu of 0", run_leaky_relu, 0.5, 0, 0, 3, 1.5},
    {"clamp of NaN", run_clamp, 0, NAN, NAN, 3, 0},
    {"clamp beyond", run_clamp, 0, 1, 0, 3, 0},
    {"power 0 at 0", run_pow, 0, 0, 1, 3, 0},
    {"power 0 of NaN", run_pow, 0, NAN, 1, INFINITY, 0},
    {"power 1 at 0", run_pow, 1, 0, 0, 3, 3},
    {"power 2 at 0", run_pow, 2, 0, 0, 3, 0},
    {"power 2 below 0", run_pow, 2, -2, 4, 3, -12},
    {"power 3/2 at 0", run_pow, 1.5, 0, 0, 3, 0},
    {"square root at 0", run_pow, 0.5, 0, 0, 3, INFINITY},
    {"square root of 4", run_pow, 0.5, 4, 2, 3, 0.75},
    {"square root of -1", run_pow, 0.5, -1, NAN, 1, NAN},
    {"inverse square root of 4", run_pow, -0.5, 4, 0.5, 1, ANY},
    {"inverse of 2", run_pow, -1, 2, 0.5, 3, -0.75},
    {"a product keeps the sign of 0", run_scale, -2, 0, -0.0, 0, -0.0},
};

static bool is_same(double got, double want)
{
    return want == ANY ||
           (isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want));
}

static void test_ops_edges__functions_are_exact_at_their_edges(void **state)
{
    for (int32_t k = 0; k < COUNT(edges) * COUNT(floats); k++) {
        const edge *e = &edges[k / COUNT(floats)];
        const int32_t dtype = floats[k % COUNT(floats)];
        ms_tensor *x = LEAF(dtype, e->x), *g = VECTOR(dtype, e->g), *y;
        double value, slope;

        assert_ok(e->run(&y, x, e->p));
        assert_ok(ms_tensor_to_doubles(y, &value, 1));
        assert_ok(ms_backward(y, g));
        read_grad(x, &slope, 1);
        slope = e->dx == 0 && e->g != 0 ? fabs(slope) : slope; /* of no slope the sign is free */
        if (!is_same(value, e->y) || !is_same(slope, e->dx)) {
            fail_msg("%s in %s: %g, slope %g", e->name, ms_dtype_name(dtype), value, slope);
        }
    }
}

/* 1 / b is infinite in f32, -g (a / b) / b is not. */
static void test_ops_edges__quotients_of_tiny_divisors_have_a_gradient(void **state)
{
    static const double cases[2][4] = {{0, 1e-40, 1, 0}, {0x1p-100, 0x1p-130, 0x1p-60, -0x1p100}};

    for (int32_t k = 0; k < 2; k++) {
        ms_tensor *a = VECTOR(MS_DTYPE_F32, cases[k][0]), *b = LEAF(MS_DTYPE_F32, cases[k][1]);
        ms_tensor *g = VECTOR(MS_DTYPE_F32, cases[k][2]), *y;

        assert_ok(ms_op_div(&y, a, b));
        assert_ok(ms_backward(y, g));
        EXPECT_GRAD(b, cases[k][3]);
    }
}

/* where(x > 0, sqrt(x), 0): NaN and infinity stay with the operand that was chosen. */
static void test_ops_edges__where_keeps_gradients_apart(void **state)
{
    ms_tensor *a = LEAF(MS_DTYPE_F64, 1, 2, 3), *b = LEAF(MS_DTYPE_F64, 4, 5, 6), *y;
    ms_tensor *cond = VECTOR(MS_DTYPE_BOOL, 1, 0, 1), *g = VECTOR(MS_DTYPE_F64, 2, INFINITY, NAN);
    double da[3], db[3];

    assert_ok(ms_op_where(&y, cond, a, b));
    assert_ok(ms_backward(y, g));
    read_grad(a, da, 3);
    read_grad(b, db, 3);
    assert_true(da[0] == 2 && da[1] == 0 && isnan(da[2]));
    assert_true(db[0] == 0 && db[1] == INFINITY && db[2] == 0);
}

/* -- conversions ------------------------------------------------------------------------------- */

/* Every bf16 and f16, and numbers around the middle between two, round as IEEE 754 says. */
static void test_ops_edges__narrow_dtypes_round_to_nearest_even(void **state)
{
    enum { N = 1 << 16 };
    const int64_t n = N;
    uint16_t *bits = malloc(N * sizeof(*bits));
    float *x = malloc(N * sizeof(*x));

    for (int32_t k = 0; k < 2 * 3; k++) {
        const int32_t dtype = k / 3 == 0 ? MS_DTYPE_BF16 : MS_DTYPE_F16;
        const uint32_t half = dtype == MS_DTYPE_BF16 ? 0x8000 : 0x1000;
        ms_tensor *wide, *narrow;

        for (int64_t i = 0; i < N; i++) {
            const uint16_t b = (uint16_t)i;
            uint32_t w = (uint32_t)b << 16;
            _Float16 h;

            memcpy(&h, &b, sizeof(h));
            memcpy(&x[i], &w, sizeof(w));
            x[i] = dtype == MS_DTYPE_F16 ? (float)h : x[i];
            memcpy(&w, &x[i], sizeof(w));
            w += isfinite(x[i]) ? half + (uint32_t)(k % 3) - 1 : 0; /* beside and on the middle */
            memcpy(&x[i], &w, sizeof(w));
        }
        assert_ok(ms_tensor_empty(&wide, MS_DTYPE_F32, 1, &n));
        write_bytes(wide, x);
        assert_ok(ms_op_cast(&narrow, wide, dtype));
        read_bytes(narrow, bits);
        for (int64_t i = 0; i < N; i++) {
            const _Float16 h = (_Float16)x[i];
            uint32_t w;
            uint16_t want;

            memcpy(&want, &h, sizeof(want));
            memcpy(&w, &x[i], sizeof(w));
            if (dtype == MS_DTYPE_BF16) {
                want = (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
            }
            if (!isnan(x[i]) && bits[i] != want) {
                fail_msg("%a in %s is %x, expected %x", (double)x[i], ms_dtype_name(dtype), bits[i],
                         want);
            }
        }
    }
    free(x);
    free(bits);
}

/* What C leaves undefined has one result, the same in the body of a loop and in its tail. */
static void test_ops_edges__numbers_without_an_integer_have_one_result(void **state)
{
    enum { CASES = 11, N = 5 * CASES };
    static const double from[CASES] = {NAN,    INFINITY, -INFINITY, 0x1p63, -0x1p63, -0x1.8p63,
                                       0x1p80, -0.9,     -0x1p40,   0x1p40, 255.5};
    static const int64_t whole[CASES] = {
        0,         INT64_MAX, INT64_MIN,           INT64_MAX,        INT64_MIN, INT64_MIN,
        INT64_MAX, 0,         -(INT64_C(1) << 40), INT64_C(1) << 40, 255};
    const int64_t n = N;
    double x[N];
    int64_t out[N];
    uint8_t low[N];

    for (int32_t i = 0; i < N; i++) {
        x[i] = from[i % CASES];
    }
    for (int32_t k = 0; k < 2; k++) {
        ms_tensor *in, *y;

        assert_ok(ms_tensor_from_doubles(&in, floats[k], 1, &n, x, n));
        assert_ok(ms_op_cast(&y, in, MS_DTYPE_I64));
        read_bytes(y, out);
        assert_ok(ms_op_cast(&y, in, MS_DTYPE_U8));
        read_bytes(y, low);
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal(out[i], whole[i % CASES]);
            assert_int_equal(low[i], (uint8_t)whole[i % CASES]);
        }
    }
}

/* Beyond 2^53, where a double has no place for the last bit. */
static void test_ops_edges__integers_wrap_and_keep_every_bit(void **state)
{
    const int64_t n = 3, a[3] = {INT64_MAX - 3, -5, INT64_C(1) << 53}, b[3] = {9, 3, 1};
    const int64_t sums[3] = {INT64_MIN + 5, -2, (INT64_C(1) << 53) + 1};
    const int64_t products[3] = {INT64_MAX - 35, -15, INT64_C(1) << 53};
    int64_t got[3];
    ms_tensor *x, *y, *z;

    assert_ok(ms_tensor_empty(&x, MS_DTYPE_I64, 1, &n));
    assert_ok(ms_tensor_empty(&y, MS_DTYPE_I64, 1, &n));
    write_bytes(x, a);
    write_bytes(y, b);
    assert_ok(ms_op_add(&z, x, y));
    assert_bytes(sums, z, sizeof(sums));
    assert_ok(ms_op_mul(&z, x, y));
    assert_bytes(products, z, sizeof(products));
    assert_ok(ms_op_with_number(&z, x, 3, MS_NUMBER_MUL));
    read_bytes(z, got);
    assert_true(got[1] == -15 && got[2] == INT64_C(3) << 53);
    assert_ok(ms_op_sum(&z, x, 0, false));
    read_bytes(z, got);
    assert_true(got[0] == (int64_t)((uint64_t)a[0] - 5 + (1ull << 53)));
}

/* A number beside floating numbers is rounded to their dtype, beside integers compared as it is. */
static void test_ops_edges__numbers_are_compared_in_the_dtype(void **state)
{
    ms_tensor *wide = VECTOR(MS_DTYPE_I64, -0x1p62, 0x1p62), *y;

    for (int32_t d = 0; d < COUNT(floats); d++) {
        ms_tensor *x = VECTOR(floats[d], 0.1, 0.2);

        assert_ok(ms_op_compare_number(&y, x, 0.1, MS_COMPARE_EQ));
        EXPECT_VALUES(y, 1, 0);
    }
    assert_ok(ms_op_compare_number(&y, wide, 0x1p63, MS_COMPARE_LT));
    EXPECT_VALUES(y, 1, 1);
    assert_ok(ms_op_compare_number(&y, wide, -INFINITY, MS_COMPARE_GT));
    EXPECT_VALUES(y, 1, 1);
}

/* -- rows -------------------------------------------------------------------------------------- */

/* A constant added to all logits changes nothing, wherever they lie. */
static void test_ops_edges__losses_keep_their_digits_under_a_shift(void **state)
{
    static const double shifts[] = {0, 100, 1e4, -1e4, 1e6};
    const double loss = 0.31326168751822286, q = 0.26894142136999512; /* log(1 + 1/e) */
    const int64_t shape[2] = {1, 2};

    for (int32_t k = 0; k < COUNT(shifts); k++) {
        const double logits[2] = {shifts[k], shifts[k] - 1}, slope[2] = {-q, q};
        ms_tensor *x, *t = ids(1, (const double[]){0}), *y;
        double got[2];

        assert_ok(ms_tensor_from_doubles(&x, MS_DTYPE_F32, 2, shape, logits, 2));
        require(x);
        assert_ok(ms_op_cross_entropy(&y, x, t, -100, MS_REDUCTION_MEAN));
        assert_ok(ms_tensor_to_doubles(y, got, 1));
        assert_close(got, &loss, 1, 3e-7, 0);
        assert_ok(ms_backward(y, NULL));
        read_grad(x, got, 2);
        assert_close(got, slope, 2, 5e-7, 0);
        assert_ok(ms_op_log_softmax(&y, x));
        assert_ok(ms_tensor_to_doubles(y, got, 2));
        assert_close(got, (const double[]){-loss, -loss - 1}, 2, 3e-7, 0);
    }
}

/* Rows that are -inf but for two entries, whole chunks of a row included. */
static void test_ops_edges__masked_logits_have_no_probability(void **state)
{
    enum { N = 3000 };
    const int64_t shape[2] = {1, N};
    static double values[N], got[N];
    ms_tensor *x, *t = ids(1, (const double[]){N - 1}), *y;

    for (int64_t j = 0; j < N; j++) {
        values[j] = j == 2500 || j == N - 1 ? 1 : -INFINITY;
    }
    for (int32_t d = 0; d < COUNT(floats); d++) {
        const double half = 0.5;

        assert_ok(ms_tensor_from_doubles(&x, floats[d], 2, shape, values, N));
        require(x);
        assert_ok(ms_op_softmax(&y, x));
        assert_ok(ms_tensor_to_doubles(y, got, N));
        assert_close(&got[N - 1], &half, 1, 1e-6, 0);
        assert_true(got[0] == 0 && got[2499] == 0);
        assert_ok(ms_op_cross_entropy(&y, x, t, -100, MS_REDUCTION_MEAN));
        assert_ok(ms_backward(y, NULL));
        assert_ok(ms_tensor_to_doubles(y, got, 1));
        assert_true(fabs(got[0] - log(2)) < 1e-6);
        read_grad(x, got, N);
        assert_true(got[0] == 0 && got[2500] == 0.5 && got[N - 1] == -0.5);
    }
}

/* Layer norm of rows of `value`, but for `other` in column 1. */
static void check_layer_norm(int32_t dtype, int64_t cols, double value, double other, double want)
{
    const int64_t shape[2] = {2, cols};
    double x[2 * 1000], y[2 * 1000];
    ms_tensor *in, *out;

    for (int64_t i = 0; i < 2 * cols; i++) {
        x[i] = i % cols == 1 ? other : value;
    }
    assert_ok(ms_tensor_from_doubles(&in, dtype, 2, shape, x, 2 * cols));
    assert_ok(ms_op_layer_norm(&out, in, NULL, NULL, 1e-5));
    assert_ok(ms_tensor_to_doubles(out, y, 2 * cols));
    for (int64_t i = 0; i < 2 * cols; i++) {
        if (isnan(want) ? !isnan(y[i]) : y[i] != want) {
            fail_msg("%s, %lld columns of %g: %g", ms_dtype_name(dtype), (long long)cols, value,
                     y[i]);
        }
    }
}

static void test_ops_edges__layer_norm_of_extreme_rows(void **state)
{
    static const double equal[] = {0, 1000.1, -12345.67, 1e6 + 0.3, 1e8, 1.1e12, -3e38};
    static const int64_t cols[] = {2, 3, 16, 33, 768, 1000};

    for (int32_t c = 0; c < COUNT(cols); c++) {
        for (int32_t d = 0; d < 3; d++) {
            const double most = floats[d] == MS_DTYPE_F64 ? 1.5e308 : 3e38;

            for (int32_t k = 0; k < COUNT(equal);
                 k++) { /* the rounding of a mean sets none apart */
                check_layer_norm(floats[d], cols[c], equal[k], equal[k], 0);
            }
            check_layer_norm(floats[d], cols[c], most, 0.9 * most, NAN); /* a run that diverged */
        }
        check_layer_norm(MS_DTYPE_F32, cols[c], 1e30, -1e30, 0); /* squares beyond f32 */
    }
}

/* Leaves of bf16 are added to in f32; a gradient that goes on to other operators is bf16 itself. */
static void test_ops_edges__embedding_rounds_the_sum_of_a_row_once(void **state)
{
    const int64_t n = 600, shape[] = {n, 3};

    for (int32_t leaf = 0; leaf < 2; leaf++) {
        ms_tensor *table = require(FILLED(MS_DTYPE_BF16, 1, 2, 3)), *zeros, *operand, *rows, *ones;
        double sums[6];

        assert_ok(ms_tensor_full(&zeros, MS_DTYPE_I64, 1, &n, 0));
        assert_ok(ms_op_affine(&operand, table, 0.5, 0));
        assert_ok(ms_op_embedding(&rows, leaf ? table : operand, zeros));
        assert_ok(ms_tensor_full(&ones, MS_DTYPE_BF16, 2, shape, 1));
        assert_ok(ms_backward(rows, ones));
        read_grad(table, sums, 6);
        assert_true(sums[0] == (leaf ? 600 : 300) && sums[2] == sums[0] && sums[3] == 0);
    }
}

/* Ids in any order, some of many tokens. Gradients are integers, so that sums are exact. */
static void test_ops_edges__embedding_adds_rows_of_frequent_ids(void **state)
{
    enum { N = 333, V = 7, C = 5 };
    double id[N], sums[V * C], expected[V * C] = {0}, dy[N * C];

    for (int32_t d = 0; d < COUNT(floats); d++) {
        ms_tensor *table = require(FILLED(floats[d], 1, V, C)), *rows, *g;

        memset(expected, 0, sizeof(expected));
        for (int32_t t = 0; t < N; t++) {
            id[t] = t % 3 == 0 ? t * t % V : t % 3 == 1 ? 4 : t / 70;
            for (int32_t c = 0; c < C; c++) {
                dy[t * C + c] = (t + c) % 2;
                expected[(int32_t)id[t] * C + c] += dy[t * C + c];
            }
        }
        assert_ok(ms_tensor_from_doubles(&g, floats[d], 2, (const int64_t[]){N, C}, dy, N * C));
        assert_ok(ms_op_embedding(&rows, table, ids(N, id)));
        assert_ok(ms_backward(rows, g));
        read_grad(table, sums, V * C);
        assert_memory_equal(sums, expected, sizeof(sums));
    }
}

/* 4 million times 0.1: one running f32 sum would be wrong in the third digit. */
static void test_ops_edges__long_sums_stay_exact_to_a_few_units(void **state)
{
    const int64_t n = 1 << 22;
    ms_tensor *x, *y;
    double sum;

    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, &n, 0.1));
    assert_ok(ms_op_sum(&y, x, 0, false));
    assert_ok(ms_tensor_item(y, &sum));
    assert_true(fabs(sum / ((double)0.1f * (double)n) - 1) < 4e-7);
}

/* -- attention --------------------------------------------------------------------------------- */

/* Attention of (1, 1, n, d) operands. Gives the result and the gradients of q, k, v for an incoming
 * gradient of ones; each of n d numbers. */
static void attend(int32_t dtype, int64_t n, int64_t d, double *const x[3], bool causal,
                   double scale, double *out, double *const grad[3])
{
    const int64_t shape[4] = {1, 1, n, d};
    ms_tensor *in[3], *y, *ones;

    for (int32_t k = 0; k < 3; k++) {
        assert_ok(ms_tensor_from_doubles(&in[k], dtype, 4, shape, x[k], n * d));
        require(in[k]);
    }
    assert_ok(ms_op_attention(&y, in[0], in[1], in[2], causal, scale));
    assert_ok(ms_tensor_to_doubles(y, out, n * d));
    assert_ok(ms_tensor_full(&ones, dtype, 4, shape, 1));
    assert_ok(ms_backward(y, ones));
    for (int32_t k = 0; k < 3; k++) {
        read_grad(in[k], grad[k], n * d);
    }
}

enum { KEYS = 300, DEPTH = 4, QKV = KEYS * DEPTH };

static double q[QKV], k_[QKV], v[QKV], result[QKV], gq[QKV], gk[QKV], gv[QKV];
static double *const qkv[3] = {q, k_, v}, *const grads[3] = {gq, gk, gv};

static void fill_attention(void)
{
    for (int64_t i = 0; i < QKV; i++) {
        q[i] = filler(1, i);
        k_[i] = filler(2, i);
        v[i] = filler(3, i);
    }
}

/* Keys that score `far`, a whole tile of them, have the probability 0; with no other left the
 * result is 0. */
static void test_ops_edges__attention_does_not_see_keys_beyond_reach(void **state)
{
    static const double far[] = {-1e4, -INFINITY};

    for (int32_t c = 0; c < 4 * COUNT(floats); c++) {
        const bool all = c % 2 == 1 && isinf(far[c / 2 % 2]);

        for (int64_t i = 0; i < KEYS; i++) {
            q[i] = 1;
            k_[i] = i == KEYS - 2 && !all ? 1 : far[c / 2 % 2];
            v[i] = 3;
        }
        attend(floats[c / 4], KEYS, 1, qkv, false, 1, result, grads);
        assert_true(result[0] == (all ? 0 : 3) && result[KEYS - 1] == result[0]);
        assert_true(gv[0] == 0 && (all || gv[KEYS - 2] == KEYS));
    }
}

static void test_ops_edges__large_scores_do_not_overflow(void **state)
{
    fill_attention();
    attend(MS_DTYPE_F32, 20, DEPTH, qkv, true, 1e4, result, grads);
    for (int64_t i = 0; i < 20 * DEPTH; i++) {
        assert_true(fabs(result[i]) <= 1.001 && isfinite(gq[i]) && isfinite(gk[i]));
    }
    for (int64_t i = 0; i < 8; i++) { /* scores of 9984 to 9991: their statistics lose no digit */
        q[i] = 64;
        k_[i] = 156 + (double)i / 64;
        v[i] = i;
    }
    attend(MS_DTYPE_F32, 8, 1, qkv, false, 1, result, grads);
    assert_true(fabs(result[0] - 6.4207095) < 1e-5); /* sum of i exp(i) / sum of exp(i) */
}

/* What a causal mask hides may be NaN or infinite, in the gradient too. */
static void test_ops_edges__attention_does_not_see_what_the_mask_hides(void **state)
{
    static const double hidden[] = {NAN, INFINITY, -INFINITY};
    static double want[QKV], want_gq[QKV];

    for (int32_t c = 0; c < COUNT(floats) * 3 * 2; c++) {
        const int32_t dtype = floats[c / 6];
        const int64_t row = KEYS * 5 / 8;
        const double room = dtype == MS_DTYPE_BF16 ? 0.05 : dtype == MS_DTYPE_F16 ? 0.01 : 1e-5;

        fill_attention();
        attend(dtype, KEYS, DEPTH, qkv, true, 0, want, (double *const[]){want_gq, gk, gv});
        qkv[1 + c % 2][row * DEPTH + 1] = hidden[c / 2 % 3];
        attend(dtype, KEYS, DEPTH, qkv, true, 0, result, grads);
        for (int64_t i = 0; i < row * DEPTH; i++) {
            assert_true(fabs(result[i] - want[i]) <= room && fabs(gq[i] - want_gq[i]) <= room);
        }
    }
}

/* -- memory, and identities of fused operators ------------------------------------------------- */

static void test_ops_edges__attention_never_holds_the_scores(void **state)
{
    enum { T = 1024, D = 8, SCORES = T * T * 4 };
    ms_tensor *x = require(FILLED(MS_DTYPE_F32, 1, 1, T, 3 * D)),
              *g = FILLED(MS_DTYPE_F32, 2, 1, T, D);
    const ms_memory_stats before = start_peaks();
    ms_memory_stats after;
    ms_tensor *y;

    assert_ok(ms_op_attention_packed(&y, x, 1, true, 0));
    assert_ok(ms_backward(y, g));
    ms_memory_stats_get(&after);
    assert_true(after.peak_total - before.live_total < SCORES / 4); /* scratch included */
}

/* The gradient takes the memory of logits that nobody holds, and leaves alone those somebody does.
 */
static void test_ops_edges__cross_entropy_keeps_one_copy_of_the_logits(void **state)
{
    enum { ROWS = 64, VOCAB = 1001, BYTES = ROWS * VOCAB * 4 };
    const int64_t rows = ROWS;
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, ROWS, 4),
              *w = require(FILLED(MS_DTYPE_F32, 2, VOCAB, 4));
    ms_tensor *targets, *logits, *loss;
    static double expected[VOCAB * 4], grad[VOCAB * 4];
    ms_memory_stats after;

    assert_ok(ms_tensor_arange(&targets, MS_DTYPE_I64, 0, 1, rows));
    for (int32_t k = 0; k < 4; k++) {
        const bool held = k % 2;
        const ms_memory_stats before = start_peaks();

        assert_ok(k < 2 ? ms_op_linear(&logits, x, w, NULL)
                        : ms_op_linear_padded(&logits, x, w, NULL));
        const uint64_t hash = hash_of(logits);

        assert_ok(ms_op_cross_entropy(&loss, logits, targets, -100, MS_REDUCTION_MEAN));
        if (!held) {
            ms_tensor_free(logits);
        }
        assert_ok(ms_backward(loss, NULL));
        ms_memory_stats_get(&after);
        const int64_t peak = after.peak[MS_MEM_ACTIVATION] - before.live[MS_MEM_ACTIVATION];

        if (held) {
            assert_true(hash_of(logits) == hash);
            ms_tensor_free(logits);
        } else {
            assert_in_range(peak, BYTES, BYTES + BYTES / 4);
        }
        read_grad(w, k == 0 ? expected : grad, VOCAB * 4);
        for (int32_t i = 0; k > 0 && i < VOCAB * 4; i++) {
            assert_true(fabs(grad[i] - expected[i]) <= 1e-6 + 1e-5 * fabs(expected[i]));
        }
        assert_ok(ms_tensor_set_grad(w, NULL));
    }
}

/* A device whose products compute GELU rounds narrow dtypes once, not before it. */
static void test_ops_edges__linear_gelu_gives_the_bits_of_the_pair(void **state)
{
    for (int32_t k = 0; k < 2 * COUNT(floats); k++) {
        const int32_t dtype = floats[k / 2];

        if (k % 2 && ms_dtype_is_narrow(dtype) && msi_gemm_fuses(msi_context())) {
            continue;
        }
        ms_tensor *x = require(FILLED(dtype, 1, 9, 20)), *w = FILLED(dtype, 2, 24, 20);
        ms_tensor *g = FILLED(dtype, 4, 9, 24), *h, *y, *grad;
        uint64_t hash[2], slope[2];

        for (int32_t fused = 0; fused < 2; fused++) {
            if (fused) {
                assert_ok(ms_op_linear_gelu(&y, x, w, NULL, k % 2));
            } else {
                assert_ok(ms_op_linear(&h, x, w, NULL));
                assert_ok(ms_op_gelu(&y, h, k % 2));
            }
            assert_ok(ms_backward(y, g));
            assert_ok(ms_tensor_grad(&grad, x));
            hash[fused] = hash_of(y);
            slope[fused] = hash_of(grad);
            assert_ok(ms_tensor_set_grad(x, NULL));
        }
        assert_true(hash[0] == hash[1] && slope[0] == slope[1]);
    }
}

/* Masks do not depend on how samples are dealt to ranks, and backward uses that of forward. */
static void test_ops_edges__dropout_masks_follow_the_sample(void **state)
{
    enum { N = 500 };
    const int64_t four[2] = {4, N}, two[2] = {2, N};
    static double whole[4 * N], part[2 * N], grad[2 * N];

    for (int32_t k = 0; k < 3; k++) { /* all samples, and each half of them */
        ms_tensor *ones, *y;

        assert_ok(ms_tensor_full(&ones, MS_DTYPE_F32, 2, k == 0 ? four : two, 1));
        require(ones);
        assert_ok(ms_samples_begin(8 + (k == 2 ? 2 : 0)));
        assert_ok(ms_op_dropout(&y, ones, 0.3, 1, 0));
        assert_ok(ms_samples_begin(0));
        if (k == 0) {
            assert_ok(ms_tensor_to_doubles(y, whole, 4 * N));
        } else {
            ms_seed(9); /* what comes later must not matter */
            assert_ok(ms_backward(y, ones));
            ms_seed(0);
            assert_ok(ms_tensor_to_doubles(y, part, 2 * N));
            assert_memory_equal(part, whole + (k - 1) * 2 * N, sizeof(part));
            read_grad(ones, grad, 2 * N);
            assert_memory_equal(part, grad, sizeof(part));
        }
    }
}

/* -- what operators refuse --------------------------------------------------------------------- */

static void test_ops_edges__elementwise_operators_refuse(void **state)
{
    ms_tensor *a = FILLED(MS_DTYPE_F32, 1, 3, 5), *b = FILLED(MS_DTYPE_F32, 2, 4, 5), *out;
    ms_tensor *d = FILLED(MS_DTYPE_F64, 3, 3, 5), *i = VECTOR(MS_DTYPE_I64, 1, 2);
    ms_tensor *u = VECTOR(MS_DTYPE_U8, 1, 1);

    assert_fails(MS_VALUE_ERROR, "mul: shapes (3, 5) and (4, 5) do not broadcast: 3 meets 4",
                 ms_op_mul(&out, a, b));
    assert_null(out);
    assert_fails(MS_TYPE_ERROR, "div: a is f32 and b is f64", ms_op_div(&out, a, d));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "tanh is not implemented for dtype u8",
                 ms_op_tanh(&out, u));
    assert_fails(MS_VALUE_ERROR, "ge: shapes", ms_op_compare(&out, a, b, MS_COMPARE_GE));
    assert_fails(MS_VALUE_ERROR, "relation 6", ms_op_compare(&out, a, a, 6));
    assert_fails(MS_VALUE_ERROR, "relation -1", ms_op_compare_number(&out, a, 0, -1));
    assert_fails(MS_TYPE_ERROR, "where: cond is f32, expected bool", ms_op_where(&out, a, a, a));
    assert_fails(MS_VALUE_ERROR, "the exponent is inf", ms_op_pow(&out, a, INFINITY));
    assert_fails(MS_VALUE_ERROR, "operation 4", ms_op_with_number(&out, a, 1, 4));
    assert_fails(MS_TYPE_ERROR, "add: the tensor is i64 and the number 1.5",
                 ms_op_with_number(&out, i, 1.5, MS_NUMBER_ADD));
    assert_fails(MS_TYPE_ERROR, "affine: ", ms_op_affine(&out, i, 0.5, 1));
    assert_fails(MS_VALUE_ERROR, "inf does not fit in i64",
                 ms_op_with_number(&out, i, INFINITY, MS_NUMBER_MUL));
    assert_fails(MS_VALUE_ERROR, "mul: 300 does not fit in u8",
                 ms_op_with_number(&out, u, 300, MS_NUMBER_MUL));
    assert_fails(MS_VALUE_ERROR, "dtype 17", ms_op_cast(&out, a, 17));
    assert_fails(MS_VALUE_ERROR, "probability is 1.5", ms_op_dropout(&out, a, 1.5, 1, 0));
    assert_fails(MS_VALUE_ERROR, "probability is", ms_op_dropout(&out, a, NAN, 1, 0));
    assert_null(out);
}

static void test_ops_edges__shape_operators_refuse(void **state)
{
    static const int64_t open[4][2] = {{4, -1}, {-1, -1}, {-2, -3}, {0, -1}};
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 2, 3), *y = FILLED(MS_DTYPE_F32, 2, 2, 4), *out;
    ms_tensor *pair[2] = {x, y};

    for (int32_t k = 0; k < 4; k++) {
        assert_fails(MS_VALUE_ERROR, "does not fit", ms_op_reshape(&out, x, 2, open[k]));
    }
    assert_fails(MS_VALUE_ERROR, "got 9", ms_op_reshape(&out, x, 9, nine));
    assert_fails(MS_VALUE_ERROR, "twice", ms_op_permute(&out, x, 2, (const int32_t[]){1, 1}));
    assert_fails(MS_INDEX_ERROR, "dimension 2", ms_op_permute(&out, x, 2, (const int32_t[]){0, 2}));
    assert_fails(MS_INDEX_ERROR, "dimension 2", ms_op_narrow(&out, x, 2, 0, 1));
    assert_fails(MS_INDEX_ERROR, "2 entries from 2", ms_op_narrow(&out, x, 1, 2, 2));
    assert_fails(MS_INDEX_ERROR, "outside", ms_op_narrow(&out, x, 1, INT64_MAX, 1));
    assert_fails(MS_INDEX_ERROR, "dimension -1", ms_op_select(&out, x, -1, 0));
    assert_fails(MS_INDEX_ERROR, "entry 3", ms_op_select(&out, x, 1, 3));
    assert_fails(MS_VALUE_ERROR, "(2, 4), expected that of the first", ms_op_cat(&out, pair, 2, 0));
    assert_fails(MS_VALUE_ERROR, "got 0 tensors", ms_op_cat(&out, pair, 0, 0));
    assert_fails(MS_INDEX_ERROR, "dimension 2", ms_op_sum(&out, x, 1u << 2, false));
    assert_fails(MS_INDEX_ERROR, "flip: dimension 2", ms_op_flip(&out, x, 1u << 2));
    assert_fails(MS_INDEX_ERROR, "cumsum: dimension 2", ms_op_cumsum(&out, x, 2));
    assert_fails(MS_INDEX_ERROR, "cumsum: dimension -1", ms_op_cumsum(&out, x, -1));
    assert_fails(MS_VALUE_ERROR, "cos has shape (2, 3)", ms_op_rotary(&out, y, x, y));
    assert_fails(MS_VALUE_ERROR, "(2, 3) and y (2, 4)", ms_op_mse_loss(&out, x, y, 0));
    assert_fails(MS_VALUE_ERROR, "reduction is 2", ms_op_mse_loss(&out, x, x, 2));
    assert_null(out);
}

/* What the call that made `*out` came to, once it has run. */
static ms_status outcome(ms_status status, ms_tensor **out)
{
    if (status == MS_OK) {
        status = msi_settle((*out)->ctx);
        ms_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

static void test_ops_edges__network_operators_refuse(void **state)
{
    ms_tensor *a = FILLED(MS_DTYPE_F32, 1, 3, 5), *b = FILLED(MS_DTYPE_F32, 2, 4, 7), *out;
    ms_tensor *d = FILLED(MS_DTYPE_F64, 2, 5, 3), *f = FILLED(MS_DTYPE_F32, 3, 3);
    ms_tensor *high = ids(3, (const double[]){0, 5, 6}), *low = ids(3, (const double[]){2, -1, 9});
    ms_tensor *four = FILLED(MS_DTYPE_F32, 1, 1, 1, 2, 2);

    assert_fails(MS_VALUE_ERROR, "(3, 5) and (4, 7)", ms_op_matmul(&out, a, b));
    assert_fails(MS_RUNTIME_ERROR, "the same dtype, got f32 and f64", ms_op_matmul(&out, a, d));
    assert_fails(MS_VALUE_ERROR, "(3, 5) and w (4, 7)", ms_op_linear(&out, a, b, NULL));
    assert_fails(MS_VALUE_ERROR, "(4, 7), expected (3)", ms_op_linear(&out, a, a, b));
    assert_fails(MS_VALUE_ERROR, "(4, 7), expected (5)", ms_op_layer_norm(&out, a, b, NULL, 1e-5));
    assert_fails(MS_VALUE_ERROR, "eps is -1", ms_op_layer_norm(&out, a, NULL, NULL, -1));
    assert_fails(MS_VALUE_ERROR, "eps is nan", ms_op_layer_norm(&out, a, NULL, NULL, -NAN));
    assert_fails(MS_VALUE_ERROR, "(3, 5)", ms_op_attention_packed(&out, a, 1, true, 0));
    assert_fails(MS_VALUE_ERROR, "q (3, 5)", ms_op_attention(&out, a, b, b, true, 0));
    assert_fails(MS_VALUE_ERROR, "scale is nan",
                 ms_op_attention(&out, four, four, four, true, NAN));
    assert_fails(MS_VALUE_ERROR, "scale is 1e+39",
                 ms_op_attention(&out, four, four, four, true, 1e39));
    assert_fails(MS_TYPE_ERROR, "ids are f32, expected i64", ms_op_embedding(&out, a, f));
    assert_fails(MS_TYPE_ERROR, "targets are f32", ms_op_cross_entropy(&out, a, f, -100, 0));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "i64", ms_op_log_softmax(&out, high));
    assert_null(out);
    assert_fails(MS_INDEX_ERROR, "id 5, number 2 of 3, is outside [0, 3)",
                 outcome(ms_op_embedding(&out, a, high), &out));
    assert_fails(MS_INDEX_ERROR, "id -1, number 2 of 3",
                 outcome(ms_op_embedding(&out, a, low), &out));
    assert_fails(MS_INDEX_ERROR, "target 5, number 2 of 3, is outside [0, 5)",
                 outcome(ms_op_cross_entropy(&out, a, high, -100, 0), &out));
    assert_fails(MS_INDEX_ERROR, "target 9, number 3 of 3",
                 outcome(ms_op_cross_entropy(&out, a, low, -1, MS_REDUCTION_SUM), &out));
}

/* -- what meta tensors are --------------------------------------------------------------------- */

static void test_ops_edges__meta_shapes_are_as_large_as_one_likes(void **state)
{
    const int64_t wide[2] = {1 << 20, 1 << 20};
    ms_tensor *x, *y, *z;
    ms_tensor_info info;

    assert_ok(ms_tensor_meta(&x, MS_DTYPE_BF16, 2, wide));
    assert_ok(ms_op_matmul(&y, x, x));
    assert_ok(ms_op_sum(&z, y, 1, false));
    assert_ok(ms_tensor_describe(z, &info));
    assert_int_equal(info.storage_kind, MS_STORAGE_NONE);
    assert_int_equal(info.dtype, MS_DTYPE_BF16);
    assert_int_equal(info.ndim, 1);
    assert_int_equal(info.shape[0], 1 << 20);
    assert_null(info.data);
}

static void test_ops_edges__meta_results_have_no_values_and_no_graph(void **state)
{
    const int64_t shape[1] = {3};
    double values[3];
    ms_tensor *x, *y;

    assert_ok(ms_tensor_meta(&x, MS_DTYPE_F32, 1, shape));
    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_op_exp(&y, x));
    assert_false(y->requires_grad);
    assert_null(y->grad_fn);
    assert_fails(MS_RUNTIME_ERROR, "a meta tensor of shape (3) has no values yet",
                 ms_tensor_to_doubles(y, values, 3));
}

/* A declared parameter is to have values: an operator that runs too early is a mistake. */
static void test_ops_edges__parameters_without_values_are_none(void **state)
{
    const int64_t shape[2] = {3, 3};
    ms_tensor *weight, *made, *view, *x, *y;

    assert_ok(ms_tensor_parameter(&weight, MS_DTYPE_F32, 2, shape, MS_INIT_CONSTANT, 1, 0));
    assert_ok(ms_tensor_meta(&made, MS_DTYPE_F32, 2, shape));
    assert_ok(ms_tensor_make_parameter(made));
    assert_ok(ms_tensor_set_name(weight, "w"));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    assert_fails(MS_RUNTIME_ERROR, "parameter 'w' has no values yet", ms_op_matmul(&y, x, weight));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_op_matmul(&y, x, made));
    assert_ok(ms_op_permute(&view, weight, 2, (const int32_t[]){1, 0}));
    assert_fails(MS_RUNTIME_ERROR, "parameter 'w' has no values yet", ms_op_add(&y, x, view));
    ms_tensor_free(view);
    ms_tensor_free(x);
    assert_ok(ms_tensor_meta(&x, MS_DTYPE_F32, 2, shape));
    assert_ok(ms_op_matmul(&y, x, weight)); /* what comes of a shape alone needs no values */
    assert_int_equal(y->v.storage->kind, MS_STORAGE_NONE);
    ms_tensor_free(made); /* no scope owns a parameter */
    ms_tensor_free(weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_ops_edges__functions_are_exact_at_their_edges),
        BOOKED_TEST(test_ops_edges__quotients_of_tiny_divisors_have_a_gradient),
        BOOKED_TEST(test_ops_edges__where_keeps_gradients_apart),
        BOOKED_TEST(test_ops_edges__narrow_dtypes_round_to_nearest_even),
        BOOKED_TEST(test_ops_edges__numbers_without_an_integer_have_one_result),
        BOOKED_TEST(test_ops_edges__integers_wrap_and_keep_every_bit),
        BOOKED_TEST(test_ops_edges__numbers_are_compared_in_the_dtype),
        BOOKED_TEST(test_ops_edges__losses_keep_their_digits_under_a_shift),
        BOOKED_TEST(test_ops_edges__masked_logits_have_no_probability),
        BOOKED_TEST(test_ops_edges__layer_norm_of_extreme_rows),
        BOOKED_TEST(test_ops_edges__embedding_rounds_the_sum_of_a_row_once),
        BOOKED_TEST(test_ops_edges__embedding_adds_rows_of_frequent_ids),
        BOOKED_TEST(test_ops_edges__long_sums_stay_exact_to_a_few_units),
        BOOKED_TEST(test_ops_edges__attention_does_not_see_keys_beyond_reach),
        BOOKED_TEST(test_ops_edges__large_scores_do_not_overflow),
        BOOKED_TEST(test_ops_edges__attention_does_not_see_what_the_mask_hides),
        BOOKED_TEST(test_ops_edges__attention_never_holds_the_scores),
        BOOKED_TEST(test_ops_edges__cross_entropy_keeps_one_copy_of_the_logits),
        BOOKED_TEST(test_ops_edges__linear_gelu_gives_the_bits_of_the_pair),
        BOOKED_TEST(test_ops_edges__dropout_masks_follow_the_sample),
        BOOKED_TEST(test_ops_edges__elementwise_operators_refuse),
        BOOKED_TEST(test_ops_edges__shape_operators_refuse),
        BOOKED_TEST(test_ops_edges__network_operators_refuse),
        BOOKED_TEST(test_ops_edges__meta_shapes_are_as_large_as_one_likes),
        BOOKED_TEST(test_ops_edges__meta_results_have_no_values_and_no_graph),
        BOOKED_TEST(test_ops_edges__parameters_without_values_are_none),
    };

    return cmocka_run_group_tests_name("ops/edges", tests, NULL, NULL);
}
