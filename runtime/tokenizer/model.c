/* The model of a tokenizer.json. */
#include "model.h"

#include "fields.h"

#include <stdlib.h>
#include <string.h>

/* -- vocabulary and merges --------------------------------------------------------------------- */

static ms_status read_vocabulary(msi_vocabulary *v, const json_t *model)
{
    const json_t *vocab;
    json_t *value;
    const char *key;

    MS_TRY(msi_field_object(model, "vocab", &vocab));
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value)
    {
        int32_t id;

        MS_TRY(msi_field_id(value, key, &id));
        if (msi_vocabulary_token(v, id) != NULL) {
            const msi_token *t = msi_vocabulary_token(v, id);

            return MS_FAIL(MS_FORMAT_ERROR, "'%s' and '%.*s' of the vocabulary both have id %d",
                           msi_foreign_name(key), (int)(t->n < 64 ? t->n : 64),
                           v->text.data + t->start, (int)id);
        }
        MS_TRY(msi_vocabulary_add(v, key, (int64_t)strlen(key), id));
    }
    return MS_OK;
}

/* The two sides of "a b" or ["a", "b"]. */
static bool split_merge(const json_t *merge, const char *side[2], int64_t n[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');

        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            return false;
        }
        side[0] = text;
        n[0] = space - text;
        side[1] = space + 1;
        n[1] = (int64_t)strlen(space + 1);
        return true;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *text = json_array_get(merge, i);

        if (!json_is_string(text)) {
            return false;
        }
        side[i] = json_string_value(text);
        n[i] = (int64_t)json_string_length(text);
    }
    return json_array_size(merge) == 2;
}

static ms_status find(int32_t *id, const msi_vocabulary *v, const char *text, int64_t n)
{
    *id = msi_vocabulary_id(v, text, n);
    return *id >= 0 ? MS_OK
                    : MS_FAIL(MS_FORMAT_ERROR, "'%.*s' is not in the vocabulary",
                              (int)(n < 100 ? n : 100), text);
}

static ms_status add_merge(msi_bpe *m, const json_t *merge, int32_t rank, msi_bytes *joined)
{
    const char *side[2];
    int64_t n[2];
    int32_t id[3];

    if (!split_merge(merge, side, n)) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s, expected two tokens: \"a b\", or an array of two strings",
                       json_is_string(merge) ? msi_foreign_name(json_string_value(merge))
                                             : msi_field_kind(merge));
    }
    joined->n = 0;
    for (int32_t i = 0; i < 2; i++) {
        MS_TRY(find(&id[i], &m->vocabulary, side[i], n[i]));
        MS_TRY(msi_bytes_add(joined, side[i], n[i]));
    }
    MS_TRY(find(&id[2], &m->vocabulary, joined->data, joined->n));
    msi_bpe_merge(m, id[0], id[1], rank, id[2]);
    return MS_OK;
}

static ms_status read_merges(msi_bpe *m, const json_t *model)
{
    msi_bytes joined = {0};
    const json_t *merges, *merge;
    ms_status status;
    size_t i;

    MS_TRY(msi_field_array(model, "merges", &merges));
    MS_TRY(msi_bpe_begin(m, (int64_t)json_array_size(merges)));
    status = MS_OK;
    json_array_foreach(merges, i, merge)
    {
        status = add_merge(m, merge, (int32_t)i, &joined);
        if (status != MS_OK) {
            status = msi_fail_prefix(status, "merges[%d]: ", (int)i + 1);
            break;
        }
    }
    free(joined.data);
    return status;
}

/* -- options ----------------------------------------------------------------------------------- */

/* Options that change the ids and are not supported: they must be null or empty. */
static ms_status refuse_options(const json_t *model)
{
    static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");

    for (int32_t i = 0; i < MSI_COUNT(keys); i++) {
        const char *text = "";
        int64_t n = 0;

        MS_TRY(msi_field_text(model, keys[i], &text, &n));
        if (n > 0) {
            return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "'%s' is '%s', which is not supported",
                           keys[i], msi_foreign_name(text));
        }
    }
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "'dropout' is %g, expected null: random merges are not supported",
                       json_number_value(dropout));
    }
    return MS_OK;
}

static ms_status read_unk(msi_bpe *m, const json_t *model)
{
    const char *unk = NULL;
    int64_t n;

    m->unk = -1;
    MS_TRY(msi_field_text(model, "unk_token", &unk, &n));
    if (unk == NULL) {
        return MS_OK;
    }
    const ms_status status = find(&m->unk, &m->vocabulary, unk, n);

    return status == MS_OK ? MS_OK : msi_fail_prefix(status, "unk_token: ");
}

static ms_status read_bpe(msi_bpe *m, const json_t *model)
{
    MS_TRY(refuse_options(model));
    MS_TRY(msi_field_bool(model, "byte_fallback", &m->byte_fallback));
    MS_TRY(msi_field_bool(model, "ignore_merges", &m->ignore_merges));
    MS_TRY(msi_field_bool(model, "fuse_unk", &m->fuse_unk));
    MS_TRY(read_vocabulary(&m->vocabulary, model));
    MS_TRY(read_unk(m, model));
    return read_merges(m, model);
}

static ms_status read_model(msi_bpe *m, const json_t *tokenizer)
{
    const json_t *model;
    const char *kind = "BPE"; /* older files do not name it */
    int64_t n;

    MS_TRY(msi_field_object(tokenizer, "model", &model));
    MS_TRY(msi_field_text(model, "type", &kind, &n));
    if (strcmp(kind, "BPE") != 0 || json_object_get(model, "merges") == NULL) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "models of kind '%s' are not supported, expected 'BPE' with merges",
                       msi_foreign_name(kind));
    }
    return read_bpe(m, model);
}

ms_status msi_model_read(msi_bpe *m, const json_t *tokenizer)
{
    const ms_status status = read_model(m, tokenizer);

    return status == MS_OK ? MS_OK : msi_fail_prefix(status, "model: ");
}
