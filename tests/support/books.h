/* Small helpers of the operator tests: filled tensors, and the check that a test left nothing. */
#ifndef BOOKS_H
#define BOOKS_H

#include "ms_test.h"

static inline ms_tensor *filled(int32_t dtype, int32_t ndim, const int64_t *shape, uint64_t stream)
{
    int64_t n = 1;
    ms_tensor *t;

    for (int32_t d = 0; d < ndim; d++) {
        n *= shape[d];
    }
    double *values = malloc(sizeof(double) * (size_t)(n + 1));

    for (int64_t i = 0; i < n; i++) {
        values[i] = filler(stream, i);
    }
    assert_ok(ms_tensor_from_doubles(&t, dtype, ndim, shape, values, n));
    free(values);
    return t;
}

#define FILLED(dtype, stream, ...)                                                                 \
    filled((dtype), (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                 \
           (int64_t[]){__VA_ARGS__}, (stream))

static inline ms_tensor *ids(int64_t n, const double *values)
{
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_I64, 1, &n, values, n));
    return t;
}

/* -- memory ------------------------------------------------------------------------------------ */

/* Peaks count from here. */
static inline ms_memory_stats start_peaks(void)
{
    ms_memory_stats stats;

    ms_memory_reset_peak();
    ms_memory_stats_get(&stats);
    return stats;
}

/* Bytes of tensors: the matrix library may keep its work space. */
static inline int64_t tensor_bytes(const ms_memory_stats *stats)
{
    return stats->live_total - stats->live[MS_MEM_SCRATCH];
}

/* A test's handles belong to a scope, and nothing may stay behind it. */
static inline int open_books(void **state)
{
    static ms_memory_stats before;

    ms_memory_stats_get(&before);
    *state = &before;
    assert_ok(ms_scope_open("test"));
    return 0;
}

static inline int close_books(void **state)
{
    const ms_memory_stats *before = *state;
    ms_memory_stats after;

    if (ms_scope_depth() > 0) {
        assert_ok(ms_scope_close(NULL, 0));
    }
    ms_memory_stats_get(&after);
    if (after.live_handles != before->live_handles ||
        tensor_bytes(&after) != tensor_bytes(before)) {
        print_error("%lld handles and %lld bytes left behind\n",
                    (long long)(after.live_handles - before->live_handles),
                    (long long)(tensor_bytes(&after) - tensor_bytes(before)));
        return 1;
    }
    return 0;
}

#define BOOKED_TEST(function) cmocka_unit_test_setup_teardown(function, open_books, close_books)

#endif
