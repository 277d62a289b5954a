/* Structs that grow: an older caller's is shorter, and ends between two fields. */
#include "base.h"

#include <string.h>

ms_status msi_struct_take(void *out, const void *given, const char *name, const msi_field *fields,
                          int32_t n_fields)
{
    const msi_field *last = &fields[n_fields - 1];
    uint32_t size;

    memcpy(&size, given, sizeof(size)); /* struct_size comes first */
    for (int32_t i = 0; i < n_fields; i++) {
        const size_t begin = fields[i].begin;

        if (size < fields[i].end && (i == 0 || size > begin)) {
            return MS_FAIL(MS_VALUE_ERROR, "%s has struct_size %u, which ends within a field", name,
                           (unsigned)size);
        }
    }
    if (size > last->whole) {
        return MS_FAIL(MS_VALUE_ERROR, "%s has struct_size %u, expected at most %u", name,
                       (unsigned)size, (unsigned)last->whole);
    }
    memcpy(out, given, size);
    memcpy(out, &last->whole, sizeof(last->whole));
    return MS_OK;
}
