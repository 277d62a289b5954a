/* runtime/optim/step.c: one step of SGD, Adam and AdamW. The oracle is torch.optim's documented
 * update rule, element by element in double precision. */
#include "ms_test.h"

#include "optim.h"

enum { N = 37, STEPS = 4 };

typedef struct oracle {
    double p[N], m[N], v[N];
    int64_t steps;
} oracle;

static void oracle_sgd(oracle *o, const double *grad, const ms_optim_options *opt)
{
    for (int i = 0; i < N; i++) {
        double g = (opt->maximize ? -grad[i] : grad[i]) + opt->weight_decay * o->p[i];

        if (opt->momentum != 0) {
            o->m[i] = o->steps == 0 ? g : opt->momentum * o->m[i] + (1 - opt->dampening) * g;
            g = opt->nesterov ? g + opt->momentum * o->m[i] : o->m[i];
        }
        o->p[i] -= opt->lr * g;
    }
    o->steps++;
}

static void oracle_adam(oracle *o, const double *grad, const ms_optim_options *opt, bool decoupled)
{
    double c1, c2;

    o->steps++;
    c1 = 1 - pow(opt->beta1, (double)o->steps);
    c2 = 1 - pow(opt->beta2, (double)o->steps);
    for (int i = 0; i < N; i++) {
        double g = opt->maximize ? -grad[i] : grad[i];

        if (decoupled) {
            o->p[i] *= 1 - opt->lr * opt->weight_decay;
        } else {
            g += opt->weight_decay * o->p[i];
        }
        o->m[i] = opt->beta1 * o->m[i] + (1 - opt->beta1) * g;
        o->v[i] = opt->beta2 * o->v[i] + (1 - opt->beta2) * g * g;
        o->p[i] -= opt->lr / c1 * o->m[i] / (sqrt(o->v[i]) / sqrt(c2) + opt->eps);
    }
}

static ms_tensor *leaf(int32_t dtype, int64_t n, uint64_t seed)
{
    double values[64];
    ms_tensor *t;

    for (int64_t i = 0; i < n; i++) {
        values[i] = filler(seed, i);
    }
    assert_ok(ms_tensor_from_doubles(&t, dtype, 1, &n, values, n));
    assert_ok(ms_tensor_make_parameter(t));
    return t;
}

/* Give `t` a gradient of any dtype, as an engine that keeps low-precision gradients does. */
static void give_grad(ms_tensor *t, int32_t dtype, const double *values, int64_t n)
{
    ms_tensor *values_tensor;

    if (t->grad != NULL) {
        assert_ok(ms_tensor_set_grad(t, NULL));
    }
    assert_ok(ms_tensor_from_doubles(&values_tensor, dtype, 1, &n, values, n));
    assert_ok(msi_tensor_new_internal(&t->grad, t->ctx, &values_tensor->v));
    ms_tensor_free(values_tensor);
}

/* Train one parameter for STEPS steps beside the oracle. */
static void compare_with_oracle(int32_t kind, const ms_optim_options *opt, int32_t dtype,
                                double tolerance)
{
    oracle o = {.steps = 0};
    double grad[N], seen[N];
    ms_tensor *t = leaf(dtype, N, 1);
    ms_optim *optim;

    assert_ok(ms_tensor_to_doubles(t, o.p, N));
    assert_ok(ms_optim_new(&optim, kind));
    assert_ok(ms_optim_add_group(optim, &t, 1, opt, NULL));
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < N; i++) {
            grad[i] = filler(100 + (uint64_t)s, i);
        }
        give_grad(t, dtype, grad, N);
        assert_ok(ms_tensor_to_doubles(t->grad, grad, N)); /* as rounded */
        assert_ok(ms_optim_step(optim));
        if (kind == MS_OPTIM_SGD) {
            oracle_sgd(&o, grad, opt);
        } else {
            oracle_adam(&o, grad, opt, kind == MS_OPTIM_ADAMW);
        }
        assert_ok(ms_tensor_to_doubles(t, seen, N));
        assert_close(seen, o.p, N, tolerance, tolerance);
    }
    ms_optim_free(optim);
    ms_tensor_free(t);
}

