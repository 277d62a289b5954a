/* runtime/backend/heap.c on a device: marks, the host's memory that it can reach,
 * running out. The device here does what the test says, when the test says so. */
#include "blocks.h"
#include "heap.h"
#include "ms_test.h"

#include <sys/mman.h>

enum { MIB = 1 << 20 };

static struct {
    msi_device base;
    msi_device_ops ops;
    bool spoils;
    int64_t taken[2], limit; /* bytes, by place; of the device's */
    uint64_t enqueued[MSI_STREAMS], done[MSI_STREAMS];
    int32_t n_waits;
    bool runs; /* an item, which asks */
    int32_t n_spoilt[MSI_STREAMS];
    const void *spoilt; /* last */
} slow;

/* Device memory is nobody's to read or write, so long as the device does not spoil it. */
static int32_t slow_take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    const int protection = place == MSI_PLACE_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;

    if (place == MSI_PLACE_DEVICE && slow.taken[place] + nbytes > slow.limit) {
        return MSI_DEV_NO_MEMORY;
    }
    *out = mmap(NULL, (size_t)nbytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*out != MAP_FAILED);
    slow.taken[place] += nbytes;
    return MSI_DEV_OK;
}

static void slow_give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    /* whoever gives has waited; for the host's, before it was free */
    for (int32_t i = 0; place == MSI_PLACE_DEVICE && i < MSI_STREAMS; i++) {
        assert_true(slow.done[i] == slow.enqueued[i]);
    }
    munmap(p, (size_t)nbytes);
    slow.taken[place] -= nbytes;
}

static void slow_info(msi_device *d, msi_device_info *out)
{
    *out = (msi_device_info){.name = "slow", .spoils = slow.spoils};
}

static int32_t slow_set(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes)
{
    assert_int_equal(byte, 0xff);
    slow.n_spoilt[stream]++;
    slow.spoilt = to;
    return MSI_DEV_OK;
}

static msi_mark slow_mark(msi_device *d, int32_t stream)
{
    return (msi_mark){stream, ++slow.enqueued[stream]};
}

static int32_t slow_done(msi_device *d, msi_mark m)
{
    return !slow.runs && m.ticket <= slow.done[m.stream] ? MSI_DEV_OK : MSI_DEV_NOT_YET;
}

static int32_t slow_wait(msi_device *d, msi_mark m, msi_go_on go_on, void *user)
{
    (void)go_on;
    if (slow.runs) {
        return MSI_DEV_NOT_YET;
    }
    slow.n_waits++;
    slow.done[m.stream] = m.ticket;
    return MSI_DEV_OK;
}

static ms_status open_slow(ms_context *ctx)
{
    slow.ops = msi_cpu_device_ops;
    slow.ops.take = slow_take;
    slow.ops.give = slow_give;
    slow.ops.info = slow_info;
    slow.ops.set = slow_set;
    slow.ops.mark = slow_mark;
    slow.ops.done = slow_done;
    slow.ops.wait = slow_wait;
    slow.base.ops = &slow.ops;
    ctx->device = &slow.base;
    return MS_OK;
}

static void begin(bool spoils)
{
    assert_ok(ms_close());
    memset(&slow, 0, sizeof(slow));
    slow.spoils = spoils;
    slow.limit = INT64_MAX;
    msi_context()->open_device = open_slow;
}

/* Whatever was held has gone back. */
static void end(void)
{
    assert_ok(ms_close());
    assert_int_equal(slow.taken[MSI_PLACE_DEVICE], 0);
    assert_int_equal(slow.taken[MSI_PLACE_PINNED], 0);
}

static msi_mem_block *take(int64_t nbytes)
{
    msi_mem_block *b;

    assert_ok(msi_alloc(msi_context(), nbytes, MS_MEM_ACTIVATION, &b));
    return b;
}

static ms_memory_stats figures(void)
{
    ms_memory_stats stats;

    msi_memory_stats(msi_context(), &stats);
    return stats;
}

static void test_backend_pools__a_devices_memory_is_never_touched(void **state)
{
    enum { N = 500 };
    msi_mem_block *blocks[N];

    (void)state;
    begin(false);
    for (int32_t round = 0; round < 3; round++) {
        for (int32_t i = 0; i < N; i++) {
            blocks[i] = take(i % 2 == 0 ? 200 : i * 1000);
            assert_int_equal((uintptr_t)blocks[i]->data % 64, 0);
        }
        msi_mem_set_kind(blocks[0], MS_MEM_PARAMETER);
        for (int32_t i = 0; i < N; i++) {
            if (i % 3 == 0) {
                msi_release_after(blocks[i], slow_mark(&slow.base, MSI_STREAM_OUT));
            } else {
                msi_release(blocks[i]);
            }
        }
        ms_memory_trim();
    }
    assert_int_equal(figures().live_total, 0);
    end();
}

