/* What the table of the op test cannot say about elementwise operators, reductions, views and
 * copies: errors, shared memory, gradients of overlapping parts. */
#include "values.h"

#include "tensor.h"

static void test_autograd_views__show_the_same_memory(void **state)
{
    const int64_t flat = 4, two_by_two[2] = {2, 2};
    const int32_t swap[2] = {1, 0};
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2, 3, 4), *square, *swapped, *row, *same, *copy, *moved;

    assert_ok(ms_op_reshape(&square, x, 2, two_by_two));
    assert_ok(ms_op_permute(&swapped, square, 2, swap));
    assert_ok(ms_op_narrow(&row, square, 0, 1, 1));
    assert_ok(ms_op_cast(&same, x, MS_DTYPE_F32));
    assert_ok(ms_op_clone(&copy, x));
    assert_ok(ms_op_reshape(&moved, swapped, 1, &flat)); /* no view shows this order */
    EXPECT_VALUES(moved, 1, 3, 2, 4);
    assert_ok(ms_tensor_fill(x, 9));
    EXPECT_VALUES(swapped, 9, 9, 9, 9);
    EXPECT_VALUES(row, 9, 9);
    EXPECT_VALUES(same, 9, 9, 9, 9);
    EXPECT_VALUES(copy, 1, 2, 3, 4);
    EXPECT_VALUES(moved, 1, 3, 2, 4);
    ms_tensor_free(moved);
    ms_tensor_free(copy);
    ms_tensor_free(same);
    ms_tensor_free(row);
    ms_tensor_free(swapped);
    ms_tensor_free(square);
    ms_tensor_free(x);
}

static void test_autograd_views__an_entry_shows_the_same_memory(void **state)
{
    const int64_t shape[2] = {2, 3};
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2, 3, 4, 5, 6), *t, *row, *column, *one;

    assert_ok(ms_op_reshape(&t, x, 2, shape));
    assert_ok(ms_op_select(&row, t, 0, 1));
    assert_ok(ms_op_select(&column, t, 1, 2));
    assert_ok(ms_op_select(&one, row, 0, 2));
    EXPECT_VALUES(row, 4, 5, 6);
    EXPECT_VALUES(column, 3, 6);
    EXPECT_VALUES(one, 6);
    assert_ok(ms_tensor_fill(column, 9));
    EXPECT_VALUES(x, 1, 2, 9, 4, 5, 9);
    EXPECT_VALUES(one, 9);
    x->v.storage->readonly = "is what the test says";
    assert_fails(MS_RUNTIME_ERROR, "tensor is what the test says", ms_tensor_fill(row, 0));
    x->v.storage->readonly = NULL;
    assert_ok(ms_tensor_set_requires_grad(x, true));
    ms_tensor_free(row);
    assert_ok(ms_op_select(&row, x, 0, 1));
    assert_fails(MS_RUNTIME_ERROR, "not differentiable", ms_tensor_fill(row, 0));
    EXPECT_VALUES(x, 1, 2, 9, 4, 5, 9);
    ms_tensor_free(one);
    ms_tensor_free(column);
    ms_tensor_free(row);
    ms_tensor_free(t);
    ms_tensor_free(x);
}

static void test_autograd_views__gradients_of_overlapping_parts_add(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2, 3, 4), *g = VECTOR(MS_DTYPE_F64, 1, 10, 100);
    ms_tensor *left, *right, *y;

    assert_ok(ms_op_narrow(&left, x, 0, 0, 3));
    assert_ok(ms_op_narrow(&right, x, 0, 1, 3));
    assert_ok(ms_op_mul(&y, left, right)); /* (1 2) (2 3) (3 4) */
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 2, 1 + 30, 20 + 400, 300);
    ms_tensor_free(y);
    ms_tensor_free(right);
    ms_tensor_free(left);
    ms_tensor_free(g);
    ms_tensor_free(x);
}

static void test_autograd_views__a_part_of_a_given_gradient_place_is_zeroed_once(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2, 3), *z, *a, *y;

    /* z = 2 x is used whole first, then in part: the part adds to what came */
    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_op_narrow(&a, z, 0, 1, 1));
    assert_ok(ms_op_mul(&y, z, a));
    ms_tensor *g = VECTOR(MS_DTYPE_F64, 1, 1, 1);

    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 8, 8 + 2 * 12, 8); /* y = 4 x x[1] */
    ms_tensor_free(g);
    ms_tensor_free(y);
    ms_tensor_free(a);
    ms_tensor_free(z);
    ms_tensor_free(x);
}

