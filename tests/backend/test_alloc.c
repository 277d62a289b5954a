/* runtime/backend/heap.c: exact counts, reuse, what goes back to the system, failing. */
#include "backend.h"
#include "ms_test.h"

#include <malloc.h>

static void test_backend_alloc__counts_what_was_asked_for(void **state)
{
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 1 << 20, (1 << 20) + 1, 5000000};
    ms_context *ctx = msi_context();
    ms_memory_stats before, during, after;
    msi_mem_block *blocks[MSI_COUNT(sizes)];
    int64_t total = 0;

    (void)state;
    msi_memory_stats(ctx, &before);
    for (int32_t i = 0; i < MSI_COUNT(sizes); i++) {
        assert_ok(msi_alloc(ctx, sizes[i], MS_MEM_GRADIENT, &blocks[i]));
        assert_int_equal(0, (uintptr_t)blocks[i]->data % 64);
        memset(blocks[i]->data, 0xab, (size_t)sizes[i]);
        total += sizes[i];
    }
    msi_memory_stats(ctx, &during);
    assert_int_equal(before.live[MS_MEM_GRADIENT] + total, during.live[MS_MEM_GRADIENT]);
    assert_int_equal(before.live_total + total, during.live_total);
    for (int32_t i = 0; i < MSI_COUNT(sizes); i++) {
        msi_release(blocks[i]);
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
    msi_mem_block *a, *b;

    (void)state;
    for (int32_t i = 0; i < 1000; i++) {
        assert_ok(msi_alloc(ctx, 100000, MS_MEM_ACTIVATION, &a));
        assert_ok(msi_alloc(ctx, 3000000, MS_MEM_ACTIVATION, &b));
        msi_release(a);
        msi_release(b);
        if (i == 0) {
            msi_memory_stats(ctx, &warm);
        }
    }
    msi_memory_stats(ctx, &later);
    assert_int_equal(warm.n_system, later.n_system);
    assert_int_equal(warm.reserved, later.reserved);
}

enum { STEP = 1 << 15 }; /* allocations that count as one */

static void idle(int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        msi_mem_block *p;

        assert_ok(msi_alloc(msi_context(), 64, MS_MEM_ACTIVATION, &p));
        msi_release(p);
    }
}

static void test_backend_alloc__blocks_that_nobody_wants_any_more_go_back(void **state)
{
    const int64_t mib = 1 << 20;
    ms_context *ctx = msi_context();
    ms_memory_stats before, grown, later;
    msi_mem_block *kept, *p;

    (void)state;
    ms_memory_trim();
    msi_memory_stats(ctx, &before);
    assert_ok(msi_alloc(ctx, 3 * mib, MS_MEM_ACTIVATION, &kept));
    for (int64_t n = 100; n < 8 * mib; n += n / 8) { /* text that grows, one block of each size */
        assert_ok(msi_alloc(ctx, n, MS_MEM_ACTIVATION, &p));
        msi_release(p);
    }
    msi_memory_stats(ctx, &grown);
    assert_true(grown.cached > 20 * mib);
    assert_int_equal(before.reserved + grown.cached + 3 * mib, grown.reserved);
    idle(3 * STEP);
    msi_memory_stats(ctx, &later);
    assert_true(later.cached < 4096);
    assert_int_equal(before.reserved + later.cached + 3 * mib, later.reserved);
    assert_int_equal(grown.live_total, later.live_total);
    msi_release(kept);
}

/* One step of 30,000 allocations, in which each block is wanted at its own moment. */
static void long_step(void)
{
    enum { N = 100 };
    msi_mem_block *blocks[N];

    for (int64_t i = 0; i < N; i++) {
        assert_ok(msi_alloc(msi_context(), 5000 + i * 100, MS_MEM_ACTIVATION, &blocks[i]));
        idle(150);
    }
    for (int64_t i = 0; i < N; i++) {
        msi_release(blocks[i]);
        idle(150);
    }
}

