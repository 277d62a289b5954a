/* Two small models, three optimizers, five steps: losses and gradient norms are those PyTorch
 * 2.15 computed (tests/fixtures/golden.json, "training", unsharded). spec/golden_spec.lua compares
 * parameters.
 *
 * Everything follows from v(k, i) = ((31 i^2 + 17 i + 29 k + 7) mod 101) / 50 - 1: parameter number
 * k starts as a multiple of v(k, .), the input of step s is v(100 + s, .), its target
 * 0.5 v(200 + s, .). Weights are (out, in), batches have 8 rows. */
#include "books.h"

#include "tensor.h"

#include <jansson.h>

enum { BATCH = 8, WIDTH = 8, LENGTH = 6, VOCAB = 13, MAX_PARAMS = 32, MAX_NUMEL = 512 };

typedef struct model {
    int32_t dtype;
    int32_t n_params;
    ms_tensor *param[MAX_PARAMS];
    int32_t next; /* parameter the forward takes next */
} model;

static json_t *golden; /* the "training" part */
static json_t *optimizers;

static double v(int64_t k, int64_t i)
{
    return (double)((31 * i * i + 17 * i + 29 * k + 7) % 101) / 50 - 1;
}

static ms_tensor *made(int32_t dtype, int32_t ndim, const int64_t *shape, const double *values)
{
    int64_t n = 1;
    ms_tensor *t;

    for (int32_t d = 0; d < ndim; d++) {
        n *= shape[d];
    }
    assert_ok(ms_tensor_from_doubles(&t, dtype, ndim, shape, values, n));
    return t;
}

/* -- models: parameters are taken in the order the file lists them ----------------------------- */

static ms_tensor *take(model *m)
{
    assert_true(m->next < m->n_params);
    return m->param[m->next++];
}

static ms_tensor *mlp_tied(model *m, int64_t step)
{
    const int64_t in_shape[2] = {BATCH, WIDTH}, out_shape[2] = {BATCH, 3};
    double input[BATCH * WIDTH], target[BATCH * 3];
    ms_tensor *x, *y, *h, *loss;

    for (int64_t i = 0; i < BATCH * WIDTH; i++) {
        input[i] = v(100 + step, i);
    }
    for (int64_t i = 0; i < BATCH * 3; i++) {
        target[i] = 0.5 * v(200 + step, i);
    }
    x = made(m->dtype, 2, in_shape, input);
    y = made(m->dtype, 2, out_shape, target);
    ms_tensor *tied = take(m);

    for (int32_t layer = 0; layer < 2; layer++) {
        assert_ok(ms_op_linear(&h, x, tied, take(m)));
        assert_ok(ms_op_tanh(&x, h));
    }
    ms_tensor *w = take(m);

    assert_ok(ms_op_linear(&h, x, w, take(m)));
    assert_ok(ms_op_mse_loss(&loss, h, y, MS_REDUCTION_MEAN));
    return loss;
}

static ms_tensor *norm(model *m, ms_tensor *x)
{
    ms_tensor *w = take(m), *bias = take(m), *y;

    assert_ok(ms_op_layer_norm(&y, x, w, bias, 1e-5));
    return y;
}

static ms_tensor *block(model *m, ms_tensor *x)
{
    ms_tensor *h = norm(m, x), *w, *sum;

    assert_ok(ms_op_linear(&h, h, take(m), NULL));
    assert_ok(ms_op_attention_packed(&h, h, 2, true, 0));
    w = take(m);
    assert_ok(ms_op_linear(&h, h, w, take(m)));
    assert_ok(ms_op_add(&sum, x, h));
    x = sum;
    h = norm(m, x);
    w = take(m);
    assert_ok(ms_op_linear_gelu(&h, h, w, take(m), true));
    w = take(m);
    assert_ok(ms_op_linear(&h, h, w, take(m)));
    assert_ok(ms_op_add(&sum, x, h));
    return sum;
}