static const struct {
    int32_t dtype;
    double tolerance; /* a few roundings of the dtype */
} dtypes[] = {{MS_DTYPE_F64, 1e-14}, {MS_DTYPE_F32, 2e-6}, {MS_DTYPE_BF16, 4e-2}};

#define CASE(name, rate, ...)                                                                      \
    {                                                                                              \
        MS_OPTIM_##name,                                                                           \
        {                                                                                          \
            .struct_size = sizeof(ms_optim_options), .lr = rate, __VA_ARGS__                       \
        }                                                                                          \
    }
#define ADAM_CASES(name)                                                                           \
    CASE(name, 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8),                                   \
        CASE(name, 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1),           \
        CASE(name, 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.01,           \
             .maximize = true),                                                                    \
        CASE(name, 0.01, .eps = 1e-8)

static void test_optim_step__follows_the_rule(void **state)
{
    static const struct {
        int32_t kind;
        ms_optim_options options;
    } cases[] = {
        CASE(SGD, 0.05, .momentum = 0),
        CASE(SGD, 0.05, .weight_decay = 0.1, .maximize = true),
        CASE(SGD, 0.05, .momentum = 0.9),
        CASE(SGD, 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1),
        CASE(SGD, 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true),
        CASE(SGD, 0.05, .momentum = 0.5, .nesterov = true, .maximize = true),
        ADAM_CASES(ADAM),
        ADAM_CASES(ADAMW),
    };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (size_t d = 0; d < 3; d++) {
            compare_with_oracle(cases[c].kind, &cases[c].options, dtypes[d].dtype,
                                dtypes[d].tolerance);
        }
    }
}

/* Closed form: with any gradient g, Adam's first step is lr * g / (|g| + eps). */
static void test_optim_step__adam_begins_with_a_step_of_the_learning_rate(void **state)
{
    const double grads[] = {1e-3, -7, 250, -1e4};
    double before[4], after[4], expected[4];
    ms_tensor *t = leaf(MS_DTYPE_F64, 4, 2);
    ms_optim_options opt;
    ms_optim *optim;

    assert_ok(ms_optim_options_init(&opt, sizeof(opt), MS_OPTIM_ADAM));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, &t, 1, &opt, NULL));
    assert_ok(ms_tensor_to_doubles(t, before, 4));
    give_grad(t, MS_DTYPE_F64, grads, 4);
    assert_ok(ms_optim_step(optim));
    assert_ok(ms_tensor_to_doubles(t, after, 4));
    for (int i = 0; i < 4; i++) {
        expected[i] = before[i] - opt.lr * grads[i] / (fabs(grads[i]) + opt.eps);
    }
    assert_close(after, expected, 4, 1e-13, 1e-13);
    ms_optim_free(optim);
    ms_tensor_free(t);
}

/* Without a decay the parameter is no part of its gradient: an infinite one makes no NaN. */
static void test_optim_step__an_infinite_parameter_stays_infinite(void **state)
{
    const double grads[] = {1, -1, 0.5}, values[] = {INFINITY, -INFINITY, 2};
    const int64_t n = 3;

    (void)state;
    for (int32_t kind = MS_OPTIM_SGD; kind <= MS_OPTIM_ADAMW; kind++) {
        double after[3];
        ms_optim_options opt;
        ms_optim *optim;
        ms_tensor *t;

        assert_ok(ms_optim_options_init(&opt, sizeof(opt), kind));
        opt.weight_decay = 0;
        opt.momentum = 0.9;
        assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, 1, &n, values, n));
        assert_ok(ms_tensor_make_parameter(t));
        assert_ok(ms_optim_new(&optim, kind));
        assert_ok(ms_optim_add_group(optim, &t, 1, &opt, NULL));
        for (int step = 0; step < 2; step++) {
            give_grad(t, MS_DTYPE_F32, grads, n);
            assert_ok(ms_optim_step(optim));
        }
        assert_ok(ms_tensor_to_doubles(t, after, n));
        assert_true(after[0] == INFINITY && after[1] == -INFINITY && after[2] < 2);
        ms_optim_free(optim);
        ms_tensor_free(t);
    }
}

