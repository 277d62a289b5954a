/* runtime/graph: a replay needs no memory besides its plan's, and a failed allocation leaves it
 * usable. */
#include "functions/functions.h"

#include "backend.h"
#include "oom.h"

static void test_graph_memory__steps_use_the_memory_of_the_first(void **state)
{
    enum { STEPS = 1000 };
    instance k = make(by_name("segments"), MS_DTYPE_F32);
    ms_memory_stats first, now;

    assert_ok(record(&k));
    expect_recorded(&k);
    for (int32_t i = 0; i < STEPS; i++) {
        assert_ok(ms_scope_open("step"));
        assert_ok(step(&k));
        assert_ok(ms_scope_close(NULL, 0));
        ms_memory_stats_get(i < 2 ? &first : &now);
    }
    assert_int_equal(now.live_handles, first.live_handles);
    assert_int_equal(now.live_total, first.live_total);
    assert_int_equal(now.n_system, first.n_system);
    ms_program_free(k.p);
}

static void test_graph_memory__a_forward_leaves_outputs_and_what_was_saved(void **state)
{
    static const char *const names[] = {/* of one segment, outputs of memory of their own */
                                        "linear, gelu, cross entropy",
                                        "an output without gradient",
                                        "embedding, tied",
                                        "attention",
                                        "convolution",
                                        "without grad mode inside",
                                        "a checkpoint",
                                        "integers and a constant"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        instance k = make(by_name(names[i]), MS_DTYPE_F32);
        ms_memory_stats before, after;
        ms_program_info info;
        int64_t bytes = 0;

        assert_ok(record(&k));
        for (int32_t o = 0; o < k.f->n_out; o++) {
            bytes += info_of(k.out[o]).numel * ms_dtype_size(info_of(k.out[o]).dtype);
        }
        ms_program_info_get(k.p, &info);
        assert_ok(ms_scope_open("step"));
        ms_memory_stats_get(&before);
        assert_ok(forward(&k));
        ms_memory_stats_get(&after);
        assert_int_equal(tensor_bytes(&after) - tensor_bytes(&before), bytes + info.saved_bytes);
        assert_ok(ms_scope_close(NULL, 0));
        ms_program_free(k.p);
    }
}

enum { ROWS = 1100, CLASSES = 1000 }; /* more bytes of logits than a piece */

static ms_status large_logits(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *logits, *rows;

    (void)p;
    MS_TRY(ms_op_linear(&logits, in[0], in[2], NULL));
    MS_TRY(ms_op_reshape(&rows, logits, 2, (const int64_t[]){ROWS, CLASSES}));
    return ms_op_cross_entropy(out, rows, in[1], -100, MS_REDUCTION_MEAN);
}

static void test_graph_memory__a_gradient_of_logits_overwrites_them(void **state)
{
    const function f = {"large logits",
                        large_logits,
                        3,
                        {IN('X', ROWS, 4), IN('I', ROWS), IN('W', CLASSES, 4)},
                        1,
                        0};
    instance eager = make(&f, MS_DTYPE_F32), replayed = make(&f, MS_DTYPE_F32);
    const int64_t logits = (int64_t)sizeof(float) * ROWS * CLASSES;
    ms_memory_stats before, after;

    assert_ok(record(&replayed));
    ms_memory_reset_peak();
    ms_memory_stats_get(&before);
    assert_ok(step(&replayed));
    ms_memory_stats_get(&after);
    const int64_t most = after.peak[MS_MEM_ACTIVATION] - before.live[MS_MEM_ACTIVATION];

    assert_in_range(most, logits, 2 * logits - 1);
    assert_ok(step(&eager));
    expect_equal_steps(&eager, &replayed);
    ms_program_free(replayed.p);
}

static void test_graph_memory__partition_saves_what_is_costly_to_compute(void **state)
{
    static const struct {
        const char *name;
        int64_t replay, partition; /* bytes, each tensor's rounded up to 64 */
    } rows[] = {
        {"a chain", 128, 0},
        {"linear, gelu, cross entropy", 640, 448}, /* not gelu()'s result of 48 numbers */
        {"attention", 512, 192}, /* not the product of 80 numbers; two numbers a query stay */
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int32_t level = MS_PROGRAM_REPLAY; level <= MS_PROGRAM_PARTITION; level++) {
            instance k = make(by_name(rows[i].name), MS_DTYPE_F32);
            ms_program_info info;

            k.level = level;
            assert_ok(record(&k));
            ms_program_info_get(k.p, &info);
            assert_int_equal(info.saved_bytes,
                             level == MS_PROGRAM_REPLAY ? rows[i].replay : rows[i].partition);
            ms_program_free(k.p);
        }
    }
}

