/* runtime/tensor/op.c, op_count.c: what watchers of the one observable point are told. */
#include "values.h"

#include "op.h"
#include "op_count.h"

#include <pthread.h>

typedef struct heard {
    char text[512];
} heard;

static void hear_begin(void *user, const msi_op_call *call)
{
    heard *h = user;
    const size_t n = strlen(h->text);

    snprintf(h->text + n, sizeof(h->text) - n, "[%s of %d", call->op->name, (int)call->n_in);
}

static void hear_end(void *user, const msi_op_call *call, ms_status status)
{
    heard *h = user;
    const size_t n = strlen(h->text);

    snprintf(h->text + n, sizeof(h->text) - n, " %s%s]", ms_status_name(status),
             call->out[0] != NULL ? ", a result" : "");
}

static void test_tensor_op__a_watcher_hears_of_beginnings_and_ends(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2), *y = VECTOR(MS_DTYPE_F32, 1, 2, 3), *z;
    heard h = {""};
    const msi_op_observer observer = {.begin = hear_begin, .end = hear_end, .user = &h};

    msi_op_observe(msi_context(), &observer);
    assert_ok(ms_op_exp(&z, x));
    ms_tensor_free(z);
    assert_fails(MS_VALUE_ERROR, "", ms_op_mul(&z, x, y));
    msi_op_observe(msi_context(), NULL);
    assert_ok(ms_op_exp(&z, x));
    assert_string_equal(h.text, "[exp of 1 OK, a result][mul of 2 ValueError]");
}

static void hear_host(void *user, const char *what)
{
    heard *h = user;
    const size_t n = strlen(h->text);

    snprintf(h->text + n, sizeof(h->text) - n, "(%s)", what);
}

static ms_status no_gradient(void *user, ms_tensor *const *grads_out, int32_t n_out,
                             ms_tensor **grads_in, int32_t n_in)
{
    (void)user;
    (void)grads_out;
    (void)n_out;
    (void)grads_in;
    (void)n_in;
    return MS_OK;
}

static ms_status compute_again(void *user, ms_tensor *const *grads, int32_t n_out)
{
    (void)user;
    (void)grads;
    (void)n_out;
    return MS_OK;
}

static ms_status read_gradient(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    (void)user;
    (void)grad;
    (void)replacement;
    return MS_OK;
}

static ms_status pass_leaf(void *user, ms_tensor *t)
{
    (void)user;
    (void)t;
    return MS_OK;
}

/* The call passes, and this is all that the observer sees of it. */
#define SEEN(expected, call)                                                                       \
    do {                                                                                           \
        h.text[0] = '\0';                                                                          \
        assert_ok(call);                                                                           \
        assert_string_equal(h.text, expected);                                                     \
    } while (0)

