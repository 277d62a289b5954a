/* runtime/optim/optim.c and options.c: groups, their options, handles and lifetimes. */
#include "ms_test.h"

#include "optim.h"

static ms_tensor *leaf(int64_t n)
{
    ms_tensor *t;

    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 1, &n, 1));
    assert_ok(ms_tensor_make_parameter(t));
    return t;
}

static void test_optim_optim__has_the_defaults_of_torch(void **state)
{
    ms_optim_options o;

    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_SGD));
    assert_true(o.lr == 1e-3 && o.momentum == 0 && o.dampening == 0 && o.weight_decay == 0);
    assert_false(o.nesterov || o.maximize);
    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_ADAM));
    assert_true(o.lr == 1e-3 && o.beta1 == 0.9 && o.beta2 == 0.999 && o.eps == 1e-8);
    assert_true(o.weight_decay == 0);
    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_ADAMW));
    assert_true(o.weight_decay == 1e-2);
    assert_int_equal(sizeof(o), o.struct_size);
}

/* A host built with older headers has a shorter struct, and its own memory behind it. */
static void test_optim_optim__writes_no_more_options_than_the_caller_has(void **state)
{
    const uint32_t shorter = offsetof(ms_optim_options, beta2);
    union {
        ms_optim_options o;
        uint8_t bytes[sizeof(ms_optim_options) + 16];
    } u;
    ms_optim *optim;

    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    ms_tensor *t = leaf(2);

    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    for (int by_get = 0; by_get < 2; by_get++) {
        memset(&u, 0x55, sizeof(u));
        if (by_get) {
            u.o.struct_size = shorter;
            assert_ok(ms_optim_options_get(optim, 0, &u.o));
        } else {
            assert_ok(ms_optim_options_init(&u.o, shorter, MS_OPTIM_ADAM));
        }
        assert_int_equal(shorter, u.o.struct_size);
        assert_true(u.o.lr == 1e-3 && u.o.beta1 == 0.9);
        for (size_t i = shorter; i < sizeof(u); i++) {
            assert_int_equal(0x55, u.bytes[i]);
        }
        assert_ok(ms_optim_options_set(optim, 0, &u.o)); /* and takes it back */
        /* a newer one has more than is known here */
        u.o.struct_size = sizeof(u);
        if (by_get) {
            assert_ok(ms_optim_options_get(optim, 0, &u.o));
        } else {
            assert_ok(ms_optim_options_init(&u.o, sizeof(u), MS_OPTIM_ADAM));
        }
        assert_int_equal(sizeof(u.o), u.o.struct_size);
        assert_int_equal(0x55, u.bytes[sizeof(u.o)]);
    }
    for (uint32_t size = 0; size < sizeof(uint32_t); size++) {
        u.o.struct_size = size;
        assert_fails(MS_VALUE_ERROR, "ends within a field", ms_optim_options_get(optim, 0, &u.o));
    }
    ms_tensor_free(t);
    ms_optim_free(optim);
}

static void test_optim_optim__keeps_options_that_an_older_host_does_not_know(void **state)
{
    ms_optim_options o, older = {.struct_size = offsetof(ms_optim_options, beta2)};
    ms_optim *optim;
    ms_tensor *t = leaf(2);

    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_ADAM));
    o.beta2 = 0.95;
    o.eps = 1e-3;
    o.maximize = true;
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, &t, 1, &o, NULL));
    assert_ok(ms_optim_options_get(optim, 0, &older));
    older.lr = 0.5;
    assert_ok(ms_optim_options_set(optim, 0, &older));
    assert_ok(ms_optim_options_get(optim, 0, &o));
    assert_true(o.lr == 0.5 && o.beta1 == 0.9);
    assert_true(o.beta2 == 0.95 && o.eps == 1e-3 && o.maximize);
    assert_int_equal(sizeof(o), o.struct_size);
    ms_tensor_free(t);
    ms_optim_free(optim);
}

