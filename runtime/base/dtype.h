/* Private properties of dtypes; public ones: moonshard/tensor.h. */
#ifndef MSI_DTYPE_H
#define MSI_DTYPE_H

#include "moonshard/tensor.h"

/* Range of an integer dtype or bool: `low` <= x < `end`. */
void msi_dtype_range(int32_t dtype, double *low, double *end);

#endif
