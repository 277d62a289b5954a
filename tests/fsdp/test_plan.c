/* runtime/fsdp/plan: what it says before training is what the allocator counts in it. */
#include "tiny_gpt.h"

enum { N_STRATEGIES = 3, N_DTYPES = 4, N_FROZEN = 4, N_STEPS = 7 };

typedef enum frozen_part { FROZEN_NONE, FROZEN_UNIT, FROZEN_ROOT, FROZEN_PARTS } frozen_part;

static const char *const frozen_names[N_FROZEN] = {"nothing", "a block", "the root",
                                                   "parts of blocks"};

/* Some of them whole, some in parts. */
static ms_status freeze(const tiny_model *m, frozen_part part)
{
    if (part == FROZEN_ROOT) {
        return ms_tensor_set_requires_grad(m->embedding, false);
    }
    for (int32_t b = 0; b < TINY_BLOCKS; b++) {
        for (int32_t i = 0; i < TINY_BLOCK_PARAMS; i++) {
            if ((part == FROZEN_UNIT && b == 1) || (part == FROZEN_PARTS && (b + i) % 3 == 0)) {
                MS_TRY(ms_tensor_set_requires_grad(m->block[b][i], false));
            }
        }
    }
    return MS_OK;
}

typedef struct setup {
    tiny_config config;
    frozen_part frozen;
    int32_t micro_batches; /* of one rank */
} setup;

static ms_status expect(const setup *s, const char *what, int64_t planned, int64_t counted)
{
    return planned == counted
               ? MS_OK
               : msi_fail(
                     MS_ASSERTION_ERROR,
                     "%s: planned %lld, counted %lld (%d ranks, strategy %d, %s reduced in %s, "
                     "%d micro-batches, %s frozen)",
                     what, (long long)planned, (long long)counted, (int)s->config.world,
                     (int)s->config.strategy, ms_dtype_name(s->config.param_dtype),
                     ms_dtype_name(s->config.reduce_dtype), (int)s->micro_batches,
                     frozen_names[s->frozen]);
}

/* Two steps, as the first makes the optimizer's states. */
static ms_status train(const setup *s, tiny_model *m, ms_optim *optim)
{
    double loss;

    for (int32_t k = 0; k < 2 * s->micro_batches; k++) {
        const bool last = (k + 1) % s->micro_batches == 0;

        MS_TRY(ms_fsdp_tree_set_sync(m->tree, last));
        MS_TRY(tiny_micro_step(m, k, &loss));
        if (last) {
            MS_TRY(ms_optim_step(optim));
            MS_TRY(ms_optim_zero_grad(optim));
        }
    }
    return MS_OK;
}

/* Both, but what takes asking. */
static ms_status expect_same(const setup *s, const ms_fsdp_plan *a, const ms_fsdp_plan *b)
{
    MS_TRY(expect(s, "masters", a->masters, b->masters));
    MS_TRY(expect(s, "gradients", a->gradients, b->gradients));
    MS_TRY(expect(s, "a state", a->per_state, b->per_state));
    MS_TRY(expect(s, "arena", a->arena, b->arena));
    MS_TRY(expect(s, "slots for parameters", a->param_slots, b->param_slots));
    MS_TRY(expect(s, "slots of its own", a->own_slots, b->own_slots));
    MS_TRY(expect(s, "slots for gradients", a->gradient_slots, b->gradient_slots));
    MS_TRY(expect(s, "gradients of its own", a->own_gradients, b->own_gradients));
    MS_TRY(expect(s, "bytes gathered", a->gathered, b->gathered));
    return expect(s, "bytes reduced", a->reduced, b->reduced);
}

/* All-gathers of a step. */
static int64_t planned_gathers(const setup *s, const tiny_model *m)
{
    int64_t n = 0;

    for (int32_t b = -1; b < TINY_BLOCKS; b++) {
        const msi_group_facts facts = msi_unit_facts(b < 0 ? m->root : m->unit[b]);

        n += msi_plan_gathers(&facts, s->micro_batches);
    }
    return n;
}

/* The same from what units tell of themselves. */
static ms_status plan_groups(const setup *s, const tiny_model *m, ms_comm *comm, ms_fsdp_plan *plan)
{
    ms_fsdp_group groups[1 + TINY_BLOCKS];
    ms_fsdp_tree_options options;

    for (int32_t i = 0; i <= TINY_BLOCKS; i++) {
        MS_TRY(ms_fsdp_unit_describe(i == 0 ? m->root : m->unit[i - 1], &groups[i]));
    }
    ms_fsdp_tree_options_init(&options, sizeof(options));
    options.forward_prefetch = s->config.forward_prefetch;
    options.n_slots = s->config.n_slots;
    return ms_fsdp_dry_run(plan, comm, &options, groups, 1 + TINY_BLOCKS, s->micro_batches);
}

