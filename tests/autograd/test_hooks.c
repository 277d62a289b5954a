/* runtime/autograd/hooks.c: what hooks see, when they run, what they may do, when they go. */
#include "values.h"

#include "autograd.h"

/* What a hook did and saw. */
typedef struct seen {
    int calls, drops;
    double value; /* the first element of the last gradient */
    int place;    /* of its last call in the order of all */
    int64_t id;
    ms_tensor *tensor;
    ms_tensor *kept;
} seen;

static int clock_; /* calls of all hooks so far */

static int reset(void **state)
{
    clock_ = 0;
    return open_books(state);
}

#define HOOK_TEST(function) cmocka_unit_test_setup_teardown(function, reset, close_books)

static void dropped(void *user)
{
    ((seen *)user)->drops++;
}

static ms_status look(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    seen *s = user;
    double values[8];
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(grad, &info));
    assert_ok(ms_tensor_to_doubles(grad, values, info.numel));
    assert_null(*replacement);
    s->value = values[0];
    s->calls++;
    s->place = ++clock_;
    return MS_OK;
}

static ms_status look_at_leaf(void *user, ms_tensor *leaf)
{
    seen *s = user;
    ms_tensor *grad, *none = NULL;

    assert_ok(ms_tensor_grad(&grad, leaf));
    assert_ok(look(user, grad, &none));
    ms_tensor_free(grad);
    s->tensor = leaf;
    return MS_OK;
}

static ms_status twice(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    assert_false(ms_grad_enabled()); /* what hooks compute is not recorded */
    return ms_op_affine(replacement, grad, 2, 0);
}

static ms_status look_before(void *user)
{
    seen *s = user;

    s->calls++;
    s->place = ++clock_;
    return MS_OK;
}

/* -- what they see ----------------------------------------------------------------------------- */

static void test_autograd_hooks__see_the_total_of_a_result(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *y;
    seen s = {0};

    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_tensor_hook(z, look, &s, dropped, NULL));
    assert_ok(ms_op_mul(&y, z, z));
    ms_tensor_free(z); /* the hook stays with the graph */
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s.calls, 1);
    assert_true(s.value == 12);
    EXPECT_GRAD(x, 24);
    ms_tensor_free(y);
    assert_int_equal(s.drops, 1);
}

static void test_autograd_hooks__see_the_total_of_a_leaf_once_per_backward(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s = {0};

    assert_ok(ms_tensor_hook(x, look, &s, dropped, NULL));
    for (int i = 1; i <= 2; i++) {
        assert_ok(ms_op_mul(&y, x, x));
        assert_ok(ms_backward(y, NULL));
        assert_int_equal(s.calls, i);
        assert_true(s.value == 6); /* not what .grad held before */
        EXPECT_GRAD(x, 6 * i);
    }
    assert_int_equal(s.drops, 0);
    ms_tensor_free(x);
    assert_int_equal(s.drops, 1);
}

static void test_autograd_hooks__run_in_the_order_they_came(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *y;
    seen before[2] = {{0}}, inner[2] = {{0}}, leaf[2] = {{0}}, after[2] = {{0}};

    assert_ok(ms_op_affine(&z, x, 2, 0));
    for (int i = 0; i < 2; i++) {
        assert_ok(ms_tensor_accumulate_hook(x, look_at_leaf, &after[i], NULL, NULL));
        assert_ok(ms_tensor_hook(x, look, &leaf[i], NULL, NULL));
        assert_ok(ms_tensor_hook(z, look, &inner[i], NULL, NULL));
        assert_ok(msi_autograd_pre_hook(z, (msi_pre_hook){look_before, &before[i], NULL, NULL}));
    }
    assert_ok(ms_op_exp(&y, z));
    assert_ok(ms_backward(y, NULL));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(before[i].place, 1 + i);
        assert_int_equal(inner[i].place, 3 + i);
        assert_int_equal(leaf[i].place, 5 + i);
        assert_int_equal(after[i].place, 7 + i);
        assert_true(after[i].tensor == x);
        assert_true(leaf[i].value == after[i].value);
    }
}

