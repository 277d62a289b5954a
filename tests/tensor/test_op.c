/* runtime/tensor/op.c, op_count.c: what watchers of the one observable point are told. */
#include "values.h"

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
        BOOKED_TEST(test_tensor_op__into_writes_what_is_there_and_records_nothing),
        BOOKED_TEST(test_tensor_op__what_fails_leaves_no_result),
        BOOKED_TEST(test_tensor_op__a_counter_counts_what_succeeds_until_it_is_freed),
        BOOKED_TEST(test_tensor_op__a_counter_is_its_threads_and_outlives_the_context),
    };
    return cmocka_run_group_tests_name("tensor/op", tests, NULL, NULL);
}
