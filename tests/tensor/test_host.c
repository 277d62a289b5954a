/* Memory of the host and of a device: what the host sees of a tensor (runtime/tensor/host_view.c),
 * on the CPU and on a device, whose memory it does not touch; and borrowed memory of the host,
 * which no kernel takes, and which copies to and from a device have read or written on return. */
#include "bytes.h"
#include "moonshard/ops.h"

enum { N = 8, ROWS = 3, COLS = 4, SEEDS = 20 };

/* On a device, in some order of it. */
static void begin(const char *device, int32_t seed)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)seed);
    assert_ok(ms_close());
    setenv("MS_FAKE_SEED", text, 1);
    setenv("MS_DEVICE", device, 1);
}

static int leave_device(void **state)
{
    unsetenv("MS_DEVICE");
    unsetenv("MS_FAKE_SEED");
    return ms_close();
}

static ms_tensor *twos(void)
{
    ms_tensor *t;

    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 1, (const int64_t[]){N}, 2));
    return t;
}

static double element(const ms_tensor *t, int32_t i)
{
    double values[N];

    assert_ok(ms_tensor_to_doubles(t, values, N));
    return values[i];
}

static void test_tensor_host__on_the_cpu_is_the_memory_itself(void **state)
{
    ms_memory_stats before, after;
    msi_host_view host;
    ms_tensor *t;

    begin("cpu", 0);
    t = twos();
    ms_memory_stats_get(&before);
    assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_READS | MSI_HOST_WRITES));
    ms_memory_stats_get(&after);
    assert_ptr_equal(host.data, msi_view_ptr(&t->v));
    assert_int_equal(before.n_allocs, after.n_allocs);
    assert_ok(msi_host_view_end(&host, MS_OK));
    ms_tensor_free(t);
}

/* Whatever order the device runs things in. */
static void test_tensor_host__reads_what_was_computed_and_keeps_what_is_written(void **state)
{
    for (int32_t seed = 0; seed < SEEDS; seed++) {
        msi_host_view host;
        ms_tensor *t;

        begin("fake", seed);
        t = twos();
        assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_READS | MSI_HOST_WRITES));
        assert_ptr_not_equal(host.data, msi_view_ptr(&t->v));
        for (int32_t i = 0; i < N; i++) {
            assert_true(((float *)host.data)[i] == 2);
            ((float *)host.data)[i] = (float)i;
        }
        assert_ok(msi_host_view_end(&host, MS_OK));
        assert_ok(ms_tensor_add_scaled(t, t, 1)); /* behind it in the device's order */
        assert_true(element(t, N - 1) == 2 * (N - 1));
        ms_tensor_free(t);
    }
}

static void test_tensor_host__what_is_not_written_or_fails_is_not_put_back(void **state)
{
    ms_memory_stats before, after;
    msi_host_view host;
    ms_tensor *t;

    begin("fake", 0);
    t = twos();
    ms_memory_stats_get(&before);
    assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_READS));
    ((float *)host.data)[0] = 7;
    assert_ok(msi_host_view_end(&host, MS_OK));
    assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_WRITES));
    ((float *)host.data)[0] = 7;
    assert_int_equal(MS_IO_ERROR, msi_host_view_end(&host, MS_IO_ERROR));
    assert_int_equal(MS_IO_ERROR, msi_host_view_end(&host, MS_IO_ERROR)); /* ended already */
    ms_memory_stats_get(&after);
    assert_int_equal(before.pinned, after.pinned);
    assert_true(element(t, 0) == 2);
    ms_tensor_free(t);
}

static void test_tensor_host__without_memory_it_fails_and_may_be_ended(void **state)
{
    msi_host_view host = {0};
    ms_tensor *t;

    begin("fake", 0);
    t = twos();
    msi_alloc_fail_at(msi_context(), 0);
    assert_fails(MS_OUT_OF_MEMORY, "on the device's host",
                 msi_host_view_begin(&host, &t->v, MSI_HOST_READS));
    assert_int_equal(MS_OUT_OF_MEMORY, msi_host_view_end(&host, MS_OUT_OF_MEMORY));
    msi_alloc_fail_at(msi_context(), -1);
    ms_tensor_free(t);
}

/* -- borrowed memory -------------------------------------------------------------------------- */

/* The rows of a host's (ROWS, COLS) as columns: with gaps, and as doubles. */
static ms_tensor *turned(double *host)
{
    ms_tensor *whole, *t;

    assert_ok(ms_tensor_borrow(&whole, MS_DTYPE_F64, 2, (const int64_t[]){ROWS, COLS}, host));
    assert_ok(ms_op_permute(&t, whole, 2, (const int32_t[]){1, 0}));
    ms_tensor_free(whole);
    return t;
}

static void test_tensor_host__copies_cross_both_ways(void **state)
{
    for (int32_t seed = 0; seed < SEEDS; seed++) {
        double from[ROWS * COLS], to[ROWS * COLS];
        ms_tensor *source, *target, *own, *same;

        begin("fake", seed);
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
static void test_tensor_host__a_copy_writes_its_elements_alone(void **state)
{
    double to[ROWS * COLS] = {0};
    ms_tensor *whole, *row, *ones;

    begin("fake", 0);
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

static void test_tensor_host__kernels_do_not_reach_it(void **state)
{
    float host[ROWS] = {1, 2, 3};
    ms_tensor *t, *sum;

    begin("fake", 0);
    assert_ok(ms_tensor_borrow(&t, MS_DTYPE_F32, 1, (const int64_t[]){ROWS}, host));
    assert_fails(MS_RUNTIME_ERROR,
                 "a tensor of shape (3) is on cpu, and operators of this process run on fake:0",
                 ms_op_add(&sum, t, t));
    assert_fails(MS_RUNTIME_ERROR, "is on cpu, and operators", ms_tensor_fill(t, 1));
    ms_tensor_free(t);
}

/* Every allocation of a copy fails once: nothing is left behind. */
static void test_tensor_host__a_copy_that_fails_leaves_nothing(void **state)
{
    double from[ROWS * COLS] = {0}, to[ROWS * COLS] = {0};
    ms_tensor *source, *target;
    ms_memory_stats before, after;
    int32_t n_failed = 0;

    begin("fake", 0);
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
        cmocka_unit_test(test_tensor_host__on_the_cpu_is_the_memory_itself),
        cmocka_unit_test(test_tensor_host__reads_what_was_computed_and_keeps_what_is_written),
        cmocka_unit_test(test_tensor_host__what_is_not_written_or_fails_is_not_put_back),
        cmocka_unit_test(test_tensor_host__without_memory_it_fails_and_may_be_ended),
        cmocka_unit_test(test_tensor_host__copies_cross_both_ways),
        cmocka_unit_test(test_tensor_host__a_copy_writes_its_elements_alone),
        cmocka_unit_test(test_tensor_host__kernels_do_not_reach_it),
        cmocka_unit_test(test_tensor_host__a_copy_that_fails_leaves_nothing),
    };

    return cmocka_run_group_tests_name("tensor/host", tests, NULL, leave_device);
}