static void test_autograd_hooks__replace_the_gradient(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *y;
    seen s = {0};

    assert_ok(ms_op_affine(&z, x, 5, 0));
    assert_ok(ms_tensor_hook(z, twice, NULL, NULL, NULL));
    assert_ok(ms_tensor_hook(z, twice, NULL, NULL, NULL));
    assert_ok(ms_tensor_hook(x, twice, NULL, NULL, NULL));
    assert_ok(ms_tensor_hook(x, look, &s, NULL, NULL));
    assert_ok(ms_op_affine(&y, z, 1, 0));
    assert_ok(ms_backward(y, NULL));
    assert_true(s.value == 40);
    EXPECT_GRAD(x, 40);
    assert_true(ms_grad_enabled());
}

static ms_status hand_back(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    *replacement = grad;
    return MS_OK;
}

static void test_autograd_hooks__may_hand_back_what_they_saw(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;

    assert_ok(ms_tensor_hook(x, hand_back, NULL, NULL, NULL));
    assert_ok(ms_op_affine(&y, x, 5, 0));
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 5);
}

static ms_status give_own_gradient(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return ms_tensor_grad(replacement, user);
}

/* The memory that a replacement is read from, from the end, is the memory it is added to. */
static void test_autograd_hooks__may_return_the_leafs_own_gradient(void **state)
{
    enum { N = 1000 };
    double values[N];

    for (int on_leaf = 0; on_leaf < 2; on_leaf++) {
        ms_tensor *x, *y, *grad;

        assert_ok(ms_tensor_arange(&x, MS_DTYPE_F64, 0, 1, N));
        assert_ok(ms_tensor_set_grad(require(x), x));
        assert_ok(ms_op_flip(&y, x, 1));
        assert_ok(ms_tensor_hook(on_leaf ? x : y, give_own_gradient, x, NULL, NULL));
        assert_ok(ms_backward(y, x));
        assert_ok(ms_tensor_grad(&grad, x));
        assert_ok(ms_tensor_to_doubles(grad, values, N));
        for (int i = 0; i < N; i++) {
            assert_true(values[i] == (on_leaf ? 2 * i : N - 1));
        }
    }
}

static ms_status keep(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    ((seen *)user)->kept = ms_tensor_retain(grad);
    return MS_OK;
}

static void test_autograd_hooks__what_they_keep_is_not_written(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *a, *b, *y;
    seen s = {0};

    /* b's gradient goes on to z by reference, where a's contribution joins it */
    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_op_affine(&a, z, 7, 0));
    assert_ok(ms_op_add(&b, z, z));
    assert_ok(ms_tensor_hook(b, keep, &s, NULL, NULL));
    assert_ok(ms_op_add(&y, a, b));
    assert_ok(ms_backward(y, NULL));
    EXPECT_VALUES(s.kept, 1);
    EXPECT_GRAD(x, 18);
    ms_tensor_free(s.kept);
}

/* -- coming and going -------------------------------------------------------------------------- */

static void test_autograd_hooks__are_removed_by_id(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s[3] = {{0}};

    for (int i = 0; i < 3; i++) {
        assert_ok(ms_tensor_hook(x, look, &s[i], dropped, &s[i].id));
    }
    assert_ok(ms_hook_remove(x, s[1].id));
    assert_int_equal(s[1].drops, 1);
    assert_fails(MS_KEY_ERROR, "has no hook with id", ms_hook_remove(x, s[1].id));
    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, look, &s[1], dropped, &s[1].id));
    assert_fails(MS_KEY_ERROR, "has no hook", ms_hook_remove(y, s[0].id));
    assert_fails(MS_KEY_ERROR, "has no hook", ms_hook_remove(x, s[1].id));
    assert_ok(ms_hook_remove(y, s[1].id));
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s[0].calls, 1);
    assert_int_equal(s[1].calls, 0);
    assert_int_equal(s[1].drops, 2);
    assert_int_equal(s[2].calls, 1);
    ms_tensor_free(y);
    ms_tensor_free(x);
    assert_int_equal(s[0].drops, 1);
    assert_int_equal(s[2].drops, 1);
}

