/* What the table of the op test cannot say about the network operators: errors, identities between
 * operators, memory. */
#include "books.h"
#include "tensor.h"

static uint64_t hash_of(ms_tensor *t)
{
    uint64_t hash;

    assert_ok(ms_tensor_hash(t, &hash));
    return hash;
}

static uint64_t hash_of_grad(ms_tensor *leaf)
{
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, leaf));
    assert_non_null(grad);
    uint64_t hash = hash_of(grad);

    ms_tensor_free(grad);
    return hash;
}

/* -- errors ------------------------------------------------------------------------------------ */

static void test_autograd_network_ops__name_the_shapes_that_do_not_fit(void **state)
{
    ms_tensor *a = FILLED(MS_DTYPE_F32, 1, 3, 5), *b = FILLED(MS_DTYPE_F32, 2, 4, 7), *out;

    assert_fails(MS_VALUE_ERROR, "shapes are (3, 5) and (4, 7)", ms_op_matmul(&out, a, b));
    assert_null(out);
    assert_fails(MS_VALUE_ERROR, "x has shape (3, 5) and w (4, 7)", ms_op_linear(&out, a, b, NULL));
    assert_null(out);
    assert_fails(MS_VALUE_ERROR, "bias has shape (4, 7), expected (3)",
                 ms_op_linear(&out, a, a, b));
    assert_fails(MS_VALUE_ERROR, "w has shape (4, 7), expected (5)",
                 ms_op_layer_norm(&out, a, b, NULL, 1e-5));
    assert_fails(MS_VALUE_ERROR, "qkv has shape (3, 5)",
                 ms_op_attention_packed(&out, a, 1, true, 0));
    assert_fails(MS_VALUE_ERROR, "q (3, 5), k (4, 7)", ms_op_attention(&out, a, b, b, true, 0));
    assert_fails(MS_VALUE_ERROR, "eps is -1e-05", ms_op_layer_norm(&out, a, NULL, NULL, -1e-5));
    assert_fails(MS_VALUE_ERROR, "eps is nan", ms_op_layer_norm(&out, a, NULL, NULL, -NAN));
    assert_fails(MS_VALUE_ERROR, "eps is inf", ms_op_layer_norm(&out, a, NULL, NULL, INFINITY));
    ms_tensor *q = FILLED(MS_DTYPE_F32, 1, 1, 1, 2, 2), *wide = FILLED(MS_DTYPE_F64, 1, 1, 1, 2, 2),
              *qkv = FILLED(MS_DTYPE_BF16, 1, 1, 2, 6);

    assert_fails(MS_VALUE_ERROR, "attention: scale is nan, expected a finite number",
                 ms_op_attention(&out, q, q, q, true, NAN));
    assert_fails(MS_VALUE_ERROR, "attention: scale is -1e+39, expected a finite number of f32",
                 ms_op_attention(&out, q, q, q, true, -1e39));
    assert_fails(MS_VALUE_ERROR, "attention_packed: scale is inf, expected a finite number",
                 ms_op_attention_packed(&out, qkv, 1, true, INFINITY));
    assert_null(out);
    assert_ok(ms_op_attention(&out, wide, wide, wide, true, 1e39));
    ms_tensor_free(out);
    ms_tensor_free(qkv);
    ms_tensor_free(wide);
    ms_tensor_free(q);
    assert_fails(MS_VALUE_ERROR, "logits have shape (3, 5) and targets (4, 7)",
                 ms_op_cross_entropy(&out, a, b, -100, MS_REDUCTION_MEAN));
    assert_null(out);
    ms_tensor_free(b);
    ms_tensor_free(a);
}

static void test_autograd_network_ops__name_the_dtypes_that_do_not_fit(void **state)
{
    const double two[] = {0, 1};
    ms_tensor *a = FILLED(MS_DTYPE_F32, 1, 2, 2), *b = FILLED(MS_DTYPE_F64, 2, 2, 2);
    ms_tensor *i = ids(2, two), *f = FILLED(MS_DTYPE_F32, 3, 2), *out;

    assert_fails(MS_TYPE_ERROR, "a is f32 and b is f64", ms_op_matmul(&out, a, b));
    assert_fails(MS_TYPE_ERROR, "x is f32 and w is f64", ms_op_linear(&out, a, b, NULL));
    assert_fails(MS_TYPE_ERROR, "ids are f32, expected i64", ms_op_embedding(&out, a, f));
    assert_fails(MS_TYPE_ERROR, "targets are f32, expected i64",
                 ms_op_cross_entropy(&out, a, f, -100, MS_REDUCTION_MEAN));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "i64", ms_op_log_softmax(&out, i));
    assert_null(out);
    ms_tensor_free(f);
    ms_tensor_free(i);
    ms_tensor_free(b);
    ms_tensor_free(a);
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

