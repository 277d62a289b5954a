/* runtime/fsdp/param_group: what the handles of parameters show, and a graph without its model. */
#include "rank_test.h"
#include "tiny_gpt.h"

static tiny_model model;

static void open_model(int32_t strategy)
{
    tiny_config config = tiny_defaults();
    ms_comm *comm;

    config.strategy = strategy;
    ms_seed(7);
    assert_ok(ms_comm_self(&comm));
    assert_ok(tiny_new(&model, &config, comm));
}

static ms_tensor_info info_of(const ms_tensor *t)
{
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(t, &info));
    return info;
}

static void test_fsdp_unit__handles_show_shards_and_full_parameters(void **state)
{
    ms_tensor *weight;

    open_model(MS_FSDP_FULL_SHARD);
    weight = model.block[0][2];
    assert_int_equal(1, info_of(weight).ndim); /* sharded: 1-D */
    assert_int_equal(TINY_HIDDEN * TINY_WIDTH, info_of(weight).numel);
    assert_ok(ms_fsdp_unit_unshard(model.unit[0]));
    assert_int_equal(2, info_of(weight).ndim);
    assert_int_equal(TINY_HIDDEN, info_of(weight).shape[0]);
    assert_true(info_of(weight).readonly);
    assert_ok(ms_fsdp_unit_unshard(model.unit[0])); /* a second unshard does nothing */
    assert_ok(ms_fsdp_unit_reshard(model.unit[0]));
    assert_int_equal(1, info_of(weight).ndim);
    tiny_free(&model);
}

static void test_fsdp_unit__writing_into_unsharded_parameters_is_refused(void **state)
{
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(ms_fsdp_unit_unshard(model.unit[0]));
    assert_fails(MS_RUNTIME_ERROR, "summon_full_params", ms_tensor_fill(model.block[0][2], 1));
    assert_ok(ms_fsdp_unit_reshard(model.unit[0]));
    assert_ok(ms_tensor_fill(model.block[0][2], 1)); /* the shard is this rank's own */
    tiny_free(&model);
}

static void test_fsdp_unit__a_graph_outlives_its_model(void **state)
{
    ms_tensor *ids, *targets, *loss;

    assert_ok(ms_scope_open("graphs"));
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(tiny_batch(0, &ids, &targets));
    for (int32_t i = 0; i < 2; i++) {
        assert_ok(tiny_forward(&model, ids, targets, &loss));
    }
    tiny_free(&model);
    assert_fails(MS_RUNTIME_ERROR, "the sharded model that made this result was freed",
                 ms_backward(loss, NULL));
    assert_ok(ms_scope_close(NULL, 0)); /* the other graph dies without a backward */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_unit__handles_show_shards_and_full_parameters),
        cmocka_unit_test(test_fsdp_unit__writing_into_unsharded_parameters_is_refused),
        cmocka_unit_test(test_fsdp_unit__a_graph_outlives_its_model),
    };
    return cmocka_run_group_tests_name("fsdp unit", tests, NULL, NULL);
}
