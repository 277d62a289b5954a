/* Memory of the host under tensors of a device: whose owner has it back, nothing reads it any more.
 */
#include "device.h"
#include "moonshard/ops.h"
#include "ms_test.h"
#include "tensor.h"

enum { N = 64, SEEDS = 20 };

/* Of some orders of the device at least one has not read the memory yet. */
static bool is_read_before_it_goes_back(int32_t seed)
{
    float host[N];
    double values[N];
    ms_tensor *borrowed, *copy;
    char text[16];
    bool right = true;

    snprintf(text, sizeof(text), "%d", (int)seed);
    assert_ok(ms_close());
    setenv("MS_FAKE_SEED", text, 1);
    for (int32_t i = 0; i < N; i++) {
        host[i] = 1;
    }
    assert_ok(ms_tensor_borrow(&borrowed, MS_DTYPE_F32, 1, (const int64_t[]){N}, host));
    assert_ok(ms_op_add(&copy, borrowed, borrowed));
    ms_tensor_free(borrowed);
    memset(host, 0xff, sizeof(host));
    assert_ok(ms_tensor_to_doubles(copy, values, N));
    for (int32_t i = 0; i < N; i++) {
        right = right && values[i] == 2;
    }
    ms_tensor_free(copy);
    return right;
}

static void test_tensor_borrowed__memory_goes_back_when_the_device_has_read_it(void **state)
{
    (void)state;
    setenv("MS_DEVICE", "fake", 1);
    for (int32_t seed = 0; seed < SEEDS; seed++) {
        assert_true(is_read_before_it_goes_back(seed));
    }
    unsetenv("MS_DEVICE");
    unsetenv("MS_FAKE_SEED");
    assert_ok(ms_close());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_borrowed__memory_goes_back_when_the_device_has_read_it),
    };

    return cmocka_run_group_tests_name("tensor/borrowed", tests, NULL, NULL);
}
