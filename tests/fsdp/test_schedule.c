/* runtime/fsdp/schedule: when units are published, kept and published anew. Decisions follow
 * program order: a rank that is far behind its peers changes nothing. */
#include "rank_test.h"
#include "schedule.h"

enum { UNITS = 3, SIDE = 8, SLOTS = 2 };

typedef struct chain {
    ms_tensor *weight[UNITS];
    ms_fsdp_unit *unit[UNITS];
    ms_fsdp_tree *tree;
} chain;

static ms_status chain_new(chain *c, int32_t strategy)
{
    const int64_t shape[2] = {SIDE, SIDE};
    ms_fsdp_unit_options uo;
    ms_fsdp_tree_options to;
    char name[16];
    const char *names = name;
    ms_comm *comm;

    memset(c, 0, sizeof(*c));
    MS_TRY(ms_comm_world(&comm));
    ms_seed(3);
    ms_fsdp_unit_options_init(&uo, sizeof(uo));
    uo.strategy = strategy;
    for (int32_t i = 0; i < UNITS; i++) {
        snprintf(name, sizeof(name), "u%d", (int)i);
        MS_TRY(
            ms_tensor_parameter(&c->weight[i], MS_DTYPE_F32, 2, shape, MS_INIT_UNIFORM, -0.3, 0.3));
        MS_TRY(ms_fsdp_unit_new(&c->unit[i], comm, name, &uo, &c->weight[i], 1, &names));
    }
    ms_fsdp_tree_options_init(&to, sizeof(to));
    to.forward_prefetch = true;
    to.n_slots = SLOTS;
    MS_TRY(ms_fsdp_tree_new(&c->tree, comm, &to, c->unit, UNITS, false));
    return ms_fsdp_tree_init(c->tree);
}

static void chain_free(chain *c)
{
    ms_fsdp_tree_free(c->tree);
    for (int32_t i = 0; i < UNITS; i++) {
        ms_tensor_free(c->weight[i]);
    }
}

/* What a test does with a chain of its own on every rank, in a scope. */
typedef struct chain_test {
    ms_status (*run)(chain *c);
    int32_t strategy;
    bool records; /* for backward; else forwards alone */
} chain_test;

static ms_status run_chain(void *user, int32_t rank)
{
    const chain_test *t = user;
    ms_status status;
    chain c;

    (void)rank;
    MS_TRY_GOTO(chain_new(&c, t->strategy), done);
    ms_grad_enabled_set(t->records);
    MS_TRY_GOTO(ms_scope_open("test"), done);
    status = t->run(&c);
    (void)ms_scope_close(NULL, 0);
done:
    chain_free(&c);
    return status;
}

/* What `user` is told before unit i is used in a forward. */
typedef ms_status (*visitor)(chain *c, int32_t i, void *user);

/* y = x W0' .. W(n-1)', the first `n` units; `*loss` its mean. */
static ms_status forward(chain *c, int32_t n, visitor visit, void *user, ms_tensor **loss)
{
    const int64_t shape[2] = {2, SIDE};
    ms_tensor *x;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    MS_TRY(ms_fsdp_tree_pre_forward(c->tree));
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(ms_fsdp_unit_pre_forward(c->unit[i]));
        if (visit != NULL) {
            MS_TRY(visit(c, i, user));
        }
        MS_TRY(ms_op_linear(&x, x, c->weight[i], NULL));
        MS_TRY(ms_fsdp_unit_post_forward(c->unit[i], &x, 1));
    }
    MS_TRY(ms_fsdp_tree_post_forward(c->tree));
    return ms_op_mean(loss, x, 3, false);
}

static ms_status set_all(chain *c, int32_t i, double value)
{
    const int64_t shape[2] = {SIDE, SIDE};
    ms_tensor *full;

    MS_TRY(ms_tensor_full(&full, MS_DTYPE_F32, 2, shape, value));
    ms_status status = ms_fsdp_unit_load(c->unit[i], 0, full);

    ms_tensor_free(full);
    return status;
}

