/* Numbers as operands of tensor arithmetic. */
#include "tensor.h"

#include <math.h>

ms_status msi_check_number(const char *op, int32_t dtype, double number)
{
    if (MSI_LIKELY(ms_dtype_is_floating(dtype))) {
        return MS_OK;
    }
    if (number != trunc(number)) {
        return MS_FAIL(MS_TYPE_ERROR,
                       "%s: the tensor is %s and the number %.17g, expected a whole one; "
                       "t:to('f32') takes fractions",
                       op, ms_dtype_name(dtype), number);
    }
    return ms_dtype_check(op, dtype, number);
}
