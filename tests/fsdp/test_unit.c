/* runtime/fsdp/param_group, schedule: what handles show when, refusals, summon, gather, load.
 */
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

    (void)state;
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

static void test_fsdp_unit__no_shard_keeps_the_original_shapes(void **state)
{
    (void)state;
    open_model(MS_FSDP_NO_SHARD);
    assert_int_equal(2, info_of(model.block[0][2]).ndim);
    assert_int_equal(TINY_HIDDEN, info_of(model.block[0][2]).shape[0]);
    tiny_free(&model);
}

static void test_fsdp_unit__writing_into_unsharded_parameters_is_refused(void **state)
{
    (void)state;
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(ms_fsdp_unit_unshard(model.unit[0]));
    assert_fails(MS_RUNTIME_ERROR, "summon_full_params", ms_tensor_fill(model.block[0][2], 1));
    assert_ok(ms_fsdp_unit_reshard(model.unit[0]));
    assert_ok(ms_tensor_fill(model.block[0][2], 1)); /* the shard is this rank's own */
    tiny_free(&model);
}

static void test_fsdp_unit__summon_gives_full_values_and_writes_back(void **state)
{
    ms_tensor *full;
    double v[TINY_HIDDEN];

    (void)state;
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(ms_fsdp_tree_summon(model.tree));
    assert_int_equal(2, info_of(model.block[1][2]).ndim);
    assert_fails(MS_ASSERTION_ERROR, "already unsharding", ms_fsdp_tree_summon(model.tree));
    assert_fails(MS_ASSERTION_ERROR, "gather inside summon_full_params",
                 ms_fsdp_unit_gather(&full, model.unit[1], 3));
    assert_ok(ms_tensor_fill(model.block[1][3], 2.5));
    assert_ok(ms_tensor_fill(model.block[1][1], -1));
    assert_ok(ms_fsdp_tree_unsummon(model.tree, true));
    assert_ok(ms_fsdp_unit_gather(&full, model.unit[1], 3));
    assert_ok(ms_tensor_to_doubles(full, v, TINY_HIDDEN));
    assert_true(v[0] == 2.5 && v[TINY_HIDDEN - 1] == 2.5);
    ms_tensor_free(full);
    assert_ok(ms_fsdp_tree_summon(model.tree));
    assert_ok(ms_tensor_fill(model.block[1][3], 9));
    assert_ok(ms_fsdp_tree_unsummon(model.tree, false)); /* no writeback: the edit is gone */
    assert_ok(ms_fsdp_unit_gather(&full, model.unit[1], 3));
    assert_ok(ms_tensor_to_doubles(full, v, TINY_HIDDEN));
    assert_true(v[0] == 2.5);
    ms_tensor_free(full);
    assert_ok(ms_fsdp_tree_summon(model.tree));
    ms_tensor *weight = ms_tensor_retain(model.block[1][2]);

    tiny_free(&model); /* the shards are what is left */
    assert_int_equal(1, info_of(weight).ndim);
    assert_ok(ms_tensor_fill(weight, 1));
    ms_tensor_free(weight);
}

static void test_fsdp_unit__gather_and_load_round_trip(void **state)
{
    const int64_t shape[2] = {TINY_HIDDEN, TINY_WIDTH}, wrong[2] = {TINY_WIDTH, TINY_HIDDEN};
    ms_tensor *source, *full, *bad;
    double in[TINY_HIDDEN * TINY_WIDTH], out[TINY_HIDDEN * TINY_WIDTH];

    (void)state;
    open_model(MS_FSDP_FULL_SHARD);
    for (int32_t i = 0; i < TINY_HIDDEN * TINY_WIDTH; i++) {
        in[i] = (float)filler(3, i);
    }
    assert_ok(ms_tensor_from_doubles(&source, MS_DTYPE_F32, 2, shape, in, MSI_COUNT(in)));
    assert_ok(ms_fsdp_unit_load(model.unit[2], 2, source));
    assert_ok(ms_fsdp_unit_gather(&full, model.unit[2], 2));
    assert_ok(ms_tensor_to_doubles(full, out, MSI_COUNT(out)));
    assert_memory_equal(in, out, sizeof(in));
    assert_ok(ms_tensor_full(&bad, MS_DTYPE_F32, 2, wrong, 0));
    assert_fails(MS_VALUE_ERROR, "'h.2.fc.weight' has shape (9, 6), got (6, 9)",
                 ms_fsdp_unit_load(model.unit[2], 2, bad));
    assert_fails(MS_INDEX_ERROR, "has 6 parameters, got index 6",
                 ms_fsdp_unit_gather(&full, model.unit[2], 6));
    ms_tensor_free(source);
    ms_tensor_free(bad);
    tiny_free(&model);
}

