/* runtime/autograd/engine.c, grad.c, rule.c: gradients of graphs worked out by hand, the order in
 * which they add, memory shared by several of them, and what is refused. */
#include "values.h"

#include "autograd.h"

/* -- graphs ------------------------------------------------------------------------------------ */

static void test_autograd_engine__one_leaf_as_both_operands(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3, 4), *g = VECTOR(MS_DTYPE_F64, 1, 2), *y;

    assert_ok(ms_op_mul(&y, x, x)); /* 2 x g */
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 6, 16);
    assert_ok(ms_op_add(&y, x, x)); /* + 2 g */
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 8, 20);
    assert_ok(ms_op_sub(&y, x, x)); /* + 0 */
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 8, 20);
    assert_ok(ms_tensor_set_grad(x, NULL));
    assert_ok(ms_op_div(&y, x, x)); /* 0 */
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 0, 0);
}

/* Gradient of x when `op` gets it as several operands, or x and clones of it: the same number by
 * the chain rule, but only the first way makes one kernel write one place several times. */
static void several_operands(ms_status (*op)(ms_tensor **, ms_tensor *, ms_tensor *), bool clones,
                             int32_t ndim, const int64_t *shape, double *values, int64_t n)
{
    ms_tensor *x = filled(MS_DTYPE_F64, ndim, shape, 1), *other, *y, *g, *grad;
    ms_tensor_info info;

    require(x);
    if (clones) {
        assert_ok(ms_op_clone(&other, x));
    } else {
        other = x;
    }
    assert_ok(op(&y, x, other));
    assert_ok(ms_tensor_describe(y, &info));
    g = filled(MS_DTYPE_F64, info.ndim, info.shape, 2);
    assert_ok(ms_backward(y, g));
    assert_ok(ms_tensor_grad(&grad, x));
    assert_ok(ms_tensor_to_doubles(grad, values, n));
}

static ms_status norm_by_itself(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return ms_op_layer_norm(out, a, b, b, 1e-5);
}

static ms_status attend_to_itself(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return ms_op_attention(out, a, b, b, true, 0);
}

static ms_status linear_by_itself(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return ms_op_linear(out, a, b, NULL);
}

static void test_autograd_engine__one_leaf_as_several_operands_of_a_fused_op(void **state)
{
    const int64_t vector_shape[1] = {7}, square[2] = {5, 5}, heads[4] = {1, 2, 3, 4};
    const struct {
        ms_status (*op)(ms_tensor **, ms_tensor *, ms_tensor *);
        int32_t ndim;
        const int64_t *shape;
        int64_t n;
    } cases[] = {{norm_by_itself, 1, vector_shape, 7},
                 {linear_by_itself, 2, square, 25},
                 {ms_op_matmul, 2, square, 25},
                 {attend_to_itself, 4, heads, 24}};
    double expected[25], got[25];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        several_operands(cases[i].op, true, cases[i].ndim, cases[i].shape, expected, cases[i].n);
        several_operands(cases[i].op, false, cases[i].ndim, cases[i].shape, got, cases[i].n);
        assert_close(got, expected, cases[i].n, 1e-13, 1e-14);
    }
}

static void test_autograd_engine__leaves_alone_what_needs_no_gradient(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *c = VECTOR(MS_DTYPE_F64, 5);
    ms_tensor *unused = LEAF(MS_DTYPE_F64, 1), *y, *z;

    assert_ok(ms_op_mul(&y, x, c));
    assert_ok(ms_op_mul(&z, unused, c)); /* recorded, but no part of y */
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 5);
    expect_no_grad(c);
    expect_no_grad(unused);
}

static void test_autograd_engine__a_leaf_is_a_root_too(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3, 4), *g = VECTOR(MS_DTYPE_F64, 1, 2);

    assert_ok(ms_backward(x, g));
    assert_ok(ms_backward(x, g));
    EXPECT_GRAD(x, 2, 4);
    EXPECT_VALUES(g, 1, 2);
}

static void test_autograd_engine__gradients_add_up_over_backwards(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *g = VECTOR(MS_DTYPE_F64, 1, 1), *y, *held;

    assert_ok(ms_op_affine(&y, x, 3, 0));
    assert_ok(ms_backward(y, g));
    assert_ok(ms_tensor_grad(&held, x));
    assert_ok(ms_op_affine(&y, x, 4, 0));
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 7, 7);
    EXPECT_VALUES(held, 7, 7); /* in place */
}

