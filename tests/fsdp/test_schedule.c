/* runtime/fsdp/schedule: a rank that drops what another uses, and forwards that summon or an error
 * interrupts, orders of gathers and reductions, settings of units. Every other decision of the
 * schedule is tested by test_programs.c. */
#include "rank_test.h"
#include "schedule.h"

enum { UNITS = 3, SIDE = 8, SLOTS = 2 };

typedef struct chain {
    ms_tensor *weight[UNITS];
    ms_fsdp_unit *unit[UNITS];
    ms_fsdp_tree *tree;
} chain;

static ms_status chain_new(chain *c, int32_t strategy, bool forward_prefetch,
                           int32_t backward_prefetch, int32_t n_slots, bool rooted)
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
    to.forward_prefetch = forward_prefetch;
    to.backward_prefetch = backward_prefetch;
    to.n_slots = n_slots;
    return ms_fsdp_tree_new(&c->tree, comm, &to, c->unit, UNITS, rooted);
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

    MS_TRY_GOTO(chain_new(&c, t->strategy, true, MS_FSDP_PREFETCH_PRE, SLOTS, false), done);
    MS_TRY_GOTO(ms_fsdp_tree_init(c.tree), done);
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

/* -- what one rank alone drops ----------------------------------------------------------------- */

/* Rank 1 reads unit 0 until rank 0 has done what it can without it: a flag all ranks see. */
static _Atomic bool *rank_0_is_done;

