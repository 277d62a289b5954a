/* Gradient sinks and backward observers, as units use them: what is called, in which order, and
 * that every beginning has an end. */
#include "values.h"

#include "autograd.h"

enum { LEAVES = 2, LOG_BYTES = 256 };

/* Two leaves whose gradients live here; a log of what happened. */
typedef struct keeper {
    ms_tensor *leaf[LEAVES];
    ms_tensor *grad[LEAVES];
    bool stored[LEAVES];
    msi_grad_sink sink[LEAVES];
    char log[LOG_BYTES];
    const char *fail_at; /* event that fails */
    int64_t live_when_done;
} keeper;

static ms_status note(keeper *k, const char *event)
{
    strncat(k->log, k->log[0] != '\0' ? " " : "", LOG_BYTES - strlen(k->log) - 1);
    strncat(k->log, event, LOG_BYTES - strlen(k->log) - 1);
    return k->fail_at != NULL && strcmp(k->fail_at, event) == 0
               ? ms_error_set(MS_COMM_ERROR, "rank 1 died")
               : MS_OK;
}

static ms_status note_leaf(keeper *k, const char *event, int32_t index)
{
    char text[32];

    snprintf(text, sizeof(text), "%s%d", event, (int)index);
    return note(k, text);
}

static ms_status expect(void *user, int32_t index)
{
    return note_leaf(user, "expect", index);
}

static ms_status dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    keeper *k = user;

    *dst = k->grad[index]->v;
    *add = k->stored[index];
    k->stored[index] = true;
    return note_leaf(k, "dest", index);
}

static ms_status done(void *user, int32_t index)
{
    ms_memory_stats stats;

    ms_memory_stats_get(&stats);
    ((keeper *)user)->live_when_done = stats.live[MS_MEM_ACTIVATION];
    return note_leaf(user, "done", index);
}

static ms_status begins(void *user)
{
    return note(user, "begin");
}

static ms_status finishes(void *user)
{
    return note(user, "finish");
}

static ms_status finished(void *user)
{
    return note(user, "finished");
}

static void ends(void *user, ms_status status)
{
    (void)note(user, status == MS_OK ? "end" : ms_status_name(status));
}

static ms_status runs(void *user)
{
    return note(user, "run");
}

static msi_backward_observer observer_of(keeper *k)
{
    return (msi_backward_observer){begins, finishes, finished, ends, k};
}

static int set_up(void **state)
{
    keeper *k = calloc(1, sizeof(*k));
    const msi_backward_observer observer = observer_of(k);

    assert_ok(ms_scope_open("test"));
    for (int i = 0; i < LEAVES; i++) {
        k->leaf[i] = LEAF(MS_DTYPE_F64, 2 + i);
        k->grad[i] = VECTOR(MS_DTYPE_F32, 1e30); /* storing must overwrite this */
        k->sink[i] = (msi_grad_sink){expect, dest, done, k, i};
        k->leaf[i]->sink = &k->sink[i];
    }
    assert_ok(msi_backward_observe(msi_context(), &observer));
    *state = k;
    return 0;
}

static int tear_down(void **state)
{
    keeper *k = *state;
    ms_memory_stats stats;

    msi_backward_unobserve(msi_context(), k);
    assert_ok(ms_scope_close(NULL, 0));
    free(k);
    ms_memory_stats_get(&stats);
    return stats.live_handles == 0 && stats.live_total == 0 ? 0 : 1;
}

static void start_over(keeper *k)
{
    k->log[0] = '\0';
    k->stored[0] = k->stored[1] = false;
    k->fail_at = NULL;
}

/* y = (a a) b with a = leaf 0, b = leaf 1, and a log entry before the older node runs. A walk from
 * y meets b first. */
static ms_tensor *graph(keeper *k)
{
    ms_tensor *square, *y;

    assert_ok(ms_op_mul(&square, k->leaf[0], k->leaf[0]));
    assert_ok(msi_autograd_pre_hook(square, (msi_pre_hook){runs, k, NULL, NULL}));
    assert_ok(ms_op_mul(&y, square, k->leaf[1]));
    ms_tensor_free(square);
    return y;
}

static void test_autograd_sinks__finish_a_leaf_while_backward_goes_on(void **state)
{
    keeper *k = *state;
    ms_tensor *y = graph(k);

    assert_ok(ms_backward(y, NULL));
    assert_string_equal(k->log, "begin expect1 expect0 dest1 done1 run dest0 dest0 done0 finish "
                                "finished end");
    EXPECT_VALUES(k->grad[0], 12);
    EXPECT_VALUES(k->grad[1], 4);
    expect_no_grad(k->leaf[0]);
}

/* A unit reduces and gives its memory away when its last leaf is done: what the node behind saved
 * and got must not stand beside that. */
static void test_autograd_sinks__a_leaf_is_done_after_its_node_let_go(void **state)
{
    enum { BYTES = 1000 * 8 };
    keeper *k = *state;
    ms_tensor *x = FILLED(MS_DTYPE_F64, 1, 1000), *y, *g = FILLED(MS_DTYPE_F64, 2, 1000);
    ms_memory_stats before;

    assert_ok(ms_op_mul(&y, x, k->leaf[0])); /* saves x */
    ms_tensor_free(x);
    ms_memory_stats_get(&before);
    assert_ok(ms_backward(y, g));
    assert_int_equal(k->live_when_done, before.live[MS_MEM_ACTIVATION] - BYTES);
}

