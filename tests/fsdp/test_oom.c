/* Memory that runs out, anywhere: allocation k of every call of a training program fails, for every
 * k from the first call on; or k and all after it, until the program has seen the error. Then there
 * is memory again, the program does the same once more, and ends with the bits of one that never
 * failed. Or only the function that ran out of memory is called again: then nothing has failed at
 * all.
 *
 * Ranks fail together, which they survive, or one alone: that ends on all of them with an error, or
 * (where it was that rank's own affair) with the right bits, but never with others, and in time. */
#include "rank_test.h"
#include "tiny_gpt.h"

#include <errno.h>

/* -- what fails -------------------------------------------------------------------------------- */

static _Thread_local struct {
    int64_t left; /* allocations until one fails; -1: none does */
    bool lasting, again, happened;
} oom = {.left = -1};

static bool fails_now(void)
{
    if (oom.left < 0 || (oom.left > 0 && oom.left--)) {
        return false;
    }
    oom.left = oom.lasting ? 0 : -1;
    oom.happened = true;
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
ms_status __real_msi_alloc(ms_context *ctx, int64_t n, int32_t kind, msi_mem_block **out);

ms_status __real_msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook pre);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
ms_status __wrap_msi_alloc(ms_context *ctx, int64_t n, int32_t kind, msi_mem_block **out);
ms_status __wrap_msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook pre);

void *__wrap_malloc(size_t n)
{
    return fails_now() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails_now() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails_now() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
    return fails_now() ? NULL : __real_strdup(s);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return fails_now() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

ms_status __wrap_msi_alloc(ms_context *ctx, int64_t n, int32_t kind, msi_mem_block **out)
{
    if (fails_now()) {
        *out = NULL;
        return msi_fail(MS_OUT_OF_MEMORY, "no memory for %lld bytes, as the test wants",
                        (long long)n);
    }
    return __real_msi_alloc(ctx, n, kind, out);
}

/* The tape takes memory for thousands of hooks at once: any may be the one for which it does. */
ms_status __wrap_msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook pre)
{
    return fails_now() ? msi_fail(MS_OUT_OF_MEMORY, "no memory for a hook, as the test wants")
                       : __real_msi_autograd_pre_hook(t, pre);
}

/* The functions with tensors, which can be called again where memory was out. */
#define CALLED_AGAIN(function, parameters, arguments)                                              \
    ms_status __real_##function parameters;                                                        \
    ms_status __wrap_##function parameters;                                                        \
    ms_status __wrap_##function parameters                                                         \
    {                                                                                              \
        ms_status status = __real_##function arguments;                                            \
                                                                                                   \
        return status == MS_OUT_OF_MEMORY && oom.again ? __real_##function arguments : status;     \
    }

CALLED_AGAIN(ms_fsdp_unit_post_forward,
             (ms_fsdp_unit * unit, ms_tensor *const *outputs, int32_t n_outputs),
             (unit, outputs, n_outputs))
CALLED_AGAIN(ms_fsdp_unit_gather_all, (ms_tensor * *out, ms_fsdp_unit *unit, int64_t *offsets),
             (out, unit, offsets))
CALLED_AGAIN(ms_fsdp_unit_load, (ms_fsdp_unit * unit, int32_t index, const ms_tensor *full),
             (unit, index, full))
CALLED_AGAIN(ms_fsdp_tree_clip_grad_norm,
             (ms_tensor * *total, ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n,
              double max_norm, double norm_type),
             (total, tree, params, n, max_norm, norm_type))
CALLED_AGAIN(ms_fsdp_tree_hash,
             (ms_fsdp_tree * tree, ms_tensor *const *params, int32_t n, uint64_t *hash),
             (tree, params, n, hash))
CALLED_AGAIN(ms_tensor_grad, (ms_tensor * *out, ms_tensor *t), (out, t))
CALLED_AGAIN(ms_tensor_set_grad, (ms_tensor * t, ms_tensor *grad), (t, grad))

/* -- the program ------------------------------------------------------------------------------- */

enum { STEPS = 2, MAX_WORLD = 2 };

