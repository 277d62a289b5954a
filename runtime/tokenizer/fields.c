/* Fields of JSON objects, checked. */
#include "fields.h"

#include "vocabulary.h"

#include <stdio.h>
#include <string.h>

const char *msi_field_kind(const json_t *value)
{
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };

    return value == NULL ? "missing" : kinds[json_typeof(value)];
}

static ms_status wrong(const json_t *value, const char *key, const char *expected)
{
    return MS_FAIL(MS_FORMAT_ERROR, "'%s' is %s, expected %s", key, msi_field_kind(value),
                   expected);
}

ms_status msi_field_bool(const json_t *object, const char *key, bool *out)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value)) {
        return MS_OK;
    }
    *out = json_is_true(value);
    return json_is_boolean(value) ? MS_OK : wrong(value, key, "true or false");
}

ms_status msi_field_text(const json_t *object, const char *key, const char **text, int64_t *n)
{
    const json_t *value = json_object_get(object, key);

    return value == NULL || json_is_null(value) ? MS_OK
                                                : msi_field_required_text(object, key, text, n);
}

ms_status msi_field_count(const json_t *object, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value)) {
        return MS_OK;
    }
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0 ? MS_OK
                                               : wrong(value, key, "an integer of at least 0");
}

ms_status msi_field_required_text(const json_t *object, const char *key, const char **text,
                                  int64_t *n)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value)) {
        return wrong(value, key, "a string");
    }
    *text = json_string_value(value);
    *n = (int64_t)json_string_length(value);
    return MS_OK;
}

ms_status msi_field_array(const json_t *object, const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    return json_is_array(*out) ? MS_OK : wrong(*out, key, "an array");
}

ms_status msi_field_object(const json_t *object, const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    return json_is_object(*out) ? MS_OK : wrong(*out, key, "an object");
}

ms_status msi_field_choice(const json_t *object, const char *key, const char *const *choices,
                           int32_t n, int32_t *out)
{
    char expected[160] = "";
    const char *text;
    int64_t length;

    MS_TRY(msi_field_required_text(object, key, &text, &length));
    for (*out = 0; *out < n; ++*out) {
        if (strcmp(choices[*out], text) == 0) {
            return MS_OK;
        }
        snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s%s",
                 *out > 0 ? ", " : "", choices[*out]);
    }
    return MS_FAIL(MS_FORMAT_ERROR, "'%s' is '%s', expected one of %s", key, msi_foreign_name(text),
                   expected);
}

ms_status msi_field_id(const json_t *value, const char *text, int32_t *id)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > MSI_MAX_ID) {
        return MS_FAIL(MS_FORMAT_ERROR, "the id of '%s' is %s, expected an integer from 0 to %d",
                       msi_foreign_name(text),
                       json_is_integer(value) ? "out of range" : msi_field_kind(value), MSI_MAX_ID);
    }
    *id = (int32_t)json_integer_value(value);
    return MS_OK;
}