static void test_fsdp_unit__refuses_what_cannot_be_flattened(void **state)
{
    const int64_t shape[1] = {3};
    const char *names[2] = {"a", "b"};
    ms_tensor *params[2], *scalar;
    ms_fsdp_unit *unit;
    ms_comm *comm;

    (void)state;
    assert_ok(ms_comm_self(&comm));
    assert_ok(ms_tensor_parameter(&params[0], MS_DTYPE_F32, 1, shape, MS_INIT_CONSTANT, 1, 0));
    assert_ok(ms_tensor_parameter(&params[1], MS_DTYPE_F64, 1, shape, MS_INIT_CONSTANT, 1, 0));
    assert_ok(ms_tensor_parameter(&scalar, MS_DTYPE_F32, 0, NULL, MS_INIT_CONSTANT, 1, 0));
    assert_fails(MS_VALUE_ERROR, "Must flatten tensors with uniform dtype but got f32 and f64",
                 ms_fsdp_unit_new(&unit, comm, "u", NULL, params, 2, names));
    assert_null(unit);
    assert_fails(MS_VALUE_ERROR, "FSDP doesn't support scalar parameters. Change a to a 1D tensor",
                 ms_fsdp_unit_new(&unit, comm, "u", NULL, &scalar, 1, names));
    assert_fails(MS_VALUE_ERROR, "has no parameters",
                 ms_fsdp_unit_new(&unit, comm, "u", NULL, params, 0, names));
    assert_ok(ms_fsdp_unit_new(&unit, comm, "u", NULL, params, 1, names));
    ms_fsdp_unit *second;

    assert_string_equal("u", ms_fsdp_unit_name(unit));
    assert_fails(MS_VALUE_ERROR, "is in unit 'u' already",
                 ms_fsdp_unit_new(&second, comm, "v", NULL, params, 1, names));
    ms_fsdp_unit_free(unit);
    ms_tensor_free(params[0]);
    ms_tensor_free(params[1]);
    ms_tensor_free(scalar);
}

static void test_fsdp_unit__a_step_between_forward_and_backward_is_an_error(void **state)
{
    ms_tensor *ids, *targets, *loss;

    (void)state;
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(tiny_batch(0, &ids, &targets));
    assert_ok(ms_scope_open("test"));
    assert_ok(tiny_forward(&model, ids, targets, &loss));
    assert_ok(ms_param_touch(model.block[1][2])); /* what an optimizer's step does */
    assert_fails(MS_RUNTIME_ERROR, "", ms_backward(loss, NULL));
    assert_ok(ms_scope_close(NULL, 0));
    assert_int_equal(1, info_of(model.block[1][2]).ndim); /* everything is sharded again */
    double value;

    assert_ok(tiny_micro_step(&model, 0, &value)); /* and training goes on */
    ms_tensor_free(ids);
    ms_tensor_free(targets);
    tiny_free(&model);
}

/* The hash of the first values is that of a model of any other world: they depend on names only. */
static ms_status hash_initial(void *user, int32_t rank)
{
    tiny_config config = tiny_defaults();
    uint64_t *hash = user;
    ms_comm *comm;
    tiny_model m;

    ms_seed(11);
    MS_TRY(ms_comm_world(&comm));
    MS_TRY(tiny_new(&m, &config, comm));
    MS_TRY(ms_fsdp_tree_hash(m.tree, NULL, 0, &hash[rank]));
    tiny_free(&m);
    return MS_OK;
}

