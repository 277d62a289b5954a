/* JSON from anywhere. Jansson's tree takes twenty times the bytes of its text, so a text that may
 * be large is split into members first, and these are parsed one at a time. */
#ifndef MSI_JSON_TEXT_H
#define MSI_JSON_TEXT_H

#include "base.h"
#include "json_whole.h"

/* Where a text comes from: errors begin "<path>: <part>byte <n>: ". */
typedef struct msi_json_source {
    const char *path, *part;
    const char *begin; /* bytes are counted from here */
} msi_json_source;

/* Parse `n` bytes. MS_FORMAT_ERROR, MS_OUT_OF_MEMORY. */
ms_status msi_json_parse(json_t **out, const msi_json_source *source, const char *text, size_t n);

/* "name": value, as they stand in a text. */
typedef struct msi_json_member {
    char *name;  /* unescaped, ended by a zero byte, in the memory of the text */
    char *value; /* not looked into beyond its end */
    size_t n;
} msi_json_member;

/* Split the object that `n` bytes of text are, in any order of its members. `text` is overwritten
 * where names stand. MS_FORMAT_ERROR also for a name that is there twice. `*members` is malloced.
 */
ms_status msi_json_split(msi_json_member **members, int32_t *n_members,
                         const msi_json_source *source, char *text, size_t n);
/* Is a member's value a string, and a sound one? MS_FORMAT_ERROR when it is not sound. */
ms_status msi_json_is_string(const msi_json_source *source, const msi_json_member *member,
                             bool *is_string);

#endif
