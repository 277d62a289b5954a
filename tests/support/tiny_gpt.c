#include "tiny_gpt.h"

tiny_config tiny_defaults(void)
{
    return (tiny_config){.world = 1,
                         .strategy = MS_FSDP_FULL_SHARD,
                         .optimizer = MS_OPTIM_SGD,
                         .micro_batches = 4,
                         .steps = 20,
                         .param_dtype = MS_DTYPE_NONE,
                         .reduce_dtype = MS_DTYPE_NONE,
                         .prefetch = MS_FSDP_PREFETCH_PRE,
                         .dropout = 0.1,
                         .max_norm = 0.5};
}

static ms_status declare(ms_tensor **out, int32_t ndim, int64_t rows, int64_t cols,
                         const char *name)
{
    const int64_t shape[2] = {rows, cols};

    if (ndim == 2) {
        MS_TRY(ms_tensor_parameter(out, MS_DTYPE_F32, 2, shape, MS_INIT_NORMAL, 0, 0.3));
    } else {
        MS_TRY(ms_tensor_parameter(out, MS_DTYPE_F32, 1, shape, MS_INIT_UNIFORM, 0.5, 1.5));
    }
    return ms_tensor_set_name(*out, name);
}

static ms_status make_unit(ms_fsdp_unit **unit, const tiny_config *config, ms_comm *comm,
                           const char *name, ms_tensor *const *params, int32_t n)
{
    const char *names[TINY_BLOCK_PARAMS];
    ms_fsdp_unit_options o;

    ms_fsdp_unit_options_init(&o, sizeof(o));
    o.strategy = config->strategy;
    o.param_dtype = config->param_dtype;
    o.reduce_dtype = config->reduce_dtype;
    o.use_orig_params = !config->flat;
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(ms_tensor_name(params[i], &names[i]));
    }
    return ms_fsdp_unit_new(unit, comm, name, &o, params, n, names);
}

ms_status tiny_declare(tiny_model *m, const tiny_config *config, ms_comm *comm)
{
    static const struct {
        const char *name;
        int32_t ndim;
        int64_t rows, cols;
    } shapes[TINY_BLOCK_PARAMS] = {
        {"ln.weight", 1, TINY_WIDTH, 1},
        {"ln.bias", 1, TINY_WIDTH, 1},
        {"fc.weight", 2, TINY_HIDDEN, TINY_WIDTH},
        {"fc.bias", 1, TINY_HIDDEN, 1},
        {"out.weight", 2, TINY_WIDTH, TINY_HIDDEN},
        {"out.bias", 1, TINY_WIDTH, 1},
    };
    ms_fsdp_unit *units[TINY_BLOCKS + 1];
    ms_fsdp_tree_options o;
    char name[64];

    memset(m, 0, sizeof(*m));
    m->dropout = config->dropout;
    MS_TRY(declare(&m->embedding, 2, TINY_VOCAB, TINY_WIDTH, "embedding"));
    MS_TRY(make_unit(&m->root, config, comm, "root", &m->embedding, 1));
    units[0] = m->root;
    for (int32_t b = 0; b < TINY_BLOCKS; b++) {
        for (int32_t i = 0; i < TINY_BLOCK_PARAMS; i++) {
            snprintf(name, sizeof(name), "h.%d.%s", (int)b, shapes[i].name);
            MS_TRY(declare(&m->block[b][i], shapes[i].ndim, shapes[i].rows, shapes[i].cols, name));
        }
        snprintf(name, sizeof(name), "h.%d", (int)b);
        MS_TRY(make_unit(&m->unit[b], config, comm, name, m->block[b], TINY_BLOCK_PARAMS));
        units[b + 1] = m->unit[b];
    }
    ms_fsdp_tree_options_init(&o, sizeof(o));
    o.backward_prefetch = config->prefetch;
    o.forward_prefetch = config->forward_prefetch;
    o.n_slots = config->n_slots;
    return ms_fsdp_tree_new(&m->tree, comm, &o, units, TINY_BLOCKS + 1, true);
}

ms_status tiny_new(tiny_model *m, const tiny_config *config, ms_comm *comm)
{
    MS_TRY(tiny_declare(m, config, comm));
    return ms_fsdp_tree_init(m->tree);
}