/* -- order ------------------------------------------------------------------------------------- */

/* 2^24 + 1 is no float: sums of 2^24, -2^24 and 1 tell in which order they were made. */
static void test_autograd_engine__contributions_add_from_the_last_use_to_the_first(void **state)
{
    const double big = 16777216;
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1), *use[3], *sum, *y;

    assert_ok(ms_op_affine(&use[0], x, big, 0));
    assert_ok(ms_op_affine(&use[1], x, -2 * big, 0));
    assert_ok(ms_op_affine(&use[2], x, 1, 0));
    assert_ok(ms_op_add(&sum, use[2], use[0])); /* the order of the sum does not matter */
    assert_ok(ms_op_add(&y, sum, use[1]));
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, -big + 0); /* ((1 - 2^25) rounded) + 2^24 */
}

typedef struct turn {
    int *log, *n, index;
} turn;

static ms_status take_turn(void *user)
{
    const turn *t = user;

    t->log[(*t->n)++] = t->index;
    return MS_OK;
}

static void test_autograd_engine__nodes_run_from_the_youngest_to_the_oldest(void **state)
{
    enum { N = 37 };
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1), *use[N], *shuffled[N], *y, *g;
    turn turns[N];
    int log[N], n = 0;

    for (int i = 0; i < N; i++) {
        turns[i] = (turn){log, &n, i};
        assert_ok(ms_op_affine(&use[i], x, i, 0));
        assert_ok(msi_autograd_pre_hook(use[i], (msi_pre_hook){take_turn, &turns[i], NULL, NULL}));
        shuffled[i * 16 % N] = use[i];
    }
    assert_ok(ms_op_cat(&y, shuffled, N, 0));
    assert_ok(ms_op_clone(&g, y));
    assert_ok(ms_backward(y, g));
    assert_int_equal(n, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(log[i], N - 1 - i);
    }
}

/* A wish made while backward runs: to be called when all that was made after a place has run. */
typedef struct wish {
    turn then;
    uint64_t place;
} wish;

static ms_status no_turn(void *user)
{
    return MS_OK;
}

static ms_status make_wish(void *user)
{
    wish *w = user;

    return msi_backward_when_behind(msi_context(), w->place, take_turn, &w->then);
}

static void test_autograd_engine__tells_when_all_made_after_a_place_has_run(void **state)
{
    enum { N = 9, FROM = 4 };
    ms_tensor *x[N + 1] = {LEAF(MS_DTYPE_F32, 1)};
    turn turns[N];
    int log[N + 2], n = 0;
    wish late = {.then = {log, &n, 100}}, last = {.then = {log, &n, 200}};

    last.place = msi_autograd_now(msi_context());
    for (int i = 0; i < N; i++) {
        if (i == FROM) {
            late.place = msi_autograd_now(msi_context());
        }
        turns[i] = (turn){log, &n, i};
        assert_ok(ms_op_affine(&x[i + 1], x[i], 1, 1));
        assert_ok(
            msi_autograd_pre_hook(x[i + 1], (msi_pre_hook){take_turn, &turns[i], NULL, NULL}));
    }
    assert_ok(msi_autograd_pre_hook(x[N], (msi_pre_hook){make_wish, &late, NULL, NULL}));
    assert_ok(msi_autograd_pre_hook(x[N], (msi_pre_hook){make_wish, &last, NULL, NULL}));
    assert_ok(ms_backward(x[N], NULL));
    assert_int_equal(n, N + 1); /* nothing is older than `last`'s place, so it never comes */
    for (int i = 0; i < N + 1; i++) {
        const int made = i < N - FROM ? N - 1 - i : i == N - FROM ? 100 : N - i;

        assert_int_equal(log[i], made);
    }
}

/* Wishes of three places, made before any node runs, come in the order of the places whatever that
 * of the hooks; of what a backward does not reach nothing is expected. */
