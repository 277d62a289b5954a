/* Arrays of the C heap. */
#include "array.h"

#include <stdlib.h>

ms_status msi_new_array_of(void **p, int64_t n, size_t element, const char *units)
{
    const bool fits = n >= 0 && (size_t)n <= SIZE_MAX / element;

    *p = fits ? calloc(n > 0 ? (size_t)n : 1, element) : NULL; /* may be NULL for 0 elements */
    return *p != NULL ? MS_OK
                      : MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %lld %s", (long long)n, units);
}

ms_status msi_grow(void *array, int32_t n, int32_t *capacity, size_t size)
{
    void **p = array;

    if (MSI_LIKELY(n < *capacity)) {
        return MS_OK;
    }
    const int32_t larger = *capacity > 0 ? *capacity * 2 : 16;
    void *grown = realloc(*p, size * (size_t)larger);

    if (grown == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of %d entries", (int)larger);
    }
    *p = grown;
    *capacity = larger;
    return MS_OK;
}
