/* Splitting JSON objects into their members, in two passes over the text: one counts, so that the
 * list is allocated once, one fills it; and stepping through arrays. What is between members and
 * entries is checked here, what is in them by Jansson. */
#include "json_text.h"
#include "base.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

static ms_status malformed(const msi_json_source *source, const char *at, const char *what)
{
    return MS_FAIL(MS_FORMAT_ERROR, "%s: %sbyte %lld: %s", source->path, source->part,
                   (long long)(at - source->begin), what);
}

ms_status ms_json_parse(json_t **out, const msi_json_source *source, const char *text, size_t n)
{
    json_error_t error;
    bool no_memory;

    *out = ms_json_load(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error, &no_memory);
    if (*out != NULL) {
        return MS_OK;
    }
    if (no_memory) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", source->path);
    }
    return malformed(source, text + error.position, error.text);
}

static char *skip_space(char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) {
        at++;
    }
    return at;
}

/* Past the string that begins at `at`; NULL when it has no end. */
static char *skip_string(char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '"') {
            return at + 1;
        }
        at += *at == '\\';
    }
    return NULL;
}

/* Past the value that begins at `at`. */
static ms_status skip_value(const msi_json_source *source, char *at, char *end, char **after)
{
    char *begin = at;
    int depth = 0;

    do {
        if (at >= end) {
            return malformed(source, end, "the text ends within a value");
        }
        if (*at == '"') {
            char *next = skip_string(at, end);

            if (next == NULL) {
                return malformed(source, at, "a string without an end");
            }
            at = next;
            continue;
        }
        if (depth == 0 && strchr(",}] \t\n\r", *at) != NULL) {
            break; /* the end of a number or word, or no value at all */
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        if (depth > MAX_DEPTH) {
            return malformed(source, at, "values are nested to a depth above 64");
        }
        at++;
    } while (depth > 0 || (*begin != '{' && *begin != '[' && *begin != '"'));
    *after = at;
    return MS_OK;
}

/* Is `text`, quotes included, a string of plain ASCII without escapes? Nearly all are, and need no
 * parser. */
static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 1; i + 1 < n; i++) {
        if (text[i] < ' ' || text[i] == '\\' || text[i] == 127) {
            return false;
        }
    }
    return true;
}

/* Replace a string in the text by what it stands for, which is never longer. */
static ms_status unescape(const msi_json_source *source, char *text, size_t n, char **out)
{
    json_t *value;

    *out = text;
    if (is_plain(text, n)) {
        *out = text + 1;
        text[n - 1] = '\0';
        return MS_OK;
    }
    MS_TRY(ms_json_parse(&value, source, text, n));
    memcpy(text, json_string_value(value), json_string_length(value) + 1);
    json_decref(value);
    return MS_OK;
}

/* Read "name": value at `*at`, and go past it. The name is left as it stands. */
static ms_status read_member(const msi_json_source *source, char **at, char *end,
                             msi_json_member *m, size_t *n_name)
{
    if (*at >= end || **at != '"') {
        return malformed(source, *at, "expected the name of a member");
    }
    char *after_name = skip_string(*at, end);

    if (after_name == NULL) {
        return malformed(source, *at, "a string without an end");
    }
    m->name = *at;
    *n_name = (size_t)(after_name - *at);
    *at = skip_space(after_name, end);
    if (*at >= end || **at != ':') {
        return malformed(source, *at, "expected ':' after a name");
    }
    m->value = skip_space(*at + 1, end);
    MS_TRY(skip_value(source, m->value, end, at));
    m->n = (size_t)(*at - m->value);
    *at = skip_space(*at, end);
    return MS_OK;
}