static void test_fsdp_unit__a_graph_outlives_its_model(void **state)
{
    ms_tensor *ids, *targets, *loss;

    (void)state;
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

/* A collector may free the model in the middle of its backward. */
static ms_status free_the_model(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    (void)grad;
    (void)replacement;
    if (model.tree != NULL) {
        ms_fsdp_tree_free(model.tree);
        model.tree = NULL;
    }
    ++*(int32_t *)user;
    return MS_OK;
}

static void test_fsdp_unit__a_model_freed_in_its_backward_goes_afterwards(void **state)
{
    ms_tensor *ids, *targets, *loss;
    ms_memory_stats before, after;
    int32_t calls = 0;

    (void)state;
    ms_memory_stats_get(&before);
    assert_ok(ms_scope_open("graph"));
    open_model(MS_FSDP_FULL_SHARD);
    assert_ok(tiny_batch(0, &ids, &targets));
    assert_ok(tiny_forward(&model, ids, targets, &loss));
    assert_ok(ms_tensor_hook(loss, free_the_model, &calls, NULL, NULL));
    assert_ok(ms_backward(loss, NULL));
    assert_int_equal(1, calls);
    assert_ok(ms_scope_close(NULL, 0));
    tiny_free(&model);
    open_model(MS_FSDP_FULL_SHARD); /* sweeps up */
    tiny_free(&model);
    ms_memory_stats_get(&after);
    for (int32_t kind = 0; kind <= MS_MEM_ARENA; kind++) {
        assert_int_equal(before.live[kind], after.live[kind]);
    }
}

static void test_fsdp_unit__first_values_do_not_depend_on_the_world(void **state)
{
    uint64_t one[4], three[4];

    (void)state;
    assert_ok(ms_dist_threads(1, hash_initial, one));
    assert_ok(ms_dist_threads(3, hash_initial, three));
    assert_true(one[0] == three[0] && three[0] == three[1] && three[1] == three[2]);
}

/* Rank 1 wraps with another strategy: an error on both that names the unit. */
static ms_status wrap_differently(void *user, int32_t rank)
{
    tiny_config config = tiny_defaults();
    char(*messages)[512] = user;
    ms_comm *comm;
    tiny_model m;

    config.strategy = rank == 1 ? MS_FSDP_SHARD_GRAD_OP : MS_FSDP_FULL_SHARD;
    MS_TRY(ms_comm_world(&comm));
    ms_status status = tiny_new(&m, &config, comm);

    snprintf(messages[rank], sizeof(messages[rank]), "%s", ms_error_message());
    tiny_free(&m);
    return status == MS_COMM_ERROR ? MS_OK : msi_fail(MS_RUNTIME_ERROR, "status %d", (int)status);
}

static void test_fsdp_unit__ranks_that_wrap_differently_are_told_where(void **state)
{
    char messages[2][512] = {"", ""};

    (void)state;
    assert_ok(ms_dist_threads(2, wrap_differently, messages));
    assert_non_null(strstr(messages[0], "unit 0 is 'root' ("));
    assert_non_null(strstr(messages[0], "FULL_SHARD, dtypes f32/f32/f32) on rank 0 and 'root' ("));
    assert_non_null(strstr(messages[0], "SHARD_GRAD_OP, dtypes f32/f32/f32) on rank 1"));
    assert_string_equal(messages[0], messages[1]);
}

static void test_fsdp_tree__has_no_unit_of_the_root_without_units(void **state)
{
    ms_fsdp_tree *tree;
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    assert_fails(MS_VALUE_ERROR, "root_has_unit is true for a tree of 0 units",
                 ms_fsdp_tree_new(&tree, self, NULL, NULL, 0, true));
    assert_null(tree);
    assert_ok(ms_fsdp_tree_new(&tree, self, NULL, NULL, 0, false));
    ms_fsdp_tree_free(tree);
}

static void test_fsdp_tree__refuses_a_unit_that_is_listed_twice(void **state)
{
    const int64_t n = 4;
    const char *const name = "weight";
    ms_fsdp_unit *unit, *twice[2];
    ms_fsdp_tree *tree;
    ms_tensor *t;
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    assert_ok(ms_tensor_parameter(&t, MS_DTYPE_F32, 1, &n, MS_INIT_CONSTANT, 1, 0));
    assert_ok(ms_fsdp_unit_new(&unit, self, "u", NULL, &t, 1, &name));
    twice[0] = twice[1] = unit;
    assert_fails(MS_VALUE_ERROR, "unit 'u' is listed twice",
                 ms_fsdp_tree_new(&tree, self, NULL, twice, 2, false));
    assert_ok(ms_fsdp_tree_new(&tree, self, NULL, twice, 1, false));
    ms_fsdp_tree_free(tree);
    ms_tensor_free(t);
}

/* One unit of a parameter (8, 8) of ones. */
static ms_status unit_of_ones(ms_fsdp_unit **unit, ms_comm *comm, ms_tensor **t)
{
    const int64_t shape[2] = {8, 8};
    const char *const name = "weight";

    MS_TRY(ms_tensor_parameter(t, MS_DTYPE_F32, 2, shape, MS_INIT_CONSTANT, 1, 0));
    return ms_fsdp_unit_new(unit, comm, "u", NULL, t, 1, &name);
}

static ms_status gather_without_a_tree(void *user, int32_t rank)
{
    ms_tensor *t, *one, *all;
    ms_fsdp_unit *unit;
    double values[64];
    int64_t offset;
    ms_comm *world;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(unit_of_ones(&unit, world, &t));
    MS_TRY(ms_fsdp_unit_gather(&one, unit, 0));
    MS_TRY(ms_fsdp_unit_gather_all(&all, unit, &offset));
    MS_TRY(ms_tensor_to_doubles(all, values, 64));
    EXPECT(offset == 0);
    for (int32_t i = 0; i < 64; i++) {
        EXPECT(values[i] == 1);
    }
    ms_tensor_free(one);
    ms_tensor_free(all);
    ms_fsdp_unit_free(unit);
    ms_tensor_free(t);
    return MS_OK;
}

static void test_fsdp_unit__is_gathered_without_a_tree(void **state)
{
    (void)state;
    assert_ok(ms_dist_threads(2, gather_without_a_tree, NULL));
}

static ms_status tree_of_another_group(void *user, int32_t rank)
{
    ms_comm *world, *self;
    ms_fsdp_unit *unit;
    ms_fsdp_tree *tree;
    ms_tensor *t;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_self(&self));
    MS_TRY(unit_of_ones(&unit, world, &t));
    EXPECT(ms_fsdp_tree_new(&tree, self, NULL, &unit, 1, false) == MS_VALUE_ERROR);
    EXPECT(strstr(ms_error_message(), "unit 'u' is sharded over another group (2 ranks) than the "
                                      "tree's (1 ranks)") != NULL);
    MS_TRY(ms_fsdp_tree_new(&tree, world, NULL, &unit, 1, false));
    ms_fsdp_tree_free(tree);
    ms_tensor_free(t);
    return MS_OK;
}

