/* runtime/tensor/op.c, op_count.c: what watchers of the one observable point are told. */
#include "values.h"

#include "moonshard/autograd.h"
#include "moonshard/data.h"
#include "moonshard/optim.h"
#include "op.h"
#include "op_count.h"

#include <pthread.h>

typedef struct heard {
    char text[256];
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

static void hear_host(void *user, const char *what)
{
    heard *h = user;
    const size_t n = strlen(h->text);

    snprintf(h->text + n, sizeof(h->text) - n, "<%s>", what);
}

static void test_tensor_op__a_watcher_hears_of_beginnings_and_ends(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F32, 1, 2), *y = VECTOR(MS_DTYPE_F32, 1, 2, 3), *z;
    heard h = {""};
    const msi_op_observer observer = {hear_begin, hear_end, &h, NULL};

    msi_op_observe(msi_context(), &observer);
    assert_ok(ms_op_exp(&z, x));
    ms_tensor_free(z);
    assert_fails(MS_VALUE_ERROR, "", ms_op_mul(&z, x, y));
    msi_op_observe(msi_context(), NULL);
    assert_ok(ms_op_exp(&z, x));
    assert_string_equal(h.text, "[exp of 1 OK, a result][mul of 2 ValueError]");
}

/* -- what is no operator of ops.h ------------------------------------------------------------- */

/* The observer sees `expected` of `call`. */
#define SEES(expected, call)                                                                       \
    do {                                                                                           \
        heard seen_ = {""};                                                                        \
        const msi_op_observer observer_ = {hear_begin, hear_end, &seen_, hear_host};               \
                                                                                                   \
        msi_op_observe(msi_context(), &observer_);                                                 \
        const ms_status status_ = (call);                                                          \
                                                                                                   \
        msi_op_observe(msi_context(), NULL);                                                       \
        assert_ok(status_);                                                                        \
        assert_string_equal(seen_.text, expected);                                                 \
    } while (0)

static void test_tensor_op__the_host_reports_what_it_reads_and_makes(void **state)
{
    ms_tensor *x = VECTOR(MS_DTYPE_F64, 1, 2), *one = VECTOR(MS_DTYPE_F64, 3);
    ms_tensor *yes = VECTOR(MS_DTYPE_BOOL, 1, 1), *ids = VECTOR(MS_DTYPE_I64, 4, 5), *out;
    const int64_t two = 2;
    double values[2] = {6, 7};
    uint64_t hash;
    bool is;

    SEES("<the host reads values of a tensor>", ms_tensor_item(one, values));
    SEES("<the host reads values of a tensor>", ms_tensor_to_doubles(x, values, 2));
    SEES("<the host reads values of a tensor>", ms_tensor_hash(x, &hash));
    SEES("<the host reads values of a tensor>", ms_tensor_all(yes, &is));
    SEES("<the host reads values of a tensor>", ms_tensor_any(yes, &is));
    SEES("<the host reads values of a tensor>", ms_data_digest(ids, &hash));
    SEES("<the host compares tensors>", ms_tensor_equal(x, x, &is));
    SEES("<the host compares tensors>", ms_tensor_allclose(x, x, 0, 0, &is));
    SEES("<the host waits for a tensor>", ms_tensor_wait(x));
    SEES("<a tensor is copied to the host>", ms_tensor_to_host(&out, x));
    SEES("<a shape depends on values of a tensor>", ms_tensor_nonzero(&out, x));
    SEES("<a tensor is made from values of the host>[empty of 0 OK, a result]",
         ms_tensor_from_doubles(&out, MS_DTYPE_F64, 1, &two, values, 2));
    SEES("<a tensor is made from memory of the host>",
         ms_tensor_borrow(&out, MS_DTYPE_F64, 1, &two, values));
    SEES("<random values are drawn>", ms_tensor_init(x, MS_INIT_NORMAL, 0, 1, 1));
    SEES("[dropout of 1 OK, a result]", ms_op_dropout(&out, x, 0.5, 1, 1));
    SEES("[detach of 1 OK, a result]", ms_tensor_detach(&out, x));
    SEES("<the host writes tokens into a tensor>", ms_data_read(ids, ids, 0));
}

static ms_status no_backward(void *user, ms_tensor *const *grads_out, int32_t n_out,
                             ms_tensor **grads_in, int32_t n_in)
{
    return MS_OK;
}

static ms_status no_hook(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    return MS_OK;
}

