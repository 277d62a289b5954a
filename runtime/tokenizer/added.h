/* Added tokens: texts that are cut out of the input before the model sees it. */
#ifndef MSI_ADDED_H
#define MSI_ADDED_H

#include "pattern.h"
#include "vocabulary.h"

typedef struct msi_added_token {
    int32_t id;
    bool single_word;    /* only where no word character is adjacent */
    bool lstrip, rstrip; /* takes the white space beside it */
    bool special;
} msi_added_token;

/* Texts with these lengths begin with one of these bytes. */
typedef struct msi_lengths {
    int32_t n;
    uint64_t first[4];
} msi_lengths;

/* Zeroed: empty. */
typedef struct msi_added {
    msi_vocabulary texts;    /* "ids" are indices of `tokens` */
    msi_added_token *tokens; /* (texts.n) */
    int32_t capacity;
    msi_lengths *lengths; /* (n_lengths), the longest first */
    int32_t n_lengths, length_capacity;
    bool begins[256];  /* first bytes of texts */
    msi_pattern *word; /* a character of a word; NULL: no token has single_word */
} msi_added;

/* Add a token by the text that is looked for; a text that is there already is left as it is. */
ms_status msi_added_add(msi_added *a, const char *text, int64_t n, const msi_added_token *token);
/* Cut the tokens out of `text`: the leftmost first, of those the longest. Appends pieces: tokens
 * with their ids, and texts between them.
 * @param parse_special  false: text that looks like a special token stays text */
ms_status msi_added_cut(const msi_added *a, msi_pieces *out, const char *text, int64_t n,
                        bool at_start, bool parse_special);
/* Does no token reach over the end of a line? */
bool msi_added_within_lines(const msi_added *a);
void msi_added_dispose(msi_added *a);

#endif
