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
    static const struct {
        double lr, beta2, eps, weight_decay;
    } kinds[MS_OPTIM_COUNT] = {
        [MS_OPTIM_SGD] = {1e-3, .999, 1e-8, 0},      [MS_OPTIM_ADAM] = {1e-3, .999, 1e-8, 0},
        [MS_OPTIM_ADAMW] = {1e-3, .999, 1e-8, .01},  [MS_OPTIM_RMSPROP] = {1e-2, .999, 1e-8, 0},
        [MS_OPTIM_ADAGRAD] = {1e-2, .999, 1e-10, 0}, [MS_OPTIM_LION] = {1e-4, .99, 1e-8, 0},
        [MS_OPTIM_ADAMAX] = {2e-3, .999, 1e-8, 0},
    };
    ms_optim_options o;

    for (int32_t kind = 0; kind < MS_OPTIM_COUNT; kind++) {
        assert_ok(ms_optim_options_init(&o, sizeof(o), kind));
        assert_true(o.lr == kinds[kind].lr && o.beta2 == kinds[kind].beta2);
        assert_true(o.eps == kinds[kind].eps && o.weight_decay == kinds[kind].weight_decay);
        assert_true(o.beta1 == 0.9 && o.alpha == 0.99 && o.momentum == 0 && o.dampening == 0);
        assert_false(o.nesterov || o.maximize || o.amsgrad || o.centered);
        assert_int_equal(sizeof(o), o.struct_size);
    }
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
#define FIELD(name) offsetof(ms_optim_options, name)
    static const struct {
        size_t field;
        double value;
        const char *message;
    } cases[] = {
        {FIELD(lr), -1, "Invalid learning rate: -1"},
        {FIELD(lr), NAN, "Invalid learning rate: nan"},
        {FIELD(lr), -NAN, "Invalid learning rate: nan"},
        {FIELD(lr), INFINITY, "Invalid learning rate: inf"},
        {FIELD(momentum), -.5, "Invalid momentum value: -0.5"},
        {FIELD(dampening), NAN, "Invalid dampening value: nan"},
        {FIELD(weight_decay), -.1, "Invalid weight_decay value: -0.1"},
        {FIELD(weight_decay), INFINITY, "Invalid weight_decay value: inf"},
        {FIELD(beta1), 1, "Invalid beta parameter at index 0: 1"},
        {FIELD(beta1), NAN, "Invalid beta parameter at index 0: nan"},
        {FIELD(beta2), -.1, "Invalid beta parameter at index 1: -0.1"},
        {FIELD(eps), -1, "Invalid epsilon value: -1"},
        {FIELD(alpha), -1, "Invalid alpha value: -1"},
        {FIELD(lr_decay), -1, "Invalid lr_decay value: -1"},
        {FIELD(initial_accumulator_value), -1, "Invalid initial_accumulator_value value: -1"},
    };
#undef FIELD
    const char *of_nesterov = "Nesterov momentum requires a momentum and zero dampening";
    ms_tensor *t = leaf(3);
    ms_optim_options o, now;

    for (int32_t kind = 0; kind < MS_OPTIM_COUNT; kind++) {
        ms_optim *optim;

        assert_ok(ms_optim_new(&optim, kind));
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            assert_ok(ms_optim_options_init(&o, sizeof(o), kind));
            *(double *)((char *)&o + cases[i].field) = cases[i].value;
            assert_fails(MS_VALUE_ERROR, cases[i].message,
                         ms_optim_add_group(optim, &t, 1, &o, NULL));
            assert_int_equal(0, ms_optim_n_groups(optim));
        }
        assert_ok(ms_optim_options_init(&o, sizeof(o), kind));
        assert_ok(ms_optim_add_group(optim, &t, 1, &o, NULL));
        const double lr = o.lr;

        for (int with_momentum = 0; with_momentum < 2; with_momentum++) {
            o.lr = 7;
            o.nesterov = true;
            o.momentum = with_momentum ? .9 : 0;
            o.dampening = with_momentum ? .1 : 0;
            assert_fails(MS_VALUE_ERROR, of_nesterov, ms_optim_options_set(optim, 0, &o));
            now.struct_size = sizeof(now);
            assert_ok(ms_optim_options_get(optim, 0, &now));
            assert_true(now.lr == lr); /* a refused change leaves the group as it was */
        }
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