typedef struct job {
    tiny_config config;
    bool victim[MAX_WORLD], lasting, again, watched;
    int32_t call; /* of the program: the one that fails; -1: none */
    int64_t at;   /* its allocation that fails */
    bool happened[MAX_WORLD];
    int32_t n_calls[MAX_WORLD];
    uint64_t hash[MAX_WORLD];
} job;

typedef struct trainee {
    job *job;
    tiny_model model;
    ms_optim *optim;
    const tiny_config *config;
    int32_t rank, step;
    uint64_t hash;
} trainee;

static ms_status begin(trainee *s)
{
    return ms_fsdp_tree_init(s->model.tree);
}

/* Rank 0 makes the segments: only here do ranks that fail together not ask for the same. */
static ms_status widen(trainee *s)
{
    return ms_fsdp_tree_set_sync(s->model.tree, false);
}

/* A script that reads what has accumulated so far, and writes it again. */
static ms_status set_again(ms_tensor *t)
{
    ms_tensor *grad;

    MS_TRY(ms_tensor_grad(&grad, t));
    ms_status status = grad != NULL ? ms_tensor_set_grad(t, grad) : MS_OK;

    ms_tensor_free(grad);
    return status;
}

static ms_status gradients(trainee *s)
{
    const int32_t mine = s->config->micro_batches / s->config->world;
    double loss;

    for (int32_t k = 0; k < mine; k++) {
        MS_TRY(ms_fsdp_tree_set_sync(s->model.tree, k == mine - 1));
        MS_TRY(tiny_micro_step(
            &s->model, (int64_t)s->step * s->config->micro_batches + s->rank * mine + k, &loss));
        MS_TRY(set_again(s->model.block[0][2]));
    }
    return MS_OK;
}

static ms_status clip(trainee *s)
{
    ms_tensor *norm;

    MS_TRY(ms_fsdp_tree_clip_grad_norm(&norm, s->model.tree, NULL, 0, 0.5, 2));
    ms_tensor_free(norm);
    return MS_OK;
}

static ms_status update(trainee *s)
{
    return ms_optim_step(s->optim);
}

static ms_status zero(trainee *s)
{
    return ms_optim_zero_grad(s->optim);
}

static ms_status evaluate(trainee *s)
{
    ms_tensor *ids, *targets, *loss;
    ms_status status;

    MS_TRY(ms_scope_open("evaluate"));
    ms_grad_enabled_set(false);
    MS_TRY_GOTO(tiny_batch(1, &ids, &targets), done);
    MS_TRY_GOTO(tiny_forward(&s->model, ids, targets, &loss), done);
done:
    ms_grad_enabled_set(true);
    (void)ms_scope_close(NULL, 0);
    return status;
}

static ms_status summon(trainee *s)
{
    MS_TRY(ms_fsdp_tree_summon(s->model.tree));
    return ms_fsdp_tree_unsummon(s->model.tree, true);
}

/* Values as a state dict has them, loaded again. */
static ms_status reload(trainee *s)
{
    ms_fsdp_unit *u = s->model.unit[1];
    int64_t offsets[TINY_BLOCK_PARAMS];
    ms_tensor *all, *one;
    ms_status status;

    MS_TRY(ms_scope_open("reload"));
    MS_TRY_GOTO(ms_fsdp_unit_gather_all(&all, u, offsets), done);
    MS_TRY_GOTO(ms_op_narrow(&one, all, 0, offsets[3], TINY_HIDDEN), done);
    MS_TRY_GOTO(ms_fsdp_unit_load(u, 3, one), done);
done:
    (void)ms_scope_close(NULL, 0);
    return status;
}

static ms_status hash(trainee *s)
{
    return ms_fsdp_tree_hash(s->model.tree, NULL, 0, &s->hash);
}

static bool is_idle(const ms_fsdp_tree *tree)
{
    bool idle = !tree->run.summoned && tree->forward == NULL && tree->run.progress.first == NULL;

    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        idle = idle && u->reduction.phase == MSI_GRAD_NONE;
        idle = idle && (u->state == MS_UNIT_SHARDED || u->is_root ||
                        u->options.strategy != MS_FSDP_FULL_SHARD);
    }
    return idle;
}