ms_status tiny_optim(ms_optim **out, const tiny_model *m, const tiny_config *c)
{
    ms_tensor *params[1 + TINY_BLOCKS * TINY_BLOCK_PARAMS];
    ms_optim_options o;
    int32_t group;

    params[0] = m->embedding;
    for (int32_t i = 0; i < TINY_BLOCKS * TINY_BLOCK_PARAMS; i++) {
        params[i + 1] = m->block[i / TINY_BLOCK_PARAMS][i % TINY_BLOCK_PARAMS];
    }
    MS_TRY(ms_optim_options_init(&o, sizeof(o), c->optimizer));
    o.lr = c->optimizer == MS_OPTIM_SGD ? 0.1 : 0.01;
    o.momentum = c->optimizer == MS_OPTIM_SGD ? 0.9 : 0;
    o.nesterov = c->optimizer == MS_OPTIM_SGD;
    o.weight_decay = 0.01;
    MS_TRY(ms_optim_new(out, c->optimizer));
    return ms_optim_add_group(*out, params, 1 + TINY_BLOCKS * TINY_BLOCK_PARAMS, &o, &group);
}

void tiny_free(tiny_model *m)
{
    ms_fsdp_tree_free(m->tree);
    ms_tensor_free(m->embedding);
    for (int32_t b = 0; b < TINY_BLOCKS; b++) {
        for (int32_t i = 0; i < TINY_BLOCK_PARAMS; i++) {
            ms_tensor_free(m->block[b][i]);
        }
    }
}

/* x + dropout(linear(gelu(linear(layer_norm(x))))), in one unit. */
static ms_status block(tiny_model *m, int32_t b, ms_tensor *x, ms_tensor **out)
{
    ms_tensor *const *p = m->block[b];
    ms_tensor *normed, *hidden, *projected, *dropped;

    MS_TRY(ms_fsdp_unit_pre_forward(m->unit[b]));
    MS_TRY(ms_op_layer_norm(&normed, x, p[0], p[1], 1e-5));
    MS_TRY(ms_op_linear_gelu(&hidden, normed, p[2], p[3], true));
    MS_TRY(ms_op_linear(&projected, hidden, p[4], p[5]));
    MS_TRY(ms_op_dropout(&dropped, projected, m->dropout, (uint64_t)b + 1, 0));
    MS_TRY(ms_op_add(out, x, dropped));
    return ms_fsdp_unit_post_forward(m->unit[b], out, 1);
}

ms_status tiny_forward(tiny_model *m, ms_tensor *ids, ms_tensor *targets, ms_tensor **loss)
{
    const int64_t rows[2] = {TINY_ROWS * TINY_CONTEXT, TINY_VOCAB};
    const int64_t flat[1] = {TINY_ROWS * TINY_CONTEXT};
    ms_tensor *x, *logits, *logits2, *targets2;

    MS_TRY(ms_fsdp_tree_pre_forward(m->tree));
    MS_TRY(ms_fsdp_unit_pre_forward(m->root));
    MS_TRY(ms_op_embedding(&x, m->embedding, ids));
    for (int32_t b = 0; b < TINY_BLOCKS; b++) {
        MS_TRY(block(m, b, x, &x));
    }
    MS_TRY(ms_op_linear(&logits, x, m->embedding, NULL)); /* tied */
    MS_TRY(ms_op_reshape(&logits2, logits, 2, rows));
    MS_TRY(ms_op_reshape(&targets2, targets, 1, flat));
    MS_TRY(ms_op_cross_entropy(loss, logits2, targets2, -100, MS_REDUCTION_MEAN));
    MS_TRY(ms_fsdp_unit_post_forward(m->root, loss, 1));
    return ms_fsdp_tree_post_forward(m->tree);
}

ms_status tiny_batch(int64_t index, ms_tensor **ids, ms_tensor **targets)
{
    enum { N = TINY_ROWS * TINY_CONTEXT };
    const int64_t shape[2] = {TINY_ROWS, TINY_CONTEXT};
    double x[N], y[N];

    for (int32_t i = 0; i < N; i++) {
        int64_t row = index * TINY_ROWS + i / TINY_CONTEXT, t = i % TINY_CONTEXT;

        x[i] = (double)((7 * row + 3 * t + row * t) % TINY_VOCAB);
        y[i] = (double)((7 * row + 3 * (t + 1) + row * (t + 1)) % TINY_VOCAB);
    }
    MS_TRY(ms_tensor_from_doubles(ids, MS_DTYPE_I64, 2, shape, x, N));
    return ms_tensor_from_doubles(targets, MS_DTYPE_I64, 2, shape, y, N);
}