static ms_status set_each(chain *c, const double *values)
{
    for (int32_t i = 0; i < UNITS; i++) {
        MS_TRY(set_all(c, i, values[i]));
    }
    return MS_OK;
}

/* -- a slow rank ------------------------------------------------------------------------------- */

/* Rank 1 reads unit 0 until rank 0 has done what it can without it: a flag all ranks see. */
static _Atomic bool *rank_0_is_done;

static int flag_new(void **state)
{
    (void)state;
    rank_0_is_done =
        mmap(NULL, MSI_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return rank_0_is_done == MAP_FAILED;
}

static int flag_free(void **state)
{
    (void)state;
    return munmap(rank_0_is_done, MSI_PAGE);
}

static ms_status wait_for_rank_0(chain *c, int32_t i, void *user)
{
    (void)user;
    for (int32_t k = 0; i == 0 && c->unit[0]->rank == 1 && k < SOON_S * 1000; k++) {
        if (atomic_load(rank_0_is_done)) {
            break;
        }
        usleep(1000);
    }
    return MS_OK;
}

/* Every element a rank sees of the unit it is about to use. */
static ms_status sees_value(chain *c, int32_t i, void *user)
{
    const double *expected = user;
    double seen[SIDE * SIDE];

    MS_TRY(ms_tensor_to_doubles(c->weight[i], seen, SIDE * SIDE));
    for (int32_t k = 0; k < SIDE * SIDE; k++) {
        EXPECT(seen[k] == expected[i]);
    }
    return MS_OK;
}

/* The last unit is prefetched and not used; on rank 0 its publish is queued, as rank 1 still reads
 * the slot; then all units get new values. */
static ms_status skip_then_write(chain *c)
{
    double values[UNITS] = {5, 6, 7};
    ms_tensor *loss;

    MS_TRY(forward(c, UNITS, NULL, NULL, &loss)); /* fixes the order in which to prefetch */
    MS_TRY(forward(c, UNITS - 1, wait_for_rank_0, NULL, &loss));
    MS_TRY(set_each(c, values));
    if (c->unit[0]->rank == 0) {
        atomic_store(rank_0_is_done, true);
    }
    return forward(c, UNITS, sees_value, values, &loss);
}

static void
test_fsdp_schedule__a_step_over_a_queued_publish_is_the_same_for_slow_ranks(void **state)
{
    chain_test t = {.run = skip_then_write, .strategy = MS_FSDP_FULL_SHARD};

    (void)state;
    assert_ok(ms_dist_threads(2, run_chain, &t));
}

/* -- what one rank alone drops ----------------------------------------------------------------- */

static ms_status never_unit_2(chain *c, int32_t i, void *user)
{
    EXPECT(i < 2);
    return wait_for_rank_0(c, i, user);
}

/* Rank 0 prefetches unit 2 into the slot that rank 1 still reads, and does not use it. */
static ms_status skip_alone(chain *c)
{
    ms_tensor *loss;

    MS_TRY(forward(c, UNITS, NULL, NULL, &loss)); /* fixes the order in which to prefetch */
    if (c->unit[0]->rank == 1) {
        return forward(c, UNITS, never_unit_2, NULL, &loss);
    }
    MS_TRY(forward(c, UNITS - 1, NULL, NULL, &loss));
    atomic_store(rank_0_is_done, true);
    return MS_OK;
}

static ms_status fail_in_unit_1(chain *c, int32_t i, void *user)
{
    (void)c;
    (void)user;
    return i == 1 ? ms_error_set(MS_RUNTIME_ERROR, "a mistake of its own") : MS_OK;
}

/* The same, because it fails in unit 1 and catches that. */
static ms_status fail_alone(chain *c)
{
    ms_tensor *loss;

    MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
    if (c->unit[0]->rank == 1) {
        return forward(c, UNITS, never_unit_2, NULL, &loss);
    }
    EXPECT(forward(c, UNITS, fail_in_unit_1, NULL, &loss) == MS_RUNTIME_ERROR);
    ms_fsdp_tree_reset(c->tree);
    atomic_store(rank_0_is_done, true);
    return MS_OK;
}

/* Rank 0 announces the gradient of the only unit, and fails in an op behind it before rank 1 has a
 * gradient to reduce it with. */
static ms_status fail_behind_the_last_unit(chain *c)
{
    const int64_t shape[2] = {2, SIDE};
    ms_tensor *x0, *x, *loss;

    MS_TRY(ms_tensor_full(&x0, MS_DTYPE_F32, 2, shape, 1));
    MS_TRY(ms_tensor_set_requires_grad(x0, true));
    MS_TRY(ms_op_mul(&x, x0, x0));
    MS_TRY(ms_fsdp_tree_pre_forward(c->tree));
    MS_TRY(ms_fsdp_unit_pre_forward(c->unit[0]));
    MS_TRY(ms_op_linear(&x, x, c->weight[0], NULL));
    MS_TRY(ms_fsdp_unit_post_forward(c->unit[0], &x, 1));
    MS_TRY(ms_fsdp_tree_post_forward(c->tree));
    MS_TRY(ms_op_mean(&loss, x, 3, false));
    if (c->unit[0]->rank == 1) {
        MS_TRY(wait_for_rank_0(c, 0, NULL));
        return ms_backward(loss, NULL);
    }
    ms_grad_enabled_set(false);
    MS_TRY(ms_tensor_fill(x0, 2)); /* the product's backward needs the old values */
    ms_grad_enabled_set(true);
    EXPECT(ms_backward(loss, NULL) == MS_RUNTIME_ERROR);
    atomic_store(rank_0_is_done, true);
    return MS_OK;
}

typedef struct drop_test {
    chain_test chain;
    const char *told[3];
} drop_test;

static void check_drop(const drop_test *t, const char *message)
{
    for (int32_t i = 0; i < MSI_COUNT(t->told) && t->told[i] != NULL; i++) {
        if (strstr(message, t->told[i]) == NULL) {
            fail_msg("expected '%s', got '%s'", t->told[i], message);
        }
    }
}

static void test_fsdp_schedule__what_one_rank_drops_another_does_not_read(void **state)
{
    drop_test tests[] = {
        {{skip_alone, MS_FSDP_FULL_SHARD, false},
         {"rank 0 dropped unshard of unit 'u2' (sequence ", "), which rank 1 uses"}},
        {{fail_alone, MS_FSDP_FULL_SHARD, false},
         {"rank 0 dropped unshard of unit 'u2' (sequence ",
          "), which rank 1 uses; rank 0 had failed before its call ", ": a mistake of its own"}},
        {{fail_behind_the_last_unit, MS_FSDP_NO_SHARD, true},
         {"rank 0 dropped reduce of unit 'u0' (sequence ",
          "), which rank 1 uses; rank 0 had failed before its call ", ": backward of 'mul'"}},
    };

    (void)state;
    /* In layout pull a stage is filled when the peers have copied the one before, read or not: what
     * rank 0 skips is there then, and rank 1 learns of it later. */
    assert_int_equal(setenv("MS_SLOTS", "shared", true), 0);
    for (int32_t i = 0; i < MSI_COUNT(tests); i++) {
        const char *cause = "";

        atomic_store(rank_0_is_done, false);
        assert_int_equal(ms_dist_threads(2, run_chain, &tests[i].chain), MS_COMM_ERROR);
        check_drop(&tests[i], ms_error_message());
        atomic_store(rank_0_is_done, false);
        if (CAN_FORK) {
            assert_int_not_equal(run_processes(2, run_chain, &tests[i].chain, &cause), 0);
            check_drop(&tests[i], cause);
        }
    }
    assert_int_equal(unsetenv("MS_SLOTS"), 0);
}

/* -- writes between prefetch and use ----------------------------------------------------------- */

static ms_status write_the_next(chain *c, int32_t i, void *user)
{
    double *values = user;

    MS_TRY(sees_value(c, i, user));
    if (i + 1 < UNITS) {
        EXPECT(c->unit[i + 1]->state == MS_UNIT_PUBLISHED);
        values[i + 1] += 1;
        MS_TRY(set_all(c, i + 1, values[i + 1]));
    }
    return MS_OK;
}

static ms_status write_after_prefetch(chain *c)
{
    double values[UNITS] = {1, 2, 3};
    ms_tensor *loss;

    MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
    MS_TRY(set_each(c, values));
    for (int32_t k = 0; k < 20; k++) {
        MS_TRY(forward(c, UNITS, write_the_next, values, &loss));
    }
    return MS_OK;
}

static void test_fsdp_schedule__a_write_between_prefetch_and_use_is_seen(void **state)
{
    chain_test t = {.run = write_after_prefetch, .strategy = MS_FSDP_FULL_SHARD};

    (void)state;
    run_ranks(1, run_chain, &t);
    run_ranks(3, run_chain, &t);
}

/* -- units that were kept ---------------------------------------------------------------------- */

/* Unit 1 is kept unsharded by hand while it gets another value, in its first use of a forward, and
 * between two uses of one. */
static ms_status write_while_kept(chain *c)
{
    double values[UNITS] = {1, 2, 3};
    ms_tensor *loss;

    MS_TRY(set_each(c, values));
    for (int32_t k = 0; k < 4; k++) {
        MS_TRY(ms_fsdp_unit_unshard(c->unit[1]));
        MS_TRY(sees_value(c, 1, values));
        values[1] += 1;
        MS_TRY(set_all(c, 1, values[1]));
        if (k % 2 == 0) {
            MS_TRY(ms_fsdp_unit_unshard(c->unit[1]));
            MS_TRY(sees_value(c, 1, values));
        }
        MS_TRY(forward(c, UNITS, sees_value, values, &loss));
        MS_TRY(ms_fsdp_unit_pre_forward(c->unit[1]));
        MS_TRY(ms_fsdp_unit_post_forward(c->unit[1], NULL, 0));
        values[1] += 1;
        MS_TRY(set_all(c, 1, values[1]));
        MS_TRY(ms_fsdp_unit_pre_forward(c->unit[1]));
        MS_TRY(sees_value(c, 1, values));
        MS_TRY(ms_fsdp_unit_post_forward(c->unit[1], NULL, 0));
    }
    return MS_OK;
}

static void test_fsdp_schedule__a_kept_unit_is_published_anew_when_it_was_written(void **state)
{
    chain_test t = {.run = write_while_kept};

    (void)state;
    for (t.strategy = MS_FSDP_FULL_SHARD; t.strategy <= MS_FSDP_NO_SHARD; t.strategy++) {
        run_ranks(2, run_chain, &t);
    }
}

/* -- summon ------------------------------------------------------------------------------------ */

static ms_status summon_between_forward_and_backward(chain *c)
{
    ms_tensor *loss;

    for (int32_t k = 0; k < 2; k++) {
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        MS_TRY(ms_fsdp_tree_summon(c->tree));
        if (k == 1) {
            MS_TRY(ms_tensor_fill(c->weight[1], 0.5));
        }
        MS_TRY(ms_fsdp_tree_unsummon(c->tree, true));
        ms_status status = ms_backward(loss, NULL);

        EXPECT(status == (k == 0 ? MS_OK : MS_RUNTIME_ERROR)); /* written: the graph is stale */
    }
    return MS_OK;
}

static void test_fsdp_schedule__summon_without_writes_does_not_disturb_backward(void **state)
{
    chain_test t = {.run = summon_between_forward_and_backward, .records = true};

    (void)state;
    for (t.strategy = MS_FSDP_FULL_SHARD; t.strategy <= MS_FSDP_NO_SHARD; t.strategy++) {
        for (int32_t world = 1; world <= 2; world++) {
            run_ranks(world, run_chain, &t);
        }
    }
}

/* The last rank's element of a kept unit is written: every rank publishes the unit anew. */
static ms_status write_one_element(chain *c)
{
    double values[SIDE * SIDE], seen[SIDE * SIDE];
    const int64_t shape[2] = {SIDE, SIDE};
    ms_tensor *edited, *loss;

    MS_TRY(ms_fsdp_unit_unshard(c->unit[1]));
    MS_TRY(ms_fsdp_tree_summon(c->tree));
    MS_TRY(ms_tensor_to_doubles(c->weight[1], values, SIDE * SIDE));
    values[SIDE * SIDE - 1] = 9;
    MS_TRY(ms_tensor_from_doubles(&edited, MS_DTYPE_F32, 2, shape, values, SIDE * SIDE));
    MS_TRY(ms_tensor_copy(c->weight[1], edited));
    MS_TRY(ms_fsdp_tree_unsummon(c->tree, true));
    MS_TRY(ms_fsdp_unit_unshard(c->unit[1]));
    MS_TRY(ms_tensor_to_doubles(c->weight[1], seen, SIDE * SIDE));
    EXPECT(memcmp(values, seen, sizeof(seen)) == 0);
    return forward(c, UNITS, NULL, NULL, &loss);
}

static void test_fsdp_schedule__what_one_rank_writes_back_is_new_on_all(void **state)
{
    chain_test t = {.run = write_one_element, .strategy = MS_FSDP_FULL_SHARD};

    (void)state;
    run_ranks(3, run_chain, &t);
}

/* -- after backward ---------------------------------------------------------------------------- */

/* A SHARD_GRAD_OP unit that a forward without gradients left unsharded, and that backward does not
 * reach. */
static ms_status backward_past_a_kept_unit(chain *c)
{
    ms_tensor *loss;

    for (int32_t sync = 0; sync < 2; sync++) {
        MS_TRY(ms_fsdp_tree_set_sync(c->tree, sync));
        ms_grad_enabled_set(false);
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        ms_grad_enabled_set(true);
        MS_TRY(forward(c, UNITS - 1, NULL, NULL, &loss));
        MS_TRY(ms_backward(loss, NULL));
        for (int32_t i = 0; i < UNITS; i++) {
            EXPECT(c->unit[i]->state == (sync ? MS_UNIT_SHARDED : MS_UNIT_UNSHARDED));
        }
    }
    return MS_OK;
}

static void test_fsdp_schedule__a_backward_that_reduces_leaves_no_unit_unsharded(void **state)
{
    chain_test t = {
        .run = backward_past_a_kept_unit, .strategy = MS_FSDP_SHARD_GRAD_OP, .records = true};

    (void)state;
    run_ranks(2, run_chain, &t);
}

/* -- forwards without gradients ---------------------------------------------------------------- */

static int64_t count_gathers(const chain *c)
{
    int64_t counts[5];

    ms_comm_counts(c->unit[0]->comm, counts);
    return counts[0];
}

/* As a script does it: shards are hidden while it runs. */
static ms_status evaluate(chain *c)
{
    const bool before = ms_grad_enabled_set(false);
    ms_tensor *loss;

    ms_fsdp_tree_hide_shards(c->tree, true);
    ms_status status = forward(c, UNITS, NULL, NULL, &loss);

    ms_fsdp_tree_hide_shards(c->tree, false);
    ms_grad_enabled_set(before);
    for (int32_t i = 0; i < UNITS; i++) {
        EXPECT(status != MS_OK || c->weight[i]->v.storage == c->unit[i]->master);
    }
    return status;
}

/* All-gathers of an evaluation, another, and a step with one before its backward. */
static ms_status evaluate_everywhere(chain *c)
{
    static const int64_t expected[][3] = {{3, 3, 9}, {3, 0, 0}, {0, 0, 0}};
    int64_t before = count_gathers(c), got[3];
    ms_tensor *loss;

    for (int32_t k = 0; k < 3; k++) {
        if (k == 2) {
            MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        }
        MS_TRY(evaluate(c));
        if (k == 2) {
            MS_TRY(ms_backward(loss, NULL));
        }
        got[k] = count_gathers(c) - before;
        before += got[k];
    }
    EXPECT(memcmp(got, expected[c->unit[0]->options.strategy], sizeof(got)) == 0);
    return MS_OK;
}

static void test_fsdp_schedule__after_an_evaluation_handles_show_masters(void **state)
{
    chain_test t = {.run = evaluate_everywhere, .records = true};

    (void)state;
    for (t.strategy = MS_FSDP_FULL_SHARD; t.strategy <= MS_FSDP_NO_SHARD; t.strategy++) {
        run_ranks(2, run_chain, &t);
    }
}

/* -- forwards that an error ends --------------------------------------------------------------- */

/* The forward of unit 1 ends with its scope; that of unit 0 around it goes on. */
static ms_status end_inside_unit_0(chain *c, bool begins_another)
{
    const int64_t shape[2] = {2, SIDE};
    ms_tensor *x, *loss;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    MS_TRY(ms_fsdp_tree_pre_forward(c->tree));
    MS_TRY(ms_fsdp_unit_pre_forward(c->unit[0]));
    MS_TRY(ms_scope_open("tried"));
    MS_TRY(ms_fsdp_unit_pre_forward(c->unit[1]));
    EXPECT(ms_fsdp_unit_reshard(c->unit[1]) == MS_RUNTIME_ERROR);
    MS_TRY(ms_scope_close(NULL, 0));
    if (begins_another) { /* in a scope that is as deep */
        MS_TRY(ms_scope_open("tried next"));
        MS_TRY(ms_fsdp_unit_pre_forward(c->unit[2]));
        EXPECT(c->unit[1]->state == MS_UNIT_SHARDED);
        MS_TRY(ms_fsdp_unit_post_forward(c->unit[2], NULL, 0));
        MS_TRY(ms_scope_close(NULL, 0));
    }
    MS_TRY(ms_op_linear(&x, x, c->weight[0], NULL));
    MS_TRY(ms_op_mean(&loss, x, 3, false));
    EXPECT(ms_backward(loss, NULL) == MS_ASSERTION_ERROR);
    EXPECT(strstr(ms_error_message(), "unit 'u0' is in its forward") != NULL);
    EXPECT(ms_fsdp_unit_post_forward(c->unit[1], NULL, 0) == MS_RUNTIME_ERROR);
    EXPECT(strstr(ms_error_message(), "unit 'u1' ends a forward") != NULL);
    MS_TRY(ms_op_linear(&x, x, c->weight[0], NULL));
    MS_TRY(ms_fsdp_unit_post_forward(c->unit[0], &x, 1));
    MS_TRY(ms_fsdp_tree_post_forward(c->tree));
    for (int32_t i = 0; i < UNITS; i++) {
        EXPECT(c->unit[i]->state == MS_UNIT_SHARDED);
    }
    MS_TRY(ms_op_mean(&loss, x, 3, false));
    return ms_backward(loss, NULL);
}

static ms_status end_inside(chain *c)
{
    MS_TRY(end_inside_unit_0(c, false));
    return end_inside_unit_0(c, true);
}

static void test_fsdp_schedule__what_an_error_ends_leaves_the_forward_around_it_alone(void **state)
{
    chain_test t = {.run = end_inside, .strategy = MS_FSDP_FULL_SHARD, .records = true};

    (void)state;
    run_ranks(1, run_chain, &t);
    run_ranks(2, run_chain, &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_fsdp_schedule__a_step_over_a_queued_publish_is_the_same_for_slow_ranks, flag_new,
            flag_free),
        cmocka_unit_test_setup_teardown(
            test_fsdp_schedule__what_one_rank_drops_another_does_not_read, flag_new, flag_free),
        cmocka_unit_test(test_fsdp_schedule__a_write_between_prefetch_and_use_is_seen),
        cmocka_unit_test(test_fsdp_schedule__a_kept_unit_is_published_anew_when_it_was_written),
        cmocka_unit_test(test_fsdp_schedule__summon_without_writes_does_not_disturb_backward),
        cmocka_unit_test(test_fsdp_schedule__what_one_rank_writes_back_is_new_on_all),
        cmocka_unit_test(test_fsdp_schedule__a_backward_that_reduces_leaves_no_unit_unsharded),
        cmocka_unit_test(test_fsdp_schedule__after_an_evaluation_handles_show_masters),
        cmocka_unit_test(test_fsdp_schedule__what_an_error_ends_leaves_the_forward_around_it_alone),
    };
    return cmocka_run_group_tests_name("fsdp schedule", tests, NULL, NULL);
}
