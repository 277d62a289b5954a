/* Status names, the thread's last error, warnings. Fixed buffers, so that running out of memory can
 * still be reported. */
#include "base.h"
#include "host.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARNING_QUEUE = 64 };

static _Thread_local char message[MSI_MESSAGE_BYTES];

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
}

static ms_status set(ms_status kind, const char *prefix, const char *suffix)
{
    char text[MSI_MESSAGE_BYTES]; /* either part may be `message` itself */
    size_t n = msi_printable(text, sizeof(text), prefix);

    n += msi_printable(text + n, sizeof(text) - n, suffix);
    memcpy(message, text, n + 1);
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
    const char first = message[0]; /* the rest stays where it is */

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

/* vsnprintf(), but every NaN is "nan": what its sign is says nothing. */
static void write_text(char *text, size_t size, const char *format, va_list args)
{
    vsnprintf(text, size, format, args);
    for (char *at = strstr(text, "-nan"); at != NULL; at = strstr(at + 1, "-nan")) {
        bool begins = at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '-');

        if (begins && !isalnum((unsigned char)at[4])) {
            memmove(at, at + 1, strlen(at));
        }
    }
}

ms_status msi_fail(ms_status kind, const char *format, ...)
{
    char text[MSI_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    write_text(text, sizeof(text), format, args);
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
    return set(kind, text, message);
}

ms_status msi_broken(const char *file, int line, const char *cond)
{
#ifdef MS_DEBUG
    fprintf(stderr, "moonshard: %s:%d: '%s' does not hold\n", file, line, cond);
    abort();
#endif
    return msi_fail(MS_INTERNAL_ERROR, "%s:%d: '%s' does not hold", file, line, cond);
}

/* -- warnings ---------------------------------------------------------------------------------- */

typedef struct warning {
    char kind[16];
    char text[MSI_MESSAGE_BYTES];
} warning;

static _Thread_local struct {
    bool capture;
    warning *queue;
    int first, count;
    warning taken;
} warnings;

void ms_warnings_capture(bool on)
{
    warnings.capture = on;
    if (on && warnings.queue == NULL) {
        warnings.queue = calloc(WARNING_QUEUE, sizeof(warning));
        warnings.capture = warnings.queue != NULL;
    }
    if (!on) {
        free(warnings.queue);
        warnings.queue = NULL;
    }
    warnings.first = warnings.count = 0;
}

/* In one piece, as other ranks print too. What rank 0 says is said for all. */
static void print_warning(const char *kind, const char *text)
{
    const ms_context *ctx = msi_context_peek();
    char rank[24] = "";

    if (ctx != NULL && ctx->rank > 0) {
        snprintf(rank, sizeof(rank), "rank %d: ", (int)ctx->rank);
    }
    fprintf(stderr, "moonshard: %s%s: %s\n", rank, kind, text);
}

void ms_warn(const char *kind, const char *raw)
{
    char text[MSI_MESSAGE_BYTES];

    kind = msi_foreign_name(kind);
    msi_printable(text, sizeof(text), raw);
    if (!warnings.capture) {
        print_warning(kind, text);
        return;
    }
    if (warnings.count == WARNING_QUEUE) { /* the oldest goes */
        warnings.first = (warnings.first + 1) % WARNING_QUEUE;
        warnings.count--;
    }
    warning *w = &warnings.queue[(warnings.first + warnings.count++) % WARNING_QUEUE];

    msi_printable(w->kind, sizeof(w->kind), kind);
    snprintf(w->text, sizeof(w->text), "%s", text);
}

void msi_warn(const char *kind, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    write_text(text, sizeof(text), format, args);
    va_end(args);
    ms_warn(kind, text);
}

bool ms_warning_take(const char **kind, const char **text)
{
    if (warnings.count == 0) {
        return false;
    }
    warnings.taken = warnings.queue[warnings.first];
    warnings.first = (warnings.first + 1) % WARNING_QUEUE;
    warnings.count--;
    *kind = warnings.taken.kind;
    *text = warnings.taken.text;
    return true;
}
