/* What the rooms ask of a dtype besides its public facts (moonshard/tensor.h). */
#ifndef MSI_DTYPE_H
#define MSI_DTYPE_H

#include "moonshard/tensor.h"

/* What an integer dtype (or bool) holds: from `low` up to, and without, `end`. */
void msi_dtype_range(int32_t dtype, double *low, double *end);

#endif
