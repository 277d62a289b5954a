/* A name in a fixed buffer: compared in full, truncated for display. */
#ifndef MSI_LABEL_H
#define MSI_LABEL_H

#include <stdbool.h>
#include <stdint.h>

enum { MSI_LABEL_TEXT = 88 };

/* `{.text = "a short text"}` is a label. */
typedef struct msi_label {
    char text[MSI_LABEL_TEXT]; /* zero padded, so that equal labels are equal bytes */
    uint64_t cut;              /* hash of a text too long; 0: it fits */
} msi_label;

/* Truncation keeps both ends around "...", since paths begin alike and differ at the end. */
void msi_label_set(msi_label *l, const char *text);
/* "what 'name'"; truncates only the name. */
void msi_label_about(msi_label *l, const char *what, const char *name);
/* Words separated by spaces; truncation keeps whole first ones. */
void msi_label_words(msi_label *l, const char *words);

#endif
