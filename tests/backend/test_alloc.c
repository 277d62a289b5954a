/* runtime/backend/alloc.c: exact counts, reuse, failing on demand. */
#include "backend.h"
#include "ms_test.h"

static void test_backend_alloc__counts_what_was_asked_for(void **state)
{
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 1 << 20, (1 << 20) + 1, 5000000};
    ms_context *ctx = msi_context();
    ms_memory_stats before, during, after;
    void *blocks[MSI_COUNT(sizes)];
    int64_t total = 0;

    (void)state;
    msi_memory_stats(ctx, &before);
    for (int32_t i = 0; i < MSI_COUNT(sizes); i++) {
        assert_ok(msi_alloc(ctx, sizes[i], MS_MEM_GRADIENT, &blocks[i]));
        assert_int_equal(0, (uintptr_t)blocks[i] % 64);
        memset(blocks[i], 0xab, (size_t)sizes[i]);
        total += sizes[i];
    }
    msi_memory_stats(ctx, &during);
    assert_int_equal(before.live[MS_MEM_GRADIENT] + total, during.live[MS_MEM_GRADIENT]);
    assert_int_equal(before.live_total + total, during.live_total);
    for (int32_t i = 0; i < MSI_COUNT(sizes); i++) {
        msi_release(ctx, blocks[i]);
    }
    msi_memory_stats(ctx, &after);
    assert_int_equal(before.live_total, after.live_total);
    assert_int_equal(during.live_total, after.peak_total);
    ms_memory_trim();
    msi_memory_stats(ctx, &after);
    assert_int_equal(before.reserved, after.reserved);
}

static void test_backend_alloc__a_steady_loop_asks_the_system_for_nothing(void **state)
{
    ms_context *ctx = msi_context();
    ms_memory_stats warm, later;
    void *a, *b;

    (void)state;
    for (int32_t i = 0; i < 1000; i++) {
        assert_ok(msi_alloc(ctx, 100000, MS_MEM_ACTIVATION, &a));
        assert_ok(msi_alloc(ctx, 3000000, MS_MEM_ACTIVATION, &b));
        msi_release(ctx, a);
        msi_release(ctx, b);
        if (i == 0) {
            msi_memory_stats(ctx, &warm);
        }
    }
    msi_memory_stats(ctx, &later);
    assert_int_equal(warm.n_system, later.n_system);
    assert_int_equal(warm.reserved, later.reserved);
}

static void test_backend_alloc__changing_the_kind_moves_the_count(void **state)
{
    ms_context *ctx = msi_context();
    ms_memory_stats before, after;
    void *a;

    (void)state;
    msi_memory_stats(ctx, &before);
    assert_ok(msi_alloc(ctx, 500, MS_MEM_ACTIVATION, &a));
    msi_alloc_set_kind(ctx, a, MS_MEM_PARAMETER);
    msi_memory_stats(ctx, &after);
    assert_int_equal(before.live[MS_MEM_ACTIVATION], after.live[MS_MEM_ACTIVATION]);
    assert_int_equal(before.live[MS_MEM_PARAMETER] + 500, after.live[MS_MEM_PARAMETER]);
    msi_release(ctx, a);
}

static void test_backend_alloc__running_out_names_bytes_and_kind(void **state)
{
    ms_context *ctx = msi_context();
    void *a = &ctx;

    (void)state;
    msi_alloc_fail_at(ctx, 0);
    assert_fails(MS_OUT_OF_MEMORY, "no memory for 77 bytes of optimizer",
                 msi_alloc(ctx, 77, MS_MEM_OPTIMIZER, &a));
    assert_null(a);
    assert_ok(msi_alloc(ctx, 77, MS_MEM_OPTIMIZER, &a)); /* only that one failed */
    msi_release(ctx, a);
    assert_fails(MS_OUT_OF_MEMORY, "bytes of activation",
                 msi_alloc(ctx, (int64_t)1 << 60, MS_MEM_ACTIVATION, &a));
    assert_fails(MS_OUT_OF_MEMORY, "bytes of activation",
                 msi_alloc(ctx, (int64_t)1 << 45, MS_MEM_ACTIVATION, &a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_alloc__counts_what_was_asked_for),
        cmocka_unit_test(test_backend_alloc__a_steady_loop_asks_the_system_for_nothing),
        cmocka_unit_test(test_backend_alloc__changing_the_kind_moves_the_count),
        cmocka_unit_test(test_backend_alloc__running_out_names_bytes_and_kind),
    };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