static ms_tensor *gpt_tiny(model *m, int64_t step)
{
    const int64_t shape[2] = {BATCH, LENGTH};
    double ids[BATCH * LENGTH], next_ids[BATCH * LENGTH];
    ms_tensor *tokens, *targets, *positions, *token_rows, *position_rows, *x, *logits, *loss;

    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t t = 0; t < LENGTH; t++) {
            ids[b * LENGTH + t] = (double)((7 * b + 3 * t + 5 * step + b * t) % VOCAB);
            next_ids[b * LENGTH + t] =
                (double)((7 * b + 3 * (t + 1) + 5 * step + b * (t + 1)) % VOCAB);
        }
    }
    tokens = made(MS_DTYPE_I64, 2, shape, ids);
    targets = made(MS_DTYPE_I64, 2, shape, next_ids);
    assert_ok(ms_tensor_arange(&positions, MS_DTYPE_I64, 0, 1, LENGTH));
    assert_ok(ms_op_embedding(&token_rows, take(m), tokens));
    assert_ok(ms_op_embedding(&position_rows, take(m), positions));
    assert_ok(ms_op_add(&x, token_rows, position_rows));
    x = block(m, x);
    x = block(m, x);
    x = norm(m, x);
    assert_ok(ms_op_linear(&logits, x, take(m), NULL));
    assert_ok(ms_op_cross_entropy(&loss, logits, targets, -100, MS_REDUCTION_MEAN));
    return loss;
}

static const struct {
    const char *name;
    ms_tensor *(*forward)(model *m, int64_t step);
} models[] = {{"mlp_tied", mlp_tied}, {"gpt_tiny", gpt_tiny}};

/* -- one run ----------------------------------------------------------------------------------- */

static void make_params(model *m, const json_t *params)
{
    m->n_params = (int32_t)json_array_size(params);
    for (int32_t k = 0; k < m->n_params; k++) {
        const json_t *entry = json_array_get(params, (size_t)k);
        const char *name = json_string_value(json_array_get(entry, 0));
        const json_t *sizes = json_array_get(entry, 1);
        const int32_t ndim = (int32_t)json_array_size(sizes);
        const bool is_norm = strstr(name, "ln") != NULL && strstr(name, ".weight") != NULL;
        int64_t shape[2], n = 1;
        double values[MAX_NUMEL];

        for (int32_t d = 0; d < ndim; d++) {
            shape[d] = json_integer_value(json_array_get(sizes, (size_t)d));
            n *= shape[d];
        }
        assert_true(n <= MAX_NUMEL);
        for (int64_t i = 0; i < n; i++) {
            values[i] = (ndim > 1 ? 0.4 : 0.1) * v(k, i) + (is_norm ? 1 : 0);
        }
        m->param[k] = made(m->dtype, ndim, shape, values);
        assert_ok(ms_tensor_make_parameter(m->param[k]));
    }
}

static ms_optim *make_optim(const model *m, const char *name)
{
    const json_t *given = json_object_get(optimizers, name);
    const json_t *betas = json_object_get(given, "betas");
    ms_optim_options o;
    ms_optim *optim;
    int32_t group;
    const int32_t kind = strcmp(name, "sgd") == 0    ? MS_OPTIM_SGD
                         : strcmp(name, "adam") == 0 ? MS_OPTIM_ADAM
                                                     : MS_OPTIM_ADAMW;

    assert_ok(ms_optim_options_init(&o, sizeof(o), kind));
    o.lr = json_number_value(json_object_get(given, "lr"));
    o.weight_decay = json_number_value(json_object_get(given, "weight_decay"));
    if (kind == MS_OPTIM_SGD) {
        o.momentum = json_number_value(json_object_get(given, "momentum"));
        o.dampening = json_number_value(json_object_get(given, "dampening"));
        o.nesterov = json_is_true(json_object_get(given, "nesterov"));
    } else {
        o.beta1 = json_number_value(json_array_get(betas, 0));
        o.beta2 = json_number_value(json_array_get(betas, 1));
        o.eps = json_number_value(json_object_get(given, "eps"));
    }
    assert_ok(ms_optim_new(&optim, kind));
    assert_ok(ms_optim_add_group(optim, m->param, m->n_params, &o, &group));
    return optim;
}

/* The forward in a scope of its own, as a module call is. */
static ms_tensor *forward_in_scope(model *m, ms_tensor *(*forward)(model *, int64_t), int64_t step)
{
    ms_ref loss;

    assert_ok(ms_scope_open("forward"));
    m->next = 0;
    loss.ptr = forward(m, step);
    assert_int_equal(m->next, m->n_params);
    loss.generation = loss.ptr->generation;
    assert_ok(ms_scope_close(&loss, 1));
    return loss.ptr;
}