ms_status tiny_micro_step(tiny_model *m, int64_t index, double *value)
{
    ms_tensor *ids, *targets, *loss;
    ms_status status;

    MS_TRY(ms_scope_open("micro step"));
    MS_TRY_GOTO(ms_samples_begin(index * TINY_ROWS), done);
    MS_TRY_GOTO(tiny_batch(index, &ids, &targets), done);
    MS_TRY_GOTO(tiny_forward(m, ids, targets, &loss), done);
    MS_TRY_GOTO(ms_tensor_item(loss, value), done);
    MS_TRY_GOTO(ms_backward(loss, NULL), done);
done:
    (void)ms_scope_close(NULL, 0);
    return status;
}

ms_status tiny_clip(tiny_model *m, double max_norm, double *norm)
{
    ms_tensor *total;

    MS_TRY(ms_fsdp_tree_clip_grad_norm(&total, m->tree, NULL, 0, max_norm, 2, false));
    const ms_status status = ms_tensor_item(total, norm);

    ms_tensor_free(total);
    return status;
}

typedef struct run {
    const tiny_config *config;
    tiny_result result[8];
} run;

ms_status tiny_train_in(ms_comm *comm, const tiny_config *c, tiny_result *r,
                        ms_status (*after_step)(void *user, int32_t step), void *user)
{
    int32_t rank = ms_comm_rank(comm), mine = c->micro_batches / c->world;
    int64_t before[5], after[5];
    ms_optim *optim = NULL;
    tiny_model m;
    ms_status status;

    ms_seed(42);
    MS_TRY_GOTO(tiny_new(&m, c, comm), done);
    MS_TRY_GOTO(ms_fsdp_tree_set_gradient_factor(
                    m.tree, c->each_backward_reduces ? 0 : 1.0 / c->micro_batches),
                done);
    MS_TRY_GOTO(tiny_optim(&optim, &m, c), done);
    for (int32_t step = 0; step < c->steps; step++) {
        ms_comm_counts(comm, before);
        for (int32_t k = 0; k < mine; k++) {
            MS_TRY_GOTO(ms_fsdp_tree_set_sync(m.tree, c->each_backward_reduces || k == mine - 1),
                        done);
            MS_TRY_GOTO(
                tiny_micro_step(&m, (int64_t)step * c->micro_batches + rank * mine + k, &r->loss),
                done);
        }
        MS_TRY_GOTO(tiny_clip(&m, c->max_norm, &r->norm), done);
        MS_TRY_GOTO(ms_optim_step(optim), done);
        MS_TRY_GOTO(ms_optim_zero_grad(optim), done);
        ms_comm_counts(comm, after);
        MS_TRY_GOTO(after_step != NULL ? after_step(user, step) : MS_OK, done);
    }
    for (int32_t i = 0; i < 5; i++) {
        r->counts[i] = after[i] - before[i];
    }
    ms_memory_stats_get(&r->memory);
    MS_TRY_GOTO(ms_fsdp_tree_hash(m.tree, NULL, 0, &r->hash), done);
done:
    ms_optim_free(optim);
    tiny_free(&m);
    return status;
}

static ms_status train_thread(void *user, int32_t rank)
{
    run *r = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    return tiny_train_in(world, r->config, &r->result[rank], NULL, NULL);
}

ms_status tiny_train(const tiny_config *config, tiny_result *result)
{
    run r = {.config = config};

    MS_TRY(ms_dist_threads(config->world, train_thread, &r));
    for (int32_t q = 1; q < config->world; q++) {
        if (r.result[q].hash != r.result[0].hash || r.result[q].norm != r.result[0].norm) {
            return msi_fail(MS_RUNTIME_ERROR,
                            "rank %d ends with hash %llx, norm %.17g, rank 0 with %llx, %.17g",
                            (int)q, (unsigned long long)r.result[q].hash, r.result[q].norm,
                            (unsigned long long)r.result[0].hash, r.result[0].norm);
        }
    }
    *result = r.result[0];
    return MS_OK;
}
