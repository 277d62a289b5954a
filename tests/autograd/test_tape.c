/* runtime/autograd/tape.c, leaf.c: what is recorded, what a graph holds, what it costs. */
#include "values.h"

#include "autograd.h"
#include "backend.h"

#include <malloc.h>
#include <pthread.h>

/* -- who requires gradients -------------------------------------------------------------------- */

static ms_tensor_info info_of(ms_tensor *t)
{
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(t, &info));
    return info;
}

static void test_autograd_tape__results_require_grad_when_an_operand_does(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1, 2), *c = VECTOR(MS_DTYPE_F32, 3, 4), *y, *z;

    assert_ok(ms_op_mul(&y, c, x));
    assert_ok(ms_op_mul(&z, c, c));
    assert_true(info_of(y).requires_grad);
    assert_false(info_of(y).is_leaf);
    assert_false(info_of(z).requires_grad);
    assert_true(info_of(z).is_leaf);
}

static void test_autograd_tape__records_nothing_without_grad_mode(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1, 2), *y;

    assert_true(ms_grad_enabled());
    assert_true(ms_grad_enabled_set(false));
    assert_false(ms_grad_enabled());
    assert_ok(ms_op_exp(&y, x));
    assert_false(ms_grad_enabled_set(true));
    assert_false(info_of(y).requires_grad);
    assert_fails(MS_RUNTIME_ERROR, "does not require grad", ms_backward(y, NULL));
}

static void test_autograd_tape__integer_results_have_no_gradient(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1, 2), *y;

    assert_ok(ms_op_cast(&y, x, MS_DTYPE_I64));
    assert_false(info_of(y).requires_grad);
    assert_true(info_of(y).is_leaf);
}

static void test_autograd_tape__only_floating_leaves_may_require_grad(void **state)
{
    ms_tensor *i = VECTOR(MS_DTYPE_I64, 1, 2), *x = LEAF(MS_DTYPE_F32, 1, 2), *y, *d;

    assert_fails(MS_TYPE_ERROR, "only floating tensors can require grad, got i64",
                 ms_tensor_set_requires_grad(i, true));
    assert_ok(ms_tensor_set_requires_grad(i, false));
    assert_ok(ms_op_tanh(&y, x));
    assert_fails(MS_RUNTIME_ERROR, "only leaf tensors can have their requires_grad set",
                 ms_tensor_set_requires_grad(y, false));
    assert_ok(ms_tensor_detach(&d, y));
    assert_false(info_of(d).requires_grad);
    assert_ok(ms_tensor_set_requires_grad(d, true));
    assert_ok(ms_tensor_set_requires_grad(x, false));
}

/* -- .grad ------------------------------------------------------------------------------------- */

static void test_autograd_tape__set_grad_copies_into_the_leafs_own_memory(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *g = VECTOR(MS_DTYPE_F64, 5, 6), *mine;

    expect_no_grad(x);
    assert_ok(ms_tensor_set_grad(x, g));
    assert_ok(ms_tensor_fill(g, 0));
    EXPECT_GRAD(x, 5, 6);
    assert_ok(ms_tensor_grad(&mine, x));
    assert_int_equal(info_of(mine).dtype, MS_DTYPE_F64);
    assert_ok(ms_tensor_set_grad(x, g)); /* into the same memory */
    EXPECT_VALUES(mine, 0, 0);
    assert_ok(ms_tensor_fill(mine, 7)); /* a handle on the gradient, not a copy */
    EXPECT_GRAD(x, 7, 7);
    assert_ok(ms_tensor_set_grad(x, NULL));
    expect_no_grad(x);
}

static void test_autograd_tape__set_grad_names_what_does_not_fit(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *g = VECTOR(MS_DTYPE_F64, 5, 6, 7), *y;
    ms_tensor *i = VECTOR(MS_DTYPE_I64, 1, 2), *narrow = VECTOR(MS_DTYPE_F32, 1, 2);

    assert_fails(MS_VALUE_ERROR, "has shape (3), expected (2)", ms_tensor_set_grad(x, g));
    assert_fails(MS_TYPE_ERROR, "is f32, expected f64", ms_tensor_set_grad(x, narrow));
    expect_no_grad(x);
    ms_tensor_free(narrow);
    assert_fails(MS_TYPE_ERROR, "got i64", ms_tensor_set_grad(i, i));
    assert_ok(ms_op_exp(&y, x));
    assert_fails(MS_RUNTIME_ERROR, "only leaf tensors can have their grad set",
                 ms_tensor_set_grad(y, x));
    expect_no_grad(x);
}

/* -- lifetimes --------------------------------------------------------------------------------- */

static void test_autograd_tape__drops_a_graph_of_any_length(void **state)
{
    enum { NODES = 300000 }; /* recursion would need tens of megabytes of stack */
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1), *y = ms_tensor_retain(x);

    for (int i = 0; i < NODES; i++) {
        affine(&y, 1, 0);
    }
    ms_tensor_free(y);
    expect_no_grad(x);
}

