/* Sharding never changes the numbers (DESIGN 8): one hash per dtype and optimizer over worlds,
 * strategies, prefetch modes, slot counts and layouts. */
#include "tiny_gpt.h"

static const char *const strategy_names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"};

/* Computed in and reduced in. What is computed or reduced in f64 stays so until all ranks' parts
 * are one sum. */
static const struct {
    const char *name;
    int32_t optimizer, param_dtype, reduce_dtype;
} kinds[] = {
    {"f32 sgd", MS_OPTIM_SGD, MS_DTYPE_NONE, MS_DTYPE_NONE},
    {"f32 adamw", MS_OPTIM_ADAMW, MS_DTYPE_NONE, MS_DTYPE_NONE},
    {"bf16 sgd", MS_OPTIM_SGD, MS_DTYPE_BF16, MS_DTYPE_F32},
    {"bf16 adamw", MS_OPTIM_ADAMW, MS_DTYPE_BF16, MS_DTYPE_F32},
    {"bf16 reduced in bf16", MS_OPTIM_SGD, MS_DTYPE_BF16, MS_DTYPE_NONE},
    {"f32 reduced in f64", MS_OPTIM_SGD, MS_DTYPE_NONE, MS_DTYPE_F64},
    {"f64 over f32", MS_OPTIM_SGD, MS_DTYPE_F64, MS_DTYPE_F64},
};

static void test_fsdp_bitwise__is_equal_over_worlds_and_strategies(void **state)
{
    for (int32_t i = 0; i < MSI_COUNT(kinds) * 9; i++) {
        static tiny_result first;
        tiny_config config = tiny_defaults();
        tiny_result result;

        config.optimizer = kinds[i / 9].optimizer;
        config.param_dtype = kinds[i / 9].param_dtype;
        config.reduce_dtype = kinds[i / 9].reduce_dtype;
        config.world = 1 << i % 9 / 3;
        config.strategy = i % 3;
        assert_ok(tiny_train(&config, &result));
        if (i % 9 == 0) {
            first = result;
            assert_true(result.norm > config.max_norm); /* clipping was active */
        }
        if (result.hash != first.hash || result.norm != first.norm) {
            fail_msg("%s, W=%d, %s: hash %016llx, norm %.9g; expected %016llx, %.9g",
                     kinds[i / 9].name, (int)config.world, strategy_names[i % 3],
                     (unsigned long long)result.hash, result.norm, (unsigned long long)first.hash,
                     first.norm);
        }
    }
}

static void test_fsdp_bitwise__the_flat_layout_gives_the_same_parameters(void **state)
{
    tiny_config config = tiny_defaults();
    tiny_result aligned, flat;

    config.world = 2;
    assert_ok(tiny_train(&config, &aligned));
    config.flat = true;
    assert_ok(tiny_train(&config, &flat));
    assert_true(aligned.hash == flat.hash);
}

static void test_fsdp_bitwise__prefetch_and_slots_change_nothing(void **state)
{
    tiny_config config = tiny_defaults();
    tiny_result first, result;

    config.world = 2;
    assert_ok(tiny_train(&config, &first));
    for (int32_t prefetch = 0; prefetch < 3; prefetch++) {
        for (int32_t forward = 0; forward < 2; forward++) {
            for (int32_t slots = 2; slots <= 3; slots++) {
                config.prefetch = prefetch;
                config.forward_prefetch = forward;
                config.n_slots = slots;
                assert_ok(tiny_train(&config, &result));
                assert_true(result.hash == first.hash);
            }
        }
    }
}

static void test_fsdp_bitwise__reducing_every_backward_is_equal_over_strategies(void **state)
{
    tiny_config config = tiny_defaults();
    tiny_result first = {0}, result;

    config.each_backward_reduces = true;
    config.world = 2;
    for (int32_t s = 0; s < 3; s++) {
        config.strategy = s;
        assert_ok(tiny_train(&config, &result));
        first = s == 0 ? result : first;
        assert_true(result.hash == first.hash);
    }
}

/* Per step with one micro-batch a rank: the root gathers once and keeps; FULL_SHARD gathers each
 * block for forward and again for backward, SHARD_GRAD_OP once, NO_SHARD never; one reduction a
 * unit; clipping is one more all-reduce, unless everything is whole on every rank. */
static void test_fsdp_bitwise__collectives_are_those_of_the_strategy(void **state)
{
    static const int64_t expected[3][5] = {
        /* all-gather, reduce-scatter, all-reduce, broadcast, barrier */
        {1 + 2 * TINY_BLOCKS, 1 + TINY_BLOCKS, 1, 0, 0},
        {1 + TINY_BLOCKS, 1 + TINY_BLOCKS, 1, 0, 0},
        {0, 0, 1 + TINY_BLOCKS, 0, 0},
    };
    tiny_config config = tiny_defaults();
    tiny_result result;

    config.world = 2;
    config.micro_batches = 2;
    for (int32_t s = 0; s < 3; s++) {
        config.strategy = s;
        assert_ok(tiny_train(&config, &result));
        for (int32_t k = 0; k < 5; k++) {
            if (result.counts[k] != expected[s][k]) {
                fail_msg("%s: %lld collectives of kind %d, expected %lld", strategy_names[s],
                         (long long)result.counts[k], (int)k, (long long)expected[s][k]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_bitwise__is_equal_over_worlds_and_strategies),
        cmocka_unit_test(test_fsdp_bitwise__the_flat_layout_gives_the_same_parameters),
        cmocka_unit_test(test_fsdp_bitwise__prefetch_and_slots_change_nothing),
        cmocka_unit_test(test_fsdp_bitwise__reducing_every_backward_is_equal_over_strategies),
        cmocka_unit_test(test_fsdp_bitwise__collectives_are_those_of_the_strategy),
    };
    return cmocka_run_group_tests_name("fsdp bitwise", tests, NULL, NULL);
}
