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