static void test_backend_pools__no_block_is_used_again_before_its_mark(void **state)
{
    (void)state;
    begin(false);
    msi_mem_block *a = take(5000), *b;
    const void *place = a->data;
    const msi_mark mark = slow_mark(&slow.base, MSI_STREAM_OUT);

    msi_release_after(a, mark);
    assert_int_equal(figures().live_total, 0);
    assert_int_equal(figures().cached, 0);
    b = take(5000);
    assert_ptr_not_equal(b->data, place);
    slow.done[MSI_STREAM_OUT] = mark.ticket;
    a = take(5000);
    assert_ptr_equal(a->data, place);
    msi_release(a);
    msi_release_after(b, mark); /* which is past */
    assert_int_equal(figures().cached, figures().reserved);
    assert_int_equal(slow.n_waits, 0);
    end();
}

static void test_backend_pools__streams_do_not_wait_for_each_other(void **state)
{
    (void)state;
    begin(false);
    msi_mem_block *first = take(5000), *second = take(5000), *third = take(5000);
    const void *out = first->data, *in = second->data;
    const msi_mark early = slow_mark(&slow.base, MSI_STREAM_OUT);

    msi_release_after(first, early);
    msi_release_after(second, slow_mark(&slow.base, MSI_STREAM_IN));
    msi_release_after(third, slow_mark(&slow.base, MSI_STREAM_OUT));
    slow.done[MSI_STREAM_IN] = slow.enqueued[MSI_STREAM_IN];
    msi_mem_block *b = take(5000);

    assert_ptr_equal(b->data, in);
    slow.done[MSI_STREAM_OUT] = early.ticket;
    first = take(5000);
    assert_ptr_equal(first->data, out); /* the oldest, and not the one behind it */
    assert_int_equal(figures().n_system, 3);
    second = take(5000);
    assert_int_equal(figures().n_system, 4);
    msi_release(b);
    msi_release(first);
    msi_release(second);
    end();
}

static void test_backend_pools__running_out_waits_gives_back_and_then_fails(void **state)
{
    msi_mem_block *b;

    (void)state;
    begin(false);
    slow.limit = 3 * MIB;
    msi_mem_block *kept = take(MIB), *waiting = take(MIB), *other = take(MIB);
    const void *place = waiting->data;

    msi_release_after(waiting, slow_mark(&slow.base, MSI_STREAM_OUT));
    b = take(MIB); /* for which it waits */
    assert_ptr_equal(b->data, place);
    assert_int_equal(slow.n_waits, 1);
    msi_release_after(b, slow_mark(&slow.base, MSI_STREAM_OUT));
    msi_release(other);
    b = take(2 * MIB);             /* what other sizes had */
    assert_true(slow.n_waits > 2); /* and for all that may use them */
    assert_fails(MS_OUT_OF_MEMORY, "no memory for 1000 bytes of activation (live: 3145728 bytes",
                 msi_alloc(msi_context(), 1000, MS_MEM_ACTIVATION, &other));
    assert_null(other);
    msi_release(b);
    b = take(1000);
    msi_release(b);
    msi_release(kept);
    end();
}

static void test_backend_pools__what_is_free_is_spoilt_in_the_order_of_its_stream(void **state)
{
    (void)state;
    begin(true);
    msi_mem_block *a = take(5000), *b = take(700);
    const void *place = a->data;

    msi_release_after(a, slow_mark(&slow.base, MSI_STREAM_OUT));
    assert_null(slow.spoilt);
    msi_release(b);
    assert_ptr_equal(slow.spoilt, b->data);
    assert_int_equal(slow.n_spoilt[MSI_STREAM_COMPUTE], 1);
    slow.done[MSI_STREAM_OUT] = slow.enqueued[MSI_STREAM_OUT];
    ms_memory_trim();
    assert_ptr_equal(slow.spoilt, place);
    assert_int_equal(slow.n_spoilt[MSI_STREAM_COMPUTE], 2);
    end();
}

