/* Fields of JSON objects, checked. MS_FORMAT_ERROR names the field, with what was found and
 * expected. */
#ifndef MSI_FIELDS_H
#define MSI_FIELDS_H

#include "text.h"

#include <jansson.h>

/* "a string", "an array", ...; "missing" for NULL. */
const char *msi_field_kind(const json_t *value);
/* A field that is null or missing keeps its value in the following three. */
ms_status msi_field_bool(const json_t *object, const char *key, bool *out);
ms_status msi_field_text(const json_t *object, const char *key, const char **text, int64_t *n);
ms_status msi_field_count(const json_t *object, const char *key, int64_t *out);
/* These are required. */
ms_status msi_field_required_text(const json_t *object, const char *key, const char **text,
                                  int64_t *n);
ms_status msi_field_array(const json_t *object, const char *key, const json_t **out);
ms_status msi_field_object(const json_t *object, const char *key, const json_t **out);
/* The index of a required text among `choices`. */
ms_status msi_field_choice(const json_t *object, const char *key, const char *const *choices,
                           int32_t n, int32_t *out);
/* An id of a token: MS_FORMAT_ERROR unless `value` is an integer from 0 to MSI_MAX_ID. `text`: the
 * token, for the message. */
ms_status msi_field_id(const json_t *value, const char *text, int32_t *id);

#endif