static void test_fsdp_tree__refuses_units_of_another_group(void **state)
{
    (void)state;
    assert_ok(ms_dist_threads(2, tree_of_another_group, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_unit__handles_show_shards_and_full_parameters),
        cmocka_unit_test(test_fsdp_unit__no_shard_keeps_the_original_shapes),
        cmocka_unit_test(test_fsdp_unit__writing_into_unsharded_parameters_is_refused),
        cmocka_unit_test(test_fsdp_unit__summon_gives_full_values_and_writes_back),
        cmocka_unit_test(test_fsdp_unit__gather_and_load_round_trip),
        cmocka_unit_test(test_fsdp_unit__refuses_what_cannot_be_flattened),
        cmocka_unit_test(test_fsdp_unit__a_step_between_forward_and_backward_is_an_error),
        cmocka_unit_test(test_fsdp_unit__a_graph_outlives_its_model),
        cmocka_unit_test(test_fsdp_unit__a_model_freed_in_its_backward_goes_afterwards),
        cmocka_unit_test(test_fsdp_unit__first_values_do_not_depend_on_the_world),
        cmocka_unit_test(test_fsdp_unit__ranks_that_wrap_differently_are_told_where),
        cmocka_unit_test(test_fsdp_unit__is_gathered_without_a_tree),
        cmocka_unit_test(test_fsdp_tree__has_no_unit_of_the_root_without_units),
        cmocka_unit_test(test_fsdp_tree__refuses_a_unit_that_is_listed_twice),
        cmocka_unit_test(test_fsdp_tree__refuses_units_of_another_group),
    };
    return cmocka_run_group_tests_name("fsdp unit", tests, NULL, NULL);
}
