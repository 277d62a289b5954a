/* Training on a device that runs things later: the host enqueues a whole step without a wait, what
 * comes out has the CPU's bits, and data that is wrong is an error before it is a step. */
#include "device.h"
#include "moonshard/autograd.h"
#include "optim.h"

#include "books.h"
#include "tiny_gpt.h"

enum { VOCAB = 7, WIDTH = 20, TOKENS = 6, STEPS = 3, PARAMS = 3 };

/* -- the device -------------------------------------------------------------------------------- */

static int64_t n_waits;
static msi_device_ops counting;
static int32_t (*wait_uncounted)(msi_device *d, msi_mark m, msi_go_on go_on, void *user);

static int32_t wait_counted(msi_device *d, msi_mark m, msi_go_on go_on, void *user)
{
    n_waits++;
    return wait_uncounted(d, m, go_on, user);
}

/* What follows happens on the device, whose waits count, or on the CPU. */
static void begin(bool on_device)
{
    ms_tensor *first;

    assert_ok(ms_close());
    setenv("MS_DEVICE", on_device ? "fake" : "cpu", 1);
    assert_ok(ms_tensor_full(&first, MS_DTYPE_F32, 0, NULL, 1));
    ms_tensor_free(first);
    msi_device *d = msi_context()->device;

    assert_int_equal(on_device, d != NULL);
    if (on_device) {
        counting = *d->ops;
        wait_uncounted = counting.wait;
        counting.wait = wait_counted;
        d->ops = &counting;
    }
}

/* -- a model ----------------------------------------------------------------------------------- */

typedef struct model {
    ms_tensor *param[PARAMS]; /* embedding, weight, bias */
    ms_optim *optim;
    ms_tensor *ids, *targets, *wanted; /* cross_entropy's, mse_loss's */
} model;

typedef struct run {
    int32_t optim;
    double momentum;
    int32_t dtype;
    int32_t reduction;
    bool squares; /* mse_loss in place of cross_entropy */
} run;

static void model_new(model *m, const run *r)
{
    const double ids_of[TOKENS] = {3, 0, 6, 3, 3, 1}, targets[TOKENS] = {1, -100, 4, 0, 6, 2};
    ms_optim_options options;

    m->param[0] = FILLED(r->dtype, 1, VOCAB, WIDTH);
    m->param[1] = FILLED(r->dtype, 2, VOCAB, WIDTH);
    m->param[2] = FILLED(r->dtype, 3, VOCAB);
    m->ids = ids(TOKENS, ids_of);
    m->targets = ids(TOKENS, targets);
    m->wanted = FILLED(r->dtype, 4, TOKENS, VOCAB);
    assert_ok(ms_optim_options_init(&options, sizeof(options), r->optim));
    options.lr = 0.25;
    options.momentum = r->momentum;
    options.dampening = r->momentum / 2;
    assert_ok(ms_optim_new(&m->optim, r->optim));
    for (int32_t i = 0; i < PARAMS; i++) {
        assert_ok(ms_tensor_make_parameter(m->param[i]));
    }
    assert_ok(ms_optim_add_group(m->optim, m->param, PARAMS, &options, NULL));
}

static void model_free(model *m)
{
    ms_optim_free(m->optim);
    for (int32_t i = 0; i < PARAMS; i++) {
        ms_tensor_free(m->param[i]);
    }
    ms_tensor_free(m->ids);
    ms_tensor_free(m->targets);
    ms_tensor_free(m->wanted);
}

static ms_status loss_of(ms_tensor **out, const model *m, const run *r, const ms_tensor *ids)
{
    ms_tensor *x, *y;
    ms_status status = ms_op_embedding(&x, m->param[0], (ms_tensor *)ids);

    *out = NULL;
    if (status != MS_OK) {
        return status;
    }
    assert_ok(ms_op_linear(&y, x, m->param[1], m->param[2]));
    status = r->squares ? ms_op_mse_loss(out, y, m->wanted, r->reduction)
                        : ms_op_cross_entropy(out, y, m->targets, -100, r->reduction);
    ms_tensor_free(y);
    ms_tensor_free(x);
    return status;
}

/* Forward, backward, clipping, step; the last loss is the caller's. */
static ms_tensor *train(const model *m, const run *r, int32_t steps)
{
    ms_tensor *loss = NULL, *norm;

    for (int32_t s = 0; s < steps; s++) {
        ms_tensor_free(loss);
        assert_ok(loss_of(&loss, m, r, m->ids));
        assert_ok(ms_backward(loss, NULL));
        assert_ok(ms_clip_grad_norm(&norm, m->param, PARAMS, 0.125, s % 2 ? HUGE_VAL : 2, false));
        ms_tensor_free(norm);
        assert_ok(ms_optim_step(m->optim));
        assert_ok(ms_optim_zero_grad(m->optim));
    }
    return loss;
}

