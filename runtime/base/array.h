/* Arrays of the C heap. */
#ifndef MSI_ARRAY_H
#define MSI_ARRAY_H

#include "base.h"

/* Allocate `n` zeroed elements for `*p`, which the caller frees with free(); on failure it is NULL.
 * MS_OUT_OF_MEMORY: "no memory for 3 units". */
#define msi_new_array(p, n, units) msi_new_array_of((void **)(p), (n), sizeof(**(p)), (units))

ms_status msi_new_array_of(void **p, int64_t n, size_t element, const char *units);

/* Make room for one more element of `size` bytes behind `n` in the list `*array`. */
ms_status msi_grow(void *array, int32_t n, int32_t *capacity, size_t size);

#endif
