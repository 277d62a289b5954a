/* Tokenizers: reading the file, and the way of a text through the parts. */
#include "moonshard/tokenizer.h"

#include "added.h"
#include "array.h"
#include "fields.h"
#include "model.h"
#include "parts.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct ms_tokenizer {
    msi_bpe model;
    msi_vocabulary added; /* added tokens as the file writes them */
    msi_vocabulary shown; /* the same, where the token is normalized in normal form, by id */
    bool *is_special;     /* (n_special) by id */
    int32_t n_special;
    msi_added in_text, in_normal; /* looked for before the normalizer, and behind it */
    msi_stages normalizer, pre_tokenizer, decoder;
    msi_template template;

    /* scratch */
    msi_bytes text;
    msi_pieces raw, normal, pieces, scratch;
    msi_ids ids;
};

/* -- added tokens ------------------------------------------------------------------------------ */

static ms_status set_special(ms_tokenizer *t, int32_t id)
{
    if (id >= t->n_special) {
        bool *larger = realloc(t->is_special, (size_t)id + 1);

        if (larger == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %d special tokens", (int)id + 1);
        }
        memset(larger + t->n_special, 0, (size_t)(id + 1 - t->n_special));
        t->is_special = larger;
        t->n_special = id + 1;
    }
    t->is_special[id] = true;
    return MS_OK;
}

/* A normalized token is looked for, and shown, in normal form. */
static ms_status add_text(ms_tokenizer *t, const char *text, int64_t n, bool normalized,
                          const msi_added_token *token)
{
    if (normalized) {
        msi_pieces_clear(&t->normal);
        MS_TRY(msi_pieces_add(&t->normal, text, n, -1, true));
        MS_TRY(msi_stages_run(&t->normalizer, &t->normal, &t->scratch));
        text = t->normal.text.data;
        n = t->normal.text.n;
    }
    MS_TRY(msi_vocabulary_add(&t->shown, text, n, token->id));
    return msi_added_add(normalized ? &t->in_normal : &t->in_text, text, n, token);
}

/* An id must be the text's own in the vocabulary, or free there. tokenizers ignores the file's
 * number of a new token and counts on from the vocabulary's size; files that it wrote agree with
 * that. */
static ms_status check_id(ms_tokenizer *t, const char *text, int64_t n, int32_t id)
{
    const msi_vocabulary *v = &t->model.vocabulary;
    const int32_t known = msi_vocabulary_id(v, text, n);
    const int32_t next = t->added.n_ids > v->n ? t->added.n_ids : v->n;

    if (known >= 0 ? known != id : msi_vocabulary_token(v, id) != NULL) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "'%s' has id %d, which the vocabulary gives to another token",
                       msi_foreign_name(text), (int)id);
    }
    if (known < 0 && id != next) {
        msi_warn("UserWarning",
                 "the tokenizer's added token '%s' has id %d, and tokenizers would "
                 "number it %d: the file's id is used",
                 msi_foreign_name(text), (int)id, (int)next);
    }
    return MS_OK;
}

static ms_status add_token(ms_tokenizer *t, const json_t *object)
{
    msi_added_token token = {0};
    bool normalized = false;
    const char *text;
    int64_t n;

    MS_TRY(msi_field_required_text(object, "content", &text, &n));
    MS_TRY(msi_field_id(json_object_get(object, "id"), text, &token.id));
    MS_TRY(msi_field_bool(object, "single_word", &token.single_word));
    MS_TRY(msi_field_bool(object, "lstrip", &token.lstrip));
    MS_TRY(msi_field_bool(object, "rstrip", &token.rstrip));
    MS_TRY(msi_field_bool(object, "normalized", &normalized));
    MS_TRY(msi_field_bool(object, "special", &token.special));
    MS_TRY(check_id(t, text, n, token.id));
    MS_TRY(msi_vocabulary_add(&t->added, text, n, token.id));
    if (token.special) {
        MS_TRY(set_special(t, token.id));
    }
    return add_text(t, text, n, normalized, &token);
}