/* As many as an operator takes, one more, and more than groups of groups. */
static void test_autograd_views__cat_many(void **state)
{
    enum { MOST = 64 * 64 + 3 };
    static const int32_t counts[] = {64, 65, MOST};
    static ms_tensor *x[MOST];
    static double values[MOST], got[MOST];
    const int64_t one = 1;
    ms_tensor *y, *g;

    for (int32_t i = 0; i < MOST; i++) {
        assert_ok(ms_tensor_full(&x[i], MS_DTYPE_F32, 1, &one, i));
        require(x[i]);
        values[i] = i;
    }
    for (size_t k = 0; k < sizeof(counts) / sizeof(*counts); k++) {
        const int32_t n = counts[k];

        assert_ok(ms_op_cat(&y, x, n, 0));
        assert_ok(ms_tensor_to_doubles(y, got, n));
        assert_close(got, values, n, 0, 0);
        assert_ok(ms_op_clone(&g, y));
        assert_ok(ms_backward(y, g));
        for (int32_t i = 0; i < n; i++) {
            EXPECT_GRAD(x[i], values[i]);
            assert_ok(ms_tensor_set_grad(x[i], NULL));
        }
        ms_tensor_free(g);
        ms_tensor_free(y);
    }
    g = x[MOST - 1];
    assert_ok(ms_tensor_full(&x[MOST - 1], MS_DTYPE_F32, 0, NULL, 0));
    assert_fails(MS_VALUE_ERROR, "cat: a tensor has shape ()", ms_op_cat(&y, x, MOST, 0));
    assert_null(y);
    ms_tensor_free(g);
    assert_fails(MS_VALUE_ERROR, "got 0 tensors", ms_op_cat(&y, x, 0, 0));
    for (int32_t i = 0; i < MOST; i++) {
        ms_tensor_free(x[i]);
    }
}

/* -- errors ------------------------------------------------------------------------------------ */

static void test_autograd_views__elementwise_errors_name_both_operands(void **state)
{
    ms_tensor *a = FILLED(MS_DTYPE_F32, 1, 3, 5), *b = FILLED(MS_DTYPE_F32, 2, 4, 5);
    ms_tensor *d = FILLED(MS_DTYPE_F64, 3, 3, 5), *u, *out;
    const int64_t n = 2;

    assert_fails(MS_VALUE_ERROR, "mul: shapes (3, 5) and (4, 5) do not broadcast",
                 ms_op_mul(&out, a, b));
    assert_null(out);
    assert_fails(MS_TYPE_ERROR, "div: a is f32 and b is f64, expected one dtype",
                 ms_op_div(&out, a, d));
    assert_null(out);
    assert_ok(ms_tensor_full(&u, MS_DTYPE_U8, 1, &n, 1));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "u8", ms_op_tanh(&out, u));
    assert_null(out);
    ms_tensor_free(u);
    ms_tensor_free(d);
    ms_tensor_free(b);
    ms_tensor_free(a);
}

static void test_autograd_views__shape_errors_name_found_and_expected(void **state)
{
    const int64_t odd[2] = {4, -1}, two_open[2] = {-1, -1}, negative[2] = {-2, -3};
    const int64_t zero_open[2] = {0, -1}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int32_t twice[2] = {1, 1}, far[2] = {0, 2}, three[3] = {0, 1, 2};
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 2, 3), *y = FILLED(MS_DTYPE_F32, 2, 2, 4), *out;
    ms_tensor *pair[2] = {x, y};

    assert_fails(MS_VALUE_ERROR, "(2, 3) has 6 elements, which shape (4, -1) does not fit",
                 ms_op_reshape(&out, x, 2, odd));
    assert_fails(MS_VALUE_ERROR, "does not fit", ms_op_reshape(&out, x, 2, two_open));
    assert_fails(MS_VALUE_ERROR, "does not fit", ms_op_reshape(&out, x, 2, negative));
    assert_fails(MS_VALUE_ERROR, "does not fit", ms_op_reshape(&out, x, 2, zero_open));
    assert_fails(MS_VALUE_ERROR, "0 to 8 dimensions, got 9", ms_op_reshape(&out, x, 9, nine));
    assert_fails(MS_VALUE_ERROR, "a dimension comes twice", ms_op_permute(&out, x, 2, twice));
    assert_fails(MS_INDEX_ERROR, "dimension 2 is outside [0, 2)", ms_op_permute(&out, x, 2, far));
    assert_fails(MS_VALUE_ERROR, "got 3 dimensions", ms_op_permute(&out, x, 3, three));
    assert_fails(MS_INDEX_ERROR, "dimension 2 is outside", ms_op_narrow(&out, x, 2, 0, 1));
    assert_fails(MS_INDEX_ERROR, "2 entries from 2 along dimension 1 are outside of shape (2, 3)",
                 ms_op_narrow(&out, x, 1, 2, 2));
    assert_fails(MS_INDEX_ERROR, "outside", ms_op_narrow(&out, x, 1, INT64_MAX, 1));
    assert_fails(MS_INDEX_ERROR, "outside", ms_op_narrow(&out, x, 1, -1, 1));
    assert_fails(MS_INDEX_ERROR, "select: dimension 2 is outside of shape (2, 3)",
                 ms_op_select(&out, x, 2, 0));
    assert_fails(MS_INDEX_ERROR, "dimension -1 is outside", ms_op_select(&out, x, -1, 0));
    assert_fails(MS_INDEX_ERROR, "entry 3 of dimension 1 is outside of shape (2, 3)",
                 ms_op_select(&out, x, 1, 3));
    assert_fails(MS_INDEX_ERROR, "entry -1 of", ms_op_select(&out, x, 0, -1));
    assert_fails(MS_VALUE_ERROR, "a tensor has shape (2, 4), expected that of the first, (2, 3)",
                 ms_op_cat(&out, pair, 2, 0));
    assert_fails(MS_INDEX_ERROR, "cat: dimension 2", ms_op_cat(&out, pair, 2, 2));
    assert_fails(MS_INDEX_ERROR, "sum: dimension 2 is outside of shape (2, 3)",
                 ms_op_sum(&out, x, 1u << 2, false));
    assert_fails(MS_VALUE_ERROR, "x has shape (2, 3) and y (2, 4)",
                 ms_op_mse_loss(&out, x, y, MS_REDUCTION_MEAN));
    assert_fails(MS_VALUE_ERROR, "reduction is 2", ms_op_mse_loss(&out, x, x, 2));
    assert_fails(MS_VALUE_ERROR, "dtype 17 is none", ms_op_cast(&out, x, 17));
    assert_null(out);
    ms_tensor_free(y);
    ms_tensor_free(x);
}

