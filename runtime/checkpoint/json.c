#include "json.h"

ms_status msi_json_parse(json_t **out, const char *path, const char *part, const char *text,
                         size_t n)
{
    json_error_t error;

    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (*out != NULL) {
        return MS_OK;
    }
    return json_error_code(&error) == json_error_out_of_memory
               ? MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", path)
               : MS_FAIL(MS_FORMAT_ERROR, "%s: %sbyte %d: %s", path, part, error.position,
                         error.text);
}

const char *msi_json_type(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a real",    "true",     "false",    "null"};

    return value == NULL ? "nothing" : names[json_typeof(value)];
}
