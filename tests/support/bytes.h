/* A tensor's bytes, wherever they are. */
#ifndef MS_TEST_BYTES_H
#define MS_TEST_BYTES_H

#include "ms_test.h"
#include "tensor.h"

#include <string.h>

static inline void read_bytes(const ms_tensor *t, void *to)
{
    msi_host_view host;

    assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_READS));
    memcpy(to, host.data, (size_t)(msi_view_numel(&t->v) * ms_dtype_size(t->v.dtype)));
    assert_ok(msi_host_view_end(&host, MS_OK));
}

static inline void write_bytes(const ms_tensor *t, const void *from)
{
    msi_host_view host;

    assert_ok(msi_host_view_begin(&host, &t->v, MSI_HOST_WRITES));
    memcpy(host.data, from, (size_t)(msi_view_numel(&t->v) * ms_dtype_size(t->v.dtype)));
    assert_ok(msi_host_view_end(&host, MS_OK));
}

static inline void assert_bytes(const void *expected, const ms_tensor *t, int64_t nbytes)
{
    char bytes[64];

    assert_true(nbytes <= (int64_t)sizeof(bytes));
    assert_int_equal(nbytes, msi_view_numel(&t->v) * ms_dtype_size(t->v.dtype));
    read_bytes(t, bytes);
    assert_memory_equal(expected, bytes, (size_t)nbytes);
}

static inline bool same_bytes(const ms_tensor *a, const ms_tensor *b)
{
    uint64_t of_a, of_b;

    assert_ok(ms_tensor_hash(a, &of_a));
    assert_ok(ms_tensor_hash(b, &of_b));
    return a->v.dtype == b->v.dtype && msi_view_numel(&a->v) == msi_view_numel(&b->v) &&
           of_a == of_b;
}

#endif