static void
test_optim_step__counts_steps_per_parameter_and_skips_those_without_gradient(void **state)
{
    const double grad[] = {0.5, -0.25, 1, 2};
    double untouched[4], seen[4];
    ms_tensor *t[2] = {leaf(MS_DTYPE_F32, 4, 3), leaf(MS_DTYPE_F32, 4, 4)};
    ms_tensor *exp_avg;
    ms_memory_stats stats;
    ms_optim *optim;
    int64_t steps;

    assert_ok(ms_tensor_to_doubles(t[1], untouched, 4));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, t, 2, NULL, NULL));
    for (int s = 0; s < 3; s++) {
        give_grad(t[0], MS_DTYPE_F32, grad, 4);
        assert_ok(ms_optim_step(optim));
    }
    assert_ok(ms_optim_steps(optim, 0, &steps));
    assert_int_equal(3, steps);
    assert_ok(ms_optim_steps(optim, 1, &steps));
    assert_int_equal(0, steps);
    assert_ok(ms_tensor_to_doubles(t[1], seen, 4));
    assert_memory_equal(untouched, seen, sizeof(seen));

    /* state: two buffers of 16 bytes for the parameter that stepped, none for the other */
    ms_memory_stats_get(&stats);
    assert_int_equal(2 * 16, stats.live[MS_MEM_OPTIMIZER]);
    assert_ok(ms_optim_state(&exp_avg, optim, 1, 0)); /* asked for: zeros */
    assert_ok(ms_tensor_to_doubles(exp_avg, seen, 4));
    assert_true(seen[0] == 0 && seen[1] == 0 && seen[2] == 0 && seen[3] == 0);
    ms_tensor_free(exp_avg);

    ms_optim_free(optim);
    ms_memory_stats_get(&stats);
    assert_int_equal(0, stats.live[MS_MEM_OPTIMIZER]);
    ms_tensor_free(t[0]);
    ms_tensor_free(t[1]);
}

static int touched_count;

static void count_touched(void *unit, int32_t index)
{
    touched_count += index == 7 && unit != NULL;
}

static void ignore_orphan(void *unit, int32_t index)
{
}

static bool whole_has_gradient;

static bool tell_gradient(void *unit, int32_t index)
{
    return whole_has_gradient && index == 7;
}

static const msi_param_ops unit_ops = {
    .touched = count_touched, .orphan = ignore_orphan, .has_gradient = tell_gradient};

/* Make `t` look as if a unit gave this rank its elements [start, start + n). */
static void pretend_sharded(ms_tensor *t, int64_t start, int64_t n)
{
    t->param->unit = &touched_count;
    t->param->unit_index = 7;
    t->param->ops = &unit_ops;
    t->param->start = start;
    t->param->master.offset = start;
    t->param->master.shape[0] = n;
}

static void test_optim_step__updates_the_local_shard_and_tells_its_unit(void **state)
{
    const double grad[] = {1, 2, 4};
    double before[8], after[8];
    ms_tensor *t = leaf(MS_DTYPE_F64, 8, 5);
    int64_t version = t->v.storage->version;
    ms_optim_options opt;
    ms_optim *optim;

    pretend_sharded(t, 2, 3);
    assert_ok(ms_optim_options_init(&opt, sizeof(opt), MS_OPTIM_SGD));
    opt.lr = 0.5;
    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    assert_ok(ms_optim_add_group(optim, &t, 1, &opt, NULL));
    assert_ok(ms_tensor_to_doubles(t, before, 8));
    give_grad(t, MS_DTYPE_F64, grad, 3);
    touched_count = 0;
    assert_ok(ms_optim_step(optim));
    assert_ok(ms_tensor_to_doubles(t, after, 8));
    for (int i = 0; i < 8; i++) {
        double moved = i >= 2 && i < 5 ? 0.5 * grad[i - 2] : 0;

        assert_true(after[i] == before[i] - moved);
    }
    assert_int_equal(1, touched_count);
    assert_true(t->v.storage->version > version);

    give_grad(t, MS_DTYPE_F64, before, 8); /* a gradient of the whole is not this rank's */
    assert_fails(MS_RUNTIME_ERROR, "has 8 elements, expected the 3", ms_optim_step(optim));
    ms_optim_free(optim);
    ms_tensor_free(t);
}