/* Of the parameters and the loss, all bits. */
typedef struct outcome {
    uint64_t hash[PARAMS + 1];
} outcome;

static outcome outcome_of(const model *m, const ms_tensor *loss)
{
    outcome o;

    for (int32_t i = 0; i < PARAMS; i++) {
        assert_ok(ms_tensor_hash(m->param[i], &o.hash[i]));
    }
    assert_ok(ms_tensor_hash(loss, &o.hash[PARAMS]));
    return o;
}

/* -- what is promised -------------------------------------------------------------------------- */

static const run runs[] = {
    {MS_OPTIM_SGD, 0, MS_DTYPE_F32, MS_REDUCTION_MEAN, false},
    {MS_OPTIM_SGD, 0.5, MS_DTYPE_F64, MS_REDUCTION_SUM, false},
    {MS_OPTIM_ADAM, 0, MS_DTYPE_BF16, MS_REDUCTION_MEAN, false},
    {MS_OPTIM_ADAMW, 0, MS_DTYPE_F32, MS_REDUCTION_MEAN, true},
    {MS_OPTIM_SGD, 0, MS_DTYPE_BF16, MS_REDUCTION_SUM, true},
    {MS_OPTIM_ADAM, 0, MS_DTYPE_F64, MS_REDUCTION_MEAN, true},
};

static outcome train_on(bool on_device, const run *r)
{
    model m;

    begin(on_device);
    model_new(&m, r);
    n_waits = 0;
    ms_tensor *loss = train(&m, r, STEPS);

    assert_int_equal(n_waits, 0);
    const outcome o = outcome_of(&m, loss);

    assert_int_equal(on_device, n_waits > 0);
    ms_tensor_free(loss);
    model_free(&m);
    return o;
}

static void test_optim_waits__steps_wait_for_nobody_and_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(runs); i++) {
        const outcome cpu = train_on(false, &runs[i]), device = train_on(true, &runs[i]);

        assert_memory_equal(&cpu, &device, sizeof(cpu));
    }
}

static void test_optim_waits__asking_what_a_tensor_is_waits_for_nobody(void **state)
{
    ms_tensor_info info;
    ms_tensor *t;

    (void)state;
    begin(true);
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 1, (const int64_t[]){WIDTH}, 3));
    n_waits = 0;
    assert_ok(ms_tensor_describe(t, &info));
    assert_int_equal(n_waits, 0);
    assert_int_equal(info.shape[0], WIDTH);
    assert_ok(ms_tensor_wait(t));
    assert_true(n_waits > 0);
    ms_tensor_free(t);
}

/* Loss, backward and steps with an id, or a target, that is none. */
static void step_on_bad_data(const model *m, const run *r, bool bad_id, int32_t steps)
{
    const double values[TOKENS] = {1, 2, VOCAB, 0, -5, 1};
    ms_tensor *bad = ids(TOKENS, values), *loss;
    model wrong = *m;
    double value;

    wrong.targets = bad_id ? m->targets : bad;
    n_waits = 0;
    assert_ok(loss_of(&loss, &wrong, r, bad_id ? bad : m->ids));
    assert_ok(ms_backward(loss, NULL));
    for (int32_t i = 0; i < steps; i++) {
        assert_ok(ms_optim_step(m->optim));
    }
    assert_ok(ms_optim_zero_grad(m->optim));
    assert_int_equal(n_waits, 0);
    assert_fails(MS_INDEX_ERROR,
                 bad_id ? "embedding: id 7, number 3 of 6, is outside [0, 7)"
                        : "cross_entropy: target 7, number 3 of 6, is outside [0, 7)",
                 ms_tensor_item(loss, &value));
    assert_ok(ms_tensor_item(loss, &value)); /* told once */
    assert_true(isnan(value));
    ms_tensor_free(loss);
    ms_tensor_free(bad);
}

/* -- memory that runs out ---------------------------------------------------------------------- */

enum { SIDE = 64 };