static void test_autograd_tape__differentiates_a_graph_of_any_length(void **state)
{
    enum { NODES = 100000 };
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1), *y = ms_tensor_retain(x);

    for (int i = 0; i < NODES; i++) {
        affine(&y, i % 2 == 0 ? 2 : 0.5, 0);
    }
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 1);
}

static void test_autograd_tape__a_graph_needs_no_handles(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *a, *b, *y;

    assert_ok(ms_op_exp(&a, x));
    assert_ok(ms_op_mul(&b, a, x));
    assert_ok(ms_op_tanh(&y, b));
    ms_tensor_free(b);
    ms_tensor_free(a);
    ms_tensor_free(x); /* the leaf lives on in the graph, with nobody to read its gradient */
    assert_ok(ms_backward(y, NULL));
}

static int64_t live(int32_t kind)
{
    ms_memory_stats stats;

    ms_memory_stats_get(&stats);
    return stats.live[kind];
}

/* Activations that live when the node behind the hook is about to run. */
static ms_status note_live(void *user)
{
    *(int64_t *)user = live(MS_MEM_ACTIVATION);
    return MS_OK;
}

static void test_autograd_tape__saved_memory_goes_when_its_node_has_run(void **state)
{
    enum { N = 1000, BYTES = N * 4, DEPTH = 5 };
    const int64_t n = N;
    ms_tensor *x = filled(MS_DTYPE_F32, 1, &n, 1), *grad = filled(MS_DTYPE_F32, 1, &n, 2);
    ms_tensor *y = ms_tensor_retain(x), *next;
    int64_t at_node[DEPTH];
    const int64_t base = live(MS_MEM_ACTIVATION);

    require(x);
    for (int i = 0; i < DEPTH; i++) { /* each node keeps its result */
        assert_ok(ms_op_tanh(&next, y));
        assert_ok(msi_autograd_pre_hook(next, (msi_pre_hook){note_live, &at_node[i], NULL, NULL}));
        ms_tensor_free(y);
        y = next;
    }
    assert_int_equal(live(MS_MEM_ACTIVATION) - base, DEPTH * BYTES);
    assert_ok(ms_backward(y, grad));
    /* Node i runs with results 0..i saved (the last also held by y) and, but for the first to run,
     * a gradient on its way. */
    for (int i = 0; i < DEPTH; i++) {
        const int64_t results = i + 1 + (i < DEPTH - 1 ? 1 : 0), on_the_way = i < DEPTH - 1;

        assert_int_equal(at_node[i] - base, (results + on_the_way) * BYTES);
    }
    assert_int_equal(live(MS_MEM_ACTIVATION) - base, BYTES); /* y */
    assert_int_equal(live(MS_MEM_GRADIENT), BYTES);
}

static void step(ms_tensor *w, ms_tensor *x)
{
    ms_tensor *h, *s, *y, *view;
    const int64_t shape[2] = {2, 2};

    assert_ok(ms_op_mul(&h, x, w));
    assert_ok(ms_op_tanh(&s, h));
    assert_ok(ms_op_add(&y, s, h));
    assert_ok(ms_op_reshape(&view, y, 2, shape));
    ms_tensor_free(y);
    ms_tensor_free(s);
    ms_tensor_free(h);
    assert_ok(ms_op_narrow(&y, view, 0, 1, 1));
    assert_ok(ms_op_narrow(&s, y, 1, 0, 1));
    assert_ok(ms_backward(s, NULL));
    ms_tensor_free(s);
    ms_tensor_free(y);
    ms_tensor_free(view);
}

static void test_autograd_tape__a_thousand_steps_take_no_new_memory(void **state)
{
    skip_on_device("takes memory for what it runs later");
    ms_tensor *w = LEAF(MS_DTYPE_F32, 1, 2, 3, 4), *x = VECTOR(MS_DTYPE_F32, 1, 1, 1, 1);
    ms_memory_stats before, after;

    for (int i = 0; i < 10; i++) {
        step(w, x);
    }
    ms_memory_stats_get(&before);
    const size_t heap = mallinfo2().uordblks;

    for (int i = 0; i < 1000; i++) {
        step(w, x);
    }
    ms_memory_stats_get(&after);
    assert_int_equal(mallinfo2().uordblks, heap);
    assert_int_equal(after.n_system, before.n_system);
    assert_int_equal(after.live_total, before.live_total);
    assert_int_equal(after.live_handles, before.live_handles);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS = 0 }; /* the sanitizer's heap is not seen */
#else
enum { COUNTS = 1 };
#endif

/* Heap that `n` results take which somebody keeps, as a collector does that has not come by yet. */
static int64_t kept(ms_tensor **results, int32_t n, ms_tensor *x, bool differentiates)
{
    const size_t before = mallinfo2().uordblks;

    for (int32_t i = 0; i < n; i++) {
        assert_ok(ms_op_exp(&results[i], x));
        if (differentiates) {
            assert_ok(ms_backward(results[i], NULL));
        }
    }
    return (int64_t)(mallinfo2().uordblks - before);
}