static void test_backend_alloc__a_step_of_30000_allocations_keeps_its_blocks(void **state)
{
    ms_memory_stats warm, later;

    (void)state;
    for (int32_t i = 0; i < 5; i++) {
        long_step();
    }
    msi_memory_stats(msi_context(), &warm);
    for (int32_t i = 0; i < 20; i++) {
        long_step();
    }
    msi_memory_stats(msi_context(), &later);
    assert_int_equal(warm.n_system, later.n_system);
    assert_int_equal(warm.reserved, later.reserved);
}

enum { MANY = 10000, SMALL = 200 };

#if defined(__SANITIZE_ADDRESS__)
#define SKIP_WITHOUT_PIECES() skip() /* each block is its own piece there */
#else
#define SKIP_WITHOUT_PIECES() (void)0
#endif

static void take_many(msi_mem_block **blocks)
{
    for (int32_t i = 0; i < MANY; i++) {
        assert_ok(msi_alloc(msi_context(), SMALL, MS_MEM_ACTIVATION, &blocks[i]));
        assert_int_equal(0, (uintptr_t)blocks[i]->data % 64);
        memset(blocks[i]->data, i % 251, SMALL);
    }
}

/* Release all but one of `every` blocks, whose bytes are what was put there. */
static void release_but(msi_mem_block **blocks, int32_t every)
{
    for (int32_t i = 0; i < MANY; i++) {
        const unsigned char *bytes = blocks[i]->data;

        for (int32_t k = 0; k < SMALL; k++) {
            assert_int_equal(i % 251, bytes[k]);
        }
        if (i % every != every - 1) {
            msi_release(blocks[i]);
        }
    }
}

static void test_backend_alloc__small_blocks_that_pile_up_are_taken_in_pieces(void **state)
{
    static msi_mem_block *blocks[MANY];
    ms_memory_stats before, full, after;

    (void)state;
    SKIP_WITHOUT_PIECES();
    ms_memory_trim();
    msi_memory_stats(msi_context(), &before);
    take_many(blocks);
    msi_memory_stats(msi_context(), &full);
    assert_in_range(full.n_system - before.n_system, 1, MANY / 50);
    assert_true(full.cached <= before.cached + (64 << 10)); /* what was taken ahead */
    release_but(blocks, MANY + 1);
    ms_memory_trim();
    msi_memory_stats(msi_context(), &after);
    assert_int_equal(before.reserved, after.reserved);
    assert_int_equal(before.cached, after.cached);
}

static void test_backend_alloc__blocks_that_outlive_the_context_go_back_all_the_same(void **state)
{
    static msi_mem_block *blocks[MANY];
    const size_t before = mallinfo2().uordblks;

    (void)state;
    SKIP_WITHOUT_PIECES();
    take_many(blocks);
    release_but(blocks, 2);
    assert_true(mallinfo2().uordblks > before + MANY / 2 * SMALL);
    ms_close();
    for (int32_t i = 1; i < MANY; i += 2) {
        msi_release(blocks[i]);
    }
    assert_true(mallinfo2().uordblks <= before); /* the heap too is gone */
}

static void test_backend_alloc__running_out_names_bytes_and_kind(void **state)
{
    ms_context *ctx = msi_context();
    msi_mem_block none, *a = &none;

    (void)state;
    msi_alloc_fail_at(ctx, 0);
    assert_fails(MS_OUT_OF_MEMORY, "no memory for 77 bytes of optimizer",
                 msi_alloc(ctx, 77, MS_MEM_OPTIMIZER, &a));
    assert_null(a);
    assert_ok(msi_alloc(ctx, 77, MS_MEM_OPTIMIZER, &a)); /* only that one failed */
    msi_release(a);
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
        cmocka_unit_test(test_backend_alloc__blocks_that_nobody_wants_any_more_go_back),
        cmocka_unit_test(test_backend_alloc__a_step_of_30000_allocations_keeps_its_blocks),
        cmocka_unit_test(test_backend_alloc__small_blocks_that_pile_up_are_taken_in_pieces),
        cmocka_unit_test(test_backend_alloc__blocks_that_outlive_the_context_go_back_all_the_same),
        cmocka_unit_test(test_backend_alloc__running_out_names_bytes_and_kind),
    };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
