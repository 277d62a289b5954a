/* Warnings: printed, or queued for the host. */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>

enum { WARNING_QUEUE = 64 };

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

/* In one write, as other ranks print too. Rank 0 prints for all. */
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
    if (warnings.count == WARNING_QUEUE) { /* drop the oldest */
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
    msi_text_write(text, sizeof(text), format, args);
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
