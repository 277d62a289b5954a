/* The hash of what a JSON text says. Small values go through Jansson whole, large ones by their
 * parts, so that no tree is larger than MSI_JSON_TREE_MAX bytes make it. */
#include "base.h"
#include "json_text.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct hashing {
    const msi_json_source *source;
    XXH3_state_t *state;
} hashing;

static ms_status absorb(const hashing *h, char *text, size_t n);

static void absorb_text(const hashing *h, const char *text)
{
    XXH3_64bits_update(h->state, text, strlen(text));
}

/* `value` is released. Without its first and last `n_cut` bytes. */
static ms_status absorb_tree(const hashing *h, json_t *value, size_t n_cut)
{
    char *text = ms_json_text(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);

    json_decref(value);
    if (text == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", h->source->path);
    }
    XXH3_64bits_update(h->state, text + n_cut, strlen(text) - 2 * n_cut);
    free(text);
    return MS_OK;
}

static ms_status absorb_run(const hashing *h, const char *text, size_t n)
{
    json_t *entries;

    MS_TRY(ms_json_parse(&entries, h->source, text, n));
    return absorb_tree(h, entries, strlen("["));
}

static ms_status absorb_array(const hashing *h, char *text, size_t n)
{
    msi_json_array array = {.at = text, .end = text + n};
    const char *between = "";
    size_t n_value = 0;
    char *value;
    bool is_large;

    absorb_text(h, "[");
    MS_TRY(ms_json_run(h->source, &array, &value, &n_value, &is_large));
    while (value != NULL) {
        absorb_text(h, between);
        between = ",";
        MS_TRY(is_large ? absorb(h, value, n_value) : absorb_run(h, value, n_value));
        MS_TRY(ms_json_run(h->source, &array, &value, &n_value, &is_large));
    }
    absorb_text(h, "]");
    return MS_OK;
}

static ms_status absorb_object(const hashing *h, char *text, size_t n, const char *except)
{
    const char *between = "";
    msi_json_member *members;
    ms_status status = MS_OK;
    int32_t n_members;

    MS_TRY(ms_json_split(&members, &n_members, h->source, text, n));
    absorb_text(h, "{");
    for (int32_t i = 0; i < n_members && status == MS_OK; i++) {
        if (except != NULL && strcmp(members[i].name, except) == 0) {
            continue;
        }
        absorb_text(h, between);
        between = ",";
        status = absorb_tree(h, json_string(members[i].name), 0);
        absorb_text(h, ":");
        if (status == MS_OK) {
            status = absorb(h, members[i].value, members[i].n);
        }
    }
    absorb_text(h, "}");
    free(members);
    return status;
}

static ms_status absorb(const hashing *h, char *text, size_t n)
{
    json_t *value;

    if (n > MSI_JSON_TREE_MAX && *text == '{') {
        return absorb_object(h, text, n, NULL);
    }
    if (n > MSI_JSON_TREE_MAX && *text == '[') {
        return absorb_array(h, text, n);
    }
    MS_TRY(ms_json_parse(&value, h->source, text, n));
    return absorb_tree(h, value, 0);
}

ms_status msi_json_hash(uint64_t *hash, const msi_json_source *source, char *text, size_t n,
                        const char *except)
{
    const hashing h = {.source = source, .state = XXH3_createState()};

    if (h.state == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to hash the contents of %s", source->path);
    }
    XXH3_64bits_reset(h.state);
    const ms_status status = absorb_object(&h, text, n, except);

    *hash = XXH3_64bits_digest(h.state);
    XXH3_freeState(h.state);
    return status;
}