static ms_status compare(void *user, int32_t rank)
{
    const setup *s = user;
    ms_memory_stats stats;
    ms_fsdp_plan plan, before, of_groups;
    int64_t counts[5];
    ms_optim *optim = NULL;
    ms_comm *comm;
    ms_status status;
    tiny_model m;

    MS_TRY(ms_comm_world(&comm));
    MS_TRY_GOTO(tiny_declare(&m, &s->config, comm), done);
    MS_TRY_GOTO(freeze(&m, s->frozen), done);
    MS_TRY_GOTO(ms_fsdp_tree_dry_run(m.tree, s->micro_batches, &before), done);
    MS_TRY_GOTO(plan_groups(s, &m, comm, &of_groups), done);
    MS_TRY_GOTO(expect_same(s, &before, &of_groups), done);
    ms_memory_stats_get(&stats);
    MS_TRY_GOTO(expect(s, "memory of a dry run", 0, stats.peak_total), done);
    MS_TRY_GOTO(ms_fsdp_tree_plan_get(m.tree, s->micro_batches, &plan), done);
    MS_TRY_GOTO(expect_same(s, &before, &plan), done);
    MS_TRY_GOTO(tiny_optim(&optim, &m, &s->config), done);
    ms_memory_reset_peak();
    MS_TRY_GOTO(train(s, &m, optim), done);
    ms_memory_stats_get(&stats);
    MS_TRY_GOTO(expect(s, "gradients", plan.gradients, stats.peak[MS_MEM_GRADIENT]), done);
    MS_TRY_GOTO(expect(s, "gradients in the end", 0, stats.live[MS_MEM_GRADIENT]), done);
    MS_TRY_GOTO(expect(s, "masters", plan.masters, stats.live[MS_MEM_PARAMETER]), done);
    MS_TRY_GOTO(expect(s, "optimizer",
                       (s->config.optimizer == MS_OPTIM_ADAMW ? 2 : 1) * plan.per_state,
                       stats.live[MS_MEM_OPTIMIZER]),
                done);
    MS_TRY_GOTO(expect(s, "arena", plan.arena, stats.live[MS_MEM_ARENA]), done);
    MS_TRY_GOTO(expect(s, "arena at most", plan.arena, stats.peak[MS_MEM_ARENA]), done);
    ms_comm_counts(comm, counts);
    MS_TRY_GOTO(expect(s, "all-gathers", 2 * planned_gathers(s, &m), counts[0]), done);
done:
    ms_optim_free(optim);
    tiny_free(&m);
    return status;
}

static void compare_all(int32_t world)
{
    static const int32_t dtypes[N_DTYPES][2] = {{MS_DTYPE_NONE, MS_DTYPE_NONE},
                                                {MS_DTYPE_BF16, MS_DTYPE_F32},
                                                {MS_DTYPE_BF16, MS_DTYPE_BF16},
                                                {MS_DTYPE_NONE, MS_DTYPE_F64}};
    static const int32_t micro_batches[N_STEPS] = {1, 2, 3, 4, 7, 8, 9};

    for (int32_t i = 0; i < N_STRATEGIES * N_DTYPES * N_FROZEN * N_STEPS; i += SANITIZED ? 5 : 1) {
        const int32_t *dtype = dtypes[i / N_STRATEGIES % N_DTYPES];
        setup s = {.config = tiny_defaults(),
                   .frozen = i / (N_STRATEGIES * N_DTYPES) % N_FROZEN,
                   .micro_batches = micro_batches[i / (N_STRATEGIES * N_DTYPES * N_FROZEN)]};

        s.config.world = world;
        s.config.strategy = i % N_STRATEGIES;
        s.config.param_dtype = dtype[0];
        s.config.reduce_dtype = dtype[1];
        s.config.optimizer = i % 2 == 0 ? MS_OPTIM_ADAMW : MS_OPTIM_SGD;
        assert_ok(ms_dist_threads(world, compare, &s));
    }
}

static void test_fsdp_plan__is_what_each_rank_counts(void **state)
{
    for (int32_t world = 1; world <= 3; world++) {
        compare_all(world);
    }
}

/* Those of 2^j - 1 and its neighbours are what the plan looks at: all others hold no more. */
static void test_fsdp_plan__holds_for_every_number_of_micro_batches(void **state)
{
    for (int32_t m = 1; m <= 40; m++) {
        setup s = {.config = tiny_defaults(), .micro_batches = m};

        assert_ok(ms_dist_threads(1, compare, &s));
        s.config.param_dtype = s.config.reduce_dtype = MS_DTYPE_BF16;
        assert_ok(ms_dist_threads(1, compare, &s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_plan__is_what_each_rank_counts),
        cmocka_unit_test(test_fsdp_plan__holds_for_every_number_of_micro_batches),
    };
    return cmocka_run_group_tests_name("fsdp/plan", tests, NULL, NULL);
}