static void test_autograd_views__losses_of_bf16_are_f32(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_BF16, 1, 2), *y = VECTOR(MS_DTYPE_BF16, 3, 2.5), *loss;
    ms_tensor_info info;

    assert_ok(ms_op_mse_loss(&loss, x, y, MS_REDUCTION_MEAN));
    assert_ok(ms_tensor_describe(loss, &info));
    assert_int_equal(info.dtype, MS_DTYPE_F32);
    EXPECT_VALUES(loss, 2.125);
    assert_ok(ms_backward(loss, NULL));
    EXPECT_GRAD(x, -2, -0.5);
    ms_tensor_free(loss);
    ms_tensor_free(y);
    ms_tensor_free(x);
}

/* x.grad, given as the gradient of x's transpose and of a product with x, is read while gradients
 * are added to it. */
static void test_autograd_views__a_given_gradient_may_be_the_one_it_adds_to(void **state)
{
    const int64_t shape[2] = {2, 2};
    const int32_t swap[2] = {1, 0};
    ms_tensor *flat = VECTOR(MS_DTYPE_F64, 1, 2, 3, 4), *x, *turned, *grad, *product;
    ms_tensor *w = VECTOR(MS_DTYPE_F64, 0, 1, 1, 0), *exchange;

    assert_ok(ms_op_reshape(&x, flat, 2, shape));
    require(x);
    assert_ok(ms_tensor_set_grad(x, x));
    assert_ok(ms_tensor_grad(&grad, x));
    assert_ok(ms_op_permute(&turned, x, 2, swap));
    assert_ok(ms_backward(turned, grad));
    EXPECT_VALUES(grad, 2, 5, 5, 8);
    assert_ok(ms_op_reshape(&exchange, w, 2, shape)); /* its product exchanges columns */
    assert_ok(ms_op_matmul(&product, x, exchange));
    assert_ok(ms_backward(product, grad));
    EXPECT_VALUES(grad, 7, 7, 13, 13);
    ms_tensor_free(product);
    ms_tensor_free(exchange);
    ms_tensor_free(w);
    ms_tensor_free(turned);
    ms_tensor_free(grad);
    ms_tensor_free(x);
    ms_tensor_free(flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_views__show_the_same_memory),
        BOOKED_TEST(test_autograd_views__an_entry_shows_the_same_memory),
        BOOKED_TEST(test_autograd_views__gradients_of_overlapping_parts_add),
        BOOKED_TEST(test_autograd_views__a_part_of_a_given_gradient_place_is_zeroed_once),
        BOOKED_TEST(test_autograd_views__a_given_gradient_may_be_the_one_it_adds_to),
        BOOKED_TEST(test_autograd_views__cat_many),
        BOOKED_TEST(test_autograd_views__elementwise_errors_name_both_operands),
        BOOKED_TEST(test_autograd_views__shape_errors_name_found_and_expected),
        BOOKED_TEST(test_autograd_views__losses_of_bf16_are_f32),
    };
    return cmocka_run_group_tests_name("autograd/views", tests, NULL, NULL);
}
