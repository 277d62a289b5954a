/* Objects with the fields of a format. Values are small, and become trees; but for lists and
 * objects that may be large, which stand apart and stay text. Lists of names end with NULL. */
#ifndef MSI_JSON_FIELDS_H
#define MSI_JSON_FIELDS_H

#include "json_text.h"

typedef struct msi_json_object {
    const msi_json_source *source;
    const char *const *known;
    msi_json_member *members; /* all, as they stand in the text */
    int32_t n;
    json_t *fields; /* the known ones that do not stand apart */
} msi_json_object;

/* "an array", or "nothing" for NULL. */
const char *msi_json_type(const json_t *value);
/* Are all fields of `object` known? `where` says what it is. MS_FORMAT_ERROR. */
ms_status msi_json_check_fields(const char *path, const char *where, json_t *object,
                                const char *const *known);
/* Split the object that `n` bytes of text are; `text` is overwritten where names stand. What is not
 * known is not looked into. A list or object whose name is in `apart` stands apart. Dispose of `o`
 * also when it fails. MS_FORMAT_ERROR. */
ms_status msi_json_object_read(msi_json_object *o, const msi_json_source *source, const char *where,
                               char *text, size_t n, const char *const *known,
                               const char *const *apart);
/* Are all its fields known? */
ms_status msi_json_object_check(const msi_json_object *o, const char *where);
/* What stands apart: text that begins with the bracket `open`. */
ms_status msi_json_object_apart(const msi_json_object *o, const char *where, const char *key,
                                char open, const msi_json_member **out);
void msi_json_object_dispose(msi_json_object *o);

#endif