/* Do it; when memory runs out, say so, get memory, and do it once more. */
static ms_status insist(trainee *s, ms_status (*part)(trainee *s))
{
    job *j = s->job;
    const bool victim = j->victim[s->rank] && j->n_calls[s->rank]++ == j->call;
    ms_memory_stats stats;

    oom.happened = false;
    oom.lasting = j->lasting;
    oom.again = j->again;
    oom.left = victim ? j->at : -1;
    ms_status status = part(s);

    oom.left = -1;
    j->happened[s->rank] |= oom.happened;
    if (status != MS_OUT_OF_MEMORY) {
        EXPECT(status != MS_OK || is_idle(s->model.tree));
        return status;
    }
    ms_fsdp_tree_reset(s->model.tree);
    if (part == gradients) { /* what had accumulated before is no gradient of anything */
        MS_TRY(ms_optim_zero_grad(s->optim));
        ms_memory_stats_get(&stats);
        EXPECT(stats.live[MS_MEM_GRADIENT] == 0);
    }
    ms_memory_stats_get(&stats);
    EXPECT(stats.live[MS_MEM_ACTIVATION] == 0);
    EXPECT(is_idle(s->model.tree));
    return part(s);
}

static ms_status train(trainee *s)
{
    MS_TRY(insist(s, begin));
    MS_TRY(insist(s, widen));
    for (s->step = 0; s->step < STEPS; s->step++) {
        MS_TRY(insist(s, gradients));
        MS_TRY(insist(s, clip));
        MS_TRY(insist(s, update));
        MS_TRY(insist(s, zero));
        MS_TRY(insist(s, evaluate));
    }
    MS_TRY(insist(s, summon));
    MS_TRY(insist(s, reload));
    return insist(s, hash);
}

static const msi_op_observer watcher = {NULL, NULL, NULL};

static ms_status run_rank(void *user, int32_t rank)
{
    job *j = user;
    trainee s = {.job = j, .config = &j->config, .rank = rank};
    ms_status status;
    ms_comm *comm;

    ms_seed(42);
    (void)
        ms_numerics(); /* opens the matrix library: what there is of it is no part of the program */
    MS_TRY(ms_comm_world(&comm));
    MS_TRY_GOTO(tiny_declare(&s.model, &j->config, comm), done);
    MS_TRY_GOTO(tiny_optim(&s.optim, &s.model, &j->config), done);
    MS_TRY_GOTO(ms_fsdp_tree_set_gradient_factor(s.model.tree, 1.0 / j->config.micro_batches),
                done);
    msi_op_observe(msi_context(), j->watched ? &watcher : NULL);
    status = train(&s);
    msi_op_observe(msi_context(), NULL);
    j->hash[rank] = s.hash;
done:
    ms_optim_free(s.optim);
    tiny_free(&s.model);
    return status;
}

/* -- every allocation -------------------------------------------------------------------------- */

/* How often a job went on after its ranks had failed, and ended for all. */
typedef struct tally {
    int32_t jobs, went_on, ended;
} tally;

/* @return whether the call had this allocation */
static bool fail_once(job *j, uint64_t expected, tally *t)
{
    const double since = run_seconds();

    memset(j->happened, 0, sizeof(j->happened));
    memset(j->n_calls, 0, sizeof(j->n_calls));
    ms_status status = ms_dist_threads(j->config.world, run_rank, j);
    const bool happened = j->happened[0] || j->happened[MAX_WORLD - 1];

    if (run_seconds() - since > SOON_S) {
        fail_msg("call %d, allocation %lld: took %.1f s", (int)j->call, (long long)j->at,
                 run_seconds() - since);
    }
    if (status != MS_OK && (j->config.world == 1 || status != MS_COMM_ERROR)) {
        fail_msg("call %d, allocation %lld: %s: %s", (int)j->call, (long long)j->at,
                 ms_status_name(status), ms_error_message());
    }
    for (int32_t q = 0; status == MS_OK && q < j->config.world; q++) {
        if (j->hash[q] != expected) {
            fail_msg("call %d, allocation %lld: rank %d ends with %016llx, expected %016llx",
                     (int)j->call, (long long)j->at, (int)q, (unsigned long long)j->hash[q],
                     (unsigned long long)expected);
        }
    }
    t->jobs++;
    t->went_on += status == MS_OK;
    t->ended += status != MS_OK;
    return happened;
}

