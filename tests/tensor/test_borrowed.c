/* Memory of the host under tensors of a device: no kernel takes it, copies cross both ways, and
 * have done so on return. */
#include "bytes.h"
#include "moonshard/ops.h"

enum { ROWS = 3, COLS = 4, SEEDS = 20 };

/* In some order of the device. */
static void begin(int32_t seed)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)seed);
    assert_ok(ms_close());
    setenv("MS_FAKE_SEED", text, 1);
    setenv("MS_DEVICE", "fake", 1);
}

static int leave_device(void **state)
{
    unsetenv("MS_DEVICE");
    unsetenv("MS_FAKE_SEED");
    return ms_close();
}

/* The rows of a host's (ROWS, COLS) as columns: with gaps, and as doubles. */
static ms_tensor *turned(double *host)
{
    ms_tensor *whole, *t;

    assert_ok(ms_tensor_borrow(&whole, MS_DTYPE_F64, 2, (const int64_t[]){ROWS, COLS}, host));
    assert_ok(ms_op_permute(&t, whole, 2, (const int32_t[]){1, 0}));
    ms_tensor_free(whole);
    return t;
}

static void test_tensor_borrowed__copies_cross_both_ways(void **state)
{
    for (int32_t seed = 0; seed < SEEDS; seed++) {
        double from[ROWS * COLS], to[ROWS * COLS];
        ms_tensor *source, *target, *own, *same;

        begin(seed);
        for (int32_t i = 0; i < ROWS * COLS; i++) {
            from[i] = i;
            to[i] = -1;
        }
        source = turned(from);
        target = turned(to);
        assert_ok(ms_op_clone(&own, source));
        assert_ok(ms_op_cast(&same, source, MS_DTYPE_F32));
        memset(from, 0xff, sizeof(from)); /* nobody reads it any more */
        assert_ok(ms_tensor_copy(target, own));
        for (int32_t i = 0; i < ROWS * COLS; i++) {
            assert_true(to[i] == i);
            to[i] = -1;
        }
        assert_ok(ms_tensor_copy(target, same));
        assert_true(to[ROWS * COLS - 1] == ROWS * COLS - 1);
        ms_tensor_free(same);
        ms_tensor_free(own);
        ms_tensor_free(target);
        ms_tensor_free(source);
    }
}

/* What lies between the elements that are written stays. */
static void test_tensor_borrowed__a_copy_writes_its_elements_alone(void **state)
{
    double to[ROWS * COLS] = {0};
    ms_tensor *whole, *row, *ones;

    begin(0);
    assert_ok(ms_tensor_borrow(&whole, MS_DTYPE_F64, 2, (const int64_t[]){ROWS, COLS}, to));
    assert_ok(ms_op_narrow(&row, whole, 1, 1, 2));
    assert_ok(ms_tensor_full(&ones, MS_DTYPE_F64, 0, NULL, 1));
    assert_ok(ms_tensor_copy(row, ones));
    for (int32_t i = 0; i < ROWS * COLS; i++) {
        assert_true(to[i] == (i % COLS == 1 || i % COLS == 2));
    }
    ms_tensor_free(ones);
    ms_tensor_free(row);
    ms_tensor_free(whole);
}

static void test_tensor_borrowed__kernels_do_not_reach_it(void **state)
{
    float host[ROWS] = {1, 2, 3};
    ms_tensor *t, *sum;

    begin(0);
    assert_ok(ms_tensor_borrow(&t, MS_DTYPE_F32, 1, (const int64_t[]){ROWS}, host));
    assert_fails(MS_RUNTIME_ERROR,
                 "a tensor of shape (3) is on cpu, and operators of this process run on fake:0",
                 ms_op_add(&sum, t, t));
    assert_fails(MS_RUNTIME_ERROR, "is on cpu, and operators", ms_tensor_fill(t, 1));
    ms_tensor_free(t);
}

/* Every allocation of a copy fails once: nothing is left behind. */
static void test_tensor_borrowed__a_copy_that_fails_leaves_nothing(void **state)
{
    double from[ROWS * COLS] = {0}, to[ROWS * COLS] = {0};
    ms_tensor *source, *target;
    ms_memory_stats before, after;
    int32_t n_failed = 0;

    begin(0);
    source = turned(from);
    target = turned(to);
    ms_memory_stats_get(&before);
    for (;; n_failed++) {
        msi_alloc_fail_at(msi_context(), n_failed);
        if (ms_tensor_copy(target, source) == MS_OK) {
            break;
        }
    }
    msi_alloc_fail_at(msi_context(), -1);
    ms_memory_stats_get(&after);
    assert_true(n_failed > 0);
    assert_int_equal(before.live_total, after.live_total);
    ms_tensor_free(target);
    ms_tensor_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_borrowed__copies_cross_both_ways),
        cmocka_unit_test(test_tensor_borrowed__a_copy_writes_its_elements_alone),
        cmocka_unit_test(test_tensor_borrowed__kernels_do_not_reach_it),
        cmocka_unit_test(test_tensor_borrowed__a_copy_that_fails_leaves_nothing),
    };

    return cmocka_run_group_tests_name("tensor/borrowed", tests, NULL, leave_device);
}
