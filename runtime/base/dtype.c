/* Dtypes and their ranges. */
#include "dtype.h"

#include "base.h"

#include <math.h>

static const struct {
    const char *name;
    int64_t size;
    bool floating, narrow;
    double low, end; /* integers: `low` <= x < `end` */
    const char *holds;
} dtypes[MS_DTYPE_COUNT] = {
    {"f32", 4, true, false, 0, 0, ""},
    {"f64", 8, true, false, 0, 0, ""},
    {"bf16", 2, true, true, 0, 0, ""},
    {"i64", 8, false, false, -0x1p63, 0x1p63, "whole numbers from -2^63 to 2^63 - 1"},
    {"u8", 1, false, false, 0, 256, "whole numbers from 0 to 255"},
    {"bool", 1, false, false, 0, 2, ""},
    {"f16", 2, true, true, 0, 0, ""},
    {"i32", 4, false, false, -0x1p31, 0x1p31, "whole numbers from -2^31 to 2^31 - 1"},
};

static bool known(int32_t dtype)
{
    return dtype >= 0 && dtype < MS_DTYPE_COUNT;
}

int64_t ms_dtype_size(int32_t dtype)
{
    return known(dtype) ? dtypes[dtype].size : 0;
}

const char *ms_dtype_name(int32_t dtype)
{
    return known(dtype) ? dtypes[dtype].name : "none";
}

bool ms_dtype_is_floating(int32_t dtype)
{
    return known(dtype) && dtypes[dtype].floating;
}

bool ms_dtype_is_narrow(int32_t dtype)
{
    return known(dtype) && dtypes[dtype].narrow;
}

void msi_dtype_range(int32_t dtype, double *low, double *end)
{
    *low = dtypes[dtype].low;
    *end = dtypes[dtype].end;
}

static bool holds(int32_t dtype, double number)
{
    return dtypes[dtype].floating || dtype == MS_DTYPE_BOOL ||
           (number >= dtypes[dtype].low && number < dtypes[dtype].end && number == floor(number));
}

ms_status ms_dtype_check(const char *what, int32_t dtype, double number)
{
    if (!known(dtype)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: dtype %d is none, expected 0 to %d", what, (int)dtype,
                       MS_DTYPE_COUNT - 1);
    }
    if (MSI_LIKELY(holds(dtype, number))) {
        return MS_OK;
    }
    return MS_FAIL(MS_VALUE_ERROR, "%s: %.17g does not fit in %s, expected %s", what, number,
                   dtypes[dtype].name, dtypes[dtype].holds);
}

int64_t ms_dtype_misfit(int32_t dtype, const double *numbers, int64_t n)
{
    int64_t i = 0;

    while (i < n && known(dtype) && holds(dtype, numbers[i])) {
        i++;
    }
    return i;
}