static tally fail_everywhere(tiny_config config, bool together, bool watched, int64_t stride)
{
    job j = {.config = config, .call = -1, .watched = watched};
    tally t = {0};

    j.victim[config.world - 1] = true;
    j.victim[0] = config.world == 1 || together;
    assert_ok(ms_dist_threads(config.world, run_rank, &j));
    const int32_t n_calls = j.n_calls[config.world - 1];
    const uint64_t expected = j.hash[0];

    for (int32_t mode = 0; mode < 3; mode++) {
        j.lasting = mode == 1;
        j.again = mode == 2;
        for (j.call = 0; j.call < n_calls; j.call++) {
            for (j.at = 0; fail_once(&j, expected, &t); j.at += stride) {
            }
        }
    }
    print_message("W=%d: %d jobs, %d went on, %d ended\n", (int)config.world, (int)t.jobs,
                  (int)t.went_on, (int)t.ended);
    return t;
}

static tiny_config config_of(int32_t world, int32_t strategy)
{
    tiny_config c = tiny_defaults();

    c.world = world;
    c.strategy = strategy;
    c.forward_prefetch = true;
    c.n_slots = 2;
    c.optimizer = MS_OPTIM_ADAMW;
    if (strategy != MS_FSDP_SHARD_GRAD_OP) { /* gradient slots widen inside no_sync */
        c.param_dtype = MS_DTYPE_BF16;
    }
    return c;
}

/* MS_OOM_STRIDE=1 for every allocation in every job. */
static int64_t stride_or(int64_t by_default)
{
    const int64_t sparser = !SANITIZED ? 8 : CAN_FORK ? 24 : 64; /* leaks are ASan's to find */

    return msi_switch_int("MS_OOM_STRIDE", sparser * by_default);
}

static void test_fsdp_oom__one_rank(void **state)
{
    (void)state;
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        tally t = fail_everywhere(config_of(1, s), true, false, stride_or(1));

        assert_true(t.jobs > 1000 / stride_or(1));
    }
}

/* Shards of other sizes leave one rank a block for which the other asks the system: then they fail
 * at different places. */
static void check_most_go_on(tally t)
{
    assert_true(t.went_on > t.jobs * 7 / 8);
}

static void test_fsdp_oom__two_ranks_together(void **state)
{
    (void)state;
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        check_most_go_on(fail_everywhere(config_of(2, s), true, false, stride_or(2)));
    }
}

static void test_fsdp_oom__one_rank_of_two(void **state)
{
    (void)state;
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        tally t = fail_everywhere(config_of(2, s), false, false, stride_or(3));

        assert_true(t.went_on > 0 && t.ended > 0);
    }
}

/* Units are operators on tensors then, which take memory. */
static void test_fsdp_oom__ranks_that_are_watched(void **state)
{
    (void)state;
    tally t = fail_everywhere(config_of(1, MS_FSDP_FULL_SHARD), true, true, stride_or(1));

    assert_int_equal(t.ended, 0);
    check_most_go_on(fail_everywhere(config_of(2, MS_FSDP_FULL_SHARD), true, true, stride_or(5)));
}

static ms_status micro_batches(tiny_model *m, int32_t n)
{
    double loss;

    for (int32_t k = 0; k < n; k++) {
        MS_TRY(ms_fsdp_tree_set_sync(m->tree, k == n - 1));
        MS_TRY(tiny_micro_step(m, k, &loss));
    }
    return MS_OK;
}

/* The gradients of two steps, the second of which accumulates. no_sync is tried before them, and
 * fails at allocation `at`, if it has so many. */