/* A backward whose k-th allocation fails, and whose collective waits for the products before it. */
static ms_status backward_without_memory(int64_t k, bool *late)
{
    const int64_t shape[2] = {SIDE, SIDE};
    ms_tensor *w, *x, *all, *y, *sum;
    double value;
    ms_comm *self;

    begin(true);
    assert_ok(ms_comm_self(&self));
    assert_ok(ms_tensor_full(&w, MS_DTYPE_F32, 2, shape, 0.01));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 0.01));
    assert_ok(ms_tensor_make_parameter(w));
    assert_ok(ms_op_all_reduce(&all, self, w, MS_REDUCE_SUM));
    assert_ok(ms_op_matmul(&y, x, all));
    assert_ok(ms_op_sum(&sum, y, 3, false));
    assert_ok(ms_tensor_item(sum, &value));
    msi_alloc_fail_at(msi_context(), k);
    const ms_status status = ms_backward(sum, NULL);

    msi_alloc_fail_at(msi_context(), -1);
    *late = status != MS_OK && ms_error_is_late();
    if (status != MS_OK) {
        assert_int_equal(status, MS_OUT_OF_MEMORY);
        assert_true(!*late || strstr(ms_error_message(), "backward of 'matmul': no memory for ") ==
                                  ms_error_message());
    }
    ms_tensor_free(sum);
    ms_tensor_free(y);
    ms_tensor_free(all);
    ms_tensor_free(x);
    ms_tensor_free(w);
    return status;
}

static void test_optim_waits__wrong_data_is_an_error_when_somebody_reads(void **state)
{
    (void)state;
    for (int32_t bad_id = 0; bad_id < 2; bad_id++) {
        model m;

        begin(true);
        model_new(&m, &runs[0]);
        step_on_bad_data(&m, &runs[0], bad_id, 1);
        model_free(&m);
    }
}

/* Cleaning up after an error changes nothing of what it says: whose it is, and when that was. */
static void test_optim_waits__a_backward_that_only_waited_says_so(void **state)
{
    bool late, any_late = false;

    (void)state;
    for (int64_t k = 0; backward_without_memory(k, &late) != MS_OK; k++) {
        assert_true(k < 100);
        any_late |= late;
    }
    assert_int_equal(any_late, strcmp(msi_gemm_library(msi_context()), "none") != 0);
}

static struct {
    int32_t (*run)(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype, const void *args);
    int32_t countdown; /* of kernels of SGD until one has no memory */
    bool for_good;
} refusal;

static int32_t run_or_refuse(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype,
                             const void *args)
{
    if (kernel == MSI_K_sgd && refusal.countdown > 0 && --refusal.countdown == 0) {
        refusal.countdown = refusal.for_good;
        return MSI_DEV_NO_MEMORY;
    }
    return refusal.run(d, stream, kernel, dtype, args);
}

/* A step in which the device has no memory to enqueue the kernel of parameter `at`, 0 to PARAMS. */
static ms_status step_refused(model *m, int32_t at, bool for_good)
{
    ms_tensor *loss;

    begin(true);
    model_new(m, &runs[0]);
    assert_ok(loss_of(&loss, m, &runs[0], m->ids));
    assert_ok(ms_backward(loss, NULL));
    ms_tensor_free(loss);
    refusal.run = counting.run;
    counting.run = run_or_refuse;
    refusal.countdown = at + 1;
    refusal.for_good = for_good;
    const ms_status status = ms_optim_step(m->optim);

    refusal.countdown = 0;
    return status;
}

static outcome outcome_of_params(const model *m)
{
    return outcome_of(m, m->param[0]);
}

static void test_optim_waits__what_cannot_be_enqueued_is_tried_again(void **state)
{
    outcome whole;
    model m;

    (void)state;
    assert_ok(step_refused(&m, PARAMS, false)); /* none is */
    whole = outcome_of_params(&m);
    model_free(&m);
    for (int32_t at = 0; at < PARAMS; at++) {
        assert_ok(step_refused(&m, at, false));
        const outcome o = outcome_of_params(&m);

        assert_memory_equal(&o, &whole, sizeof(o));
        model_free(&m);
    }
}

