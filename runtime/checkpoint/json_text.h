/* JSON from anywhere, also for the Lua module. Jansson's tree can take eighty times the bytes of
 * its text, so a text that may be large is split into members and entries first, and these are
 * parsed one at a time. */
#ifndef MSI_JSON_TEXT_H
#define MSI_JSON_TEXT_H

#include "json_whole.h"

/* Bytes of text of which Jansson may make one tree. */
enum { MSI_JSON_TREE_MAX = 64 << 10 };

/* Where a text comes from: errors begin "<path>: <part>byte <n>: ". */
typedef struct msi_json_source {
    const char *path, *part;
    const char *begin; /* bytes are counted from here */
} msi_json_source;

/* Parse `n` bytes. MS_FORMAT_ERROR, MS_OUT_OF_MEMORY. */
MS_API ms_status ms_json_parse(json_t **out, const msi_json_source *source, const char *text,
                               size_t n);

/* "name": value, as they stand in a text. */
typedef struct msi_json_member {
    char *name;  /* unescaped, ended by a zero byte, in the memory of the text */
    char *value; /* not looked into beyond its end */
    size_t n;
} msi_json_member;

/* Split the object that `n` bytes of text are, in any order of its members. `text` is overwritten
 * where names stand. MS_FORMAT_ERROR also for a name that is there twice. `*members` is malloced.
 */
MS_API ms_status ms_json_split(msi_json_member **members, int32_t *n_members,
                               const msi_json_source *source, char *text, size_t n);
/* Where one is in an array: at first {its begin, its end}. */
typedef struct msi_json_array {
    char *at, *end;
    bool begun;
    char covered; /* what stands at `at` while a run is looked at */
} msi_json_array;

/* The next entry: `n` bytes that are not looked into. `*value` is NULL after the last one.
 * MS_FORMAT_ERROR. */
ms_status msi_json_next(const msi_json_source *source, msi_json_array *array, char **value,
                        size_t *n);
/* The next entries: an array of their own of at most MSI_JSON_TREE_MAX bytes, or one entry that is
 * larger (`*is_large`). `*value` is NULL after the last ones. Overwrites the text between entries;
 * what it gave before is not looked at any more. MS_FORMAT_ERROR. */
MS_API ms_status ms_json_run(const msi_json_source *source, msi_json_array *array, char **value,
                             size_t *n, bool *is_large);
/* Hash what the object that `n` bytes of text are says, whatever its spacing and the order of its
 * members: XXH3 of what json_dumps() with JSON_COMPACT and JSON_SORT_KEYS writes of it without its
 * member `except`. All of it is found to be sound JSON. `text` is overwritten. MS_FORMAT_ERROR. */
ms_status msi_json_hash(uint64_t *hash, const msi_json_source *source, char *text, size_t n,
                        const char *except);
/* Is a member's value a string, and a sound one? MS_FORMAT_ERROR when it is not sound. */
ms_status msi_json_is_string(const msi_json_source *source, const msi_json_member *member,
                             bool *is_string);

#endif
