/* Environment variables. An invalid value is a warning that shows the value used instead. */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranks share the environment: rank 0 warns for all, even before joining. */
static bool warns_here(void)
{
    const ms_context *ctx = msi_context_peek();
    const char *rank = getenv("MOONSHARD_RANK");

    return (ctx == NULL || ctx->rank == 0) && (rank == NULL || strcmp(rank, "0") == 0);
}

void msi_switch_warn(const char *format, ...)
{
    char text[512];
    va_list args;

    if (!warns_here()) {
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ms_warn("UserWarning", text);
}

const char *msi_switch_text(const char *name, const char *fallback)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : fallback;
}

int64_t msi_switch_within(const char *name, int64_t fallback, int64_t least, int64_t most)
{
    const char *value = msi_switch_text(name, NULL);
    char *end = NULL;

    if (value == NULL) {
        return fallback;
    }
    long long number = strtoll(value, &end, 10); /* clamps to the largest number */

    if (end == value || *end != '\0') {
        msi_switch_warn("%s is '%s', expected a whole number; using %lld", name, value,
                        (long long)fallback);
        return fallback;
    }
    int64_t bound = number < least ? least : most;

    if (number < least || number > most) {
        msi_switch_warn("%s is %s, expected %lld to %lld; using %lld", name, value,
                        (long long)least, (long long)most, (long long)bound);
        return bound;
    }
    return number;
}

int64_t msi_switch_int(const char *name, int64_t fallback)
{
    return msi_switch_within(name, fallback, INT64_MIN + 1, INT64_MAX - 1);
}

int32_t msi_switch_choice(const char *name, const char *const *choices, int32_t n, int32_t fallback)
{
    const char *value = msi_switch_text(name, NULL);
    char list[64] = "";

    for (int32_t i = 0; value != NULL && i < n; i++) {
        size_t at = strlen(list);

        if (strcmp(value, choices[i]) == 0) {
            return i;
        }
        snprintf(list + at, sizeof(list) - at, "%s%s",
                 i == 0       ? ""
                 : i == n - 1 ? " or "
                              : ", ",
                 choices[i]);
    }
    if (value != NULL) {
        msi_switch_warn("%s is '%s', expected %s; it is ignored", name, value, list);
    }
    return fallback;
}