static void test_autograd_network_ops__name_the_first_id_out_of_range(void **state)
{
    const double high[] = {0, 4, 5, 6}, low[] = {2, -1, 0, 9};
    ms_tensor *table = FILLED(MS_DTYPE_F32, 1, 5, 3), *logits = FILLED(MS_DTYPE_F32, 2, 4, 5), *out;
    ms_tensor *too_high = ids(4, high), *too_low = ids(4, low);

    assert_fails(MS_INDEX_ERROR, "id 5, number 3 of 4, is outside [0, 5)",
                 outcome(ms_op_embedding(&out, table, too_high), &out));
    assert_null(out);
    assert_fails(MS_INDEX_ERROR, "id -1, number 2 of 4",
                 outcome(ms_op_embedding(&out, table, too_low), &out));
    assert_fails(
        MS_INDEX_ERROR, "target 5, number 3 of 4, is outside [0, 5)",
        outcome(ms_op_cross_entropy(&out, logits, too_high, -100, MS_REDUCTION_MEAN), &out));
    assert_fails(MS_INDEX_ERROR, "target 9, number 4 of 4",
                 outcome(ms_op_cross_entropy(&out, logits, too_low, -1, MS_REDUCTION_SUM), &out));
    assert_null(out);
    ms_tensor_free(too_low);
    ms_tensor_free(too_high);
    ms_tensor_free(logits);
    ms_tensor_free(table);
}

/* Leaves of bf16 are added to in f32; a gradient that goes on to other ops is bf16 itself. */
static void test_autograd_network_ops__embedding_rounds_the_sum_of_a_row_once(void **state)
{
    const int64_t n = 600, shape[] = {n, 3};

    for (int leaf = 0; leaf < 2; leaf++) {
        ms_tensor *table = FILLED(MS_DTYPE_BF16, 1, 2, 3), *zeros, *operand, *rows, *ones, *grad;
        double sums[6];

        assert_ok(ms_tensor_set_requires_grad(table, true));
        assert_ok(ms_tensor_full(&zeros, MS_DTYPE_I64, 1, &n, 0));
        assert_ok(ms_op_affine(&operand, table, 0.5, 0));
        assert_ok(ms_op_embedding(&rows, leaf ? table : operand, zeros));
        assert_ok(ms_tensor_full(&ones, MS_DTYPE_BF16, 2, shape, 1));
        assert_ok(ms_backward(rows, ones));
        assert_ok(ms_tensor_grad(&grad, table));
        assert_ok(ms_tensor_to_doubles(grad, sums, 6));
        for (int i = 0; i < 6; i++) {
            assert_true(sums[i] == (i >= 3 ? 0 : leaf ? 600 : 300));
        }
        ms_tensor_free(grad);
        ms_tensor_free(ones);
        ms_tensor_free(rows);
        ms_tensor_free(operand);
        ms_tensor_free(zeros);
        ms_tensor_free(table);
    }
}

/* -- identities -------------------------------------------------------------------------------- */

/* Hashes of result and gradients of one way to compute the same thing. */
static void fused_or_not(int32_t dtype, bool fused, bool approximate, uint64_t *hashes)
{
    ms_tensor *x = FILLED(dtype, 1, 9, 20), *w = FILLED(dtype, 2, 24, 20), *h, *y;
    ms_tensor *bias = FILLED(dtype, 3, 24), *weight = FILLED(dtype, 4, 9, 24);
    ms_tensor *const leaves[] = {x, w, bias};

    for (int i = 0; i < 3; i++) {
        assert_ok(ms_tensor_set_requires_grad(leaves[i], true));
    }
    if (fused) {
        assert_ok(ms_op_linear_gelu(&y, x, w, bias, approximate));
    } else {
        assert_ok(ms_op_linear(&h, x, w, bias));
        assert_ok(ms_op_gelu(&y, h, approximate));
        ms_tensor_free(h);
    }
    hashes[0] = hash_of(y);
    assert_ok(ms_backward(y, weight));
    for (int i = 0; i < 3; i++) {
        hashes[i + 1] = hash_of_grad(leaves[i]);
        ms_tensor_free(leaves[i]);
    }
    ms_tensor_free(y);
    ms_tensor_free(weight);
}

