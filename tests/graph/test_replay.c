/* runtime/graph: a replay has the bits of eager execution, and its errors. */
#include "functions/functions.h"

#include "backend.h"

#include <pthread.h>

/* Other values than in the last step, and after every second one no gradients. */
static void change(instance *k, int32_t step)
{
    const bool before = ms_grad_enabled_set(false);

    for (int32_t i = 0; i < k->f->n_in; i++) {
        if (k->f->in[i].kind != 'I') {
            assert_ok(ms_tensor_add_scaled(k->in[i], k->in[i], 0.25));
        }
        if (step % 2 == 1 && has_grad(k->f, i)) {
            assert_ok(ms_tensor_set_grad(k->in[i], NULL));
        }
    }
    ms_grad_enabled_set(before);
}

/* -- replay = eager ---------------------------------------------------------------------------- */

static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16};

/* Gradients with respect to one input alone; of a checkpoint, eager execution has none. */
static void compare_one_gradient(instance *two)
{
    const function *f = two[0].f;
    ms_tensor *loss, *grad[2] = {NULL};
    int32_t i = f->n_in - 1;

    for (; !has_grad(f, i) && i > 0; i--) {
    }
    if (strstr(f->name, "checkpoint") != NULL) {
        return;
    }
    for (int32_t k = 0; k < 2 && has_grad(f, i); k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &loss));
        assert_ok(ms_grad(&grad[k], &loss, NULL, 1, &two[k].in[i], 1, 0));
    }
    expect_equal(&two[0], "ms_grad() of input", i, grad[0], grad[1]);
}

/* Two forwards, then their backwards, the last one first. A function that writes what it saved
 * fails in both. */
static void compare_interleaved(instance *two)
{
    ms_tensor *first, *second;
    ms_status status[2];

    for (int32_t k = 0; k < 2; k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &first));
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &second));
        assert_ok(second != NULL ? ms_backward(second, NULL) : MS_OK);
        status[k] = first != NULL ? ms_backward(first, NULL) : MS_OK;
    }
    assert_int_equal(status[0], status[1]);
    expect_equal_steps(&two[0], &two[1]);
}

static void compare(const function *f, int32_t dtype, int32_t level)
{
    enum { EAGER, REPLAY, STEPS = 6 };
    instance two[] = {make(f, dtype), make(f, dtype)};
    ms_tensor *loss;

    two[REPLAY].level = level;

    for (int32_t step = 0; step < STEPS; step++) {
        assert_ok(ms_scope_open("step"));
        for (int32_t k = EAGER; k <= REPLAY; k++) {
            if (k == REPLAY && step == 0) {
                assert_ok(record(&two[k]));
                expect_recorded(&two[k]);
            } else {
                assert_ok(forward(&two[k]));
            }
            assert_ok(loss_of(&two[k], &loss));
            for (int32_t again = step < STEPS - 2 ? 0 : 2; again >= 0 && loss != NULL; again--) {
                assert_ok(ms_backward_with(loss, NULL, again > 0 ? MS_RETAIN_GRAPH : 0));
            }
        }
        expect_equal_steps(&two[0], &two[1]);
        change(&two[0], step);
        change(&two[1], step);
        assert_ok(ms_scope_close(NULL, 0));
    }
    assert_ok(ms_scope_open("last"));
    compare_interleaved(two);
    compare_one_gradient(two);
    assert_ok(ms_scope_close(NULL, 0));
    ms_program_free(two[REPLAY].p);
}

static void compare_without_grad(const function *f)
{
    instance two[] = {make(f, MS_DTYPE_F32), make(f, MS_DTYPE_F32)};

    ms_grad_enabled_set(false);
    assert_ok(forward(&two[0]));
    assert_ok(record(&two[1]));
    expect_recorded(&two[1]);
    expect_equal_steps(&two[0], &two[1]);
    change(&two[0], 0);
    change(&two[1], 0);
    assert_ok(forward(&two[0]));
    assert_ok(forward(&two[1]));
    expect_equal_steps(&two[0], &two[1]);
    ms_grad_enabled_set(true);
    ms_program_free(two[1].p);
}

static void test_graph_replay__has_the_bits_of_eager_execution(void **state)
{
    for (size_t i = 0; i < (size_t)n_functions; i++) {
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            compare(&functions[i], dtypes[d], MS_PROGRAM_REPLAY);
            compare(&functions[i], dtypes[d], MS_PROGRAM_PARTITION);
        }
        compare_without_grad(&functions[i]);
    }
}

/* -- errors ------------------------------------------------------------------------------------ */

static void test_graph_replay__each_run_calls_custom_operators(void **state)
{
    instance k = make(by_name("custom operators"), MS_DTYPE_F32);

    (void)state;
    n_calls = 0;
    assert_ok(record(&k));
    expect_recorded(&k);
    assert_int_equal(n_calls, 2);
    assert_ok(forward(&k));
    assert_ok(forward(&k));
    assert_int_equal(n_calls, 6);
    ms_program_free(k.p);
}

