/* Views share memory, and gradients of overlapping parts add. */
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
    assert_ok(ms_op_select(&row, x, 0, 1));
    assert_fails(MS_RUNTIME_ERROR, "not differentiable", ms_tensor_fill(row, 0));
    EXPECT_VALUES(x, 1, 2, 9, 4, 5, 9);
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
    }
    g = x[MOST - 1];
    assert_ok(ms_tensor_full(&x[MOST - 1], MS_DTYPE_F32, 0, NULL, 0));
    assert_fails(MS_VALUE_ERROR, "cat: a tensor has shape ()", ms_op_cat(&y, x, MOST, 0));
    assert_null(y);
    assert_fails(MS_VALUE_ERROR, "got 0 tensors", ms_op_cat(&y, x, 0, 0));
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
    };
    return cmocka_run_group_tests_name("autograd/views", tests, NULL, NULL);
}