static void test_autograd_network_ops__linear_gelu_gives_the_bits_of_the_pair(void **state)
{
    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16};

    for (int i = 0; i < 8; i++) {
        uint64_t fused[4], pair[4];

        fused_or_not(dtypes[i / 2], true, i % 2 == 0, fused);
        fused_or_not(dtypes[i / 2], false, i % 2 == 0, pair);
        assert_memory_equal(fused, pair, sizeof(pair));
    }
}

static void test_autograd_network_ops__linear_gelu_gives_the_same_unrecorded(void **state)
{
    ms_tensor *x = FILLED(MS_DTYPE_BF16, 1, 9, 20), *w = FILLED(MS_DTYPE_BF16, 2, 24, 20);
    ms_tensor *recorded, *plain;

    assert_ok(ms_op_linear_gelu(&plain, x, w, NULL, true));
    assert_ok(ms_tensor_set_requires_grad(w, true));
    assert_ok(ms_op_linear_gelu(&recorded, x, w, NULL, true));
    assert_true(hash_of(plain) == hash_of(recorded));
    ms_tensor_free(recorded);
    ms_tensor_free(plain);
    ms_tensor_free(w);
    ms_tensor_free(x);
}

/* Part `part` of (B, T, 3 C) as (B, H, T, D). */
static ms_tensor *heads_of(ms_tensor *qkv, int64_t part, int64_t batch, int64_t length,
                           int64_t heads, int64_t depth)
{
    const int64_t split[4] = {batch, length, heads, depth};
    const int32_t perm[4] = {0, 2, 1, 3};
    ms_tensor *third, *shaped, *out;

    assert_ok(ms_op_narrow(&third, qkv, 2, part * heads * depth, heads * depth));
    assert_ok(ms_op_reshape(&shaped, third, 4, split));
    assert_ok(ms_op_permute(&out, shaped, 4, perm));
    ms_tensor_free(shaped);
    ms_tensor_free(third);
    return out;
}

static void test_autograd_network_ops__packed_attention_equals_the_separate_form(void **state)
{
    enum { B = 2, T = 37, H = 3, D = 8, C = H * D };
    const int64_t flat[3] = {B, T, C};
    const int32_t perm[4] = {0, 2, 1, 3};
    ms_tensor *qkv = FILLED(MS_DTYPE_F64, 1, B, T, 3 * C),
              *weight = FILLED(MS_DTYPE_F64, 2, B, T, C);
    ms_tensor *packed, *part[3], *out, *permuted, *separate, *grad;
    static double expected[B * T * 3 * C], actual[B * T * 3 * C];

    assert_ok(ms_tensor_set_requires_grad(qkv, true));
    assert_ok(ms_op_attention_packed(&packed, qkv, H, true, 0));
    assert_ok(ms_tensor_to_doubles(packed, expected, B * T * C));
    for (int i = 0; i < 3; i++) {
        part[i] = heads_of(qkv, i, B, T, H, D);
    }
    assert_ok(ms_op_attention(&out, part[0], part[1], part[2], true, 0));
    assert_ok(ms_op_permute(&permuted, out, 4, perm));
    assert_ok(ms_op_reshape(&separate, permuted, 3, flat));
    assert_ok(ms_tensor_to_doubles(separate, actual, B * T * C));
    assert_close(actual, expected, B * T * C, 1e-13, 1e-15);

    assert_ok(ms_backward(packed, weight));
    assert_ok(ms_tensor_grad(&grad, qkv));
    assert_ok(ms_tensor_to_doubles(grad, expected, B * T * 3 * C));
    ms_tensor_free(grad);
    assert_ok(ms_tensor_set_grad(qkv, NULL));
    assert_ok(ms_backward(separate, weight));
    assert_ok(ms_tensor_grad(&grad, qkv));
    assert_ok(ms_tensor_to_doubles(grad, actual, B * T * 3 * C));
    assert_close(actual, expected, B * T * 3 * C, 1e-12, 1e-14);
    ms_tensor_free(grad);
    for (int i = 0; i < 3; i++) {
        ms_tensor_free(part[i]);
    }
    ms_tensor_free(separate);
    ms_tensor_free(permuted);
    ms_tensor_free(out);
    ms_tensor_free(packed);
    ms_tensor_free(weight);
    ms_tensor_free(qkv);
}

/* -- memory ------------------------------------------------------------------------------------ */