static void test_optim_step__counts_along_where_a_rank_holds_nothing(void **state)
{
    ms_tensor *t = leaf(MS_DTYPE_F32, 8, 6), *buffer;
    ms_optim *optim;
    int64_t steps;

    pretend_sharded(t, 0, 0);
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAMW));
    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    whole_has_gradient = true;
    assert_ok(ms_optim_step(optim));
    assert_ok(ms_optim_step(optim));
    whole_has_gradient = false; /* its peers skip this step */
    assert_ok(ms_optim_step(optim));
    assert_ok(ms_optim_steps(optim, 0, &steps));
    assert_int_equal(2, steps);
    assert_ok(ms_optim_state(&buffer, optim, 0, 0));
    assert_int_equal(0, msi_view_numel(&buffer->v));
    ms_tensor_free(buffer);
    ms_optim_free(optim);
    ms_tensor_free(t);
}

/* Whether it has any elements of it or not. */
static void test_optim_step__has_a_momentum_buffer_from_the_first_step_with_momentum(void **state)
{
    const double grad[] = {1, 2, 3, 4};
    ms_optim_options opt;
    double seen[4];

    assert_ok(ms_optim_options_init(&opt, sizeof(opt), MS_OPTIM_SGD));
    whole_has_gradient = true;
    for (int64_t n = 0; n <= 4; n += 4) {
        ms_tensor *t = leaf(MS_DTYPE_F32, 4, 12), *buffer;
        ms_optim *optim;

        pretend_sharded(t, 0, n);
        assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
        opt.momentum = 0;
        assert_ok(ms_optim_add_group(optim, &t, 1, &opt, NULL));
        for (int s = 0; s < 3; s++) {
            opt.momentum = s == 1 ? 0.5 : 0;
            assert_ok(ms_optim_options_set(optim, 0, &opt));
            if (n > 0) {
                give_grad(t, MS_DTYPE_F32, grad, n);
            }
            assert_ok(ms_optim_step(optim));
            assert_ok(ms_optim_state(&buffer, optim, 0, 0));
            assert_true((buffer != NULL) == (s > 0));
        }
        assert_int_equal(n, msi_view_numel(&buffer->v));
        assert_ok(ms_tensor_to_doubles(buffer, seen, n));
        assert_memory_equal(grad, seen, (size_t)n * sizeof(*seen));
        ms_tensor_free(buffer);

        assert_ok(ms_optim_state_set(optim, 0, 0, false));
        assert_ok(ms_optim_state(&buffer, optim, 0, 0));
        assert_null(buffer);
        assert_ok(ms_optim_state_set(optim, 0, 0, true));
        assert_ok(ms_optim_state(&buffer, optim, 0, 0));
        assert_int_equal(n, msi_view_numel(&buffer->v));
        assert_ok(ms_tensor_to_doubles(buffer, seen, n));
        for (int64_t i = 0; i < n; i++) {
            assert_true(seen[i] == 0);
        }
        ms_tensor_free(buffer);
        ms_optim_free(optim);
        ms_tensor_free(t);
    }
}

static void test_optim_step__optional_states_are_made_and_removed(void **state)
{
    ms_tensor *t = leaf(MS_DTYPE_F32, 4, 13), *most;
    ms_optim *optim;

    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
    assert_ok(ms_optim_add_group(optim, &t, 1, NULL, NULL));
    assert_fails(MS_VALUE_ERROR, "Adam always has the state 'exp_avg_sq'",
                 ms_optim_state_set(optim, 0, 1, false));
    assert_fails(MS_INDEX_ERROR, "parameter 1 of an optimizer with 1",
                 ms_optim_state_set(optim, 1, 2, true));
    assert_fails(MS_INDEX_ERROR, "state 3 of an optimizer with 3",
                 ms_optim_state_set(optim, 0, 3, true));
    for (int exists = 0; exists < 3; exists++) { /* absent, made, removed */
        assert_ok(ms_optim_state(&most, optim, 0, 2));
        assert_true((most != NULL) == (exists == 1));
        ms_tensor_free(most);
        assert_ok(ms_optim_state_set(optim, 0, 2, exists == 0));
    }
    ms_optim_free(optim);
    ms_tensor_free(t);
}