static ms_status look(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(grad, &info));
    assert_int_equal(info.dtype, MS_DTYPE_F64);
    EXPECT_VALUES(grad, 12);
    return note(user, "hook");
}

static ms_status look_at_leaf(void *user, ms_tensor *leaf)
{
    return note(user, "after");
}

static void test_autograd_sinks__get_the_total_once_when_a_hook_wants_to_see_it(void **state)
{
    keeper *k = *state;
    ms_tensor *y = graph(k);

    assert_ok(ms_tensor_hook(k->leaf[0], look, k, NULL, NULL));
    assert_ok(ms_tensor_accumulate_hook(k->leaf[0], look_at_leaf, k, NULL, NULL));
    assert_ok(ms_backward(y, NULL));
    /* accumulate hooks are the sink owner's to run: only he knows when the gradient is there */
    assert_string_equal(k->log, "begin expect1 expect0 dest1 done1 run hook dest0 done0 finish "
                                "finished end");
    assert_ok(msi_hooks_run_accumulate(k->leaf[0]));
    assert_non_null(strstr(k->log, "end after"));
    EXPECT_VALUES(k->grad[0], 12);
}

static void test_autograd_sinks__hear_of_the_end_whatever_fails(void **state)
{
    static const char *const events[] = {"begin", "expect1", "expect0", "dest1",  "done1",
                                         "run",   "dest0",   "done0",   "finish", "finished"};
    keeper *k = *state;

    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        ms_tensor *y = graph(k);
        char tail[64];

        start_over(k);
        k->fail_at = events[i];
        assert_int_equal(ms_backward(y, NULL), MS_COMM_ERROR);
        assert_non_null(strstr(ms_error_message(), "rank 1 died"));
        snprintf(tail, sizeof(tail), "%s CommError", events[i]);
        assert_string_equal(k->log + strlen(k->log) - strlen(tail), tail); /* and nothing after */
        ms_tensor_free(y);

        start_over(k);
        y = graph(k);
        assert_ok(ms_backward(y, NULL));
        EXPECT_VALUES(k->grad[0], 12);
    }
}

static void test_autograd_sinks__who_cannot_finish_fails_the_backward(void **state)
{
    keeper *k = *state;
    ms_tensor *y = graph(k), *plain = LEAF(MS_DTYPE_F64, 7), *z;

    assert_ok(ms_op_mul(&z, y, plain));
    k->fail_at = "finish";
    assert_int_equal(ms_backward(z, NULL), MS_COMM_ERROR);
    assert_string_equal(ms_error_message(), "rank 1 died");
    expect_no_grad(plain); /* dropped with the rest */
}

static void test_autograd_sinks__several_observers_begin_and_end(void **state)
{
    keeper *k = *state, other = {.fail_at = NULL};
    const msi_backward_observer second = observer_of(&other);
    ms_tensor *y = graph(k);

    assert_ok(msi_backward_observe(msi_context(), &second));
    k->fail_at = "begin"; /* the second never hears of this backward */
    assert_int_equal(ms_backward(y, NULL), MS_COMM_ERROR);
    assert_string_equal(k->log, "begin CommError");
    assert_string_equal(other.log, "");
    ms_tensor_free(y);

    start_over(k);
    y = graph(k);
    assert_ok(ms_backward(y, NULL));
    assert_string_equal(other.log, "begin finish finished end");
    ms_tensor_free(y);

    msi_backward_unobserve(msi_context(), &other);
    start_over(k);
    y = graph(k);
    assert_ok(ms_backward(y, NULL));
    assert_string_equal(other.log, "begin finish finished end");
}

/* What one has finished is worth nothing when another cannot. */
static void test_autograd_sinks__all_observers_finish_or_none_does(void **state)
{
    keeper *k = *state, other = {.fail_at = NULL};
    const msi_backward_observer second = observer_of(&other);
    static const char *const fail_at[] = {"finish", "finished"};
    static const char *const heard[] = {"begin finish CommError",
                                        "begin finish finished CommError"};

    assert_ok(msi_backward_observe(msi_context(), &second));
    for (size_t i = 0; i < sizeof(fail_at) / sizeof(fail_at[0]); i++) {
        ms_tensor *plain = LEAF(MS_DTYPE_F64, 7), *y;

        start_over(k);
        start_over(&other);
        other.fail_at = fail_at[i];
        assert_ok(ms_op_exp(&y, plain));
        assert_int_equal(ms_backward(y, NULL), MS_COMM_ERROR);
        assert_string_equal(ms_error_message(), "rank 1 died");
        assert_string_equal(k->log, heard[i]);
        assert_string_equal(other.log, heard[i]);
    }
    msi_backward_unobserve(msi_context(), &other);
}

/* Something that a hook lets go of. */
typedef struct let_go {
    keeper *keeper;
    msi_deferred call;
} let_go;

