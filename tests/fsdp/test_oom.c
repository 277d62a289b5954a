/* Allocation k of every call of a training program fails, for every k; or k and all after it, until
 * the call has returned its error. The program then makes the same call again, and ends with the
 * bits of one that never failed.
 *
 * Ranks that fail together go on. Where one rank fails alone, the job ends on all ranks with an
 * error, or with the right bits, in time. */
#include "rank_test.h"
#include "tiny_gpt.h"

#include <errno.h>

/* -- what fails -------------------------------------------------------------------------------- */

static _Thread_local struct {
    int64_t left; /* allocations until one fails; -1: none does */
    bool lasting, happened;
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

/* -- the program ------------------------------------------------------------------------------- */

enum { STEPS = 2, MAX_WORLD = 2 };

typedef struct job {
    tiny_config config;
    bool victim[MAX_WORLD], lasting;
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

static ms_status gradients(trainee *s)
{
    const int32_t mine = s->config->micro_batches / s->config->world;
    double loss;

    for (int32_t k = 0; k < mine; k++) {
        MS_TRY(ms_fsdp_tree_set_sync(s->model.tree, k == mine - 1));
        MS_TRY(tiny_micro_step(
            &s->model, (int64_t)s->step * s->config->micro_batches + s->rank * mine + k, &loss));
    }
    return MS_OK;
}

static ms_status clip(trainee *s)
{
    ms_tensor *norm;

    MS_TRY(ms_fsdp_tree_clip_grad_norm(&norm, s->model.tree, NULL, 0, 0.5, 2, false));
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
    MS_TRY(ms_fsdp_tree_summon(s->model.tree, false));
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
    status = train(&s);
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

static tally fail_everywhere(tiny_config config, bool together, int64_t stride)
{
    job j = {.config = config, .call = -1};
    tally t = {0};

    j.victim[config.world - 1] = true;
    j.victim[0] = config.world == 1 || together;
    assert_ok(ms_dist_threads(config.world, run_rank, &j));
    const int32_t n_calls = j.n_calls[config.world - 1];
    const uint64_t expected = j.hash[0];

    for (int32_t mode = 0; mode < 2; mode++) {
        j.lasting = mode == 1;
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
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        tally t = fail_everywhere(config_of(1, s), true, stride_or(1));

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
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        check_most_go_on(fail_everywhere(config_of(2, s), true, stride_or(2)));
    }
}

static void test_fsdp_oom__one_rank_of_two(void **state)
{
    for (int32_t s = MS_FSDP_FULL_SHARD; s <= MS_FSDP_NO_SHARD; s++) {
        tally t = fail_everywhere(config_of(2, s), false, stride_or(3));

        assert_true(t.went_on > 0 && t.ended > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_oom__one_rank),
        cmocka_unit_test(test_fsdp_oom__two_ranks_together),
        cmocka_unit_test(test_fsdp_oom__one_rank_of_two),
    };
    return cmocka_run_group_tests_name("fsdp oom", tests, NULL, NULL);
}