static void test_graph_replay__an_index_out_of_range_is_the_eager_error(void **state)
{
    const function f = {
        "embedding", by_name("embedding, tied")->run, 2, {IN('I', 2, 5), IN('W', 4, 3)}, 1, 0};
    instance two[] = {make(&f, MS_DTYPE_F32), make(&f, MS_DTYPE_F32)};
    char text[2][256];

    assert_ok(record(&two[1]));
    expect_recorded(&two[1]);
    for (int32_t k = 0; k < 2; k++) {
        ms_memory_stats before, after;

        ms_memory_stats_get(&before);
        assert_ok(ms_tensor_fill(two[k].in[0], 4));
        assert_ok(ms_scope_open("step"));
        assert_int_equal(step(&two[k]), MS_INDEX_ERROR);
        snprintf(text[k], sizeof(text[k]), "%s", ms_error_message());
        assert_ok(ms_scope_close(NULL, 0));
        assert_ok(ms_tensor_set_grad(two[k].in[1], NULL));
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
        assert_ok(ms_tensor_fill(two[k].in[0], 3));
        assert_ok(step(&two[k]));
    }
    assert_string_equal(text[1], text[0]);
    expect_equal_steps(&two[0], &two[1]);
    ms_program_free(two[1].p);
}

/* What the rule of mul() reads is written afterwards. */
static ms_status written_after(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *row;

    (void)p;
    MS_TRY(ms_op_mul(out, in[0], in[1]));
    MS_TRY(ms_op_select(&row, in[0], 0, 1));
    return ms_tensor_fill(row, 0);
}

static void test_graph_replay__a_write_to_what_was_saved_is_an_error(void **state)
{
    const function inside = {"inside", written_after, 2, {IN('X', 4, 3), IN('W', 3)}, 1, 0};
    const function outside = {
        "outside", by_name("two outputs")->run, 2, {IN('X', 4, 3), IN('W', 3)}, 1, 0};
    const char *const text = "was modified by an in-place operation: it is at version";

    for (int32_t recorded = 0; recorded < 2; recorded++) {
        instance k = make(&inside, MS_DTYPE_F32);
        ms_tensor *loss;

        assert_ok(recorded != 0 ? record(&k) : MS_OK);
        assert_fails(MS_RUNTIME_ERROR, text, step(&k));
        ms_program_free(k.p);
        k = make(&outside, MS_DTYPE_F32);
        assert_ok(recorded != 0 ? record(&k) : MS_OK);
        for (int32_t output = 0; output < 2; output++) {
            ms_tensor *written = k.in[0];

            assert_ok(forward(&k));
            assert_ok(loss_of(&k, &loss));
            assert_ok(output ? ms_tensor_detach(&written, k.out[0]) : MS_OK);
            assert_ok(ms_tensor_fill(written, 0));
            assert_fails(MS_RUNTIME_ERROR, text, ms_backward(loss, NULL));
        }
        ms_program_free(k.p);
    }
}

/* -- lifetimes --------------------------------------------------------------------------------- */

static void test_graph_replay__backward_needs_no_program(void **state)
{
    instance two[] = {make(&functions[0], MS_DTYPE_F32), make(&functions[0], MS_DTYPE_F32)};
    ms_tensor *loss;

    assert_ok(record(&two[1]));
    for (int32_t k = 0; k < 2; k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &loss));
        ms_program_free(two[k].p);
        assert_ok(ms_backward(loss, NULL));
    }
    expect_equal_steps(&two[0], &two[1]);
}

static void *close_before_free(void *user)
{
    instance k = make(user, MS_DTYPE_F32);
    ms_tensor *loss;

    assert_ok(record(&k));
    assert_ok(replay(&k)); /* not done: the program has values, and a node of it exists */
    assert_ok(loss_of(&k, &loss));
    assert_ok(ms_close());
    ms_program_free(k.p);
    return NULL;
}

static void test_graph_replay__a_program_may_outlive_its_context(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_before_free,
                                    (void *)(uintptr_t)by_name("linear, gelu, cross entropy")),
                     0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_graph_replay__has_the_bits_of_eager_execution),
        BOOKED_TEST(test_graph_replay__each_run_calls_custom_operators),
        BOOKED_TEST(test_graph_replay__an_index_out_of_range_is_the_eager_error),
        BOOKED_TEST(test_graph_replay__a_write_to_what_was_saved_is_an_error),
        BOOKED_TEST(test_graph_replay__backward_needs_no_program),
        BOOKED_TEST(test_graph_replay__a_program_may_outlive_its_context),
    };

    return cmocka_run_group_tests_name("graph/replay", tests, NULL, NULL);
}
