/* Versioned structs: an older caller's is shorter and ends between two fields. */
#include "base.h"

#include <string.h>

static uint32_t size_of(const void *given)
{
    uint32_t size;

    memcpy(&size, given, sizeof(size)); /* first member */
    return size;
}

/* Error unless a caller's struct ends between two fields. */
static ms_status check_end(uint32_t size, const char *name, const msi_field *fields,
                           int32_t n_fields)
{
    for (int32_t i = 0; i < n_fields; i++) {
        if (size < fields[i].end && (i == 0 || size > fields[i].begin)) {
            return MS_FAIL(MS_VALUE_ERROR, "%s has struct_size %u, which ends within a field", name,
                           (unsigned)size);
        }
    }
    return MS_OK;
}

ms_status msi_struct_take(void *out, const void *given, const char *name, const msi_field *fields,
                          int32_t n_fields)
{
    const uint32_t size = size_of(given), whole = fields->whole;

    MS_TRY(check_end(size, name, fields, n_fields));
    if (size > whole) {
        return MS_FAIL(MS_VALUE_ERROR, "%s has struct_size %u, expected at most %u", name,
                       (unsigned)size, (unsigned)whole);
    }
    memcpy(out, given, size);
    memcpy(out, &whole, sizeof(whole));
    return MS_OK;
}

void msi_struct_give(void *out, uint32_t size, const void *ours, uint32_t whole)
{
    const uint32_t written = size < whole ? size : whole;

    memcpy(out, ours, written);
    memcpy(out, &written, written < sizeof(written) ? written : sizeof(written));
}

ms_status msi_struct_fill(void *out, const void *ours, const char *name, const msi_field *fields,
                          int32_t n_fields)
{
    const uint32_t size = size_of(out);

    MS_TRY(check_end(size, name, fields, n_fields));
    msi_struct_give(out, size, ours, fields->whole);
    return MS_OK;
}