static ms_status change_hooks(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    seen *s = user;

    s->calls++;
    assert_ok(ms_hook_remove(s[0].tensor, s[0].id));
    return ms_tensor_hook(s[0].tensor, look, &s[1], dropped, &s[1].id);
}

static void test_autograd_hooks__may_add_and_remove_hooks(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s[2] = {{.tensor = x}, {0}}, last = {0};

    assert_ok(ms_tensor_hook(x, change_hooks, s, dropped, &s[0].id));
    assert_ok(ms_tensor_hook(x, look, &last, NULL, NULL));
    for (int i = 0; i < 2; i++) { /* the added one waits for the second backward */
        assert_ok(ms_op_exp(&y, x));
        assert_ok(ms_backward(y, NULL));
        ms_tensor_free(y);
        assert_int_equal(s[0].calls, 1);
        assert_int_equal(s[0].drops, 1);
        assert_int_equal(s[1].calls, i);
        assert_int_equal(last.calls, i + 1);
    }
}

static ms_status free_tensor(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    seen *s = user;

    ms_tensor_free(s->tensor);
    s->tensor = NULL;
    return MS_OK;
}

static void test_autograd_hooks__may_free_the_root_and_the_leaf(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen root, leaf = {.tensor = x};

    assert_ok(ms_op_exp(&y, x));
    root.tensor = y;
    assert_ok(ms_tensor_hook(y, free_tensor, &root, NULL, NULL));
    assert_ok(ms_tensor_hook(x, free_tensor, &leaf, NULL, NULL));
    assert_ok(ms_backward(y, NULL));
}

static void test_autograd_hooks__need_a_tensor_that_gets_gradients(void **state)
{
    ms_tensor *c = VECTOR(MS_DTYPE_F64, 3), *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s = {0};

    assert_ok(ms_op_exp(&y, x));
    assert_fails(MS_RUNTIME_ERROR, "does not require grad",
                 ms_tensor_hook(c, look, &s, dropped, NULL));
    assert_fails(MS_RUNTIME_ERROR, "does not require it",
                 ms_tensor_accumulate_hook(c, look_at_leaf, &s, dropped, NULL));
    assert_fails(MS_RUNTIME_ERROR, "a recorded op made",
                 ms_tensor_accumulate_hook(y, look_at_leaf, &s, dropped, NULL));
    assert_int_equal(s.drops, 0);
}

/* -- errors ------------------------------------------------------------------------------------ */

static ms_status fail_once(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    seen *s = user;

    return s->calls++ == 0 ? ms_error_set(MS_HOOK_ERROR, "no") : MS_OK;
}

static void test_autograd_hooks__their_errors_end_this_backward_only(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *w = LEAF(MS_DTYPE_F64, 5), *y, *z;
    seen s = {0};

    assert_ok(ms_tensor_hook(x, fail_once, &s, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        assert_ok(ms_op_exp(&y, x));
        assert_ok(ms_op_mul(&z, y, w)); /* w's gradient is there before x's hook runs */
        if (i == 0) {
            assert_int_equal(ms_backward(z, NULL), MS_HOOK_ERROR);
            assert_string_equal(ms_error_message(), "no");
            expect_no_grad(w);
            expect_no_grad(x);
        } else {
            assert_ok(ms_backward(z, NULL));
            EXPECT_GRAD(w, exp(3));
        }
        assert_true(ms_grad_enabled());
    }
}

static ms_status wrong_shape(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    *replacement = VECTOR(MS_DTYPE_F64, 1, 2, 3);
    return MS_OK;
}

static ms_status wrong_dtype(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return ms_op_cast(replacement, grad, MS_DTYPE_F32);
}

static void test_autograd_hooks__replacements_must_fit(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    int64_t id;

    assert_ok(ms_tensor_hook(x, wrong_shape, NULL, NULL, &id));
    assert_ok(ms_op_exp(&y, x));
    assert_fails(MS_RUNTIME_ERROR, "returned f64 of shape (3), expected f64 of shape (1)",
                 ms_backward(y, NULL));
    ms_tensor_free(y);
    assert_ok(ms_hook_remove(x, id));
    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, wrong_dtype, NULL, NULL, NULL));
    assert_fails(MS_RUNTIME_ERROR, "returned f32 of shape (1), expected f64 of shape (1)",
                 ms_backward(y, NULL));
    expect_no_grad(x);
}