static void test_backend_pools__the_hosts_memory_is_the_devices_to_reach(void **state)
{
    msi_mem_block *a, *b;

    (void)state;
    begin(true);
    assert_ok(msi_host_alloc(msi_context(), 5000, MS_MEM_SCRATCH, &a));
    assert_true(slow.taken[MSI_PLACE_PINNED] >= 5000);
    assert_int_equal(slow.taken[MSI_PLACE_DEVICE], 0);
    assert_int_equal(figures().live_total, 0); /* it is not the device's */
    assert_int_equal(figures().pinned, 5000);
    msi_alloc_fail_at(msi_context(), 0);
    assert_fails(MS_OUT_OF_MEMORY, "no memory for 7 bytes of scratch",
                 msi_host_alloc(msi_context(), 7, MS_MEM_SCRATCH, &b));
    assert_null(b);
    assert_int_equal(figures().pinned, 5000);
    memset(a->data, 1, 5000);
    const unsigned char *bytes = a->data;

    msi_release_after(a, slow_mark(&slow.base, MSI_STREAM_IN));
    assert_ok(msi_host_alloc(msi_context(), 5000, MS_MEM_SCRATCH, &b));
    assert_ptr_not_equal(b->data, bytes);
    assert_int_equal(bytes[4999], 1); /* what the stream reads */
    slow.done[MSI_STREAM_IN] = slow.enqueued[MSI_STREAM_IN];
    assert_ok(msi_host_alloc(msi_context(), 5000, MS_MEM_SCRATCH, &a));
    assert_ptr_equal(a->data, bytes);
    assert_int_equal(bytes[4999], 0xff);
    msi_release(a);
    msi_release(b);
    assert_int_equal(figures().pinned, 0);
    msi_alloc_fail_at(msi_context(), 0);
    assert_fails(MS_OUT_OF_MEMORY,
                 "no memory for 5000 bytes of scratch on the device's host (live: "
                 "0 bytes",
                 msi_host_alloc(msi_context(), 5000, MS_MEM_SCRATCH, &a));
    assert_int_equal(slow.n_spoilt[MSI_STREAM_COMPUTE], 0); /* by the host, at once */
    end();
}

static void test_backend_pools__a_product_that_runs_takes_no_block_of_a_stream(void **state)
{
    enum { SIDE = 64 };
    static uint16_t a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    const msi_gemm_args args = {.a = a,
                                .b = b,
                                .c = c,
                                .m = SIDE,
                                .n = SIDE,
                                .k = SIDE,
                                .a_row = SIDE,
                                .a_col = 1,
                                .b_row = SIDE,
                                .b_col = 1,
                                .c_row = SIDE,
                                .batch = 1,
                                .dtype = MS_DTYPE_BF16,
                                .c_dtype = MS_DTYPE_BF16};

    (void)state;
    begin(false);
    msi_release(take(5000));
    slow.runs = true; /* so what was enqueued behind it may still use what is free */
    assert_ok(msi_gemm_now(msi_context(), &args));
    slow.runs = false;
    assert_int_equal(figures().n_allocs, 1);
    end();
}

/* A block of the device's and one of the host's. */
static void leave_free(int64_t nbytes)
{
    msi_mem_block *host;

    msi_release(take(nbytes));
    assert_ok(msi_host_alloc(msi_context(), nbytes, MS_MEM_SCRATCH, &host));
    msi_release(host);
}

/* What is behind it was given blocks that are free meanwhile. */
static void test_backend_pools__nothing_goes_back_while_an_item_runs(void **state)
{
    (void)state;
    begin(false);
    leave_free(5000);
    slow_mark(&slow.base, MSI_STREAM_COMPUTE);
    const int64_t held = slow.taken[MSI_PLACE_DEVICE];

    slow.runs = true;
    msi_alloc_trim(msi_context());
    assert_int_equal(slow.taken[MSI_PLACE_DEVICE], held);
    assert_int_equal(slow.taken[MSI_PLACE_PINNED], 0);
    slow.runs = false;
    msi_alloc_trim(msi_context());
    assert_int_equal(slow.taken[MSI_PLACE_DEVICE], 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_pools__a_devices_memory_is_never_touched),
        cmocka_unit_test(test_backend_pools__no_block_is_used_again_before_its_mark),
        cmocka_unit_test(test_backend_pools__streams_do_not_wait_for_each_other),
        cmocka_unit_test(test_backend_pools__running_out_waits_gives_back_and_then_fails),
        cmocka_unit_test(test_backend_pools__what_is_free_is_spoilt_in_the_order_of_its_stream),
        cmocka_unit_test(test_backend_pools__the_hosts_memory_is_the_devices_to_reach),
        cmocka_unit_test(test_backend_pools__a_product_that_runs_takes_no_block_of_a_stream),
        cmocka_unit_test(test_backend_pools__nothing_goes_back_while_an_item_runs),
    };

    return cmocka_run_group_tests_name("backend/pools", tests, NULL, NULL);
}
