/* Status names and the thread's last error. Fixed buffers, so that running out of memory can be
 * reported. */
#include "base.h"
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[MSI_MESSAGE_BYTES];
static _Thread_local bool is_late; /* of the last error */

static struct {
    const char *name;
} const kinds[] = {
    {"OK"},           {"ValueError"},     {"TypeError"},
    {"RuntimeError"}, {"AssertionError"}, {"NotImplementedError"},
    {"IndexError"},   {"KeyError"},       {"OutOfMemory"},
    {"IOError"},      {"FormatError"},    {"CommError"},
    {"DeviceError"},  {"InternalError"},  {"HookError"},
};

static bool is_known(ms_status status)
{
    return status <= 0 && status > -MSI_COUNT(kinds);
}

const char *ms_status_name(ms_status status)
{
    return is_known(status) ? kinds[-status].name : "UnknownError";
}

const char *ms_error_message(void)
{
    return message;
}

void ms_error_clear(void)
{
    message[0] = '\0';
    is_late = false;
}

bool ms_error_is_late(void)
{
    return is_late;
}

void msi_error_late(void)
{
    is_late = true;
}

void msi_error_keep(msi_error *kept)
{
    kept->late = is_late;
    memcpy(kept->message, message, strlen(message) + 1);
}

void msi_error_put_back(const msi_error *kept)
{
    is_late = kept->late;
    memcpy(message, kept->message, strlen(kept->message) + 1);
}

static ms_status set(ms_status kind, const char *prefix, const char *suffix)
{
    char text[MSI_MESSAGE_BYTES]; /* both parts may alias `message` */
    size_t n = msi_printable(text, sizeof(text), prefix);

    n += msi_printable(text + n, sizeof(text) - n, suffix);
    memcpy(message, text, n + 1);
    is_late = false;
    return kind;
}

ms_status ms_error_set(ms_status kind, const char *text)
{
    return set(msi_kind_of_host(kind), "", text ? text : "");
}

ms_status msi_kind_of_host(ms_status kind)
{
    return is_known(kind) && kind != MS_OK ? kind : MS_RUNTIME_ERROR;
}

ms_status msi_status_of_host(ms_status status, const char *what)
{
    if (!is_known(status)) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s returned %d, expected 0 or the kind of an error", what,
                       (int)status);
    }
    if (status != MS_OK && message[0] == '\0') {
        return MS_FAIL(status, "%s returned %d (%s) and said no reason", what, (int)status,
                       ms_status_name(status));
    }
    return status;
}

char msi_host_begin(ms_context *ctx)
{
    const char first = message[0]; /* keeps the rest */

    message[0] = '\0';
    ctx->host_calls++;
    return first;
}

ms_status msi_host_end(ms_context *ctx, char aside, ms_status status, const char *what)
{
    ctx->host_calls--;
    status = msi_status_of_host(status, what);
    if (message[0] == '\0') {
        message[0] = aside;
    }
    return status;
}

ms_status msi_fail(ms_status kind, const char *format, ...)
{
    char text[MSI_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    msi_text_write(text, sizeof(text), format, args);
    va_end(args);
    return set(kind, "", text);
}

ms_status msi_fail_prefix(ms_status kind, const char *format, ...)
{
    char text[MSI_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    const bool was_late = is_late;

    set(kind, text, message);
    is_late = was_late;
    return kind;
}

ms_status msi_broken(const char *file, int line, const char *cond)
{
#ifdef MS_DEBUG
    fprintf(stderr, "moonshard: %s:%d: '%s' does not hold\n", file, line, cond);
    abort();
#endif
    return msi_fail(MS_INTERNAL_ERROR, "%s:%d: '%s' does not hold", file, line, cond);
}
