/* Training takes no more memory at step 10,000 than at step 1,000, and gives all of it back. */
#include "tiny_gpt.h"

#include <unistd.h>

static int64_t resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(2, fscanf(f, "%ld %ld", &pages, &resident));
    fclose(f);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static void train(tiny_model *m, ms_optim *optim, int64_t from, int64_t to)
{
    double loss, norm;

    for (int64_t step = from; step < to; step++) {
        assert_ok(tiny_micro_step(m, step, &loss));
        assert_ok(tiny_clip(m, 1, &norm));
        assert_ok(ms_optim_step(optim));
        assert_ok(ms_optim_zero_grad(optim));
    }
}

static void test_fsdp_memory__is_flat_over_ten_thousand_steps(void **state)
{
    tiny_config config = tiny_defaults();
    ms_memory_stats before, early, late, after;
    ms_optim *optim;
    ms_comm *comm;
    tiny_model m;

    config.param_dtype = MS_DTYPE_BF16;
    config.reduce_dtype = MS_DTYPE_F32;
    config.optimizer = MS_OPTIM_ADAMW;
    ms_memory_stats_get(&before);
    assert_ok(ms_comm_self(&comm));
    assert_ok(tiny_new(&m, &config, comm));
    assert_ok(tiny_optim(&optim, &m, &config));
    train(&m, optim, 0, 2);
    int64_t primitives = ms_matmul_created();

    train(&m, optim, 2, 1000);
    ms_memory_stats_get(&early);
    int64_t rss_early = resident_bytes();

    train(&m, optim, 1000, 10000);
    ms_memory_stats_get(&late);
    int64_t rss_late = resident_bytes();

    print_message("resident %lld bytes at step 1,000, %lld at step 10,000\n", (long long)rss_early,
                  (long long)rss_late);
    assert_true(rss_late - rss_early <= 1 << 20);
    assert_int_equal(early.live_total, late.live_total);
    assert_int_equal(early.peak_total, late.peak_total);
    assert_int_equal(early.n_system, late.n_system);
    assert_int_equal(early.live_handles, late.live_handles);
    assert_int_equal(primitives, ms_matmul_created());
    ms_optim_free(optim);
    tiny_free(&m);
    ms_memory_stats_get(&after);
    assert_int_equal(before.live_total, after.live_total);
    assert_int_equal(before.live_handles, after.live_handles);
}

/* Between zero_grad and the next backward no reduced gradient holds memory, a script's own handle
 * keeps what it shows, and taking the memory again asks the system for nothing. */
static void test_fsdp_memory__gradients_set_to_none_give_their_memory_back(void **state)
{
    double kept_before[TINY_HIDDEN], kept_after[TINY_HIDDEN], loss;
    ms_memory_stats stats, warm = {0};
    ms_tensor *kept;
    ms_comm *comm;
    tiny_model m;

    for (int32_t strategy = MS_FSDP_FULL_SHARD; strategy <= MS_FSDP_NO_SHARD; strategy++) {
        tiny_config config = tiny_defaults();

        config.strategy = strategy;
        assert_ok(ms_comm_self(&comm));
        assert_ok(tiny_new(&m, &config, comm));
        for (int32_t step = 0; step < 4; step++) {
            assert_ok(tiny_micro_step(&m, step, &loss));
            ms_memory_stats_get(&stats);
            assert_true(stats.live[MS_MEM_GRADIENT] > 0);
            if (step == 1) {
                warm = stats;
            }
            assert_ok(ms_tensor_set_grad(m.embedding, NULL));
            for (int32_t i = 0; i < TINY_BLOCKS * TINY_BLOCK_PARAMS; i++) {
                ms_memory_stats_get(&stats);
                assert_true(stats.live[MS_MEM_GRADIENT] > 0);
                assert_ok(ms_tensor_set_grad(m.block[i / TINY_BLOCK_PARAMS][i % TINY_BLOCK_PARAMS],
                                             NULL));
            }
            ms_memory_stats_get(&stats);
            assert_int_equal(0, stats.live[MS_MEM_GRADIENT]);
            assert_true(step < 1 || stats.n_system == warm.n_system);
        }
        assert_ok(tiny_micro_step(&m, 0, &loss));
        assert_ok(ms_tensor_grad(&kept, m.block[0][3]));
        assert_ok(ms_tensor_to_doubles(kept, kept_before, TINY_HIDDEN));
        for (int32_t i = 0; i < TINY_BLOCK_PARAMS; i++) {
            assert_ok(ms_tensor_set_grad(m.block[0][i], NULL));
        }
        assert_ok(tiny_micro_step(&m, 1, &loss));
        assert_ok(ms_tensor_to_doubles(kept, kept_after, TINY_HIDDEN));
        assert_memory_equal(kept_before, kept_after, sizeof(kept_before));
        ms_tensor_free(kept);
        tiny_free(&m);
    }
}

/* A model that is still there when its context closes: everything is freed, later frees are safe.
 */
static void test_fsdp_memory__closing_the_context_first_is_safe(void **state)
{
    tiny_config config = tiny_defaults();
    ms_memory_stats stats;
    ms_comm *comm;
    tiny_model m;
    double loss;

    assert_ok(ms_comm_self(&comm));
    assert_ok(tiny_new(&m, &config, comm));
    assert_ok(tiny_micro_step(&m, 0, &loss));
    ms_close();
    tiny_free(&m);
    ms_memory_stats_get(&stats);
    assert_int_equal(0, stats.live_total);
    assert_int_equal(0, stats.live_handles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_memory__is_flat_over_ten_thousand_steps),
        cmocka_unit_test(test_fsdp_memory__gradients_set_to_none_give_their_memory_back),
        cmocka_unit_test(test_fsdp_memory__closing_the_context_first_is_safe),
    };
    return cmocka_run_group_tests_name("fsdp memory", tests, NULL, NULL);
}
