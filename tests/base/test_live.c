/* runtime/base/live.c: which objects are alive, whoever asks. */
#include "live.h"
#include "ms_test.h"

#include <pthread.h>

enum { N = 200, A = MSI_LIVE_OPTIM, B = MSI_LIVE_COMM };

typedef struct object {
    msi_live live;
    char body[48];
} object;

static void test_base_live__finds_what_was_added_until_it_goes(void **state)
{
    static object objects[N];

    (void)state;
    for (int32_t round = 0; round < 3; round++) {
        for (int32_t i = 0; i < N; i++) {
            assert_false(msi_live_is(A, &objects[i], NULL));
            msi_live_add(&objects[i].live, A, &objects[i]);
            assert_true(msi_live_is(A, &objects[i], NULL));
            assert_false(msi_live_is(B, &objects[i], NULL));
        }
        for (int32_t i = 0; i < N; i++) { /* asked twice: what is remembered counts no more */
            assert_true(msi_live_is(A, &objects[i], NULL));
            msi_live_remove(&objects[i].live);
            assert_false(msi_live_is(A, &objects[i], NULL));
            assert_true(i + 1 == N || msi_live_is(A, &objects[i + 1], NULL));
        }
    }
    assert_false(msi_live_is(A, NULL, NULL));
    assert_false(msi_live_is(A, (void *)16, NULL));
}

static void test_base_live__knows_what_was_closed(void **state)
{
    object x = {.body = ""};
    bool closed = false;
    uint64_t serial;

    (void)state;
    msi_live_add(&x.live, A, &x);
    serial = msi_live_serial(A, &x);
    assert_true(serial != 0 && msi_live_serial(B, &x) == 0);
    assert_true(msi_live_is(A, &x, &closed) && !closed);
    msi_live_close(&x.live);
    assert_true(msi_live_serial(A, &x) == 0);
    assert_true(msi_live_is(A, &x, &closed) && closed);
    closed = false;
    assert_true(msi_live_is(A, &x, &closed) && closed);
    msi_live_remove(&x.live);
    assert_false(msi_live_is(A, &x, NULL));
    msi_live_remove(&x.live); /* nothing */
    msi_live_add(&x.live, A, &x);
    assert_true(msi_live_serial(A, &x) > serial); /* another */
    msi_live_remove(&x.live);
}

static void *remove_it(void *p)
{
    object *x = p;

    if (!msi_live_is(A, x, NULL)) {
        return x;
    }
    msi_live_remove(&x->live);
    msi_live_add(&x->live, B, x); /* another object at the same place */
    return NULL;
}

static void test_base_live__hears_of_other_threads(void **state)
{
    pthread_t thread;
    object x = {.body = ""};
    void *failed;

    (void)state;
    for (int32_t i = 0; i < N; i++) {
        msi_live_add(&x.live, A, &x);
        assert_true(msi_live_is(A, &x, NULL));
        assert_int_equal(pthread_create(&thread, NULL, remove_it, &x), 0);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
        assert_false(msi_live_is(A, &x, NULL));
        assert_true(msi_live_is(B, &x, NULL));
        msi_live_remove(&x.live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_live__finds_what_was_added_until_it_goes),
        cmocka_unit_test(test_base_live__knows_what_was_closed),
        cmocka_unit_test(test_base_live__hears_of_other_threads),
    };

    return cmocka_run_group_tests_name("base/live", tests, NULL, NULL);
}