/* A program that replays what it saw may not miss anything. */
static void test_tensor_op__every_call_is_an_operator_or_is_reported(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F64, 1, 2), *leaf = LEAF(MS_DTYPE_F64, 3, 4), *y, *z, *t;
    ms_tensor *mask = VECTOR(MS_DTYPE_BOOL, 1, 0);
    const int64_t n = 2;
    double numbers[2] = {1, 2}, number;
    bool yes;
    uint64_t hash;
    int64_t id;
    static heard h;
    static const msi_op_observer observer = {
        .begin = hear_begin, .end = hear_end, .host = hear_host, .user = &h};

    msi_op_observe(msi_context(), &observer);
    SEEN("[empty of 0 OK, a result]", ms_tensor_empty(&t, MS_DTYPE_F64, 1, &n));
    SEEN("[full of 0 OK, a result]", ms_tensor_full(&t, MS_DTYPE_F64, 1, &n, 3));
    SEEN("[arange of 0 OK, a result]", ms_tensor_arange(&t, MS_DTYPE_F64, 0, 1, 2));
    SEEN("[fill_ of 0 OK, a result]", ms_tensor_fill(t, 3));
    SEEN("[copy_ of 1 OK, a result]", ms_tensor_copy(t, x));
    SEEN("[add_ of 1 OK, a result]", ms_tensor_add_scaled(t, x, 2));
    SEEN("[detach of 1 OK, a result]", ms_tensor_detach(&t, leaf));
    SEEN("[square of 1 OK, a result]", ms_op_square(&y, leaf));
    SEEN("[sum of 1 OK, a result]", ms_op_sum(&z, y, 0, false));
    SEEN("(a tensor is made from values of the host)[empty of 0 OK, a result]",
         ms_tensor_from_doubles(&t, MS_DTYPE_F64, 1, &n, numbers, 2));
    SEEN("(a tensor is made from memory of the host)",
         ms_tensor_borrow(&t, MS_DTYPE_F64, 1, &n, numbers));
    SEEN("(a tensor is copied to the host)", ms_tensor_to_host(&t, x));
    SEEN("(random values are drawn)", ms_tensor_init(x, MS_INIT_UNIFORM, 0, 1, 1));
    SEEN("[dropout of 1 OK, a result]", ms_op_dropout(&t, x, 0.5, 1, 0));
    SEEN("(the host reads values of a tensor)", ms_tensor_item(z, &number));
    SEEN("(the host reads values of a tensor)", ms_tensor_to_doubles(x, numbers, 2));
    SEEN("(the host reads values of a tensor)", ms_tensor_hash(x, &hash));
    SEEN("(the host reads values of a tensor)", ms_tensor_all(mask, &yes));
    SEEN("(the host reads values of a tensor)", ms_tensor_any(mask, &yes));
    SEEN("(the host compares tensors)", ms_tensor_equal(x, x, &yes));
    SEEN("(the host compares tensors)", ms_tensor_allclose(x, x, 0, 0, &yes));
    SEEN("(a shape depends on values of a tensor)", ms_tensor_nonzero(&t, x));
    SEEN("(a custom function runs)", ms_custom(&t, &x, 1, &leaf, 1, no_gradient, NULL, NULL));
    SEEN("(a checkpoint is made)",
         ms_checkpoint_graph(&t, &x, 1, ms_graph_now(), compute_again, NULL, NULL));
    SEEN("(a hook is added to a result)", ms_tensor_hook(y, read_gradient, NULL, NULL, &id));
    SEEN("(a hook is removed)", ms_hook_remove(y, id));
    SEEN("(a hook is added to a leaf)", ms_tensor_hook(leaf, read_gradient, NULL, NULL, NULL));
    SEEN("(a hook is added to a leaf)",
         ms_tensor_accumulate_hook(leaf, pass_leaf, NULL, NULL, NULL));
    SEEN("(a backward runs)", ms_backward_with(z, NULL, MS_RETAIN_GRAPH));
    SEEN("(a backward runs)", ms_grad(&t, &z, NULL, 1, &leaf, 1, 0));
    SEEN("(a gradient is read)", ms_tensor_grad(&t, leaf));
    SEEN("(a gradient is replaced)", ms_tensor_set_grad(leaf, NULL));
    SEEN("(requires_grad of a tensor is set)", ms_tensor_set_requires_grad(leaf, false));
    msi_op_observe(msi_context(), NULL);
}

/* -- into results that are there --------------------------------------------------------------- */

static ms_status add_forward(msi_op_call *c)
{
    const double *number = c->attrs;

    return *number == 0 ? MS_FAIL(MS_VALUE_ERROR, "nothing to add")
                        : msi_copy(&c->out[0]->v, &c->in[0]->v, true);
}

static const msi_op add_op = {.name = "add_to", .forward = add_forward};

static void test_tensor_op__into_writes_what_is_there_and_records_nothing(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F32, 1, 2), *y = VECTOR(MS_DTYPE_F32, 10, 20), *meta;
    ms_context *ctx = msi_context();
    const double one = 1, zero = 0;
    const int64_t two = 2;
    heard h = {""};
    const msi_op_observer observer = {.begin = hear_begin, .end = hear_end, .user = &h};

    assert_false(msi_op_is_observed(ctx));
    msi_op_observe(ctx, &observer);
    assert_true(msi_op_is_observed(ctx));
    assert_ok(msi_op_run_into(ctx, &add_op, &one, &x, 1, &y, 1));
    EXPECT_VALUES(y, 11, 22);
    assert_false(y->requires_grad);
    assert_fails(MS_VALUE_ERROR, "nothing to add",
                 msi_op_run_into(ctx, &add_op, &zero, &x, 1, &y, 1));
    assert_non_null(y);
    assert_ok(ms_tensor_meta(&meta, MS_DTYPE_F32, 1, &two));
    assert_ok(msi_op_run_into(ctx, &add_op, &zero, &meta, 1, &meta, 1)); /* nothing runs */
    assert_fails(MS_RUNTIME_ERROR, "no values",
                 msi_op_run_into(ctx, &add_op, &one, &meta, 1, &y, 1));
    assert_fails(MS_RUNTIME_ERROR, "no values",
                 msi_op_run_into(ctx, &add_op, &one, &x, 1, &meta, 1));
    msi_op_observe(ctx, NULL);
    assert_ok(msi_op_run_into(ctx, &add_op, &one, &x, 1, &y, 1));
    EXPECT_VALUES(y, 12, 24);
    assert_string_equal(h.text, "[add_to of 1 OK, a result][add_to of 1 ValueError, a result]"
                                "[add_to of 1 OK, a result][add_to of 1 RuntimeError, a result]"
                                "[add_to of 1 RuntimeError, a result]");
}