static ms_status read_added(ms_tokenizer *t, const json_t *file)
{
    const json_t *tokens = json_object_get(file, "added_tokens"), *token;
    size_t i;

    if (tokens == NULL || json_is_null(tokens)) {
        return MS_OK;
    }
    MS_TRY(msi_field_array(file, "added_tokens", &tokens));
    json_array_foreach(tokens, i, token)
    {
        const ms_status status = add_token(t, token);

        if (status != MS_OK) {
            return msi_fail_prefix(status, "added_tokens[%d]: ", (int)i + 1);
        }
    }
    return MS_OK;
}

/* -- files ------------------------------------------------------------------------------------- */

static ms_status read_bytes(msi_bytes *out, FILE *file, const char *path)
{
    size_t got;

    do {
        MS_TRY(msi_bytes_reserve(out, 1 << 16));
        got = fread(out->data + out->n, 1, (size_t)(out->capacity - out->n), file);
        out->n += (int64_t)got;
    } while (got > 0);
    return ferror(file) == 0 ? MS_OK
                             : MS_FAIL(MS_IO_ERROR, "cannot read '%s': %s", path, strerror(errno));
}

static ms_status parse(json_t **out, const msi_bytes *text, const char *path)
{
    json_error_t error;

    *out = json_loadb(text->data, (size_t)text->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (*out == NULL) {
        return json_error_code(&error) == json_error_out_of_memory
                   ? MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of '%s'", path)
                   : MS_FAIL(MS_FORMAT_ERROR, "'%s': malformed JSON at line %d, byte %d: %.80s",
                             path, error.line, error.position, error.text);
    }
    return MS_OK;
}

static ms_status read_json(json_t **out, const char *path)
{
    msi_bytes text = {0};
    FILE *file = fopen(path, "rbe");

    *out = NULL;
    if (file == NULL) {
        return MS_FAIL(MS_IO_ERROR, "cannot open '%s': %s", path, strerror(errno));
    }
    ms_status status = read_bytes(&text, file, path);

    fclose(file);
    if (status == MS_OK) {
        status = parse(out, &text, path);
    }
    free(text.data);
    return status;
}

static ms_status read_parts(ms_tokenizer *t, const json_t *file)
{
    MS_TRY(msi_part_read(&t->normalizer, file, "normalizer", &msi_normalizers));
    MS_TRY(msi_part_read(&t->pre_tokenizer, file, "pre_tokenizer", &msi_pre_tokenizers));
    MS_TRY(msi_part_read(&t->decoder, file, "decoder", &msi_decoders));
    MS_TRY(msi_part_read(&t->template, file, "post_processor", &msi_post_processors));
    MS_TRY(msi_model_read(&t->model, file));
    return read_added(t, file);
}

static ms_status load(ms_tokenizer *t, const char *path)
{
    json_t *file;

    MS_TRY(read_json(&file, path));
    const ms_status status = read_parts(t, file);

    json_decref(file);
    return status == MS_OK ? MS_OK : msi_fail_prefix(status, "'%s': ", path);
}

/* -- a folder's tokenizer_config.json ---------------------------------------------------------- */

/* Replace the ids `*to` of the template by the token in field `key`, or by none. */
static ms_status replace_end(ms_tokenizer *t, msi_ids *to, const json_t *config, const char *add,
                             const char *key)
{
    const json_t *token = json_object_get(config, key);
    bool wanted = false;

    to->n = 0;
    MS_TRY(msi_field_bool(config, add, &wanted));
    if (!wanted) {
        return MS_OK;
    }
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    const int32_t id = text == NULL ? -1 : ms_tokenizer_id(t, text, (int64_t)strlen(text));

    if (id < 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "'%s' is true, and '%s' is %s, expected a token", add, key,
                       text == NULL ? msi_field_kind(token) : msi_foreign_name(text));
    }
    return msi_ids_add(to, &id, 1);
}