static ms_status start_another(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    seen *s = user;

    assert_fails(MS_RUNTIME_ERROR, "another backward is running", ms_backward(s->tensor, NULL));
    s->calls++;
    return MS_OK;
}

static void test_autograd_hooks__cannot_start_a_backward(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y, *z;
    seen s = {0};

    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_op_exp(&z, x));
    s.tensor = z;
    assert_ok(ms_tensor_hook(y, start_another, &s, NULL, NULL));
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s.calls, 1);
    EXPECT_GRAD(x, exp(3));
    assert_ok(ms_backward(z, NULL)); /* it was left alone */
    EXPECT_GRAD(x, 2 * exp(3));
}

/* What called a hook must not be freed before it returns. */
static void try_to_close(void *user)
{
    assert_fails(MS_RUNTIME_ERROR, "close: a hook is running", ms_close());
    assert_true(ms_is_open());
    ((seen *)user)->calls++;
}

static ms_status close_at_a_gradient(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    try_to_close(user);
    return MS_OK;
}

static ms_status close_at_a_leaf(void *user, ms_tensor *leaf)
{
    try_to_close(user);
    return MS_OK;
}

static void test_autograd_hooks__cannot_close_their_context(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y, *z;
    seen s = {0};

    assert_ok(ms_tensor_hook(x, close_at_a_gradient, &s, try_to_close, NULL));
    assert_ok(ms_tensor_accumulate_hook(x, close_at_a_leaf, &s, NULL, NULL));
    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, close_at_a_gradient, &s, try_to_close, NULL));
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s.calls, 4); /* three hooks, and that of y goes */
    EXPECT_GRAD(x, exp(3));
    ms_tensor_free(y);
    assert_ok(ms_op_exp(&z, x));
    assert_ok(ms_tensor_hook(z, close_at_a_gradient, &s, try_to_close, NULL));
    ms_tensor_free(z); /* with its graph */
    assert_int_equal(s.calls, 5);
    assert_ok(ms_close()); /* the leaf goes, and its hook, which may not close again */
    assert_int_equal(s.calls, 6);
    open_books(state);
}

static ms_status give_status(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return *(const ms_status *)user;
}

static ms_status give_status_at_leaf(void *user, ms_tensor *leaf)
{
    return *(const ms_status *)user;
}

static void test_autograd_hooks__give_a_status_of_ours_or_an_error(void **state)
{
    static const ms_status none[] = {77, -99, INT32_MIN};
    ms_status given;

    for (int i = 0; i < 6; i++) {
        ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
        char expected[80];

        given = none[i % 3];
        snprintf(expected, sizeof(expected), "%s hook returned %d, expected 0 or the kind",
                 i < 3 ? "a gradient" : "an accumulate", (int)given);
        assert_ok(i < 3 ? ms_tensor_hook(x, give_status, &given, NULL, NULL)
                        : ms_tensor_accumulate_hook(x, give_status_at_leaf, &given, NULL, NULL));
        assert_ok(ms_op_exp(&y, x));
        assert_fails(MS_RUNTIME_ERROR, expected, ms_backward(y, NULL));
    }
}

