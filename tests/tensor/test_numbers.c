/* Numbers given to tensors: what their dtype does not hold is refused, integers stay exact. */
#include "bytes.h"

static const struct {
    int32_t dtype;
    double number;
    const char *refusal; /* NULL: it fits */
} cases[] = {
    {MS_DTYPE_U8, 0, NULL},
    {MS_DTYPE_U8, 255, NULL},
    {MS_DTYPE_U8, 256, "256 does not fit in u8, expected whole numbers from 0 to 255"},
    {MS_DTYPE_U8, -1, "-1 does not fit in u8"},
    {MS_DTYPE_U8, 1.5, "1.5 does not fit in u8"},
    {MS_DTYPE_U8, -NAN, ": nan does not fit in u8"},
    {MS_DTYPE_I64, -0x1p63, NULL},
    {MS_DTYPE_I64, 0x1p63 - 1024, NULL},
    {MS_DTYPE_I64, 0x1p53 - 1, NULL},
    {MS_DTYPE_I64, 0x1p63,
     "9.2233720368547758e+18 does not fit in i64, expected whole numbers from "
     "-2^63 to 2^63 - 1"},
    {MS_DTYPE_I64, -0x1p63 - 2048, "does not fit in i64"},
    {MS_DTYPE_I64, -0.5, "-0.5 does not fit in i64"},
    {MS_DTYPE_I64, INFINITY, ": inf does not fit in i64"},
    {MS_DTYPE_BOOL, 2, NULL}, /* true */
    {MS_DTYPE_BF16, NAN, NULL},
    {MS_DTYPE_F16, NAN, NULL},
    {MS_DTYPE_I32, -0x1p31, NULL},
    {MS_DTYPE_I32, 0x1p31,
     "2147483648 does not fit in i32, expected whole numbers from -2^31 to 2^31 - 1"},
    {MS_DTYPE_F32, 1e300, NULL}, /* infinite */
};

static void check_first(ms_tensor *t, double number)
{
    double value[2];

    assert_ok(ms_tensor_to_doubles(t, value, 2));
    if (!ms_dtype_is_floating(t->v.dtype) && t->v.dtype != MS_DTYPE_BOOL) {
        assert_true(value[1] == number);
    }
}

static void test_tensor_numbers__what_does_not_fit_is_refused(void **state)
{
    const int64_t shape[1] = {2};

    for (int32_t i = 0; i < MSI_COUNT(cases); i++) {
        const int32_t dtype = cases[i].dtype;
        const double number = cases[i].number, values[2] = {0, number};
        ms_tensor *t, *other;

        assert_ok(ms_tensor_full(&t, dtype, 1, shape, 1));
        if (cases[i].refusal == NULL) {
            assert_ok(ms_dtype_check("x", dtype, number));
            assert_ok(ms_tensor_fill(t, number));
            check_first(t, number);
            assert_ok(ms_tensor_full(&other, dtype, 1, shape, number));
            check_first(other, number);
            ms_tensor_free(other);
            assert_ok(ms_tensor_from_doubles(&other, dtype, 1, shape, values, 2));
            check_first(other, number);
            ms_tensor_free(other);
        } else {
            assert_fails(MS_VALUE_ERROR, cases[i].refusal, ms_dtype_check("x", dtype, number));
            assert_fails(MS_VALUE_ERROR, cases[i].refusal, ms_tensor_fill(t, number));
            assert_fails(MS_VALUE_ERROR, cases[i].refusal,
                         ms_tensor_full(&other, dtype, 1, shape, number));
            assert_null(other);
            assert_fails(MS_VALUE_ERROR,
                         "value 1: ", ms_tensor_from_doubles(&other, dtype, 1, shape, values, 2));
            assert_non_null(strstr(ms_error_message(), cases[i].refusal));
            assert_null(other);
            check_first(t, 1); /* as it was */
        }
        ms_tensor_free(t);
    }
    assert_fails(MS_VALUE_ERROR, "x: dtype 8 is none", ms_dtype_check("x", MS_DTYPE_COUNT, 0));
}

static void test_tensor_numbers__integers_are_counted_exactly(void **state)
{
    int64_t whole[1000];
    uint8_t small[256];
    ms_tensor *t;

    assert_ok(ms_tensor_arange(&t, MS_DTYPE_I64, 0x1p53, 1, 1000));
    read_bytes(t, whole);
    for (int64_t i = 0; i < 1000; i++) { /* every second one is between two doubles */
        assert_int_equal(whole[i], ((int64_t)1 << 53) + i);
    }
    ms_tensor_free(t);
    assert_ok(ms_tensor_arange(&t, MS_DTYPE_U8, 255, -1, 256));
    read_bytes(t, small);
    for (int64_t i = 0; i < 256; i++) {
        assert_int_equal(small[i], 255 - i);
    }
    ms_tensor_free(t);
    assert_fails(MS_VALUE_ERROR, "arange: the last number: 256 does not fit in u8",
                 ms_tensor_arange(&t, MS_DTYPE_U8, 0, 2, 129));
    assert_null(t);
    assert_fails(MS_VALUE_ERROR, "arange: the step: 0.5 does not fit in i64",
                 ms_tensor_arange(&t, MS_DTYPE_I64, 0, 0.5, 3));
    assert_fails(MS_VALUE_ERROR, "arange: 3 numbers from 0 by 4.6116860184273879e+18 do not fit",
                 ms_tensor_arange(&t, MS_DTYPE_I64, 0, 0x1p62, 3));
    assert_ok(ms_tensor_arange(&t, MS_DTYPE_I64, 7, 1, 0));
    ms_tensor_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_numbers__what_does_not_fit_is_refused),
        cmocka_unit_test(test_tensor_numbers__integers_are_counted_exactly),
    };

    return cmocka_run_group_tests_name("tensor/numbers", tests, NULL, NULL);
}
