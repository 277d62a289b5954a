#include "json_fields.h"
#include "base.h"

#include <stdlib.h>
#include <string.h>

const char *msi_json_type(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a real",    "true",     "false",    "null"};

    return value == NULL ? "nothing" : names[json_typeof(value)];
}

static bool is_among(const char *name, const char *const *names)
{
    while (*names != NULL && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

static ms_status check_known(const char *path, const char *where, const char *name,
                             const char *const *known)
{
    return is_among(name, known) ? MS_OK
                                 : MS_FAIL(MS_FORMAT_ERROR, "%s: %s has an unknown field '%s'",
                                           path, where, msi_foreign_name(name));
}

ms_status msi_json_check_fields(const char *path, const char *where, json_t *object,
                                const char *const *known)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        MS_TRY(check_known(path, where, name, known));
    }
    return MS_OK;
}

static ms_status read_field(msi_json_object *o, const char *where, const msi_json_member *m)
{
    const char *path = o->source->path;
    json_t *value;

    if (m->n > MSI_JSON_TREE_MAX) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s has %zu bytes, expected at most %d", path,
                       m->name, where, m->n, MSI_JSON_TREE_MAX);
    }
    MS_TRY(ms_json_parse(&value, o->source, m->value, m->n));
    return json_object_set_new(o->fields, m->name, value) == 0
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", path);
}

static bool is_list(const msi_json_member *m)
{
    return m->n > 0 && (m->value[0] == '[' || m->value[0] == '{');
}

ms_status msi_json_object_read(msi_json_object *o, const msi_json_source *source, const char *where,
                               char *text, size_t n, const char *const *known,
                               const char *const *apart)
{
    *o = (msi_json_object){.source = source, .known = known, .fields = json_object()};
    if (o->fields == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", source->path);
    }
    MS_TRY(ms_json_split(&o->members, &o->n, source, text, n));
    for (int32_t i = 0; i < o->n; i++) {
        const msi_json_member *m = &o->members[i];

        if (is_among(m->name, known) && !(is_list(m) && is_among(m->name, apart))) {
            MS_TRY(read_field(o, where, m));
        }
    }
    return MS_OK;
}

ms_status msi_json_object_check(const msi_json_object *o, const char *where)
{
    for (int32_t i = 0; i < o->n; i++) {
        MS_TRY(check_known(o->source->path, where, o->members[i].name, o->known));
    }
    return MS_OK;
}

ms_status msi_json_object_apart(const msi_json_object *o, const char *where, const char *key,
                                char open, const msi_json_member **out)
{
    const char *found = msi_json_type(json_object_get(o->fields, key));

    *out = NULL;
    for (int32_t i = 0; i < o->n; i++) {
        if (is_list(&o->members[i]) && strcmp(o->members[i].name, key) == 0) {
            *out = &o->members[i];
            found = (*out)->value[0] == '{' ? "an object" : "an array";
        }
    }
    return *out != NULL && (*out)->value[0] == open
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is %s, expected %s", o->source->path, key,
                         where, found, open == '{' ? "an object" : "an array");
}

void msi_json_object_dispose(msi_json_object *o)
{
    free(o->members);
    json_decref(o->fields);
}