static void test_autograd_hooks__an_older_error_is_not_their_reason(void **state)
{
    const int64_t negative = -1;
    ms_status given = MS_IO_ERROR;

    for (int at_leaf = 0; at_leaf < 2; at_leaf++) {
        ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y, *none;
        char before[200];

        assert_ok(at_leaf ? ms_tensor_accumulate_hook(x, give_status_at_leaf, &given, NULL, NULL)
                          : ms_tensor_hook(x, give_status, &given, NULL, NULL));
        given = MS_IO_ERROR;
        assert_ok(ms_op_exp(&y, x));
        assert_fails(MS_VALUE_ERROR, "", ms_tensor_full(&none, MS_DTYPE_F64, 1, &negative, 0));
        snprintf(before, sizeof(before), "%s", ms_error_message());
        assert_fails(MS_IO_ERROR, "hook returned -9 (IOError) and said no reason",
                     ms_backward(y, NULL));
        ms_tensor_free(y);
        /* while one that does not fail leaves it to be read */
        given = MS_OK;
        assert_ok(ms_op_exp(&y, x));
        assert_fails(MS_VALUE_ERROR, "", ms_tensor_full(&none, MS_DTYPE_F64, 1, &negative, 0));
        assert_ok(ms_backward(y, NULL));
        assert_string_equal(before, ms_error_message());
    }
}

/* -- when they go ------------------------------------------------------------------------------ */

static void test_autograd_hooks__go_with_a_graph_nobody_differentiates(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s = {0}, before = {0};

    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, look, &s, dropped, NULL));
    assert_ok(msi_autograd_pre_hook(y, (msi_pre_hook){look_before, &before, NULL, NULL}));
    assert_fails(MS_RUNTIME_ERROR, "no result of a recorded op",
                 msi_autograd_pre_hook(x, (msi_pre_hook){look_before, &before, NULL, NULL}));
    ms_tensor_free(y);
    assert_int_equal(s.drops, 1);
    assert_int_equal(s.calls + before.calls, 0);
}

static void test_autograd_hooks__go_with_the_graph_that_backward_uses_up(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *z, *y;
    seen inner = {0}, root = {0}, before = {0}, leaf = {0}, late = {0};

    assert_ok(ms_op_affine(&z, x, 2, 0));
    assert_ok(ms_op_exp(&y, z));
    assert_ok(ms_tensor_hook(x, look, &leaf, dropped, NULL));
    assert_ok(ms_tensor_hook(z, look, &inner, dropped, NULL));
    assert_ok(ms_tensor_hook(y, look, &root, dropped, NULL));
    assert_ok(msi_autograd_pre_hook(z, (msi_pre_hook){look_before, &before, dropped, NULL}));
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(inner.calls + root.calls + before.calls + leaf.calls, 4);
    assert_int_equal(inner.drops, 1); /* though its tensor is held */
    assert_int_equal(root.drops, 1);
    assert_int_equal(before.drops, 1);
    assert_int_equal(leaf.drops, 0);
    assert_fails(MS_RUNTIME_ERROR, "cannot hook the gradient of a result of 'affine' whose graph",
                 ms_tensor_hook(z, look, &inner, dropped, NULL));
    assert_int_equal(inner.drops, 1);
    assert_ok(msi_autograd_pre_hook(z, (msi_pre_hook){look_before, &late, dropped, NULL}));
    assert_int_equal(late.drops, 1); /* it can never run */
    assert_int_equal(late.calls, 0);
    ms_tensor_free(y);
    ms_tensor_free(z);
    assert_int_equal(inner.drops + root.drops + before.drops, 3);
}

static ms_status refuse(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return ms_error_set(MS_HOOK_ERROR, "no");
}

