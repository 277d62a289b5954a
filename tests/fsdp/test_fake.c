/* A model that is sharded over a fake group holds what it would on that rank of a real one. */
#include "rank_test.h"
#include "tiny_gpt.h"

enum { MOST = 4, N_STRATEGIES = 3, N_DTYPES = 4, N_MICRO = 2 };

typedef struct run {
    const tiny_config *config;
    int32_t rank; /* of a fake group */
    tiny_result result[MOST];
} run;

static ms_status train_among_others(void *user, int32_t rank)
{
    run *r = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    return tiny_train_in(world, r->config, &r->result[rank], NULL, NULL);
}

/* In a context of its own, as a real rank is. */
static ms_status train_alone(void *user, int32_t rank)
{
    run *r = user;
    ms_comm *fake;

    MS_TRY(ms_comm_fake(&fake, r->rank, r->config->world));
    ms_status status = tiny_train_in(fake, r->config, &r->result[0], NULL, NULL);

    EXPECT(ms_comm_wait_seconds(fake) == 0);
    ms_comm_free(fake);
    return status;
}

static void expect(const tiny_config *c, int32_t rank, const char *what, int64_t real, int64_t fake)
{
    if (real != fake) {
        fail_msg("%s: rank %d of %d counts %lld, a fake one %lld (strategy %d, %s reduced in %s, "
                 "%d micro-batches%s)",
                 what, (int)rank, (int)c->world, (long long)real, (long long)fake, (int)c->strategy,
                 ms_dtype_name(c->param_dtype), ms_dtype_name(c->reduce_dtype),
                 (int)c->micro_batches, c->each_backward_reduces ? ", each reduced" : "");
    }
}

static void compare(const tiny_config *c)
{
    static const char *const kinds[MS_MEM_KINDS] = {
        [MS_MEM_PARAMETER] = "parameters", [MS_MEM_GRADIENT] = "gradients",
        [MS_MEM_OPTIMIZER] = "optimizer",  [MS_MEM_ACTIVATION] = "activations",
        [MS_MEM_ARENA] = "arena",          [MS_MEM_SCRATCH] = "scratch",
    };
    run real = {.config = c};

    assert_ok(ms_dist_threads(c->world, train_among_others, &real));
    for (int32_t q = 0; q < c->world; q++) {
        run fake = {.config = c, .rank = q};
        const ms_memory_stats *a = &real.result[q].memory, *b = &fake.result[0].memory;

        assert_ok(ms_dist_threads(1, train_alone, &fake));
        for (int32_t k = 0; k < MS_MEM_KINDS; k++) {
            expect(c, q, kinds[k], a->peak[k], b->peak[k]);
            expect(c, q, kinds[k], a->live[k], b->live[k]);
        }
        expect(c, q, "all", a->peak_total, b->peak_total);
        for (int32_t k = 0; k < 5; k++) {
            expect(c, q, "collectives", real.result[q].counts[k], fake.result[0].counts[k]);
        }
    }
}

static void compare_all(int32_t world)
{
    static const int32_t dtypes[N_DTYPES][2] = {{MS_DTYPE_NONE, MS_DTYPE_NONE},
                                                {MS_DTYPE_BF16, MS_DTYPE_F32},
                                                {MS_DTYPE_BF16, MS_DTYPE_BF16},
                                                {MS_DTYPE_NONE, MS_DTYPE_F64}};

    for (int32_t i = 0; i < N_STRATEGIES * N_DTYPES * N_MICRO * 2; i++) {
        const int32_t *dtype = dtypes[i / N_STRATEGIES % N_DTYPES];
        const int32_t each = i / (N_STRATEGIES * N_DTYPES) % N_MICRO == 0 ? 1 : 4;
        tiny_config c = tiny_defaults();

        c.world = world;
        c.steps = 3;
        c.strategy = i % N_STRATEGIES;
        c.param_dtype = dtype[0];
        c.reduce_dtype = dtype[1];
        c.micro_batches = each * world;
        c.each_backward_reduces = i >= N_STRATEGIES * N_DTYPES * N_MICRO;
        c.forward_prefetch = i % 2 == 0;
        c.optimizer = i % 2 == 0 ? MS_OPTIM_ADAMW : MS_OPTIM_SGD;
        compare(&c);
    }
}

static void test_fsdp_fake__holds_what_each_rank_holds(void **state)
{
    compare_all(2);
    compare_all(4);
}

/* The mean of equal gradients is that gradient: replicas step as one rank alone does. */
static void test_fsdp_fake__averages_what_all_would_bring(void **state)
{
    tiny_config alone = tiny_defaults(), among = alone;
    tiny_result expected;
    run r = {.config = &among, .rank = 0};

    alone.steps = among.steps = 1; /* rank 0's first micro-batch */
    alone.each_backward_reduces = among.each_backward_reduces = true;
    alone.strategy = among.strategy = MS_FSDP_NO_SHARD;
    alone.micro_batches = 1;
    among.micro_batches = among.world = 4;
    assert_ok(tiny_train(&alone, &expected));
    assert_ok(ms_dist_threads(1, train_alone, &r));
    assert_int_equal(r.result[0].hash, expected.hash);
    assert_true(r.result[0].norm == expected.norm);
}

/* Of a world that no host could be: the arena is counted whole, and little of it taken. */
static void test_fsdp_fake__steps_in_a_world_of_any_size(void **state)
{
    for (int32_t strategy = 0; strategy < N_STRATEGIES; strategy++) {
        tiny_config c = tiny_defaults();
        run r = {.config = &c, .rank = 5000};

        c.world = c.micro_batches = 16384;
        c.steps = 2;
        c.strategy = strategy;
        c.param_dtype = MS_DTYPE_BF16;
        assert_ok(ms_dist_threads(1, train_alone, &r));
        assert_true(r.result[0].memory.live[MS_MEM_ARENA] > (int64_t)c.world * 3 * 4096);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_fake__holds_what_each_rank_holds),
        cmocka_unit_test(test_fsdp_fake__averages_what_all_would_bring),
        cmocka_unit_test(test_fsdp_fake__steps_in_a_world_of_any_size),
    };

    return cmocka_run_group_tests_name("fsdp/fake", tests, NULL, NULL);
}
