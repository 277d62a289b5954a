/* Messages of failed system calls: call, reason, limit. */
#include "job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

ms_status msi_error_kind(int error)
{
    return error == ENOMEM || error == ENOSPC || error == EFBIG ? MS_OUT_OF_MEMORY
                                                                : MS_RUNTIME_ERROR;
}

ms_status msi_fail_call(const char *call, int error, const char *format, ...)
{
    const char *why = strerrordesc_np(error);
    char what[256], limit[MSI_BOUND_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return MS_FAIL(msi_error_kind(error), "%s: %s: %s%s", what, call,
                   why != NULL ? why : "unknown error",
                   msi_bound_text(msi_bound_of(error), limit, sizeof(limit)));
}
