/* runtime/tensor/host_view.c: what the host sees of a tensor, on the CPU and on a device, whose
 * memory it does not touch. */
#include "bytes.h"

enum { N = 8, SEEDS = 20 };

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

static void test_tensor_host_view__on_the_cpu_is_the_memory_itself(void **state)
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
static void test_tensor_host_view__reads_what_was_computed_and_keeps_what_is_written(void **state)
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

static void test_tensor_host_view__what_is_not_written_or_fails_is_not_put_back(void **state)
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

static void test_tensor_host_view__without_memory_it_fails_and_may_be_ended(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_host_view__on_the_cpu_is_the_memory_itself),
        cmocka_unit_test(test_tensor_host_view__reads_what_was_computed_and_keeps_what_is_written),
        cmocka_unit_test(test_tensor_host_view__what_is_not_written_or_fails_is_not_put_back),
        cmocka_unit_test(test_tensor_host_view__without_memory_it_fails_and_may_be_ended),
    };

    return cmocka_run_group_tests_name("tensor/host_view", tests, NULL, leave_device);
}