static void test_optim_step__casts_gradients_of_another_dtype(void **state)
{
    double grad[N], rounded[N], a[N], b[N];
    ms_tensor *t[2] = {leaf(MS_DTYPE_F32, N, 7), leaf(MS_DTYPE_F32, N, 7)};
    ms_optim *optim;

    for (int i = 0; i < N; i++) {
        grad[i] = filler(8, i);
    }
    give_grad(t[0], MS_DTYPE_BF16, grad, N);
    assert_ok(ms_tensor_to_doubles(t[0]->grad, rounded, N));
    give_grad(t[1], MS_DTYPE_F32, rounded, N);
    assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAMW));
    assert_ok(ms_optim_add_group(optim, t, 2, NULL, NULL));
    assert_ok(ms_optim_step(optim));
    assert_ok(ms_tensor_to_doubles(t[0], a, N));
    assert_ok(ms_tensor_to_doubles(t[1], b, N));
    assert_memory_equal(a, b, sizeof(a));
    ms_optim_free(optim);
    ms_tensor_free(t[0]);
    ms_tensor_free(t[1]);
}

static void test_optim_step__changes_nothing_when_memory_runs_out(void **state)
{
    double grad[N], before[2][N], after[N];
    ms_tensor *t[2] = {leaf(MS_DTYPE_F32, N, 9), leaf(MS_DTYPE_F32, N, 10)};
    ms_optim *optim;
    ms_status status = MS_OUT_OF_MEMORY;
    int64_t steps;
    int k;

    assert_ok(ms_tensor_to_doubles(t[0], before[0], N));
    assert_ok(ms_tensor_to_doubles(t[1], before[1], N));
    for (int i = 0; i < N; i++) {
        grad[i] = filler(11, i);
    }
    give_grad(t[0], MS_DTYPE_F32, grad, N);
    give_grad(t[1], MS_DTYPE_BF16, grad, N); /* needs room for a cast copy as well */
    for (k = 0; status != MS_OK; k++) {
        assert_true(k < 20);
        assert_ok(ms_optim_new(&optim, MS_OPTIM_ADAM));
        assert_ok(ms_optim_add_group(optim, t, 2, NULL, NULL));
        msi_alloc_fail_at(t[0]->ctx, k);
        status = ms_optim_step(optim);
        msi_alloc_fail_at(t[0]->ctx, -1);
        if (status != MS_OK) {
            assert_int_equal(MS_OUT_OF_MEMORY, status);
            for (int i = 0; i < 2; i++) {
                assert_ok(ms_tensor_to_doubles(t[i], after, N));
                assert_memory_equal(before[i], after, sizeof(after));
                assert_ok(ms_optim_steps(optim, i, &steps));
                assert_int_equal(0, steps);
            }
        }
        ms_optim_free(optim);
    }
    assert_int_equal(6, k); /* four buffers and the cast copy failed in turn */
    ms_tensor_free(t[0]);
    ms_tensor_free(t[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_step__follows_the_rule),
        cmocka_unit_test(test_optim_step__adam_begins_with_a_step_of_the_learning_rate),
        cmocka_unit_test(test_optim_step__an_infinite_parameter_stays_infinite),
        cmocka_unit_test(
            test_optim_step__counts_steps_per_parameter_and_skips_those_without_gradient),
        cmocka_unit_test(test_optim_step__updates_the_local_shard_and_tells_its_unit),
        cmocka_unit_test(test_optim_step__counts_along_where_a_rank_holds_nothing),
        cmocka_unit_test(test_optim_step__has_a_momentum_buffer_from_the_first_step_with_momentum),
        cmocka_unit_test(test_optim_step__optional_states_are_made_and_removed),
        cmocka_unit_test(test_optim_step__casts_gradients_of_another_dtype),
        cmocka_unit_test(test_optim_step__changes_nothing_when_memory_runs_out),
    };

    return cmocka_run_group_tests_name("optim/step", tests, NULL, NULL);
}