static void test_optim_optim__has_defaults_of_the_kinds_there_are_only(void **state)
{
    ms_optim_options o = {.lr = 7};

    assert_fails(MS_VALUE_ERROR, "unknown optimizer kind 77, expected 0 to",
                 ms_optim_options_init(&o, sizeof(o), 77));
    assert_fails(MS_VALUE_ERROR, "unknown optimizer kind -1",
                 ms_optim_options_init(&o, sizeof(o), -1));
    assert_true(o.lr == 7 && o.struct_size == 0);
}

static void test_optim_optim__refuses_options_out_of_range_in_torchs_words(void **state)
{
    static const struct {
        int32_t kind;
        double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
        bool nesterov;
        const char *message;
    } cases[] = {
        {MS_OPTIM_SGD, -1, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: -1"},
        {MS_OPTIM_SGD, NAN, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: nan"},
        {MS_OPTIM_SGD, -NAN, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: nan"},
        {MS_OPTIM_SGD, INFINITY, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: inf"},
        {MS_OPTIM_SGD, 1, -.5, 0, 0, .9, .9, 1, false, "Invalid momentum value: -0.5"},
        {MS_OPTIM_SGD, 1, NAN, 0, 0, .9, .9, 1, false, "Invalid momentum value: nan"},
        {MS_OPTIM_SGD, 1, .5, NAN, 0, .9, .9, 1, false, "Invalid dampening value: nan"},
        {MS_OPTIM_SGD, 1, 0, 0, -.1, .9, .9, 1, false, "Invalid weight_decay value: -0.1"},
        {MS_OPTIM_SGD, 1, 0, 0, 0, .9, .9, 1, true,
         "Nesterov momentum requires a momentum and zero dampening"},
        {MS_OPTIM_SGD, 1, .9, .1, 0, .9, .9, 1, true,
         "Nesterov momentum requires a momentum and zero dampening"},
        {MS_OPTIM_ADAM, -2, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: -2"},
        {MS_OPTIM_ADAM, 1, 0, 0, 0, 1, .9, 1, false, "Invalid beta parameter at index 0: 1"},
        {MS_OPTIM_ADAMW, 1, 0, 0, 0, .9, -.1, 1, false, "Invalid beta parameter at index 1: -0.1"},
        {MS_OPTIM_ADAMW, 1, 0, 0, 0, NAN, .9, 1, false, "Invalid beta parameter at index 0: nan"},
        {MS_OPTIM_ADAM, INFINITY, 0, 0, 0, .9, .9, 1, false, "Invalid learning rate: inf"},
        {MS_OPTIM_ADAMW, 1, 0, 0, 0, .9, .9, -1, false, "Invalid epsilon value: -1"},
        {MS_OPTIM_ADAMW, 1, 0, 0, 0, .9, .9, NAN, false, "Invalid epsilon value: nan"},
        {MS_OPTIM_ADAMW, 1, 0, 0, INFINITY, .9, .9, 1, false, "Invalid weight_decay value: inf"},
        {MS_OPTIM_ADAMW, 1, 0, 0, -3, .9, .9, 1, false, "Invalid weight_decay value: -3"},
    };
    ms_tensor *t = leaf(3);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ms_optim_options o;
        ms_optim *optim;

        assert_ok(ms_optim_options_init(&o, sizeof(o), cases[i].kind));
        o.lr = cases[i].lr;
        o.momentum = cases[i].momentum;
        o.dampening = cases[i].dampening;
        o.weight_decay = cases[i].weight_decay;
        o.beta1 = cases[i].beta1;
        o.beta2 = cases[i].beta2;
        o.eps = cases[i].eps;
        o.nesterov = cases[i].nesterov;
        assert_ok(ms_optim_new(&optim, cases[i].kind));
        assert_fails(MS_VALUE_ERROR, cases[i].message, ms_optim_add_group(optim, &t, 1, &o, NULL));
        assert_int_equal(0, ms_optim_n_groups(optim));
        assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
        assert_fails(MS_VALUE_ERROR, cases[i].message, ms_optim_options_set(optim, 0, &o));
        assert_ok(ms_optim_options_get(optim, 0, &o));
        assert_true(o.lr == 1e-3); /* a refused change leaves the group as it was */
        ms_optim_free(optim);
    }
    ms_tensor_free(t);
}

static void test_optim_optim__keeps_groups_apart(void **state)
{
    ms_tensor *t[3] = {leaf(1), leaf(2), leaf(3)}, *third;
    ms_optim_options o;
    ms_optim *optim;
    int32_t group;

    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_SGD));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    o.lr = 0.25;
    assert_ok(ms_optim_add_group(optim, t, 2, &o, &group));
    assert_int_equal(0, group);
    assert_int_equal(1, ms_optim_n_states(optim)); /* as a parameter may have, with momentum */
    o.lr = 0.5;
    o.momentum = 0.9;
    assert_ok(ms_optim_add_group(optim, &t[2], 1, &o, &group));
    assert_int_equal(1, group);
    assert_int_equal(2, ms_optim_n_groups(optim));
    assert_int_equal(3, ms_optim_n_params(optim));
    assert_int_equal(1, ms_optim_n_states(optim));
    assert_string_equal("momentum_buffer", ms_optim_state_name(optim, 0));
    assert_string_equal("", ms_optim_state_name(optim, 1));
    assert_ok(ms_optim_options_get(optim, 0, &o));
    assert_true(o.lr == 0.25 && o.momentum == 0);
    o.lr = 0.125;
    assert_ok(ms_optim_options_set(optim, 0, &o));
    assert_ok(ms_optim_options_get(optim, 0, &o));
    assert_true(o.lr == 0.125);
    assert_ok(ms_optim_param(&third, optim, 2));
    assert_ptr_equal(t[2], third);
    ms_tensor_free(third);
    assert_fails(MS_INDEX_ERROR, "group 2 of an optimizer with 2",
                 ms_optim_options_get(optim, 2, &o));
    assert_fails(MS_INDEX_ERROR, "parameter 3 of an optimizer with 3",
                 ms_optim_param(&third, optim, 3));
    ms_optim_free(optim);
    for (int i = 0; i < 3; i++) {
        ms_tensor_free(t[i]);
    }
}

static void test_optim_optim__refuses_parameters_it_cannot_step(void **state)
{
    const char *twice = "some parameters appear in more than one parameter group";
    const int64_t n = 3;
    ms_tensor *t = leaf(3), *other = leaf(3), *ids, *same[2] = {other, other};
    ms_optim *optim;
    ms_optim_options o;

    assert_ok(ms_tensor_full(&ids, MS_DTYPE_I64, 1, &n, 0));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    assert_fails(MS_VALUE_ERROR, twice, ms_optim_add_group(optim, &t, 1, NULL, NULL));
    assert_fails(MS_VALUE_ERROR, twice, ms_optim_add_group(optim, same, 2, NULL, NULL));
    assert_fails(MS_VALUE_ERROR, "dtype i64", ms_optim_add_group(optim, &ids, 1, NULL, NULL));
    assert_int_equal(1, ms_optim_n_params(optim));

    assert_ok(ms_optim_options_init(&o, sizeof(o), MS_OPTIM_ADAM));
    o.struct_size = 0;
    assert_fails(MS_VALUE_ERROR, "struct_size 0", ms_optim_add_group(optim, &other, 1, &o, NULL));
    o.struct_size = sizeof(o) + 8;
    assert_fails(MS_VALUE_ERROR, "expected at most",
                 ms_optim_add_group(optim, &other, 1, &o, NULL));
    for (size_t i = 0; i < sizeof(double); i++) { /* none of lr, all of it, or half a number */
        o.struct_size = (uint32_t)(offsetof(ms_optim_options, lr) + i);
        if (i > 0) {
            assert_fails(MS_VALUE_ERROR, "ends within a field", ms_optim_options_set(optim, 0, &o));
        } else {
            assert_ok(ms_optim_options_set(optim, 0, &o));
        }
    }
    o.struct_size = 3;
    assert_fails(MS_VALUE_ERROR, "struct_size 3", ms_optim_options_set(optim, 0, &o));
    /* an older caller's shorter struct: what it does not know takes the default */
    o.beta2 = 5;
    o.struct_size = offsetof(ms_optim_options, beta2);
    assert_ok(ms_optim_add_group(optim, &other, 1, &o, NULL));
    o.struct_size = sizeof(o);
    assert_ok(ms_optim_options_get(optim, 1, &o));
    assert_true(o.beta2 == 0.999);
    assert_int_equal(sizeof(o), o.struct_size);
    ms_optim_free(optim);
    assert_fails(MS_VALUE_ERROR, "unknown optimizer kind", ms_optim_new(&optim, MS_OPTIM_COUNT));
    assert_null(optim);
    ms_tensor_free(ids);
    ms_tensor_free(other);
    ms_tensor_free(t);
}

static void test_optim_optim__refuses_results_of_ops(void **state)
{
    ms_tensor *t = leaf(3), *sum;
    ms_optim *optim;

    assert_ok(ms_op_add(&sum, t, t));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    assert_fails(MS_VALUE_ERROR, "can't optimize a non-leaf Tensor",
                 ms_optim_add_group(optim, &sum, 1, NULL, NULL));
    ms_optim_free(optim);
    ms_tensor_free(sum);
    ms_tensor_free(t);
}

static void test_optim_optim__zero_grad_drops_gradients(void **state)
{
    ms_tensor *t = leaf(3), *grad;
    ms_optim *optim;

    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    assert_ok(ms_tensor_set_grad(t, t));
    assert_non_null(t->grad);
    assert_ok(ms_optim_zero_grad(optim));
    assert_ok(ms_tensor_grad(&grad, t));
    assert_null(grad);
    ms_optim_free(optim);
    ms_tensor_free(t);
}

static void test_optim_optim__outlives_its_context(void **state)
{
    ms_tensor *t = leaf(3), *out;
    ms_optim *optim;
    int64_t steps;

    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    ms_close();
    assert_fails(MS_RUNTIME_ERROR, "is closed", ms_optim_step(optim));
    assert_fails(MS_RUNTIME_ERROR, "is closed", ms_optim_zero_grad(optim));
    assert_fails(MS_RUNTIME_ERROR, "is closed", ms_optim_param(&out, optim, 0));
    assert_fails(MS_RUNTIME_ERROR, "is closed", ms_optim_steps(optim, 0, &steps));
    t = leaf(3); /* may take the place of the old one */
    ms_optim_free(optim);
    assert_int_equal(1, t->refcount);
    ms_tensor_free(t);
    ms_optim_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_optim__has_the_defaults_of_torch),
        cmocka_unit_test(test_optim_optim__writes_no_more_options_than_the_caller_has),
        cmocka_unit_test(test_optim_optim__keeps_options_that_an_older_host_does_not_know),
        cmocka_unit_test(test_optim_optim__has_defaults_of_the_kinds_there_are_only),
        cmocka_unit_test(test_optim_optim__refuses_options_out_of_range_in_torchs_words),
        cmocka_unit_test(test_optim_optim__keeps_groups_apart),
        cmocka_unit_test(test_optim_optim__refuses_parameters_it_cannot_step),
        cmocka_unit_test(test_optim_optim__refuses_results_of_ops),
        cmocka_unit_test(test_optim_optim__zero_grad_drops_gradients),
        cmocka_unit_test(test_optim_optim__outlives_its_context),
    };

    return cmocka_run_group_tests_name("optim/optim", tests, NULL, NULL);
}
