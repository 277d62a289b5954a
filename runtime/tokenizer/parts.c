/* The parts of tokenizer.json by name. */
#include "parts.h"

#include "fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct part_row {
    const char *name;
    ms_status (*make)(void *out, const json_t *part);
} part_row;

struct msi_part_family {
    const char *list; /* the field of a Sequence that has its parts */
    const part_row *rows;
    int32_t n;
};

#define FAMILY(key, table)                                                                         \
    {                                                                                              \
        .list = key, .rows = table, .n = MSI_COUNT(table)                                          \
    }

/* -- shared ------------------------------------------------------------------------------------ */

/* {"String": "..."} or {"Regex": "..."} */
static ms_status read_pattern(msi_pattern **out, const json_t *part)
{
    const json_t *pattern;
    const char *text;
    int64_t n;

    MS_TRY(msi_field_object(part, "pattern", &pattern));
    if (json_object_get(pattern, "Regex") != NULL) {
        MS_TRY(msi_field_required_text(pattern, "Regex", &text, &n));
        return msi_pattern_regex(out, text, n);
    }
    MS_TRY(msi_field_required_text(pattern, "String", &text, &n));
    return msi_pattern_literal(out, text, n);
}

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* No match of these has an ASCII letter or digit and \r or \n behind it, so one ends between them.
 * The only lookahead is behind white space, and sees one character: matches before that place do
 * not depend on what follows. There is no lookbehind: those behind do not depend on what precedes.
 */
static const char *const CUT_LINES[] = {
    GPT2,
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ENDINGS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
    "*" ENDINGS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
};

static int32_t lines_of(const msi_stage *s, const char *regex)
{
    if (strcmp(regex, "\\p{N}") == 0) {
        return MSI_LINES_KEPT;
    }
    for (int32_t i = 0; i < MSI_COUNT(CUT_LINES); i++) {
        if (s->behavior == MSI_SPLIT_ISOLATED && strcmp(regex, CUT_LINES[i]) == 0) {
            return MSI_LINES_CUT;
        }
    }
    return MSI_LINES_UNKNOWN;
}

static ms_status add_split(msi_stages *stages, const char *regex, int32_t behavior)
{
    msi_stage *s;

    MS_TRY(msi_stages_add(stages, &s, msi_stage_split, NULL));
    s->behavior = behavior;
    s->lines = lines_of(s, regex);
    return msi_pattern_regex(&s->pattern, regex, (int64_t)strlen(regex));
}

/* A literal pattern, and what replaces it. */
static ms_status add_replace(msi_stages *stages, msi_each *each, const char *literal, int64_t n,
                             const char *by, int64_t n_by, msi_stage **s)
{
    MS_TRY(msi_stages_add(stages, s, each, NULL));
    MS_TRY(msi_bytes_add(&(*s)->text, by, n_by));
    return msi_pattern_literal(&(*s)->pattern, literal, n);
}

static ms_status make_replace(void *out, const json_t *part)
{
    const char *content;
    int64_t n;
    msi_stage *s;

    MS_TRY(msi_field_required_text(part, "content", &content, &n));
    MS_TRY(msi_stages_add(out, &s, msi_stage_replace, NULL));
    MS_TRY(msi_bytes_add(&s->text, content, n));
    MS_TRY(read_pattern(&s->pattern, part));
    if (memchr(content, '$', (size_t)n) != NULL &&
        json_object_get(json_object_get(part, "pattern"), "Regex") != NULL) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "'content' is '%s', and groups of a regular expression are not supported",
                       msi_foreign_name(content));
    }
    return MS_OK;
}

/* -- normalizers ------------------------------------------------------------------------------- */

static ms_status make_nfc(void *out, const json_t *part)
{
    msi_stage *s;

    (void)part;
    MS_TRY(msi_nfc_open());
    MS_TRY(msi_stages_add(out, &s, msi_stage_nfc, NULL));
    s->lines = MSI_LINES_KEPT; /* ASCII is normal, and \r and \n compose with nothing */
    return MS_OK;
}