static void test_autograd_engine__hooks_hear_of_a_backward_that_comes_to_them(void **state)
{
    enum { N = 3 };
    static const int hooked[N] = {1, 0, 2};
    ms_tensor *x[N + 1] = {LEAF(MS_DTYPE_F32, 1)}, *apart;
    int log[2 * N], n = 0;
    turn ran[N];
    wish wishes[N], never = {.then = {log, &n, -1}};

    ms_tensor *older = x[0];

    assert_ok(ms_op_affine(&x[0], older, 1, 1)); /* older than all places */
    for (int i = 0; i < N; i++) {
        wishes[i] = (wish){.then = {log, &n, 100 + i}, .place = msi_autograd_now(msi_context())};
        ran[i] = (turn){log, &n, i};
        assert_ok(ms_op_affine(&x[i + 1], x[i], 1, 1));
    }
    assert_ok(ms_op_affine(&apart, x[N], 2, 0));
    assert_ok(msi_autograd_pre_hook(apart, (msi_pre_hook){take_turn, &never, NULL, make_wish}));
    for (int k = 0; k < N; k++) {
        const int i = hooked[k];

        assert_ok(msi_autograd_pre_hook(x[i + 1], (msi_pre_hook){take_turn, &ran[i], NULL, NULL}));
        assert_ok(
            msi_autograd_pre_hook(x[N], (msi_pre_hook){no_turn, &wishes[i], NULL, make_wish}));
    }
    assert_ok(ms_backward(x[N], NULL));
    assert_int_equal(n, 2 * N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(log[2 * i], N - 1 - i);
        assert_int_equal(log[2 * i + 1], 100 + N - 1 - i);
    }
}

static void test_autograd_engine__operands_of_one_op_add_from_the_first_to_the_last(void **state)
{
    const double big = 16777216;
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1), *parts[3] = {x, x, x}, *y;
    ms_tensor *g = VECTOR(MS_DTYPE_F32, 1, big, -big);

    assert_ok(ms_op_cat(&y, parts, 3, 0));
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 0); /* (1 + 2^24) - 2^24 */
}

/* -- memory shared by several gradients -------------------------------------------------------- */

static void test_autograd_engine__shared_gradients_are_not_written(void **state)
{
    const int64_t flat = 4, square[2] = {2, 2};
    const int32_t swap[2] = {1, 0};
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2, 3, 4), *g = FILLED(MS_DTYPE_F64, 1, 4);
    ms_tensor *z, *a, *b, *c, *sum, *y;
    double v[4];

    /* z = 2 x; y = z + flat(transposed(square(z))) + z: one gradient goes three ways */
    assert_ok(ms_tensor_to_doubles(g, v, 4));
    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_op_reshape(&a, z, 2, square));
    assert_ok(ms_op_permute(&b, a, 2, swap));
    assert_ok(ms_op_reshape(&c, b, 1, &flat));
    assert_ok(ms_op_add(&sum, z, c));
    assert_ok(ms_op_add(&y, sum, z));
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 2 * (2 * v[0] + v[0]), 2 * (2 * v[1] + v[2]), 2 * (2 * v[2] + v[1]),
                2 * (2 * v[3] + v[3]));
    EXPECT_VALUES(g, v[0], v[1], v[2], v[3]);
}

static void test_autograd_engine__the_given_gradient_may_be_borrowed_or_strided(void **state)
{
    double memory[4] = {1, 2, 3, 4};
    const int64_t shape[2] = {2, 2};
    const int32_t swap[2] = {1, 0};
    ms_tensor *x = FILLED(MS_DTYPE_F64, 1, 2, 2), *z, *y, *g, *strided;

    require(x);
    assert_ok(ms_tensor_borrow(&g, MS_DTYPE_F64, 2, shape, memory));
    assert_ok(ms_op_permute(&strided, g, 2, swap));
    assert_ok(ms_op_clone(&z, x));
    assert_ok(ms_op_add(&y, z, z));
    assert_ok(ms_backward(y, strided));
    EXPECT_GRAD(x, 2, 6, 4, 8);
    EXPECT_VALUES(g, 1, 2, 3, 4);
}

