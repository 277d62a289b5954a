/* The dtypes. */
#include "tensor.h"

static const struct {
    const char *name;
    int64_t size;
    bool floating;
} dtypes[MS_DTYPE_COUNT] = {
    {"f32", 4, true},  {"f64", 8, true}, {"bf16", 2, true},
    {"i64", 8, false}, {"u8", 1, false}, {"bool", 1, false},
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