static ms_status gradients_without_widening(const tiny_config *config, int64_t at, double norm[2])
{
    ms_fsdp_plan before, after;
    ms_comm *comm;
    ms_status status;
    tiny_model m;

    ms_seed(42);
    MS_TRY(ms_comm_self(&comm));
    MS_TRY(tiny_new(&m, config, comm));
    MS_TRY_GOTO(ms_fsdp_tree_plan_get(m.tree, 1, &before), done);
    oom.happened = oom.lasting = false;
    oom.left = at;
    status = at < 0 ? MS_OK : ms_fsdp_tree_set_sync(m.tree, false);
    oom.left = -1;
    assert_int_equal(status, oom.happened ? MS_OUT_OF_MEMORY : MS_OK);
    if (oom.happened || at < 0) {
        MS_TRY_GOTO(ms_fsdp_tree_plan_get(m.tree, 1, &after), done);
        assert_memory_equal(&before, &after, sizeof(before));
    }
    for (int32_t i = 0; i < 2; i++) {
        MS_TRY_GOTO(micro_batches(&m, 1 + i), done);
        MS_TRY_GOTO(tiny_clip(&m, 1e9, &norm[i]), done);
        ms_fsdp_tree_reset(m.tree);
    }
done:
    tiny_free(&m);
    return status;
}

/* Those there were have gone by then. */
static void test_fsdp_oom__slots_that_could_not_widen(void **state)
{
    const tiny_config config = config_of(1, MS_FSDP_FULL_SHARD);
    double expected[2], norm[2];

    (void)state;
    assert_ok(gradients_without_widening(&config, -1, expected));
    oom.happened = true;
    for (int64_t at = 0; oom.happened; at++) {
        assert_ok(gradients_without_widening(&config, at, norm));
        assert_memory_equal(norm, expected, sizeof(norm));
    }
}

static void count_operands(void *user, const msi_op_call *call)
{
    *(int32_t *)user = call->n_in;
}

/* A reshard needs no memory, whoever watches. */
static void test_fsdp_oom__a_reshard_is_seen_without_operands(void **state)
{
    const tiny_config config = tiny_defaults();
    int32_t n_operands = -1;
    const msi_op_observer observer = {.begin = count_operands, .user = &n_operands};
    tiny_model model;
    ms_comm *comm;

    (void)state;
    assert_ok(ms_comm_self(&comm));
    assert_ok(tiny_new(&model, &config, comm));
    for (int32_t memory = 0; memory < 2; memory++) {
        assert_ok(ms_fsdp_unit_unshard(model.unit[0]));
        msi_op_observe(msi_context(), &observer);
        oom.left = memory ? -1 : 0;
        oom.lasting = true;
        ms_status status = ms_fsdp_unit_reshard(model.unit[0]);

        oom.left = -1;
        msi_op_observe(msi_context(), NULL);
        assert_ok(status);
        assert_int_equal(model.unit[0]->state, MS_UNIT_SHARDED);
        assert_int_equal(n_operands, memory ? TINY_BLOCK_PARAMS : 0);
    }
    tiny_free(&model);
}

typedef struct lone {
    int64_t at;
    bool happened;
    uint64_t hash[2];
} lone;

/* Rank 1 has no memory for allocation `at` of hashing a model of which a parameter is not sharded;
 * where that is told, it asks again. */
static ms_status hash_alone(void *user, int32_t rank)
{
    enum { N = 1 + TINY_BLOCKS * TINY_BLOCK_PARAMS + 1 };
    const tiny_config config = config_of(2, MS_FSDP_FULL_SHARD);
    ms_tensor *params[N], *whole = NULL, *plain = NULL;
    lone *l = user;
    tiny_model m = {.tree = NULL};
    ms_status status;
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    MS_TRY_GOTO(tiny_new(&m, &config, comm), done);
    MS_TRY_GOTO(ms_tensor_full(&whole, MS_DTYPE_F32, 2, (const int64_t[]){3, 2}, 7), done);
    MS_TRY_GOTO(ms_op_select(&plain, whole, 1, 0), done); /* to be copied for its hash */
    params[0] = m.embedding;
    memcpy(params + 1, m.block, sizeof(m.block));
    params[N - 1] = plain;
    MS_TRY_GOTO(ms_fsdp_tree_hash(m.tree, params, N, &l->hash[rank]), done);
    oom.happened = false;
    oom.left = rank == 1 ? l->at : -1;
    status = ms_fsdp_tree_hash(m.tree, params, N, &l->hash[rank]);
    oom.left = -1;
    if (rank == 1) {
        l->happened = oom.happened;
    }
    if (status == MS_OUT_OF_MEMORY) {
        status = ms_fsdp_tree_hash(m.tree, params, N, &l->hash[rank]);
    }
done:
    ms_tensor_free(plain);
    ms_tensor_free(whole);
    tiny_free(&m);
    return status;
}

