/* Steps that text passes: normalizers and pre-tokenizers on the way in, decoders on the way out. */
#ifndef MSI_STAGES_H
#define MSI_STAGES_H

#include "pattern.h"

/* What becomes of the texts between and in a pattern's matches. */
enum {
    MSI_SPLIT_REMOVED,
    MSI_SPLIT_ISOLATED,
    MSI_SPLIT_MERGED_WITH_PREVIOUS,
    MSI_SPLIT_MERGED_WITH_NEXT,
    MSI_SPLIT_CONTIGUOUS,
    MSI_SPLIT_COUNT
};

/* What a stage does where a line ends: between an ASCII letter or digit and \r or \n. */
enum {
    MSI_LINES_UNKNOWN,
    MSI_LINES_KEPT, /* the stage of a text is that of its parts on either side, joined */
    MSI_LINES_CUT   /* the same, and a piece ends there */
};

struct msi_stage;

/* Append what becomes of one piece. `index`: its number in the list. */
typedef ms_status msi_each(const struct msi_stage *s, const char *text, int64_t n, bool at_start,
                           int64_t index, msi_pieces *out);
/* Append what becomes of the list. */
typedef ms_status msi_whole(const struct msi_stage *s, const msi_pieces *in, msi_pieces *out);

/* One of `each` and `whole` is set. */
typedef struct msi_stage {
    msi_each *each;
    msi_whole *whole;
    msi_pattern *pattern; /* of split and replace */
    msi_bytes text;       /* what replaces a match, is prepended or removed */
    int32_t behavior;     /* MSI_SPLIT_... */
    bool invert;          /* split: matches are the texts between the pattern's */
    bool only_at_start;   /* prepend */
    bool unless_there;    /* prepend: not to a text that begins with it */
    int64_t first, last;  /* strip: at most so many at each end */
    int32_t lines;        /* MSI_LINES_... */
} msi_stage;

msi_each msi_stage_split, msi_stage_replace, msi_stage_prepend, msi_stage_nfc;
/* Each byte as the character that byte-level vocabularies write for it. */
msi_each msi_stage_bytes;
msi_each msi_stage_strip;
/* Remove the replaced text from the first piece. */
msi_each msi_stage_metaspace_decode;
msi_whole msi_stage_bytes_decode, msi_stage_byte_fallback, msi_stage_fuse;

/* Zeroed: empty. */
typedef struct msi_stages {
    msi_stage *list; /* (n) */
    int32_t n, capacity;
} msi_stages;

/* Append a stage, zeroed but for its function. */
ms_status msi_stages_add(msi_stages *stages, msi_stage **stage, msi_each *each, msi_whole *whole);
/* Pass `*p` through all stages. `*scratch` is overwritten. */
ms_status msi_stages_run(const msi_stages *stages, msi_pieces *p, msi_pieces *scratch);
void msi_stages_dispose(msi_stages *stages);
/* Do they cut text between an ASCII letter or digit and \r or \n, with pieces on either side that
 * do not depend on the other side? */
bool msi_stages_cut_lines(const msi_stages *normalizer, const msi_stages *pre_tokenizer);

/* MS_RUNTIME_ERROR if the library of Unicode's normal forms is missing. */
ms_status msi_nfc_open(void);

#endif