static ms_status add_meta(const msi_meta *m)
{
    return msi_result(m->out, m->in[0]->dtype, m->in[0]->ndim, m->in[0]->shape);
}

static void test_tensor_op__what_fails_leaves_no_result(void **state)
{
    static const msi_op op = {.name = "add", .meta = add_meta, .forward = add_forward};
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2), *y = x;
    const double zero = 0;
    heard h = {""};
    const msi_op_observer observer = {.begin = hear_begin, .end = hear_end, .user = &h};

    msi_op_observe(msi_context(), &observer);
    assert_fails(MS_VALUE_ERROR, "nothing to add", msi_op_run(&op, &zero, &x, 1, &y, 1));
    msi_op_observe(msi_context(), NULL);
    assert_null(y);
    assert_string_equal(h.text, "[add of 1 ValueError]");
}

typedef struct counts {
    int64_t ran, recorded;
} counts;

static counts counted(const ms_op_counter *c, const char *name)
{
    counts k = {0, 0};
    int32_t n;

    assert_ok(ms_op_counter_n(c, &n));
    for (int32_t i = 0; i < n; i++) {
        int64_t ran, recorded;

        if (strcmp(ms_op_counter_get(c, i, &ran, &recorded), name) == 0) {
            k.ran += ran;
            k.recorded += recorded;
        }
    }
    return k;
}

static void test_tensor_op__a_counter_counts_what_succeeds_until_it_is_freed(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *y = VECTOR(MS_DTYPE_F64, 1, 2, 3), *z;
    ms_op_counter *c, *other;

    assert_ok(ms_op_counter_new(&c));
    assert_fails(MS_RUNTIME_ERROR, "watched already", ms_op_counter_new(&other));
    assert_null(other);
    for (int32_t i = 0; i < 3; i++) {
        assert_ok(ms_op_exp(&z, i == 0 ? x : y));
        ms_tensor_free(z);
    }
    assert_fails(MS_VALUE_ERROR, "", ms_op_mul(&z, x, y));
    assert_ok(ms_op_sum(&z, x, 0, false));
    assert_ok(ms_backward(z, NULL)); /* runs rules, no operator */
    ms_tensor_free(z);
    int32_t n;

    assert_ok(ms_op_counter_n(c, &n));
    assert_int_equal(n, 2);
    assert_int_equal(counted(c, "exp").ran, 3);
    assert_int_equal(counted(c, "exp").recorded, 1);
    assert_int_equal(counted(c, "mul").ran, 0);
    assert_int_equal(counted(c, "sum").ran, 1);
    assert_int_equal(counted(c, "sum").recorded, 1);
    ms_op_counter_free(c);
    assert_ok(ms_op_counter_new(&other));
    ms_op_counter_free(other);
    ms_op_counter_free(NULL);
}

static void *count_and_close(void *user)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F64, 1), *y;
    ms_op_counter *c;

    assert_ok(ms_op_counter_new(&c));
    assert_ok(ms_op_exp(&y, x));
    ms_close();
    assert_int_equal(counted(c, "exp").ran, 1);
    ms_op_counter_free(c);
    return NULL;
}

static void test_tensor_op__a_counter_is_its_threads_and_outlives_the_context(void **state)
{
    ms_op_counter *c;
    pthread_t thread;
    int32_t n;

    assert_ok(ms_op_counter_new(&c));
    assert_int_equal(pthread_create(&thread, NULL, count_and_close, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(ms_op_counter_n(c, &n));
    assert_int_equal(n, 0);
    ms_op_counter_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_tensor_op__a_watcher_hears_of_beginnings_and_ends),
        BOOKED_TEST(test_tensor_op__every_call_is_an_operator_or_is_reported),
        BOOKED_TEST(test_tensor_op__into_writes_what_is_there_and_records_nothing),
        BOOKED_TEST(test_tensor_op__what_fails_leaves_no_result),
        BOOKED_TEST(test_tensor_op__a_counter_counts_what_succeeds_until_it_is_freed),
        BOOKED_TEST(test_tensor_op__a_counter_is_its_threads_and_outlives_the_context),
    };
    return cmocka_run_group_tests_name("tensor/op", tests, NULL, NULL);
}