static ms_status read_config(ms_tokenizer *t, const char *path)
{
    json_t *config;
    struct stat info;

    if (stat(path, &info) != 0) {
        return MS_OK;
    }
    MS_TRY(read_json(&config, path));
    ms_status status = MS_OK;

    if (json_object_get(config, "add_bos_token") != NULL ||
        json_object_get(config, "add_eos_token") != NULL) {
        status = replace_end(t, &t->template.before, config, "add_bos_token", "bos_token");
        if (status == MS_OK) {
            status = replace_end(t, &t->template.after, config, "add_eos_token", "eos_token");
        }
    }
    json_decref(config);
    return status == MS_OK ? MS_OK : msi_fail_prefix(status, "'%s': ", path);
}

static ms_status load_folder(ms_tokenizer *t, const char *folder)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    MS_TRY(load(t, path));
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder);
    return read_config(t, path);
}

ms_status ms_tokenizer_load(ms_tokenizer **out, const char *path)
{
    ms_tokenizer *t;
    struct stat info;

    *out = NULL;
    MS_TRY(msi_new_array(&t, 1, "tokenizer"));
    const ms_status status =
        stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? load_folder(t, path) : load(t, path);

    if (status != MS_OK) {
        ms_tokenizer_free(t);
        return status;
    }
    *out = t;
    return MS_OK;
}

void ms_tokenizer_free(ms_tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    msi_bpe_dispose(&t->model);
    msi_vocabulary_dispose(&t->added);
    msi_vocabulary_dispose(&t->shown);
    free(t->is_special);
    msi_added_dispose(&t->in_text);
    msi_added_dispose(&t->in_normal);
    msi_stages_dispose(&t->normalizer);
    msi_stages_dispose(&t->pre_tokenizer);
    msi_stages_dispose(&t->decoder);
    free(t->template.before.data);
    free(t->template.after.data);
    free(t->text.data);
    msi_pieces_dispose(&t->raw);
    msi_pieces_dispose(&t->normal);
    msi_pieces_dispose(&t->pieces);
    msi_pieces_dispose(&t->scratch);
    free(t->ids.data);
    free(t);
}

/* -- encoding ---------------------------------------------------------------------------------- */

/* Normalize a piece of the raw text, and cut the normalized added tokens out of it. */
static ms_status normalize(ms_tokenizer *t, const char *text, int64_t n, bool at_start,
                           bool parse_special)
{
    if (t->normalizer.n == 0) {
        return msi_added_cut(&t->in_normal, &t->pieces, text, n, at_start, parse_special);
    }
    msi_pieces_clear(&t->normal);
    MS_TRY(msi_pieces_add(&t->normal, text, n, -1, at_start));
    MS_TRY(msi_stages_run(&t->normalizer, &t->normal, &t->scratch));
    return msi_added_cut(&t->in_normal, &t->pieces, t->normal.text.data, t->normal.text.n, at_start,
                         parse_special);
}

/* The pieces of valid text that the model sees, and added tokens. */
static ms_status cut(ms_tokenizer *t, const char *text, int64_t n, bool parse_special)
{
    msi_pieces_clear(&t->raw);
    msi_pieces_clear(&t->pieces);
    MS_TRY(msi_added_cut(&t->in_text, &t->raw, text, n, true, parse_special));
    for (int64_t i = 0; i < t->raw.n; i++) {
        const msi_piece p = t->raw.list[i];

        MS_TRY(p.id >= 0 ? msi_pieces_add(&t->pieces, NULL, 0, p.id, false)
                         : normalize(t, t->raw.text.data + p.start, p.end - p.start, p.at_start,
                                     parse_special));
    }
    return msi_stages_run(&t->pre_tokenizer, &t->pieces, &t->scratch);
}

