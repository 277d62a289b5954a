/* The log: lines on stderr, if enabled. */
#include "base.h"

#include <stdatomic.h>
#include <stdio.h>

void msi_log(int level, const char *format, ...)
{
    static const char *const levels[] = {"warn", "info", "trace"};
    static _Atomic int32_t threshold = -1; /* unread */
    char text[1024], line[1024];
    va_list args;

    if (atomic_load(&threshold) < 0) {
        atomic_store(&threshold, 1 + msi_switch_choice("MS_LOG", levels, MSI_COUNT(levels), -1));
    }
    if (level > atomic_load(&threshold)) {
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    msi_printable(line, sizeof(line), text);
    fprintf(stderr, "moonshard %s: %s\n", levels[level - 1], line);
}
