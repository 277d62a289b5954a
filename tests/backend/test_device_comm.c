/* runtime/backend/device_comm.h: a group of one rank, whose calls reach the library and the card.
 * Skipped without a CUDA device. */
#include "device_comm.h"
#include "ms_test.h"
#include "tensor.h"

#include <string.h>

enum { N = 1024 };

static bool is_complete(msi_device_comm *c)
{
    while (!msi_device_comm_is_complete(c)) {
    }
    return msi_device_comm_check(c) == MS_OK;
}

static void open_comm(msi_device_comm **c)
{
    const msi_device_comm_ops *ops;
    ms_context *ctx = msi_context();
    char id[MSI_DEVICE_COMM_ID], error[MSI_DEVICE_ERROR];

    assert_ok(msi_memory_open(ctx));
    assert_ok(msi_device_comm_load(ctx, &ops));
    assert_int_equal(ops->id(id, error), MSI_DEV_OK);
    assert_ok(msi_device_comm_new(c, ctx->device, ops, id, 0, 1));
    assert_true(is_complete(*c));
}

static void test_backend_device_comm__a_group_of_one(void **state)
{
    const int64_t shape[] = {N};
    msi_device_comm *c;
    ms_tensor *in, *out;
    double to[N];
    int32_t n;

    (void)state;
    assert_ok(ms_device_count("cuda", &n));
    if (n == 0 || strcmp(ms_device_kind(), "cuda") != 0) {
        skip();
    }
    open_comm(&c);
    assert_ok(ms_tensor_full(&in, MS_DTYPE_F32, 1, shape, 3));
    assert_ok(ms_tensor_full(&out, MS_DTYPE_F32, 1, shape, 0));
    void *from = msi_view_ptr(&in->v);
    float *at = msi_view_ptr(&out->v);

    assert_ok(msi_device_comm_all_gather(c, MSI_STREAM_COMPUTE, from, at, N / 2, MS_DTYPE_F32));
    assert_true(is_complete(c));
    assert_ok(msi_device_comm_reduce_scatter(c, MSI_STREAM_COMPUTE, from, at + N / 2, N / 2,
                                             MS_DTYPE_F32));
    assert_true(is_complete(c));
    assert_ok(msi_device_comm_broadcast(c, MSI_STREAM_COMPUTE, at, N, MS_DTYPE_F32, 0));
    assert_true(is_complete(c));
    assert_ok(ms_tensor_to_doubles(out, to, N));
    for (int32_t i = 0; i < N; i++) {
        assert_true(to[i] == 3);
    }
    msi_device_comm_free(c);
    ms_tensor_free(out);
    ms_tensor_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_device_comm__a_group_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