ms_status ms_tokenizer_encode(ms_tokenizer *t, const char *text, int64_t nbytes, int32_t flags,
                              const int32_t **ids, int64_t *n, int64_t *n_invalid)
{
    const bool add = (flags & MS_TOKENIZER_ADD_SPECIAL) != 0;

    *ids = NULL;
    *n = *n_invalid = 0;
    t->ids.n = t->text.n = 0;
    if (ms_utf8_valid(text, nbytes) < nbytes) {
        MS_TRY(msi_utf8_add_lossy(&t->text, text, nbytes, n_invalid));
        text = t->text.data;
        nbytes = t->text.n;
    }
    MS_TRY(cut(t, text, nbytes, (flags & MS_TOKENIZER_PARSE_SPECIAL) != 0));
    MS_TRY(msi_ids_add(&t->ids, t->template.before.data, add ? t->template.before.n : 0));
    for (int64_t i = 0; i < t->pieces.n; i++) {
        const msi_piece p = t->pieces.list[i];

        MS_TRY(p.id >= 0 ? msi_ids_add(&t->ids, &p.id, 1)
                         : msi_bpe_encode(&t->model, &t->ids, t->pieces.text.data + p.start,
                                          p.end - p.start));
    }
    MS_TRY(msi_ids_add(&t->ids, t->template.after.data, add ? t->template.after.n : 0));
    *ids = t->ids.data;
    *n = t->ids.n;
    return MS_OK;
}

bool ms_tokenizer_cuts_lines(const ms_tokenizer *t)
{
    return msi_added_within_lines(&t->in_text) && msi_added_within_lines(&t->in_normal) &&
           msi_stages_cut_lines(&t->normalizer, &t->pre_tokenizer);
}

/* -- decoding ---------------------------------------------------------------------------------- */

const char *ms_tokenizer_token(const ms_tokenizer *t, int32_t id, int64_t *nbytes)
{
    const msi_vocabulary *v = &t->shown;
    const msi_token *token = msi_vocabulary_token(v, id);

    if (token == NULL) {
        v = &t->model.vocabulary;
        token = msi_vocabulary_token(v, id);
    }
    *nbytes = token != NULL ? token->n : 0;
    return token != NULL ? v->text.data + token->start : NULL;
}

int32_t ms_tokenizer_id(const ms_tokenizer *t, const char *token, int64_t nbytes)
{
    const int32_t id = msi_vocabulary_id(&t->added, token, nbytes);

    return id >= 0 ? id : msi_vocabulary_id(&t->model.vocabulary, token, nbytes);
}

int32_t ms_tokenizer_n_ids(const ms_tokenizer *t)
{
    return t->added.n_ids > t->model.vocabulary.n_ids ? t->added.n_ids : t->model.vocabulary.n_ids;
}

/* The tokens of ids as pieces. Without a decoder they are words, with spaces between them. */
static ms_status look_up(ms_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special)
{
    msi_pieces_clear(&t->pieces);
    for (int64_t i = 0; i < n; i++) {
        int64_t nbytes;
        const char *token = ms_tokenizer_token(t, ids[i], &nbytes);

        if (ids[i] < 0) {
            return MS_FAIL(MS_VALUE_ERROR, "id %lld is %d, expected at least 0", (long long)i + 1,
                           (int)ids[i]);
        }
        if (token == NULL || (skip_special && ids[i] < t->n_special && t->is_special[ids[i]])) {
            continue;
        }
        if (t->decoder.n == 0 && t->pieces.n > 0) {
            MS_TRY(msi_bytes_add(&t->pieces.text, " ", 1));
        }
        MS_TRY(msi_pieces_add(&t->pieces, token, nbytes, -1, t->pieces.n == 0));
    }
    return MS_OK;
}

ms_status ms_tokenizer_decode(ms_tokenizer *t, const int32_t *ids, int64_t n, int32_t flags,
                              const char **text, int64_t *nbytes)
{
    *text = "";
    *nbytes = 0;
    MS_TRY(look_up(t, ids, n, (flags & MS_TOKENIZER_SKIP_SPECIAL) != 0));
    MS_TRY(msi_stages_run(&t->decoder, &t->pieces, &t->scratch));
    if (t->pieces.text.n > 0) {
        *text = t->pieces.text.data;
        *nbytes = t->pieces.text.n;
    }
    return MS_OK;
}
