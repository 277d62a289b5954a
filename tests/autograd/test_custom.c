/* runtime/autograd/custom.c: operators of a C program, and segments that it computes again. */
#include "values.h"

#include "autograd.h"

/* -- an operator: a * b ------------------------------------------------------------------------ */

typedef struct product {
    ms_tensor *a, *b; /* operands */
    int drops;
} product;

static void drop_product(void *user)
{
    product *p = user;

    ms_tensor_free(p->a);
    ms_tensor_free(p->b);
    p->drops++;
}

static ms_status product_backward(void *user, ms_tensor *const *grads_out, int32_t n_out,
                                  ms_tensor **grads_in, int32_t n_in)
{
    const product *p = user;

    assert_int_equal(n_out, 1);
    assert_int_equal(n_in, 2);
    MS_TRY(ms_op_mul(&grads_in[0], grads_out[0], p->b));
    return ms_op_mul(&grads_in[1], grads_out[0], p->a);
}

static ms_status multiply(ms_tensor **out, product *p, ms_tensor *a, ms_tensor *b)
{
    const bool recording = ms_grad_enabled_set(false);
    ms_tensor *y;
    ms_status status = ms_op_mul(&y, a, b);

    ms_grad_enabled_set(recording);
    MS_TRY(status);
    *p = (product){ms_tensor_retain(a), ms_tensor_retain(b), 0};
    status = ms_custom(out, &y, 1, (ms_tensor *[]){a, b}, 2, product_backward, p, drop_product);
    ms_tensor_free(y);
    return status;
}

static void test_autograd_custom__operator_has_its_gradients(void **state)
{
    ms_tensor *a = LEAF(MS_DTYPE_F64, 1, 2, 3), *b = LEAF(MS_DTYPE_F64, 4, 5, 6), *y, *sum;
    product p;

    assert_ok(multiply(&y, &p, a, b));
    assert_ok(ms_op_sum(&sum, y, 0, false));
    assert_ok(ms_backward(sum, NULL));
    assert_int_equal(p.drops, 1); /* with the graph */
    EXPECT_GRAD(a, 4, 5, 6);
    EXPECT_GRAD(b, 1, 2, 3);
    assert_ok(ms_tensor_set_requires_grad(a, false));
    assert_ok(ms_tensor_set_requires_grad(b, false));
    assert_ok(multiply(&y, &p, a, b)); /* not recorded */
    assert_int_equal(p.drops, 1);
    assert_false(y->requires_grad);
}

/* -- a segment: tanh(w x) + w -------------------------------------------------------------------
 */

typedef struct segment {
    ms_tensor *x, *w, *other; /* `other`: used in place of w when computed again */
    int runs;
} segment;

static ms_status compute(const segment *s, ms_tensor *w, ms_tensor **out)
{
    ms_tensor *wx, *bent;

    MS_TRY(ms_op_mul(&wx, w, s->x));
    MS_TRY(ms_op_tanh(&bent, wx));
    const ms_status status = ms_op_add(out, bent, w);

    return status;
}

static ms_status compute_again(void *user, ms_tensor *const *grads, int32_t n_out)
{
    segment *s = user;
    ms_tensor *y;

    s->runs++;
    ms_grad_enabled_set(true);
    ms_status status = compute(s, s->other != NULL ? s->other : s->w, &y);

    if (status == MS_OK) {
        status = ms_backward_extend(&y, grads, n_out);
        ms_tensor_free(y);
    }
    ms_grad_enabled_set(false);
    return status;
}

/* sum(segment(2 x) * w), with the segment computed again or not; the gradients' bits in `out`. */
static ms_status run(ms_tensor *x, ms_tensor *w, ms_tensor *other, bool again, double *out)
{
    segment s = {.w = w, .other = other};
    ms_tensor *y, *z, *sum, *shown;
    uint64_t since;

    assert_ok(ms_op_affine(&s.x, x, 2, 0));
    since = ms_graph_now();
    assert_ok(compute(&s, w, &y));
    if (again) {
        assert_ok(ms_checkpoint_graph(&shown, &y, 1, since, compute_again, &s, NULL));
        ms_tensor_free(y);
        y = shown;
    }
    assert_ok(ms_op_mul(&z, y, w));
    assert_ok(ms_op_sum(&sum, z, 0, false));
    const ms_status status = ms_backward(sum, NULL);

    assert_int_equal(s.runs, again ? 1 : 0);
    if (status == MS_OK) {
        assert_ok(ms_tensor_to_doubles(x->grad, out, 3));
        assert_ok(ms_tensor_to_doubles(w->grad, out + 3, 3));
    }
    assert_ok(ms_tensor_set_grad(x, NULL));
    assert_ok(ms_tensor_set_grad(w, NULL));
    return status;
}

static void test_autograd_custom__segment_has_the_same_bits(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 0.1, -0.7, 0.3), *w = LEAF(MS_DTYPE_F32, 1, 2, 3);
    double expected[6], values[6];

    assert_ok(run(x, w, NULL, false, expected));
    assert_ok(run(x, w, NULL, true, values));
    assert_memory_equal(expected, values, sizeof(values));
}

static void test_autograd_custom__segment_refuses_another_leaf(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 0.1, -0.7, 0.3), *w = LEAF(MS_DTYPE_F32, 1, 2, 3);
    ms_tensor *u = LEAF(MS_DTYPE_F32, 1, 2, 3);
    double values[6];

    assert_fails(MS_RUNTIME_ERROR, "which the forward did not", run(x, w, u, true, values));
    assert_fails(MS_RUNTIME_ERROR, "no backward runs", ms_backward_extend(&x, &w, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_custom__operator_has_its_gradients),
        BOOKED_TEST(test_autograd_custom__segment_has_the_same_bits),
        BOOKED_TEST(test_autograd_custom__segment_refuses_another_leaf),
    };

    return cmocka_run_group_tests_name("autograd/custom", tests, NULL, NULL);
}