static ms_status make_prepend(void *out, const json_t *part)
{
    const char *text;
    int64_t n;
    msi_stage *s;

    MS_TRY(msi_field_required_text(part, "prepend", &text, &n));
    MS_TRY(msi_stages_add(out, &s, msi_stage_prepend, NULL));
    return msi_bytes_add(&s->text, text, n);
}

static const part_row NORMALIZERS[] = {
    {"NFC", make_nfc},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
};

/* -- pre-tokenizers ---------------------------------------------------------------------------- */

static ms_status make_byte_level(void *out, const json_t *part)
{
    bool add_prefix_space = true, use_regex = true;
    msi_stage *s;

    MS_TRY(msi_field_bool(part, "add_prefix_space", &add_prefix_space));
    MS_TRY(msi_field_bool(part, "use_regex", &use_regex));
    if (add_prefix_space) {
        MS_TRY(msi_stages_add(out, &s, msi_stage_prepend, NULL));
        s->unless_there = true;
        MS_TRY(msi_bytes_add(&s->text, " ", 1));
    }
    if (use_regex) {
        MS_TRY(add_split(out, GPT2, MSI_SPLIT_ISOLATED));
    }
    return msi_stages_add(out, &s, msi_stage_bytes, NULL);
}

static ms_status make_split(void *out, const json_t *part)
{
    static const char *const BEHAVIORS[MSI_SPLIT_COUNT] = {
        [MSI_SPLIT_REMOVED] = "Removed",
        [MSI_SPLIT_ISOLATED] = "Isolated",
        [MSI_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MSI_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [MSI_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    msi_stage *s;

    MS_TRY(msi_stages_add(out, &s, msi_stage_split, NULL));
    MS_TRY(msi_field_choice(part, "behavior", BEHAVIORS, MSI_SPLIT_COUNT, &s->behavior));
    MS_TRY(msi_field_bool(part, "invert", &s->invert));
    MS_TRY(read_pattern(&s->pattern, part));
    const char *regex =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "Regex"));

    if (regex != NULL && !s->invert) {
        s->lines = lines_of(s, regex);
    }
    return MS_OK;
}

static ms_status make_digits(void *out, const json_t *part)
{
    bool individual = false;

    MS_TRY(msi_field_bool(part, "individual_digits", &individual));
    return add_split(out, "\\p{N}", individual ? MSI_SPLIT_ISOLATED : MSI_SPLIT_CONTIGUOUS);
}

enum { PREPEND_FIRST, PREPEND_NEVER, PREPEND_ALWAYS, PREPEND_COUNT };

/* `add_prefix_space` is the older spelling of `prepend_scheme`. */
static ms_status read_metaspace(const json_t *part, const char **replacement, int64_t *n,
                                int32_t *scheme)
{
    static const char *const SCHEMES[PREPEND_COUNT] = {"first", "never", "always"};
    bool add_prefix_space = true;
    int32_t length;

    *replacement = "\xE2\x96\x81"; /* U+2581 */
    *n = 3;
    MS_TRY(msi_field_text(part, "replacement", replacement, n));
    if (*n == 0 || (msi_utf8_char(*replacement, &length), length != *n)) {
        return MS_FAIL(MS_FORMAT_ERROR, "'replacement' is '%s', expected one character",
                       msi_foreign_name(*replacement));
    }
    MS_TRY(msi_field_bool(part, "add_prefix_space", &add_prefix_space));
    *scheme = add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER;
    return json_object_get(part, "prepend_scheme") == NULL
               ? MS_OK
               : msi_field_choice(part, "prepend_scheme", SCHEMES, PREPEND_COUNT, scheme);
}

static ms_status make_metaspace(void *out, const json_t *part)
{
    bool split = true;
    const char *replacement;
    int64_t n;
    int32_t scheme;
    msi_stage *s;

    MS_TRY(read_metaspace(part, &replacement, &n, &scheme));
    MS_TRY(msi_field_bool(part, "split", &split));
    MS_TRY(add_replace(out, msi_stage_replace, " ", 1, replacement, n, &s));
    if (scheme != PREPEND_NEVER) {
        MS_TRY(msi_stages_add(out, &s, msi_stage_prepend, NULL));
        s->unless_there = true;
        s->only_at_start = scheme == PREPEND_FIRST;
        MS_TRY(msi_bytes_add(&s->text, replacement, n));
    }
    if (!split) {
        return MS_OK;
    }
    MS_TRY(msi_stages_add(out, &s, msi_stage_split, NULL));
    s->behavior = MSI_SPLIT_MERGED_WITH_NEXT;
    return msi_pattern_literal(&s->pattern, replacement, n);
}

static const part_row PRE_TOKENIZERS[] = {
    {"ByteLevel", make_byte_level},
    {"Digits", make_digits},
    {"Metaspace", make_metaspace},
    {"Split", make_split},
};

/* -- decoders ---------------------------------------------------------------------------------- */

static ms_status make_byte_level_decoder(void *out, const json_t *part)
{
    msi_stage *s;

    (void)part;
    return msi_stages_add(out, &s, NULL, msi_stage_bytes_decode);
}

static ms_status make_byte_fallback(void *out, const json_t *part)
{
    msi_stage *s;

    (void)part;
    return msi_stages_add(out, &s, NULL, msi_stage_byte_fallback);
}

static ms_status make_fuse(void *out, const json_t *part)
{
    msi_stage *s;

    (void)part;
    return msi_stages_add(out, &s, NULL, msi_stage_fuse);
}

static ms_status make_strip(void *out, const json_t *part)
{
    const char *text;
    int64_t n;
    int32_t length;
    msi_stage *s;

    MS_TRY(msi_field_required_text(part, "content", &text, &n));
    if (n == 0 || (msi_utf8_char(text, &length), length != n)) {
        return MS_FAIL(MS_FORMAT_ERROR, "'content' is '%s', expected one character",
                       msi_foreign_name(text));
    }
    MS_TRY(msi_stages_add(out, &s, msi_stage_strip, NULL));
    MS_TRY(msi_field_count(part, "start", &s->first));
    MS_TRY(msi_field_count(part, "stop", &s->last));
    return msi_bytes_add(&s->text, text, n);
}

static ms_status make_metaspace_decoder(void *out, const json_t *part)
{
    const char *replacement;
    int64_t n;
    int32_t scheme;
    msi_stage *s;

    MS_TRY(read_metaspace(part, &replacement, &n, &scheme));
    MS_TRY(add_replace(out, msi_stage_metaspace_decode, replacement, n, " ", 1, &s));
    s->only_at_start = scheme != PREPEND_NEVER;
    return MS_OK;
}

static const part_row DECODERS[] = {
    {"ByteFallback", make_byte_fallback},
    {"ByteLevel", make_byte_level_decoder},
    {"Fuse", make_fuse},
    {"Metaspace", make_metaspace_decoder},
    {"Replace", make_replace},
    {"Strip", make_strip},
};

/* -- post-processors --------------------------------------------------------------------------- */

/* Put ids before and after those that are there. */
static ms_status surround(msi_template *t, const msi_ids *before, const msi_ids *after)
{
    msi_ids all = {0};
    ms_status status;

    MS_TRY_GOTO(msi_ids_add(&all, before->data, before->n), failed);
    MS_TRY_GOTO(msi_ids_add(&all, t->before.data, t->before.n), failed);
    MS_TRY_GOTO(msi_ids_add(&t->after, after->data, after->n), failed);
    free(t->before.data);
    t->before = all;
    return MS_OK;
failed:
    free(all.data);
    return status;
}

/* The ids of a special token, which `special_tokens` of the part lists. */
static ms_status add_special(msi_ids *to, const json_t *part, const char *name)
{
    const json_t *all, *token, *ids, *value;
    size_t i;

    MS_TRY(msi_field_object(part, "special_tokens", &all));
    MS_TRY(msi_field_object(all, name, &token));
    MS_TRY(msi_field_array(token, "ids", &ids));
    json_array_foreach(ids, i, value)
    {
        int32_t id;

        MS_TRY(msi_field_id(value, name, &id));
        MS_TRY(msi_ids_add(to, &id, 1));
    }
    return MS_OK;
}

/* [special token or sequence A]...: A exactly once. */
static ms_status read_single(msi_ids *before, msi_ids *after, const json_t *part)
{
    const json_t *single, *item;
    const char *name;
    int64_t n;
    int32_t n_texts = 0;
    size_t i;

    MS_TRY(msi_field_array(part, "single", &single));
    json_array_foreach(single, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        const json_t *sequence = json_object_get(item, "Sequence");

        MS_TRY(msi_field_required_text(special != NULL ? special : sequence, "id", &name, &n));
        if (special != NULL) {
            MS_TRY(add_special(n_texts == 0 ? before : after, part, name));
        } else {
            n_texts += strcmp(name, "A") == 0 ? 1 : 2;
        }
    }
    return n_texts == 1 ? MS_OK
                        : MS_FAIL(MS_FORMAT_ERROR, "'single' does not have the sequence A once");
}

static ms_status make_template(void *out, const json_t *part)
{
    msi_ids before = {0}, after = {0};
    ms_status status;

    MS_TRY_GOTO(read_single(&before, &after, part), done);
    status = surround(out, &before, &after);
done:
    free(before.data);
    free(after.data);
    return status;
}

static ms_status make_nothing(void *out, const json_t *part)
{
    (void)out, (void)part;
    return MS_OK; /* it changes offsets, which nothing here asks for */
}

static const part_row POST_PROCESSORS[] = {
    {"ByteLevel", make_nothing},
    {"TemplateProcessing", make_template},
};

/* -- reading ----------------------------------------------------------------------------------- */

const msi_part_family msi_normalizers = FAMILY("normalizers", NORMALIZERS);
const msi_part_family msi_pre_tokenizers = FAMILY("pretokenizers", PRE_TOKENIZERS);
const msi_part_family msi_decoders = FAMILY("decoders", DECODERS);
const msi_part_family msi_post_processors = FAMILY("processors", POST_PROCESSORS);

static ms_status unknown(const msi_part_family *f, const char *name)
{
    char known[256] = "";

    for (int32_t i = 0; i < f->n; i++) {
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s, ", f->rows[i].name);
    }
    return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "'%s' is not supported, expected one of %sSequence",
                   msi_foreign_name(name), known);
}