static void gradient_norms(const model *m, double *two, double *infinity)
{
    *two = *infinity = 0;
    for (int32_t k = 0; k < m->n_params; k++) {
        double values[MAX_NUMEL];
        ms_tensor *grad;
        int64_t n = msi_view_numel(&m->param[k]->v);

        assert_ok(ms_tensor_grad(&grad, m->param[k]));
        assert_ok(ms_tensor_to_doubles(grad, values, n));
        ms_tensor_free(grad);
        for (int64_t i = 0; i < n; i++) {
            *two += values[i] * values[i];
            *infinity = fmax(*infinity, fabs(values[i]));
        }
    }
    *two = sqrt(*two);
}

static void close_to(const char *what, const char *name, double actual, const json_t *expected,
                     double tolerance)
{
    double e = json_number_value(expected);

    assert_true(json_is_number(expected));
    if (!(fabs(actual - e) <= tolerance * (1 + fabs(e)))) {
        fail_msg("%s %s: %.17g, expected %.17g within %g", name, what, actual, e, tolerance);
    }
}

static void run(int32_t which, const json_t *params, const json_t *expected)
{
    const bool wide = strcmp(json_string_value(json_object_get(expected, "dtype")), "float64") == 0;
    const char *name = json_string_value(json_object_get(expected, "optimizer"));
    const double tolerance = wide ? 1e-10 : 1e-4;
    const json_t *losses = json_object_get(expected, "loss");
    model m = {.dtype = wide ? MS_DTYPE_F64 : MS_DTYPE_F32};

    make_params(&m, params);
    ms_optim *optim = make_optim(&m, name);

    assert_int_equal(json_array_size(losses), 5);
    for (size_t step = 0; step < json_array_size(losses); step++) {
        ms_tensor *loss = forward_in_scope(&m, models[which].forward, (int64_t)step);
        double value, two, infinity;

        assert_ok(ms_tensor_item(loss, &value));
        assert_ok(ms_backward(loss, NULL));
        ms_tensor_free(loss);
        gradient_norms(&m, &two, &infinity);
        close_to("loss", name, value, json_array_get(losses, step), tolerance);
        close_to("norm", name, two, json_array_get(json_object_get(expected, "norm2"), step),
                 tolerance);
        close_to("largest gradient", name, infinity,
                 json_array_get(json_object_get(expected, "norminf"), step), tolerance);
        assert_ok(ms_optim_step(optim));
        assert_ok(ms_optim_zero_grad(optim));
    }
    ms_optim_free(optim);
    for (int32_t k = 0; k < m.n_params; k++) {
        ms_tensor_free(m.param[k]);
    }
}

/* Every unsharded run of model `which`: three optimizers, two dtypes. */
static void run_all(int32_t which)
{
    ms_memory_stats before, after;
    const json_t *entry, *expected;
    size_t i, j;
    int32_t n_runs = 0;

    ms_memory_stats_get(&before);
    json_array_foreach(golden, i, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "name")), models[which].name) != 0) {
            continue;
        }
        json_array_foreach(json_object_get(entry, "runs"), j, expected)
        {
            if (json_integer_value(json_object_get(expected, "parts")) == 1) {
                run(which, json_object_get(entry, "params"), expected);
                n_runs++;
            }
        }
    }
    assert_int_equal(n_runs, 6);
    ms_memory_stats_get(&after);
    assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
    assert_int_equal(after.live_handles, before.live_handles);
}

static void test_autograd_golden__mlp_tied_trains_as_in_pytorch(void **state)
{
    run_all(0);
}

static void test_autograd_golden__gpt_tiny_trains_as_in_pytorch(void **state)
{
    run_all(1);
}

static int load(void **state)
{
    const char *folder = getenv("MS_TEST_DATA");
    char path[512];
    json_error_t error;

    snprintf(path, sizeof(path), "%s/golden.json", folder != NULL ? folder : "tests/fixtures");
    *state = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (*state == NULL) {
        print_error("%s: line %d: %s\n", path, error.line, error.text);
        return 1;
    }
    golden = json_object_get(*state, "training");
    optimizers = json_object_get(*state, "optimizers");
    return 0;
}

static int unload(void **state)
{
    json_decref(*state);
    ms_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autograd_golden__mlp_tied_trains_as_in_pytorch),
        cmocka_unit_test(test_autograd_golden__gpt_tiny_trains_as_in_pytorch),
    };
    return cmocka_run_group_tests_name("autograd/golden", tests, load, unload);
}