static void test_autograd_engine__the_given_gradient_is_cast(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_BF16, 1, 2), *g = VECTOR(MS_DTYPE_F64, 1, 0.5), *y, *grad;
    ms_tensor_info info;

    assert_ok(ms_op_affine(&y, x, 2, 0));
    assert_ok(ms_backward(y, g));
    EXPECT_GRAD(x, 2, 1);
    assert_ok(ms_tensor_grad(&grad, x));
    assert_ok(ms_tensor_describe(grad, &info));
    assert_int_equal(info.dtype, MS_DTYPE_BF16);
}

/* -- what is refused --------------------------------------------------------------------------- */

static void test_autograd_engine__refuses_roots_and_gradients_that_do_not_fit(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1, 2), *c = VECTOR(MS_DTYPE_F32, 1), *y;
    ms_tensor *i = VECTOR(MS_DTYPE_I64, 1, 2);

    assert_ok(ms_op_exp(&y, x));
    assert_fails(MS_RUNTIME_ERROR, "does not require grad", ms_backward(c, NULL));
    assert_fails(MS_RUNTIME_ERROR, "shape (2) needs a gradient", ms_backward(y, NULL));
    assert_fails(MS_VALUE_ERROR, "has shape (1), expected (2)", ms_backward(y, c));
    assert_fails(MS_TYPE_ERROR, "is i64, expected f32", ms_backward(y, i));
    expect_no_grad(x);
}

static void test_autograd_engine__refuses_a_second_time_before_anything_runs(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *w = LEAF(MS_DTYPE_F64, 3), *shared, *y, *z;

    assert_ok(ms_op_exp(&shared, x));
    assert_ok(ms_op_affine(&y, shared, 2, 0));
    assert_ok(ms_op_mul(&z, shared, w));
    assert_ok(ms_backward(y, NULL));
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'affine'", ms_backward(y, NULL));
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'exp'", ms_backward(z, NULL));
    expect_no_grad(w);
    EXPECT_GRAD(x, 2 * exp(2));
}

static void test_autograd_engine__finds_saved_tensors_that_were_overwritten(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 2), *w = LEAF(MS_DTYPE_F64, 3), *y;

    assert_ok(ms_op_mul(&y, x, w));
    assert_ok(ms_tensor_fill(w, 4));
    assert_ok(ms_tensor_fill(w, 5));
    assert_fails(MS_RUNTIME_ERROR,
                 "backward of 'mul': saved tensor 1 of shape (1) was modified by an in-place "
                 "operation: it is at version 2, expected 0",
                 ms_backward(y, NULL));
    expect_no_grad(x);
    expect_no_grad(w);
    assert_ok(ms_op_mul(&y, x, w)); /* the next one works */
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 5);
    EXPECT_GRAD(w, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_engine__one_leaf_as_both_operands),
        BOOKED_TEST(test_autograd_engine__one_leaf_as_several_operands_of_a_fused_op),
        BOOKED_TEST(test_autograd_engine__leaves_alone_what_needs_no_gradient),
        BOOKED_TEST(test_autograd_engine__a_leaf_is_a_root_too),
        BOOKED_TEST(test_autograd_engine__gradients_add_up_over_backwards),
        BOOKED_TEST(test_autograd_engine__contributions_add_from_the_last_use_to_the_first),
        BOOKED_TEST(test_autograd_engine__nodes_run_from_the_youngest_to_the_oldest),
        BOOKED_TEST(test_autograd_engine__tells_when_all_made_after_a_place_has_run),
        BOOKED_TEST(test_autograd_engine__hooks_hear_of_a_backward_that_comes_to_them),
        BOOKED_TEST(test_autograd_engine__operands_of_one_op_add_from_the_first_to_the_last),
        BOOKED_TEST(test_autograd_engine__shared_gradients_are_not_written),
        BOOKED_TEST(test_autograd_engine__the_given_gradient_may_be_borrowed_or_strided),
        BOOKED_TEST(test_autograd_engine__the_given_gradient_is_cast),
        BOOKED_TEST(test_autograd_engine__refuses_roots_and_gradients_that_do_not_fit),
        BOOKED_TEST(test_autograd_engine__refuses_a_second_time_before_anything_runs),
        BOOKED_TEST(test_autograd_engine__finds_saved_tensors_that_were_overwritten),
    };
    return cmocka_run_group_tests_name("autograd/engine", tests, NULL, NULL);
}