/* What can be seen before anything is given to the device is seen then. */
static void test_optim_waits__a_step_that_cannot_reach_a_parameter_is_none(void **state)
{
    float lent[WIDTH] = {0};
    ms_tensor *param[2], *grad;
    ms_optim *optim;
    double value;

    (void)state;
    begin(true);
    assert_ok(ms_tensor_full(&param[0], MS_DTYPE_F32, 1, (const int64_t[]){WIDTH}, 1));
    assert_ok(ms_tensor_borrow(&param[1], MS_DTYPE_F32, 1, (const int64_t[]){WIDTH}, lent));
    assert_ok(ms_tensor_full(&grad, MS_DTYPE_F32, 1, (const int64_t[]){WIDTH}, 1));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    for (int32_t i = 0; i < 2; i++) {
        assert_ok(ms_tensor_set_requires_grad(param[i], true));
        assert_ok(ms_tensor_set_grad(param[i], grad));
    }
    assert_ok(ms_optim_add_group(optim, param, 2, NULL, NULL));
    for (int32_t i = 0; i < 2; i++) {
        assert_fails(MS_RUNTIME_ERROR, "is on cpu, and operators", ms_optim_step(optim));
    }
    ms_tensor *first;

    assert_ok(ms_op_select(&first, param[0], 0, 0));
    assert_ok(ms_tensor_item(first, &value));
    assert_true(value == 1);
    ms_tensor_free(first);
    ms_optim_free(optim);
    ms_tensor_free(grad);
    ms_tensor_free(param[1]);
    ms_tensor_free(param[0]);
}

static void test_optim_waits__a_step_that_failed_half_way_is_not_made_again(void **state)
{
    int64_t steps;
    model m;

    (void)state;
    assert_int_equal(step_refused(&m, 0, true), MS_OUT_OF_MEMORY);
    assert_ok(ms_optim_step(m.optim)); /* no parameter had taken it */
    model_free(&m);
    assert_int_equal(step_refused(&m, 2, true), MS_OUT_OF_MEMORY);
    assert_non_null(strstr(ms_error_message(), "sgd: no memory to enqueue it on device 'fake'"));
    for (int32_t i = 0; i < 2; i++) {
        assert_fails(MS_RUNTIME_ERROR,
                     "step: one failed when 2 of 3 parameters had taken it; load a checkpoint",
                     ms_optim_step(m.optim));
    }
    assert_ok(ms_optim_steps(m.optim, 1, &steps));
    assert_int_equal(steps, 1);
    assert_ok(ms_optim_steps(m.optim, 2, &steps));
    assert_int_equal(steps, 0);
    assert_ok(ms_optim_steps_set(m.optim, 2, 1));
    assert_ok(ms_optim_step(m.optim));
    model_free(&m);
}

/* A wrapped model on one rank: clipping waits for nobody, reading the norm does. */
static void test_optim_waits__clipping_waits_when_somebody_reads_the_norm(void **state)
{
    uint64_t hash[2];

    (void)state;
    for (int32_t asks = 0; asks < 2; asks++) {
        const tiny_config config = tiny_defaults();
        double loss, norm = 0;
        ms_tensor *total;
        ms_comm *comm;
        tiny_model m;

        begin(true);
        assert_ok(ms_comm_self(&comm));
        assert_ok(tiny_new(&m, &config, comm));
        assert_ok(tiny_micro_step(&m, 0, &loss));
        n_waits = 0;
        assert_ok(ms_fsdp_tree_clip_grad_norm(&total, m.tree, NULL, 0, 0.125, 2, false));
        assert_int_equal(n_waits, 0);
        assert_ok(asks ? ms_tensor_item(total, &norm) : MS_OK);
        assert_int_equal(asks, n_waits > 0);
        ms_tensor_free(total);
        assert_int_equal(asks, norm > 0.125);
        ms_tensor *grad;

        assert_ok(ms_tensor_grad(&grad, m.embedding));
        assert_ok(ms_tensor_hash(grad, &hash[asks]));
        ms_tensor_free(grad);
        tiny_free(&m);
        ms_comm_free(comm);
    }
    assert_true(hash[0] == hash[1]);
}

static int leave_device(void **state)
{
    (void)state;
    unsetenv("MS_DEVICE");
    return ms_close() == MS_OK ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_waits__steps_wait_for_nobody_and_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_optim_waits__asking_what_a_tensor_is_waits_for_nobody),
        cmocka_unit_test(test_optim_waits__wrong_data_is_an_error_when_somebody_reads),
        cmocka_unit_test(test_optim_waits__a_backward_that_only_waited_says_so),
        cmocka_unit_test(test_optim_waits__what_cannot_be_enqueued_is_tried_again),
        cmocka_unit_test(test_optim_waits__a_step_that_cannot_reach_a_parameter_is_none),
        cmocka_unit_test(test_optim_waits__a_step_that_failed_half_way_is_not_made_again),
        cmocka_unit_test(test_optim_waits__clipping_waits_when_somebody_reads_the_norm),
    };

    return cmocka_run_group_tests_name("optim/waits", tests, NULL, leave_device);
}