/* Pass over the members: count them, or (when `list` is given) fill the list. */
static ms_status pass(const msi_json_source *source, char *text, char *end, msi_json_member *list,
                      int32_t *n)
{
    char *at = skip_space(text, end);
    bool more;

    *n = 0;
    if (at >= end || *at != '{') {
        return malformed(source, at, "expected an object");
    }
    at = skip_space(at + 1, end);
    more = at >= end || *at != '}';
    while (more) {
        msi_json_member m;
        size_t n_name = 0;

        MS_TRY(read_member(source, &at, end, &m, &n_name));
        more = at < end && *at == ',';
        if (!more && (at >= end || *at != '}')) {
            return malformed(source, at, "expected ',' or '}' after a member");
        }
        at = more ? skip_space(at + 1, end) : at;
        if (list != NULL) {
            MS_TRY(unescape(source, m.name, n_name, &m.name));
            list[*n] = m;
        }
        if (++*n == INT32_MAX) {
            return malformed(source, at, "more members than 31 bits count");
        }
    }
    at = skip_space(at + 1, end);
    return at == end ? MS_OK : malformed(source, at, "expected the end of the text");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const msi_json_member *)a)->name, ((const msi_json_member *)b)->name);
}

static ms_status check_unique(const msi_json_source *source, const msi_json_member *list, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        if (strcmp(list[i - 1].name, list[i].name) == 0) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: %sduplicate name '%.200s'", source->path,
                           source->part, list[i].name);
        }
    }
    return MS_OK;
}

ms_status ms_json_split(msi_json_member **members, int32_t *n_members,
                        const msi_json_source *source, char *text, size_t n)
{
    int32_t count;

    *members = NULL;
    *n_members = 0;
    MS_TRY(pass(source, text, text + n, NULL, &count));
    msi_json_member *list = malloc(((size_t)count + 1) * sizeof(*list));

    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", source->path);
    }
    ms_status status = pass(source, text, text + n, list, &count);

    if (status == MS_OK) {
        qsort(list, (size_t)count, sizeof(*list), compare_names);
        status = check_unique(source, list, count);
    }
    if (status != MS_OK) {
        free(list);
        return status;
    }
    *members = list;
    *n_members = count;
    return MS_OK;
}

ms_status msi_json_next(const msi_json_source *source, msi_json_array *array, char **value,
                        size_t *n)
{
    char *at = array->at, *const end = array->end;
    const bool first = !array->begun;
    bool last = !first && at < end && *at == ']';

    *value = NULL;
    if (!last && (at >= end || *at != (first ? '[' : ','))) {
        return malformed(source, at, first ? "expected an array" : "expected ',' or ']'");
    }
    if (!last) {
        at = skip_space(at + 1, end);
        last = first && at < end && *at == ']';
    }
    array->begun = true;
    if (last) {
        at = skip_space(at + 1, end);
        return at == end ? MS_OK : malformed(source, at, "expected the end of the text");
    }
    MS_TRY(skip_value(source, at, end, &array->at));
    *value = at;
    *n = (size_t)(array->at - at);
    array->at = skip_space(array->at, end);
    return MS_OK;
}

ms_status ms_json_run(const msi_json_source *source, msi_json_array *array, char **value, size_t *n,
                      bool *is_large)
{
    if (array->begun) {
        *array->at = array->covered;
    }
    char *const begin = array->at; /* before the entries: '[' or ',' */

    MS_TRY(msi_json_next(source, array, value, n));
    *is_large = *n > MSI_JSON_TREE_MAX;
    array->covered = array->at < array->end ? *array->at : '\0';
    if (*value == NULL || *is_large) {
        return MS_OK;
    }
    for (msi_json_array more = *array; more.at < more.end && *more.at == ',';) {
        char *entry;
        size_t n_entry;

        MS_TRY(msi_json_next(source, &more, &entry, &n_entry));
        if (more.at - begin >= MSI_JSON_TREE_MAX) {
            break;
        }
        *array = more;
    }
    if (array->at >= array->end) {
        return malformed(source, array->at, "the text ends within an array");
    }
    array->covered = *array->at;
    *begin = '[';
    *array->at = ']';
    *value = begin;
    *n = (size_t)(array->at - begin) + 1;
    return MS_OK;
}

ms_status msi_json_is_string(const msi_json_source *source, const msi_json_member *member,
                             bool *is_string)
{
    json_t *value;

    *is_string = member->value[0] == '"';
    if (!*is_string || is_plain(member->value, member->n)) {
        return MS_OK;
    }
    MS_TRY(ms_json_parse(&value, source, member->value, member->n));
    json_decref(value);
    return MS_OK;
}
