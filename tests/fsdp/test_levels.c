/* runtime/fsdp/accumulate: which gradients of one rank merge, whatever units the parameters are in.
 */
#include "ms_test.h"

#include "moonshard/autograd.h"
#include "moonshard/fsdp.h"
#include "moonshard/ops.h"

#include <math.h>

/* Above it f32 holds even numbers only: so the order of a sum shows in it. */
#define BIG 16777216.0

/* Two parameters, `always` and `often`, in one unit or in one each. */
typedef struct model {
    ms_tensor *param[2];
    ms_fsdp_unit *unit[2];
    int32_t n_units;
    ms_fsdp_tree *tree;
} model;

static void open_model(model *m, int32_t n_units)
{
    static const char *const names[] = {"always", "often"};
    const int64_t shape[1] = {4};
    ms_comm *comm;

    *m = (model){.n_units = n_units};
    assert_ok(ms_comm_self(&comm));
    for (int32_t i = 0; i < 2; i++) {
        assert_ok(ms_tensor_parameter(&m->param[i], MS_DTYPE_F32, 1, shape, MS_INIT_UNIFORM, 0, 1));
    }
    for (int32_t i = 0; i < n_units; i++) {
        assert_ok(ms_fsdp_unit_new(&m->unit[i], comm, names[i], NULL, m->param + i, 3 - n_units,
                                   names + i));
    }
    assert_ok(ms_fsdp_tree_new(&m->tree, comm, NULL, m->unit, n_units, false));
    assert_ok(ms_fsdp_tree_set_gradient_factor(m->tree, 1));
}

static void free_model(model *m)
{
    ms_fsdp_tree_free(m->tree);
    ms_tensor_free(m->param[0]);
    ms_tensor_free(m->param[1]);
}

/* A micro-batch whose gradient is `value` everywhere, of `always` and, if it is `reached`, `often`.
 */
static void run(model *m, double value, bool reached, bool last)
{
    const int64_t shape[1] = {4};
    const int32_t n = reached ? m->n_units : 1;
    ms_tensor *x, *y, *loss;

    assert_ok(ms_scope_open("micro-batch"));
    assert_ok(ms_fsdp_tree_set_sync(m->tree, last));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, shape, value));
    assert_ok(ms_fsdp_tree_pre_forward(m->tree));
    for (int32_t i = 0; i < n; i++) {
        assert_ok(ms_fsdp_unit_pre_forward(m->unit[i]));
    }
    assert_ok(ms_op_mul(&y, x, m->param[0]));
    if (reached) {
        ms_tensor *z;

        assert_ok(ms_op_mul(&z, x, m->param[1]));
        assert_ok(ms_op_add(&y, y, z));
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        assert_ok(ms_fsdp_unit_post_forward(m->unit[i], &y, 1));
    }
    assert_ok(ms_fsdp_tree_post_forward(m->tree));
    assert_ok(ms_op_sum(&loss, y, 1, false));
    assert_ok(ms_backward(loss, NULL));
    assert_ok(ms_scope_close(NULL, 0));
}

static double gradient(ms_tensor *param)
{
    double v[4];
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, param));
    assert_non_null(grad);
    assert_ok(ms_tensor_to_doubles(grad, v, 4));
    ms_tensor_free(grad);
    return v[0];
}

/* (1 + 2) + (3 + 4) without the second, and without the last. */
static void test_fsdp_levels__what_a_micro_batch_does_not_reach_has_an_empty_leaf(void **state)
{
    for (int32_t n_units = 1; n_units <= 2; n_units++) {
        model m;

        open_model(&m, n_units);
        run(&m, BIG, true, false);
        run(&m, 0, false, false);
        run(&m, 1, true, false);
        run(&m, 1, true, true);
        assert_true(gradient(m.param[0]) == BIG + 2);
        assert_true(gradient(m.param[1]) == BIG + 2);
        for (int32_t i = 0; i < 2; i++) {
            assert_ok(ms_tensor_set_grad(m.param[i], NULL));
        }
        run(&m, 1, true, false);
        run(&m, 1, true, false);
        run(&m, BIG, true, false);
        run(&m, 0, false, true);
        assert_true(gradient(m.param[1]) == BIG + 2);
        free_model(&m);
    }
}

/* -0 + 0 is 0, but -0 + nothing is -0. */
static void test_fsdp_levels__what_is_not_reached_keeps_the_sign_of_zeros(void **state)
{
    for (int32_t n_units = 1; n_units <= 2; n_units++) {
        model m;

        open_model(&m, n_units);
        run(&m, -0.0, true, false);
        run(&m, 1, false, true);
        assert_true(signbit(gradient(m.param[1])));
        assert_ok(ms_tensor_set_grad(m.param[1], NULL)); /* the other's is added to */
        run(&m, -0.0, true, true);
        assert_true(signbit(gradient(m.param[1])));
        free_model(&m);
    }
}

static void test_fsdp_levels__the_count_begins_anew_when_all_was_dropped(void **state)
{
    model m;

    open_model(&m, 2);
    run(&m, 1, true, false);
    for (int32_t i = 0; i < 2; i++) {
        assert_ok(ms_tensor_set_grad(m.param[i], NULL));
    }
    run(&m, 1, true, false);
    run(&m, BIG, true, false);
    run(&m, 1, true, false);
    run(&m, 1, true, true);
    assert_true(gradient(m.param[0]) == BIG + 2); /* 1 + BIG is BIG */
    free_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_levels__what_a_micro_batch_does_not_reach_has_an_empty_leaf),
        cmocka_unit_test(test_fsdp_levels__what_is_not_reached_keeps_the_sign_of_zeros),
        cmocka_unit_test(test_fsdp_levels__the_count_begins_anew_when_all_was_dropped),
    };
    return cmocka_run_group_tests_name("fsdp/levels", tests, NULL, NULL);
}