static void test_fsdp_oom__a_hash_that_one_rank_cannot_make(void **state)
{
    lone l = {.happened = true};
    int32_t went_on = 0;

    (void)state;
    for (; l.happened; l.at++) {
        const ms_status status = ms_dist_threads(2, hash_alone, &l);

        if (status == MS_OK) {
            assert_true(l.hash[0] == l.hash[1]);
            went_on++;
        } else {
            assert_int_equal(status, MS_COMM_ERROR);
            assert_non_null(strstr(ms_error_message(), "no memory"));
        }
    }
    assert_true(went_on > 4); /* what the rank does before it gathers anything */
}

/* A dry run over a fake group, of a model that has no memory yet. */
static ms_status plan_for_nobody(const tiny_config *config)
{
    ms_fsdp_plan plan;
    ms_comm *fake;
    tiny_model m;

    MS_TRY(ms_comm_fake(&fake, 5000, config->world));
    ms_status status = tiny_declare(&m, config, fake);

    if (status == MS_OK) {
        status = ms_fsdp_tree_dry_run(m.tree, 4, &plan);
    } else { /* units that are in no tree */
        ms_fsdp_unit_free(m.root);
        for (int32_t b = 0; b < TINY_BLOCKS; b++) {
            ms_fsdp_unit_free(m.unit[b]);
        }
    }
    tiny_free(&m);
    ms_comm_free(fake);
    return status;
}

/* The same of a unit that nobody has made. */
static ms_status plan_without_units(const tiny_config *config)
{
    const int64_t shape[1] = {100};
    const char *const name = "p";
    ms_tensor *p = NULL;
    ms_fsdp_group group;
    ms_fsdp_plan plan;
    ms_comm *fake;
    ms_status status;

    MS_TRY(ms_comm_fake(&fake, 5000, config->world));
    MS_TRY_GOTO(ms_tensor_parameter(&p, MS_DTYPE_F32, 1, shape, MS_INIT_CONSTANT, 0, 0), done);
    MS_TRY_GOTO(ms_fsdp_group_describe(&group, fake, "unit", NULL, &p, 1, &name), done);
    MS_TRY_GOTO(ms_fsdp_dry_run(&plan, fake, NULL, &group, 1, 4), done);
done:
    ms_tensor_free(p);
    ms_comm_free(fake);
    return status;
}

static void fail_all_of(ms_status (*plan_of)(const tiny_config *config))
{
    const tiny_config config = config_of(16384, MS_FSDP_FULL_SHARD);
    ms_memory_stats before, after;

    assert_ok(plan_of(&config)); /* what a context keeps is there */
    ms_memory_stats_get(&before);
    oom.happened = true;
    for (int64_t k = 0; oom.happened; k++) {
        oom.happened = oom.lasting = false;
        oom.left = k;
        const ms_status status = plan_of(&config);

        oom.left = -1;
        assert_int_equal(status, oom.happened ? MS_OUT_OF_MEMORY : MS_OK);
    }
    ms_memory_stats_get(&after);
    assert_int_equal(before.live_total, after.live_total);
    assert_int_equal(before.live_handles, after.live_handles);
}

static void test_fsdp_oom__dry_run(void **state)
{
    (void)state;
    fail_all_of(plan_for_nobody);
    fail_all_of(plan_without_units);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_oom__a_hash_that_one_rank_cannot_make),
        cmocka_unit_test(test_fsdp_oom__dry_run),
        cmocka_unit_test(test_fsdp_oom__one_rank),
        cmocka_unit_test(test_fsdp_oom__two_ranks_together),
        cmocka_unit_test(test_fsdp_oom__one_rank_of_two),
        cmocka_unit_test(test_fsdp_oom__ranks_that_are_watched),
        cmocka_unit_test(test_fsdp_oom__slots_that_could_not_widen),
        cmocka_unit_test(test_fsdp_oom__a_reshard_is_seen_without_operands),
    };
    return cmocka_run_group_tests_name("fsdp oom", tests, NULL, NULL);
}