static ms_status read_part(void *out, const json_t *part, const msi_part_family *f);

static ms_status read_sequence(void *out, const json_t *part, const msi_part_family *f)
{
    const json_t *list, *item;
    size_t i;

    MS_TRY(msi_field_array(part, f->list, &list));
    json_array_foreach(list, i, item)
    {
        const ms_status status = read_part(out, item, f);

        if (status != MS_OK) {
            return msi_fail_prefix(status, "%s[%d]: ", f->list, (int)i + 1);
        }
    }
    return MS_OK;
}

static ms_status read_part(void *out, const json_t *part, const msi_part_family *f)
{
    const char *name;
    int64_t n;

    if (!json_is_object(part)) {
        return MS_FAIL(MS_FORMAT_ERROR, "found %s, expected an object", msi_field_kind(part));
    }
    MS_TRY(msi_field_required_text(part, "type", &name, &n));
    if (strcmp(name, "Sequence") == 0) {
        return read_sequence(out, part, f);
    }
    for (int32_t i = 0; i < f->n; i++) {
        if (strcmp(f->rows[i].name, name) == 0) {
            const ms_status status = f->rows[i].make(out, part);

            return status == MS_OK ? MS_OK : msi_fail_prefix(status, "%s: ", name);
        }
    }
    return unknown(f, name);
}

ms_status msi_part_read(void *out, const json_t *tokenizer, const char *key,
                        const msi_part_family *family)
{
    const json_t *part = json_object_get(tokenizer, key);

    if (part == NULL || json_is_null(part)) {
        return MS_OK;
    }
    const ms_status status = read_part(out, part, family);

    return status == MS_OK ? MS_OK : msi_fail_prefix(status, "%s: ", key);
}