static void test_tensor_op__changes_of_the_graph_and_of_parameters_are_reported(void **state)
{
    ms_tensor *x = LEAF(MS_DTYPE_F64, 1, 2), *p = VECTOR(MS_DTYPE_F64, 1, 2), *y, *out, *declared;
    const int64_t two = 2;
    ms_optim *optim;
    uint64_t hash;

    assert_ok(ms_op_sum(&y, x, 0, false));
    SEES("", ms_tensor_hook(x, no_hook, NULL, NULL, NULL));
    SEES("<a hook is added to a result>", ms_tensor_hook(y, no_hook, NULL, NULL, NULL));
    SEES("<a custom function runs>", ms_custom(&out, &p, 1, &x, 1, no_backward, NULL, NULL));
    SEES("<a backward runs>", ms_grad(&out, &y, NULL, 1, &x, 1, MS_RETAIN_GRAPH));
    SEES("<a backward runs>", ms_backward(y, NULL));
    SEES("<a gradient is read>", ms_tensor_grad(&out, x));
    SEES("<a gradient is replaced>", ms_tensor_set_grad(x, NULL));
    SEES("<a tensor becomes a parameter>", ms_tensor_make_parameter(p));
    SEES("<requires_grad of a tensor is set>", ms_tensor_set_requires_grad(p, true));
    SEES("<the host reads values of a tensor>", ms_params_hash(&p, 1, &hash));
    SEES("<the dtype of parameters is changed>", ms_params_cast(&p, 1, MS_DTYPE_F32));
    SEES("<gradients are clipped>", ms_clip_grad_norm(&out, &p, 1, 1, 2, false));
    assert_ok(ms_optim_new(&optim, MS_OPTIM_SGD));
    assert_ok(ms_optim_add_group(optim, &p, 1, NULL, NULL));
    SEES("<an optimizer updates parameters>", ms_optim_step(optim));
    ms_optim_free(optim);
    assert_ok(ms_tensor_parameter(&declared, MS_DTYPE_F32, 1, &two, MS_INIT_CONSTANT, 1, 0));
    SEES("<a parameter gets its initial values>", ms_tensor_materialize(declared));
    SEES("", ms_tensor_materialize(declared));
    ms_tensor_free(declared); /* no scope owns parameters */
    ms_tensor_free(p);
}

/* The last operator that the observer saw. */
typedef struct last_op {
    const msi_op *op;
    int32_t n_in;
    bool into;
    _Alignas(8) char attrs[256];
} last_op;

static void keep_begin(void *user, const msi_op_call *call)
{
    ((last_op *)user)->into = call->out[0] != NULL;
}

static void keep_end(void *user, const msi_op_call *call, ms_status status)
{
    last_op *last = user;

    assert_ok(status);
    assert_true(call->op->attrs_size <= (int32_t)sizeof(last->attrs));
    last->op = call->op;
    last->n_in = call->n_in;
    memcpy(last->attrs, call->attrs != NULL ? call->attrs : "", (size_t)call->op->attrs_size);
}

/* Run `last` again, on `to` if it wrote in place: the same values as `result`. */
static void expect_again(const last_op *last, const char *name, ms_tensor *src, ms_tensor *to,
                         ms_tensor *result)
{
    ms_tensor *out = to;
    bool equal;

    assert_string_equal(last->op->name, name);
    assert_int_equal(last->into, to != NULL);
    assert_int_equal(last->op->constant, strcmp(name, "arange") == 0);
    assert_ok(to != NULL
                  ? msi_op_run_into(msi_context(), last->op, last->attrs, &src, last->n_in, &out, 1)
                  : msi_op_run(last->op, last->attrs, &src, last->n_in, &out, 1));
    assert_ok(ms_tensor_equal(out, result, &equal));
    assert_true(equal);
}

static void test_tensor_op__creation_and_writes_are_operators_that_run_again(void **state)
{
    last_op last;
    const msi_op_observer observer = {keep_begin, keep_end, &last, NULL};
    const int64_t shape[] = {2, 2};
    ms_tensor *src = VECTOR(MS_DTYPE_F32, 5, 6), *a, *b, *out;

    msi_op_observe(msi_context(), &observer);
    assert_ok(ms_tensor_full(&out, MS_DTYPE_BF16, 2, shape, 1.5));
    expect_again(&last, "full", NULL, NULL, out);
    assert_ok(ms_tensor_arange(&out, MS_DTYPE_I64, 9007199254740992, 3, 300));
    expect_again(&last, "arange", NULL, NULL, out);
    assert_ok(ms_tensor_arange(&out, MS_DTYPE_F32, 0.5, -0.25, 3));
    expect_again(&last, "arange", NULL, NULL, out);
    assert_ok(ms_tensor_empty(&a, MS_DTYPE_F64, 2, shape));
    assert_string_equal(last.op->name, "empty");
    assert_ok(ms_tensor_full(&a, MS_DTYPE_F32, 2, shape, 1));
    assert_ok(ms_tensor_full(&b, MS_DTYPE_F32, 2, shape, 1));
    assert_ok(ms_tensor_add_scaled(a, src, 0.5));
    expect_again(&last, "add_", src, b, a);
    assert_ok(ms_tensor_copy(a, src));
    expect_again(&last, "copy_", src, b, a);
    assert_ok(ms_tensor_fill(a, -2));
    expect_again(&last, "fill_", NULL, b, a);
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
    const msi_op_observer observer = {hear_begin, hear_end, &h, NULL};

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
    const msi_op_observer observer = {hear_begin, hear_end, &h, NULL};

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
        BOOKED_TEST(test_tensor_op__the_host_reports_what_it_reads_and_makes),
        BOOKED_TEST(test_tensor_op__changes_of_the_graph_and_of_parameters_are_reported),
        BOOKED_TEST(test_tensor_op__creation_and_writes_are_operators_that_run_again),
        BOOKED_TEST(test_tensor_op__into_writes_what_is_there_and_records_nothing),
        BOOKED_TEST(test_tensor_op__what_fails_leaves_no_result),
        BOOKED_TEST(test_tensor_op__a_counter_counts_what_succeeds_until_it_is_freed),
        BOOKED_TEST(test_tensor_op__a_counter_is_its_threads_and_outlives_the_context),
    };
    return cmocka_run_group_tests_name("tensor/op", tests, NULL, NULL);
}
