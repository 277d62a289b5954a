/* Growing text, lists of pieces of it, UTF-8. */
#ifndef MSI_TEXT_H
#define MSI_TEXT_H

#include "base.h"
#include "moonshard/tokenizer.h"

#define MSI_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Zeroed: empty. The owner frees `data`. */
typedef struct msi_bytes {
    char *data;
    int64_t n, capacity;
} msi_bytes;

/* Make room for `more` bytes behind the first n. */
ms_status msi_bytes_reserve(msi_bytes *b, int64_t more);
ms_status msi_bytes_add(msi_bytes *b, const char *data, int64_t n);

/* Bytes [start, end) of the list's text. */
typedef struct msi_piece {
    int64_t start, end;
    int32_t id;    /* of an added token, which is not processed further; else -1 */
    bool at_start; /* nothing of the input precedes it */
} msi_piece;

/* Pieces in order; each lies behind the previous one. Zeroed: empty. */
typedef struct msi_pieces {
    msi_bytes text;
    msi_piece *list; /* (n) */
    int64_t n, capacity;
} msi_pieces;

/* Append a piece whose text is what was appended to `p->text` from `start` on. */
ms_status msi_pieces_end(msi_pieces *p, int64_t start, int32_t id, bool at_start);
/* Append a piece with this text. */
ms_status msi_pieces_add(msi_pieces *p, const char *text, int64_t n, int32_t id, bool at_start);
void msi_pieces_clear(msi_pieces *p);
void msi_pieces_dispose(msi_pieces *p);

/* Length of the valid character at the start of `n` > 0 bytes, or minus the length of the maximal
 * invalid part there (Unicode 3.9, U+FFFD substitution of maximal subparts). */
int32_t msi_utf8_step(const char *s, int64_t n);
/* The character at `s`, which is valid UTF-8; `*length`: its bytes. */
uint32_t msi_utf8_char(const char *s, int32_t *length);
int32_t msi_utf8_write(char *to, uint32_t c);
/* As ms_utf8_replace(), to the end of `out`. */
ms_status msi_utf8_add_lossy(msi_bytes *out, const char *s, int64_t n, int64_t *n_invalid);

/* Has this character the property White_Space? */
bool msi_is_white_space(uint32_t c);
/* The bytes of white space at the start of a text, and at its end. */
int64_t msi_white_space_at_start(const char *s, int64_t n);
int64_t msi_white_space_at_end(const char *s, int64_t n);

#endif