static int flag_new(void **state)
{
    rank_0_is_done =
        mmap(NULL, MSI_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return rank_0_is_done == MAP_FAILED;
}

static int flag_free(void **state)
{
    return munmap(rank_0_is_done, MSI_PAGE);
}

static ms_status wait_for_rank_0(chain *c, int32_t i, void *user)
{
    for (int32_t k = 0; i == 0 && c->unit[0]->rank == 1 && k < SOON_S * 1000; k++) {
        if (atomic_load(rank_0_is_done)) {
            break;
        }
        usleep(1000);
    }
    return MS_OK;
}

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

/* -- summon ------------------------------------------------------------------------------------ */

static ms_status summon_between_forward_and_backward(chain *c)
{
    ms_tensor *loss;

    for (int32_t k = 0; k < 2; k++) {
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        MS_TRY(ms_fsdp_tree_summon(c->tree, false));
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

    for (t.strategy = MS_FSDP_FULL_SHARD; t.strategy <= MS_FSDP_NO_SHARD; t.strategy++) {
        for (int32_t world = 1; world <= 2; world++) {
            run_ranks(world, run_chain, &t);
        }
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

    run_ranks(1, run_chain, &t);
    run_ranks(2, run_chain, &t);
}

/* -- orders ------------------------------------------------------------------------------------ */

/* Changes of units since the trace was emptied: AG published, re resharded, RS announced. */
static _Thread_local char trace[256];
static _Thread_local int32_t last_state[UNITS], last_phase[UNITS];

static void record(const char *what, int32_t unit)
{
    const size_t n = strlen(trace);

    snprintf(trace + n, sizeof(trace) - n, "%s%s%d", n > 0 ? " " : "", what, (int)unit);
}

static void see_change(const ms_fsdp_unit *u)
{
    int32_t *state = &last_state[u->index], *phase = &last_phase[u->index];

    if (u->state != *state && u->state != MS_UNIT_UNSHARDED) {
        record(u->state == MS_UNIT_PUBLISHED ? "AG" : "re", u->index);
    }
    if (u->reduction.phase != *phase && u->reduction.phase == MSI_GRAD_READY) {
        record("RS", u->index);
    }
    *state = u->state;
    *phase = u->reduction.phase;
}

typedef struct order_test {
    int32_t backward_prefetch;
    bool forward_prefetch, rooted;
    ms_status (*set)(chain *c); /* settings, before the first step; NULL: none */
    const char *forward, *backward, *again;
} order_test;

static ms_status expect_trace(const char *of, const char *expected)
{
    const bool same = strcmp(expected, trace) == 0;
    const ms_status status =
        same ? MS_OK
             : msi_fail(MS_ASSERTION_ERROR, "%s: expected '%s', got '%s'", of, expected, trace);

    trace[0] = 0;
    return status;
}

static int32_t n_gathers(const char *text)
{
    int32_t n = 0;

    for (; (text = strstr(text, "AG")) != NULL; text++) {
        n++;
    }
    return n;
}

/* The second of two steps, as an optimizer has written between them. */
static ms_status trace_second_step(const order_test *t, chain *c)
{
    ms_tensor *loss;
    int64_t planned = 0;

    for (int32_t k = 0; k < 2; k++) {
        trace[0] = 0;
        for (int32_t i = 0; i < UNITS; i++) {
            MS_TRY(ms_param_touch(c->weight[i]));
        }
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        MS_TRY(k == 1 ? expect_trace("forward", t->forward) : MS_OK);
        trace[0] = 0;
        MS_TRY(ms_backward_with(loss, NULL, t->again != NULL ? MS_RETAIN_GRAPH : 0));
    }
    MS_TRY(expect_trace("backward", t->backward));
    if (t->again != NULL) {
        MS_TRY(ms_backward(loss, NULL));
        MS_TRY(expect_trace("backward again", t->again));
    }
    for (int32_t i = 0; i < UNITS; i++) {
        const msi_group_facts facts = msi_unit_facts(c->unit[i]);

        planned += msi_plan_gathers(&facts, 1);
    }
    EXPECT(planned == n_gathers(t->forward) + n_gathers(t->backward));
    return MS_OK;
}

static ms_status run_order(void *user, int32_t rank)
{
    const order_test *t = user;
    ms_status status;
    chain c;

    memset(last_state, 0, sizeof(last_state));
    memset(last_phase, 0, sizeof(last_phase));
    MS_TRY_GOTO(
        chain_new(&c, MS_FSDP_FULL_SHARD, t->forward_prefetch, t->backward_prefetch, 0, t->rooted),
        done);
    MS_TRY_GOTO(t->set != NULL ? t->set(&c) : MS_OK, done);
    MS_TRY_GOTO(ms_scope_open("test"), done);
    status = trace_second_step(t, &c);
    (void)ms_scope_close(NULL, 0);
done:
    chain_free(&c);
    return status;
}

static ms_status reshard_root(chain *c)
{
    return ms_fsdp_unit_set_reshard_after_forward(c->unit[0], true);
}

static ms_status keep_after_forward(chain *c)
{
    for (int32_t i = 0; i < UNITS; i++) {
        MS_TRY(ms_fsdp_unit_set_reshard_after_forward(c->unit[i], false));
    }
    return MS_OK;
}

/* With slots for fewer units than are kept. */
static ms_status keep_after_first_use(chain *c)
{
    MS_TRY(ms_fsdp_tree_init(c->tree));
    return keep_after_forward(c);
}

static ms_status keep_after_backward(chain *c)
{
    return ms_fsdp_unit_set_reshard_after_backward(c->unit[0], false);
}

static ms_status forward_only(chain *c)
{
    return ms_fsdp_unit_set_unshard_in_backward(c->unit[0], false);
}

static ms_status accumulate_unit_1(chain *c)
{
    return ms_fsdp_unit_set_sync(c->unit[1], false);
}

static ms_status list_prefetch(chain *c)
{
    MS_TRY(ms_fsdp_unit_set_prefetch(c->unit[0], c->unit + 1, 2, false));
    MS_TRY(ms_fsdp_unit_set_prefetch(c->unit[2], c->unit, 1, true));
    return ms_fsdp_unit_set_prefetch(c->unit[1], c->unit, 0, true);
}

static ms_status default_prefetch(chain *c)
{
    MS_TRY(list_prefetch(c));
    MS_TRY(ms_fsdp_unit_set_prefetch(c->unit[0], NULL, 0, false));
    MS_TRY(ms_fsdp_unit_set_prefetch(c->unit[2], NULL, 0, true));
    return ms_fsdp_unit_set_prefetch(c->unit[1], NULL, 0, true);
}

static ms_status not_last(chain *c)
{
    return ms_fsdp_tree_set_last_backward(c->tree, false);
}

/* The orders of AG and RS are PyTorch's, which reshards a unit before its reduction. Here that
 * follows it: [Note: what still reads a unit]. POST gathers as PRE does, but after the gradients of
 * the unit are computed. */
static void test_fsdp_schedule__units_have_their_order(void **state)
{
    enum { PRE = MS_FSDP_PREFETCH_PRE, POST = MS_FSDP_PREFETCH_POST, NONE = MS_FSDP_PREFETCH_NONE };
    static const char plain[] = "AG0 re0 AG1 re1 AG2 re2", ahead[] = "AG0 AG1 re0 AG2 re1 re2";
    static const char pre[] = "AG2 AG1 RS2 re2 AG0 RS1 re1 RS0 re0";
    static const char none[] = "AG2 RS2 re2 AG1 RS1 re1 AG0 RS0 re0";
    static const char all[] = "AG0 AG1 AG2", kept[] = "RS2 re2 RS1 re1 RS0 re0";
    static const char listed[] = "AG2 AG0 RS2 re2 AG1 RS1 re1 RS0 re0";
    static const char two[] = "AG0 AG1 re0 re1 AG2 re2"; /* with slots for two units */
    static order_test tests[] = {
        {PRE, false, false, NULL, plain, pre, NULL},
        {POST, false, false, NULL, plain, pre, NULL},
        {NONE, false, false, NULL, plain, none, NULL},
        {PRE, true, false, NULL, ahead, pre, NULL},
        {PRE, false, true, NULL, "AG0 AG1 re1 AG2 re2", "AG2 AG1 RS2 re2 RS1 re1 RS0 re0", NULL},
        {PRE, false, true, reshard_root, plain, pre, NULL},
        {PRE, false, false, keep_after_forward, all, kept, NULL},
        {NONE, false, false, keep_after_first_use, all, kept, NULL},
        {PRE, false, false, keep_after_backward, "re0 AG0 re0 AG1 re1 AG2 re2",
         "AG2 AG1 RS2 re2 AG0 RS1 re1 RS0", NULL},
        {PRE, false, false, forward_only, plain, "AG2 AG1 RS2 re2 RS1 re1 RS0", NULL},
        {PRE, false, false, accumulate_unit_1, plain, "AG2 AG1 RS2 re2 AG0 re1 RS0 re0", NULL},
        {PRE, false, false, list_prefetch, "AG0 AG1 AG2 re0 re1 re2", listed, NULL},
        {NONE, false, false, list_prefetch, two, listed, NULL},
        {PRE, true, false, default_prefetch, ahead, pre, NULL},
        {PRE, false, false, NULL, plain, pre, none},
        {PRE, false, false, not_last, plain, pre, pre},
    };

    msi_fsdp_state_changed = see_change;
    for (int32_t i = 0; i < MSI_COUNT(tests); i++) {
        run_ranks(2, run_order, &tests[i]);
    }
    msi_fsdp_state_changed = NULL;
}

/* -- settings of units ------------------------------------------------------------------------- */

static ms_status sum_of_gradient(ms_tensor *weight, double *sum)
{
    ms_tensor *grad, *total;

    MS_TRY(ms_tensor_grad(&grad, weight));
    MS_TRY(ms_op_sum(&total, grad, (1u << grad->v.ndim) - 1, false));
    return ms_tensor_item(total, sum);
}

/* Gradients of two equal backwards, of which unit 1 keeps the first, are twice that of one: exact,
 * as is a factor of 1/4 in place of 1/2. */
static ms_status accumulate_one_unit(chain *c)
{
    double once[UNITS], twice[UNITS];
    ms_tensor *loss;

    for (int32_t k = 0; k < 3; k++) {
        MS_TRY(ms_fsdp_unit_set_sync(c->unit[1], k != 1));
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        MS_TRY(ms_backward(loss, NULL));
        for (int32_t i = 0; k != 1 && i < UNITS; i++) {
            MS_TRY(sum_of_gradient(c->weight[i], k == 0 ? &once[i] : &twice[i]));
            MS_TRY(ms_tensor_set_grad(c->weight[i], NULL));
        }
    }
    for (int32_t i = 0; i < UNITS; i++) {
        EXPECT(twice[i] == 2 * once[i]);
    }
    EXPECT(ms_fsdp_unit_set_hook(c->unit[1], 2, NULL, NULL, NULL) == MS_VALUE_ERROR);
    MS_TRY(ms_fsdp_unit_set_gradient_factor(c->unit[1], 0.25));
    MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
    MS_TRY(ms_backward(loss, NULL));
    for (int32_t i = 0; i < UNITS; i++) {
        double sum;

        MS_TRY(sum_of_gradient(c->weight[i], &sum));
        EXPECT(sum == (i == 1 ? once[i] / 2 : once[i]));
    }
    return MS_OK;
}

/* What is written between the two halves of unshard is used. */
static ms_status write_after_begin(chain *c)
{
    double expected, value;
    ms_tensor *loss;

    for (int32_t k = 0; k < 2; k++) {
        MS_TRY(k == 1 ? ms_fsdp_unit_begin_unshard(c->unit[1]) : MS_OK);
        EXPECT(c->unit[1]->state == (k == 1 ? MS_UNIT_PUBLISHED : MS_UNIT_SHARDED));
        ms_grad_enabled_set(false);
        MS_TRY(ms_tensor_fill(c->weight[1], k == 0 ? 0.25 : 0.5));
        ms_grad_enabled_set(true);
        MS_TRY(forward(c, UNITS, NULL, NULL, &loss));
        MS_TRY(ms_tensor_item(loss, k == 0 ? &expected : &value));
    }
    EXPECT(value == 2 * expected);
    MS_TRY(ms_fsdp_unit_begin_unshard(c->unit[0]));
    MS_TRY(ms_fsdp_unit_unshard(c->unit[0]));
    EXPECT(c->unit[0]->state == MS_UNIT_UNSHARDED);
    return MS_OK;
}

static ms_status list_unit_of_another_tree(chain *c)
{
    ms_status status;
    chain other;

    MS_TRY_GOTO(chain_new(&other, MS_FSDP_FULL_SHARD, false, MS_FSDP_PREFETCH_PRE, SLOTS, false),
                done);
    status = ms_fsdp_unit_set_prefetch(c->unit[0], other.unit, 1, false);
done:
    chain_free(&other);
    EXPECT(status == MS_VALUE_ERROR);
    return MS_OK;
}

static void test_fsdp_schedule__units_have_settings_of_their_own(void **state)
{
    chain_test tests[] = {{accumulate_one_unit, MS_FSDP_FULL_SHARD, true},
                          {accumulate_one_unit, MS_FSDP_NO_SHARD, true},
                          {write_after_begin, MS_FSDP_FULL_SHARD, true},
                          {list_unit_of_another_tree, MS_FSDP_FULL_SHARD, true}};

    for (int32_t i = 0; i < MSI_COUNT(tests); i++) {
        run_ranks(2, run_chain, &tests[i]);
    }
}

static ms_status set_alone(chain *c)
{
    ms_tensor *loss;

    MS_TRY(ms_fsdp_unit_set_reshard_after_backward(c->unit[1], c->unit[1]->rank == 1));
    return forward(c, UNITS, NULL, NULL, &loss);
}

static void test_fsdp_schedule__settings_are_compared(void **state)
{
    chain_test t = {set_alone, MS_FSDP_FULL_SHARD, true};

    assert_int_equal(ms_dist_threads(2, run_chain, &t), MS_COMM_ERROR);
    assert_non_null(strstr(ms_error_message(), "value of set_reshard_after_backward of unit 'u1'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_fsdp_schedule__what_one_rank_drops_another_does_not_read, flag_new, flag_free),
        cmocka_unit_test(test_fsdp_schedule__summon_without_writes_does_not_disturb_backward),
        cmocka_unit_test(test_fsdp_schedule__what_an_error_ends_leaves_the_forward_around_it_alone),
        cmocka_unit_test(test_fsdp_schedule__units_have_their_order),
        cmocka_unit_test(test_fsdp_schedule__units_have_settings_of_their_own),
        cmocka_unit_test(test_fsdp_schedule__settings_are_compared),
    };
    return cmocka_run_group_tests_name("fsdp schedule", tests, NULL, NULL);
}