static void test_autograd_tape__results_keep_nothing_of_a_graph_that_is_used_up(void **state)
{
    enum { N = 5000, NODE = 128 /* the least that a record of an op takes */ };
    ms_tensor **first = calloc(N, sizeof(*first)), **second = calloc(N, sizeof(*second)), *x, *y,
              *z;

    assert_ok(ms_close()); /* and with it what earlier graphs left to be used again */
    open_books(state);
    x = LEAF(MS_DTYPE_F64, 3);
    const int64_t with = kept(first, N, x, false), without = kept(second, N, x, true);

    assert_true(!COUNTS || with - without > (int64_t)N * NODE);
    assert_true(info_of(second[0]).requires_grad);
    assert_false(info_of(second[0]).is_leaf);
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'exp'", ms_backward(second[0], NULL));
    assert_ok(ms_op_affine(&z, second[1], 2, 0));
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'exp'", ms_backward(z, NULL));
    assert_ok(ms_op_affine(&y, x, 2, 0));
    assert_ok(ms_backward(y, NULL));
    assert_fails(MS_RUNTIME_ERROR, "a second time: 'affine'", ms_backward(y, NULL));
    for (int32_t i = 0; i < N; i++) {
        ms_tensor_free(first[i]);
        ms_tensor_free(second[i]);
    }
    free(first);
    free(second);
}

/* -- contexts ---------------------------------------------------------------------------------- */

static ms_status record_nothing(msi_op_call *call)
{
    return MS_OK;
}

/* In a context of its own. */
static void *differentiate(void *user)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y;

    assert_ok(ms_op_mul(&y, x, x));
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 6);
    ms_close();
    return NULL;
}

static void test_autograd_tape__who_records_is_a_matter_of_the_context(void **state)
{
    ms_context *ctx = msi_context();
    const msi_op_recorder *usual = ctx->recorder;
    msi_op_recorder other = *usual;
    ms_tensor *x = LEAF(MS_DTYPE_F64, 3), *y, *z;
    pthread_t thread;

    other.begin = record_nothing;
    ctx->recorder = &other;
    assert_int_equal(pthread_create(&thread, NULL, differentiate, NULL), 0);
    assert_ok(ms_op_mul(&y, x, x));
    assert_int_equal(pthread_join(thread, NULL), 0);
    ctx->recorder = usual;
    assert_ok(ms_op_mul(&z, x, x));
    assert_false(info_of(y).requires_grad);
    assert_true(info_of(z).requires_grad);
}

/* -- closing ----------------------------------------------------------------------------------- */

static ms_status see(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return MS_OK;
}

static void count_drop(void *user)
{
    ++*(int *)user;
}

/* A context of its own, closed with a graph, gradients, hooks and handles alive. */
static void *close_in_the_middle(void *user)
{
    int *drops = user;
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *y, *z, *g = VECTOR(MS_DTYPE_F64, 1, 1);

    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_backward(y, g));
    assert_ok(ms_op_exp(&z, x));
    assert_ok(ms_op_mul(&y, z, x));
    assert_ok(ms_tensor_hook(x, see, drops, count_drop, NULL));
    assert_ok(ms_tensor_hook(y, see, drops, count_drop, NULL));
    ms_close();
    x = LEAF(MS_DTYPE_F64, 3); /* a new context, at once */
    assert_ok(ms_op_mul(&y, x, x));
    assert_ok(ms_backward(y, NULL));
    EXPECT_GRAD(x, 6);
    ms_close();
    return NULL;
}

static void test_autograd_tape__closes_with_everything_alive(void **state)
{
    pthread_t thread;
    int drops = 0;

    assert_int_equal(pthread_create(&thread, NULL, close_in_the_middle, &drops), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(drops, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_tape__results_require_grad_when_an_operand_does),
        BOOKED_TEST(test_autograd_tape__records_nothing_without_grad_mode),
        BOOKED_TEST(test_autograd_tape__integer_results_have_no_gradient),
        BOOKED_TEST(test_autograd_tape__only_floating_leaves_may_require_grad),
        BOOKED_TEST(test_autograd_tape__set_grad_copies_into_the_leafs_own_memory),
        BOOKED_TEST(test_autograd_tape__set_grad_names_what_does_not_fit),
        BOOKED_TEST(test_autograd_tape__drops_a_graph_of_any_length),
        BOOKED_TEST(test_autograd_tape__differentiates_a_graph_of_any_length),
        BOOKED_TEST(test_autograd_tape__a_graph_needs_no_handles),
        BOOKED_TEST(test_autograd_tape__saved_memory_goes_when_its_node_has_run),
        BOOKED_TEST(test_autograd_tape__a_thousand_steps_take_no_new_memory),
        BOOKED_TEST(test_autograd_tape__results_keep_nothing_of_a_graph_that_is_used_up),
        BOOKED_TEST(test_autograd_tape__who_records_is_a_matter_of_the_context),
        BOOKED_TEST(test_autograd_tape__closes_with_everything_alive),
    };
    return cmocka_run_group_tests_name("autograd/tape", tests, NULL, NULL);
}