static ms_status wide(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h;

    (void)p;
    MS_TRY(ms_op_linear_gelu(&h, in[0], in[1], in[2], false));
    return ms_op_linear(out, h, in[3], NULL);
}

/* gelu() reads what backward needs in any case; its result is needed by the product behind it. */
static void test_graph_memory__a_piece_ends_where_little_is_used_behind_it(void **state)
{
    const function f = {
        "wide", wide,
        4,      {IN('X', ROWS, 4), IN('W', CLASSES, 4), IN('W', CLASSES), IN('W', 4, CLASSES)},
        1,      0};
    const int64_t hidden = (int64_t)sizeof(float) * ROWS * CLASSES;
    instance eager = make(&f, MS_DTYPE_F32);

    assert_ok(step(&eager));
    for (int32_t level = MS_PROGRAM_REPLAY; level <= MS_PROGRAM_PARTITION; level++) {
        instance k = make(&f, MS_DTYPE_F32);
        ms_memory_stats before, after;
        ms_tensor *loss;

        k.level = level;
        assert_ok(record(&k));
        assert_ok(ms_scope_open("step"));
        ms_memory_stats_get(&before);
        assert_ok(forward(&k));
        ms_memory_stats_get(&after);
        assert_int_equal((tensor_bytes(&after) - tensor_bytes(&before)) / hidden,
                         level == MS_PROGRAM_REPLAY ? 2 : 1);
        assert_ok(loss_of(&k, &loss));
        assert_ok(ms_backward(loss, NULL));
        expect_equal_steps(&eager, &k);
        assert_ok(ms_scope_close(NULL, 0));
        ms_program_free(k.p);
    }
}

/* Record, and two steps of the program; what fails for lack of memory ends it. */
static ms_status live(instance *k)
{
    MS_TRY(record(k));
    if (ms_program_broken(k->p) != NULL) {
        assert_non_null(strstr(ms_program_broken(k->p), "no memory"));
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(step(k));
    return step(k);
}

static void fail_at(bool of_tensors, int32_t at)
{
    if (of_tensors) {
        msi_alloc_fail_at(msi_context(), at);
    } else {
        n_before = at;
    }
}

/* Allocation k fails, for each k: of tensors' memory, or of the C library. */
static void fail_each(const function *f, bool of_tensors)
{
    ms_status status = MS_OUT_OF_MEMORY;

    for (int32_t at = 0; status != MS_OK; at++) {
        ms_memory_stats before, after;

        ms_memory_stats_get(&before);
        assert_ok(ms_scope_open("life"));
        instance k = make(f, MS_DTYPE_F32);

        k.level = MS_PROGRAM_PARTITION;
        fail_at(of_tensors, at);
        status = live(&k);
        fail_at(of_tensors, -1);
        if (status != MS_OK && status != MS_OUT_OF_MEMORY) {
            fail_msg("%s: allocation %d fails: %s", f->name, (int)at, ms_error_message());
        }
        ms_program_free(k.p);
        assert_ok(ms_scope_close(NULL, 0));
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
    }
}

static void test_graph_memory__each_allocation_may_fail(void **state)
{
    const function *const some[] = {by_name("linear, gelu, cross entropy"),
                                    by_name("a written argument"),
                                    by_name("segments"),
                                    by_name("attention"),
                                    by_name("nested checkpoints"),
                                    by_name("custom operators")};

    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        instance warm = make(some[i], MS_DTYPE_F32);

        assert_ok(live(&warm));
        ms_program_free(warm.p);
        fail_each(some[i], true);
        fail_each(some[i], false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_graph_memory__steps_use_the_memory_of_the_first),
        BOOKED_TEST(test_graph_memory__a_forward_leaves_outputs_and_what_was_saved),
        BOOKED_TEST(test_graph_memory__a_gradient_of_logits_overwrites_them),
        BOOKED_TEST(test_graph_memory__partition_saves_what_is_costly_to_compute),
        BOOKED_TEST(test_graph_memory__a_piece_ends_where_little_is_used_behind_it),
        BOOKED_TEST(test_graph_memory__each_allocation_may_fail),
    };

    return cmocka_run_group_tests_name("graph/memory", tests, NULL, NULL);
}
