/* JSON by Jansson, with errors that show file and byte. */
#ifndef MSI_JSON_H
#define MSI_JSON_H

#include "base.h"

#include <jansson.h>

/* Parse `n` bytes; a repeated name in an object is an error. `part`: part of the file at `path`,
 * e.g. "header, ". MS_FORMAT_ERROR, MS_OUT_OF_MEMORY. The caller owns `*out`. */
ms_status msi_json_parse(json_t **out, const char *path, const char *part, const char *text,
                         size_t n);
/* "an array", or "nothing" for NULL. */
const char *msi_json_type(const json_t *value);

#endif