static void test_autograd_hooks__stay_with_what_a_failed_backward_has_not_reached(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *w = LEAF(MS_DTYPE_F64, 5), *aside, *below, *z, *y;
    seen waits = {0}, unreached = {0}, failed = {0}, ran = {0};

    assert_ok(ms_op_exp(&aside, w));
    assert_ok(ms_op_exp(&below, x));
    assert_ok(ms_op_mul(&z, below, below));
    assert_ok(ms_op_mul(&y, z, aside));
    assert_ok(ms_tensor_hook(aside, look, &waits, dropped, NULL)); /* has its gradient by then */
    assert_ok(ms_tensor_hook(below, look, &unreached, dropped, NULL));
    assert_ok(ms_tensor_hook(z, refuse, &failed, dropped, NULL)); /* of a node that ran */
    assert_ok(ms_tensor_hook(y, look, &ran, dropped, NULL));
    assert_fails(MS_HOOK_ERROR, "no", ms_backward(y, NULL));
    assert_int_equal(ran.calls, 1);
    assert_int_equal(waits.calls + unreached.calls, 0);
    assert_int_equal(ran.drops, 1);
    assert_int_equal(failed.drops, 1);
    assert_int_equal(waits.drops + unreached.drops, 0);
    assert_ok(ms_backward(below, NULL));
    assert_ok(ms_backward(aside, NULL));
    assert_int_equal(waits.calls + unreached.calls, 2);
    assert_int_equal(waits.drops + unreached.drops, 2);
}

static void test_autograd_hooks__stay_when_backward_could_not_begin(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;
    seen s = {0};

    assert_ok(ms_op_affine(&y, x, 2, 0));
    assert_ok(ms_tensor_hook(y, look, &s, dropped, NULL));
    msi_alloc_fail_at(msi_context(), 0); /* the root's gradient */
    assert_int_equal(ms_backward(y, NULL), MS_OUT_OF_MEMORY);
    msi_alloc_fail_at(msi_context(), -1);
    assert_int_equal(s.drops, 0);
    assert_ok(ms_backward(y, NULL));
    assert_int_equal(s.calls, 1);
    EXPECT_GRAD(x, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOOK_TEST(test_autograd_hooks__see_the_total_of_a_result),
        HOOK_TEST(test_autograd_hooks__see_the_total_of_a_leaf_once_per_backward),
        HOOK_TEST(test_autograd_hooks__run_in_the_order_they_came),
        HOOK_TEST(test_autograd_hooks__replace_the_gradient),
        HOOK_TEST(test_autograd_hooks__may_hand_back_what_they_saw),
        HOOK_TEST(test_autograd_hooks__may_return_the_leafs_own_gradient),
        HOOK_TEST(test_autograd_hooks__what_they_keep_is_not_written),
        HOOK_TEST(test_autograd_hooks__are_removed_by_id),
        HOOK_TEST(test_autograd_hooks__may_add_and_remove_hooks),
        HOOK_TEST(test_autograd_hooks__may_free_the_root_and_the_leaf),
        HOOK_TEST(test_autograd_hooks__need_a_tensor_that_gets_gradients),
        HOOK_TEST(test_autograd_hooks__their_errors_end_this_backward_only),
        HOOK_TEST(test_autograd_hooks__replacements_must_fit),
        HOOK_TEST(test_autograd_hooks__cannot_start_a_backward),
        HOOK_TEST(test_autograd_hooks__cannot_close_their_context),
        HOOK_TEST(test_autograd_hooks__give_a_status_of_ours_or_an_error),
        HOOK_TEST(test_autograd_hooks__an_older_error_is_not_their_reason),
        HOOK_TEST(test_autograd_hooks__go_with_a_graph_nobody_differentiates),
        HOOK_TEST(test_autograd_hooks__go_with_the_graph_that_backward_uses_up),
        HOOK_TEST(test_autograd_hooks__stay_with_what_a_failed_backward_has_not_reached),
        HOOK_TEST(test_autograd_hooks__stay_when_backward_could_not_begin),
    };
    return cmocka_run_group_tests_name("autograd/hooks", tests, NULL, NULL);
}