static void test_autograd_network_ops__attention_never_holds_the_scores(void **state)
{
    enum { T = 1024, D = 8, SCORES = T * T * 4 };
    ms_tensor *qkv = FILLED(MS_DTYPE_F32, 1, 1, T, 3 * D),
              *weight = FILLED(MS_DTYPE_F32, 2, 1, T, D);
    ms_tensor *out;
    const ms_memory_stats before = start_peaks();
    ms_memory_stats after;

    assert_ok(ms_tensor_set_requires_grad(qkv, true));
    assert_ok(ms_op_attention_packed(&out, qkv, 1, true, 0));
    assert_ok(ms_backward(out, weight));
    ms_memory_stats_get(&after);
    assert_true(after.peak_total - before.live_total < SCORES / 4); /* scratch included */
    ms_tensor_free(out);
    ms_tensor_free(weight);
    ms_tensor_free(qkv);
}

/* -- operands without memory ------------------------------------------------------------------- */

static void test_autograd_network_ops__refuse_operands_without_memory(void **state)
{
    const int64_t shape[2] = {3, 3};
    ms_tensor *none, *x = FILLED(MS_DTYPE_F32, 1, 3, 3), *out;

    assert_ok(ms_tensor_parameter(&none, MS_DTYPE_F32, 2, shape, MS_INIT_CONSTANT, 1, 0));
    assert_fails(MS_RUNTIME_ERROR, "no values yet", ms_op_linear(&out, x, none, NULL));
    assert_null(out);
    assert_fails(MS_RUNTIME_ERROR, "no values yet", ms_op_matmul(&out, none, x));
    assert_fails(MS_RUNTIME_ERROR, "no values yet", ms_op_log_softmax(&out, none));
    assert_fails(MS_RUNTIME_ERROR, "no values yet", ms_op_layer_norm(&out, none, NULL, NULL, 1e-5));
    assert_null(out);
    ms_tensor_free(none);
    ms_tensor_free(x);
}

/* Strides of an empty gradient say nothing: the mean's is one element expanded. */
static void test_autograd_network_ops__matmul_of_empty_operands_differentiates(void **state)
{
    static const int64_t shapes[3][2][5] = {
        {{1, 1, 0, 1, 5}, {1, 1, 0, 5, 3}},
        {{1, 3, 2, 14, 1}, {1, 3, 2, 1, 0}},
        {{1, 3, 2, 0, 4}, {1, 3, 2, 4, 2}},
    };

    (void)state;
    for (int32_t k = 0; k < 3; k++) {
        ms_tensor *a = filled(MS_DTYPE_F32, 5, shapes[k][0], 1), *out, *turned, *sum, *grad;
        ms_tensor *b = filled(MS_DTYPE_F32, 5, shapes[k][1], 2);
        double values[84];

        assert_ok(ms_tensor_set_requires_grad(a, true));
        assert_ok(ms_tensor_set_requires_grad(b, true));
        assert_ok(ms_op_matmul(&out, a, b));
        assert_ok(ms_op_permute(&turned, out, 5, (const int32_t[]){4, 1, 0, 3, 2}));
        assert_ok(ms_op_mean(&sum, turned, 0, false));
        assert_ok(ms_backward(sum, NULL));
        assert_ok(ms_tensor_grad(&grad, k == 1 ? a : b)); /* sums of no products */
        const int64_t n = k == 0 ? 0 : k == 1 ? 84 : 48;

        assert_ok(ms_tensor_to_doubles(grad, values, n));
        for (int64_t i = 0; i < n; i++) {
            assert_true(values[i] == 0);
        }
        ms_tensor_free(grad);
        ms_tensor_free(sum);
        ms_tensor_free(turned);
        ms_tensor_free(out);
        ms_tensor_free(b);
        ms_tensor_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_network_ops__name_the_shapes_that_do_not_fit),
        BOOKED_TEST(test_autograd_network_ops__name_the_dtypes_that_do_not_fit),
        BOOKED_TEST(test_autograd_network_ops__name_the_first_id_out_of_range),
        BOOKED_TEST(test_autograd_network_ops__embedding_rounds_the_sum_of_a_row_once),
        BOOKED_TEST(test_autograd_network_ops__linear_gelu_gives_the_bits_of_the_pair),
        BOOKED_TEST(test_autograd_network_ops__linear_gelu_gives_the_same_unrecorded),
        BOOKED_TEST(test_autograd_network_ops__packed_attention_equals_the_separate_form),
        BOOKED_TEST(test_autograd_network_ops__attention_never_holds_the_scores),
        BOOKED_TEST(test_autograd_network_ops__matmul_of_empty_operands_differentiates),
        BOOKED_TEST(test_autograd_network_ops__refuse_operands_without_memory),
    };
    return cmocka_run_group_tests_name("autograd/network_ops", tests, NULL, NULL);
}
