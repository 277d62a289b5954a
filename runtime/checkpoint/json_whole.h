/* Jansson's texts, whole or not at all: its buffers drop what they have no memory for, and it calls
 * that a success, or runs past their end. All JSON, the Lua module's too, passes here. Its
 * functions are exported for that module, and no part of the public interface. */
#ifndef MSI_JSON_WHOLE_H
#define MSI_JSON_WHOLE_H

#include "moonshard/base.h"

#include <jansson.h>

/* json_loadb(), which needs 2 n bytes of its own for texts above 512. NULL with `*no_memory` when
 * memory was out at any time, else `*error` says why. */
MS_API json_t *ms_json_load(const char *text, size_t n, size_t flags, json_error_t *error,
                            bool *no_memory);
/* json_dumps(). NULL when memory is out, or `value` is NULL. Free it with free(). */
MS_API char *ms_json_text(const json_t *value, size_t flags);

#endif