static void freed(void *user)
{
    (void)note(((let_go *)user)->keeper, "freed");
    (void)ms_error_set(MS_RUNTIME_ERROR, "something else");
}

static ms_status lets_go(void *user)
{
    let_go *l = user;

    l->call = (msi_deferred){.fn = freed, .user = l};
    msi_backward_defer(msi_context(), &l->call);
    return note(l->keeper, "let go");
}

static void test_autograd_sinks__what_a_hook_lets_go_of_lives_until_the_end(void **state)
{
    keeper *k = *state;
    let_go first = {.keeper = k}, second = {.keeper = k};

    for (int fails = 0; fails < 2; fails++) {
        ms_tensor *plain = LEAF(MS_DTYPE_F64, 7), *y;

        start_over(k);
        k->fail_at = fails ? "finish" : NULL;
        assert_ok(ms_op_exp(&y, plain));
        assert_ok(msi_autograd_pre_hook(y, (msi_pre_hook){lets_go, &first, NULL, NULL}));
        assert_ok(msi_autograd_pre_hook(y, (msi_pre_hook){lets_go, &second, NULL, NULL}));
        assert_int_equal(ms_backward(y, NULL), fails ? MS_COMM_ERROR : MS_OK);
        assert_string_equal(k->log, fails ? "begin let go let go finish CommError freed freed"
                                          : "begin let go let go finish finished end freed freed");
        if (fails) {
            assert_string_equal(ms_error_message(), "rank 1 died");
        }
    }
    start_over(k);
    assert_ok(lets_go(&first));
    assert_string_equal(k->log, "freed let go");
}

static void test_autograd_sinks__nobody_hears_of_a_refused_backward(void **state)
{
    keeper *k = *state;
    ms_tensor *y = graph(k);

    assert_ok(ms_backward(y, NULL));
    start_over(k);
    assert_fails(MS_RUNTIME_ERROR, "a second time", ms_backward(y, NULL));
    assert_string_equal(k->log, "");
}

static void test_autograd_sinks__must_offer_the_shape_of_forward(void **state)
{
    keeper *k = *state;
    ms_tensor *y = graph(k);

    ms_tensor_free(k->grad[1]);
    k->grad[1] = VECTOR(MS_DTYPE_F32, 1, 2);
    assert_fails(MS_RUNTIME_ERROR, "has shape (2), expected (1)", ms_backward(y, NULL));
}

/* A leaf whose storage is bound while its unit is unsharded, absent otherwise. */
static void test_autograd_sinks__absent_operands_name_the_reason(void **state)
{
    keeper *k = *state;
    msi_view v = {.ndim = 0};
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *w, *y;
    ms_tensor *first = VECTOR(MS_DTYPE_F64, 5), *second = VECTOR(MS_DTYPE_F64, 5);

    assert_ok(msi_storage_wrap(&v.storage, msi_context(), MS_STORAGE_FULL, msi_view_ptr(&first->v),
                               sizeof(double)));
    v.storage->absent = "unit 'h.0' is sharded";
    msi_view_set_contiguous(&v, MS_DTYPE_F64, 1, &(int64_t){1});
    assert_ok(msi_tensor_new(&w, msi_context(), &v));
    assert_ok(ms_op_mul(&y, x, w));
    v.storage->data = NULL;
    assert_fails(MS_RUNTIME_ERROR,
                 "backward of 'mul': a tensor of shape (1) has no memory now: unit",
                 ms_backward(y, NULL));
    ms_tensor_free(y);
    v.storage->data = msi_view_ptr(&first->v);
    assert_ok(ms_op_mul(&y, x, w));
    v.storage->data = msi_view_ptr(&second->v); /* reshard, refill */
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 5);
    ms_tensor_free(y);
    ms_tensor_free(w);
    ms_tensor_free(first);
    ms_tensor_free(second);
    ms_tensor_free(x);
    msi_storage_release(v.storage);
    start_over(k);
}

#define SINK_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SINK_TEST(test_autograd_sinks__finish_a_leaf_while_backward_goes_on),
        SINK_TEST(test_autograd_sinks__a_leaf_is_done_after_its_node_let_go),
        SINK_TEST(test_autograd_sinks__get_the_total_once_when_a_hook_wants_to_see_it),
        SINK_TEST(test_autograd_sinks__hear_of_the_end_whatever_fails),
        SINK_TEST(test_autograd_sinks__who_cannot_finish_fails_the_backward),
        SINK_TEST(test_autograd_sinks__several_observers_begin_and_end),
        SINK_TEST(test_autograd_sinks__all_observers_finish_or_none_does),
        SINK_TEST(test_autograd_sinks__what_a_hook_lets_go_of_lives_until_the_end),
        SINK_TEST(test_autograd_sinks__nobody_hears_of_a_refused_backward),
        SINK_TEST(test_autograd_sinks__must_offer_the_shape_of_forward),
        SINK_TEST(test_autograd_sinks__absent_operands_name_the_reason),
    };
    return cmocka_run_group_tests_name("autograd/sinks", tests, NULL, NULL);
}
