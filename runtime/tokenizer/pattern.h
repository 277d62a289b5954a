/* Patterns of tokenizer.json: literal texts, and regular expressions by PCRE2. */
#ifndef MSI_PATTERN_H
#define MSI_PATTERN_H

#include "text.h"

typedef struct msi_pattern msi_pattern;

ms_status msi_pattern_literal(msi_pattern **out, const char *text, int64_t n);
/* A regular expression as Oniguruma reads it (Ruby's syntax). MS_NOT_IMPLEMENTED_ERROR for what
 * PCRE2 does not have or reads otherwise; MS_FORMAT_ERROR if it is malformed; MS_RUNTIME_ERROR if
 * the library is missing. */
ms_status msi_pattern_regex(msi_pattern **out, const char *text, int64_t n);
void msi_pattern_free(msi_pattern *p);

/* A match [start, end). Before the first one: zeroed. start -1: there is no further one. */
typedef struct msi_match {
    int64_t start, end;
    bool found; /* an earlier match */
} msi_match;

/* The next match in valid UTF-8, also an empty one unless it is adjacent to the previous match. */
ms_status msi_pattern_next(const msi_pattern *p, const char *text, int64_t n, msi_match *m);
/* Does the pattern match at this place? */
ms_status msi_pattern_at(const msi_pattern *p, const char *text, int64_t n, int64_t at, bool *yes);

#endif
