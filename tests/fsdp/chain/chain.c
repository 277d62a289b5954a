#include "chain.h"

static int32_t n_units(const chain *c)
{
    return c->writes ? 1 : UNITS;
}

ms_status model_new(model *m, const chain *c)
{
    const int64_t shape[2] = {SIDE, SIDE};
    ms_fsdp_tree_options to;
    ms_fsdp_unit_options uo;
    ms_optim_options oo;
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    ms_seed(3);
    ms_fsdp_unit_options_init(&uo, sizeof(uo));
    uo.strategy = c->strategy;
    for (int32_t i = 0; i < n_units(c); i++) {
        const char name[] = {'u', (char)('0' + i), '\0'}, *names = name;

        MS_TRY(
            ms_tensor_parameter(&m->weight[i], MS_DTYPE_F32, 2, shape, MS_INIT_UNIFORM, -0.6, 0.6));
        MS_TRY(ms_fsdp_unit_new(&m->unit[i], comm, name, &uo, &m->weight[i], 1, &names));
    }
    ms_fsdp_tree_options_init(&to, sizeof(to));
    to.forward_prefetch = true;
    to.n_slots = 2;
    MS_TRY(ms_fsdp_tree_new(&m->tree, comm, &to, m->unit, n_units(c), false));
    MS_TRY(ms_optim_options_init(&oo, sizeof(oo), MS_OPTIM_SGD));
    oo.lr = 0.5;
    oo.momentum = 0.9;
    MS_TRY(ms_optim_new(&m->optim, MS_OPTIM_SGD));
    return ms_optim_add_group(m->optim, m->weight, n_units(c), &oo, NULL);
}

void model_free(model *m)
{
    ms_optim_free(m->optim);
    ms_fsdp_tree_free(m->tree);
    for (int32_t i = 0; i < UNITS; i++) {
        ms_tensor_free(m->weight[i]);
    }
}

ms_status forward(model *m, const chain *c, double x0, ms_tensor **mean)
{
    const int64_t shape[2] = {ROWS, SIDE};
    ms_tensor *x;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, x0));
    MS_TRY(ms_fsdp_tree_pre_forward(m->tree));
    for (int32_t i = 0; c->nests && i < n_units(c); i++) {
        MS_TRY(ms_fsdp_unit_pre_forward(m->unit[i]));
    }
    for (int32_t i = 0; i < n_units(c); i++) {
        MS_TRY(c->nests ? MS_OK : ms_fsdp_unit_pre_forward(m->unit[i]));
        MS_TRY(ms_op_linear(&x, x, m->weight[i], NULL));
        MS_TRY(c->nests ? MS_OK : ms_fsdp_unit_post_forward(m->unit[i], &x, 1));
    }
    for (int32_t i = n_units(c) - 1; c->nests && i >= 0; i--) {
        MS_TRY(ms_fsdp_unit_post_forward(m->unit[i], &x, 1));
    }
    MS_TRY(ms_fsdp_tree_post_forward(m->tree));
    MS_TRY(ms_op_mul(&x, x, x));
    return ms_op_mean(mean, x, 3, false);
}

static ms_status set_gradients(model *m, const chain *c, double value)
{
    const int64_t whole[2] = {SIDE, SIDE};
    ms_param_extent extent;
    ms_tensor *shard, *grad;

    for (int32_t i = 0; i < UNITS; i++) {
        MS_TRY(ms_param_local(&shard, m->weight[i], &extent));
        MS_TRY(c->strategy == MS_FSDP_NO_SHARD
                   ? ms_tensor_full(&grad, MS_DTYPE_F32, 2, whole, value)
                   : ms_tensor_full(&grad, MS_DTYPE_F32, 1, &extent.numel, value));
        MS_TRY(ms_tensor_set_grad(m->weight[i], grad));
    }
    return MS_OK;
}

static ms_status step(model *m, const chain *c, double x0)
{
    ms_tensor *loss;

    MS_TRY(c->adds ? set_gradients(m, c, 0.25) : MS_OK);
    MS_TRY(forward(m, c, x0, &loss));
    MS_TRY(ms_backward(loss, NULL));
    return ms_optim_step(m->optim);
}

ms_status train(model *m, chain *c, int32_t rank)
{
    uint64_t hash;

    for (int32_t t = 0; t < STEPS; t++) {
        MS_TRY(ms_scope_open("step"));
        const ms_status status = step(m, c, 0.5 + 0.25 * rank + 0.125 * t);

        (void)ms_scope_close(NULL, 0);
        MS_TRY(status);
        MS_TRY(ms_optim_zero_grad(m->optim));
    }
    MS_TRY(ms_fsdp_tree_hash(m->tree, m->weight, n_units(c), &hash));
    if (rank == 0) {
        c->hash = hash;
        c->n_slots = m->tree->run.params.n_slots;
    }
    return MS_OK;
}

/* This rank's shard, with nobody else. */
static ms_status write_shard(ms_tensor *weight, double value)
{
    ms_param_extent extent;
    ms_tensor *shard;

    MS_TRY(ms_param_local(&shard, weight, &extent));
    ms_status status = ms_tensor_fill(shard, value);

    ms_tensor_free(shard);
    return status == MS_OK ? ms_param_touch(weight) : status;
}

static ms_status sum_evaluations(model *m, const chain *c, int32_t rank, double *sum)
{
    ms_tensor *mean, *all;

    MS_TRY(ms_tensor_full(&all, MS_DTYPE_F32, 0, NULL, 0));
    for (int32_t t = 0; t < 2 * STEPS; t++) {
        MS_TRY(forward(m, c, 0.5 + 0.125 * t, &mean));
        MS_TRY(ms_op_add(&all, all, mean));
        MS_TRY(c->writes ? write_shard(m->weight[0], 0.25 * (t + 1) + rank) : MS_OK);
    }
    return ms_tensor_item(all, sum);
}

static ms_status evaluate(model *m, chain *c, int32_t rank)
{
    double sum = 0;

    ms_grad_enabled_set(false);
    MS_TRY(ms_scope_open("evaluations"));
    const ms_status status = sum_evaluations(m, c, rank, &sum);

    (void)ms_scope_close(NULL, 0);
    if (rank == 0) {
        c->hash = ms_hash_bytes(&sum, sizeof(sum));
    }
    return status;
}

ms_status run_chain(void *user, int32_t rank)
{
    model m = {.tree = NULL};
    chain *c = user;
    ms_status status = model_new(&m, c);

    status = status != MS_OK ? status : (c->evaluates ? evaluate : train)(&m, c, rank);

    model_free(&m);
    return status;
}

/* -- devices ----------------------------------------------------------------------------------- */

const char *const layouts[2] = {"shared", "pull"};

bool has_fake(void)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/libmoonshard_fake.so", msi_switch_text("MS_PLUGIN_DIR", "."));
    return access(path, R_OK) == 0;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value != NULL ? setenv(name, value, true) : unsetenv(name), 0);
}

void set_device(int32_t seed, const char *layout)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)seed);
    set("MS_DEVICE", seed > 0 ? "fake" : "cpu");
    set("MS_FAKE_SEED", text);
    set("MS_FAKE_ORDER", seed / 2 % 4 == 0 ? "uniform" : NULL);
    set("MS_SLOTS", layout);
}

ms_status train_on(chain *c, int32_t seed, const char *layout)
{
    set_device(seed, layout);
    c->hash = 0;
    const ms_status status = ms_dist_threads(c->world, run_chain, c);

    set_device(0, NULL);
    return status;
}
