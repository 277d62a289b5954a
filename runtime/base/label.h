/* What something is called, in a fixed room: compared whole, shown as far as it fits. */
#ifndef MSI_LABEL_H
#define MSI_LABEL_H

#include <stdbool.h>
#include <stdint.h>

enum { MSI_LABEL_TEXT = 88 };

/* `{.text = "a text that fits"}` is a label. */
typedef struct msi_label {
    char text[MSI_LABEL_TEXT]; /* zeros behind it, so that equal labels are equal bytes */
    uint64_t cut;              /* hash of all of a text that does not fit; 0: it does */
} msi_label;

/* Cut, a text keeps both ends around "...", as paths begin alike and end in what tells them apart.
 */
void msi_label_set(msi_label *l, const char *text);
/* "what 'name'", of which only the name is cut. */
void msi_label_about(msi_label *l, const char *what, const char *name);
/* Words with a space between two: cut, the first ones stay whole. */
void msi_label_words(msi_label *l, const char *words);

#endif
