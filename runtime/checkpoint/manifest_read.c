/* Reading manifests: every field is checked before anything is opened or allocated by it. The
 * manifest and its tensors are split into their members, and their lists stepped through, so that
 * no large part of the text becomes a tree. */
#include "io.h"
#include "json_fields.h"
#include "manifest.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static ms_status no_memory(const char *path)
{
    return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", path);
}

/* An integer of at least 0. `where` says which part of the manifest `object` is. */
static ms_status get_count(const char *path, const char *where, const json_t *object,
                           const char *key, int64_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is %s, expected an integer of at least 0",
                       path, key, where,
                       json_is_integer(value) ? "negative" : msi_json_type(value));
    }
    *out = json_integer_value(value);
    return MS_OK;
}

static ms_status get_text(const char *path, const char *where, const json_t *object,
                          const char *key, const char **out)
{
    *out = json_string_value(json_object_get(object, key));
    if (*out == NULL) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is %s, expected a string", path, key, where,
                       msi_json_type(json_object_get(object, key)));
    }
    if (!msi_is_printable(*out)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is '%s', which has control characters",
                       path, key, where, msi_foreign_name(*out));
    }
    return MS_OK;
}

static ms_status get_array(const char *path, const char *where, const json_t *object,
                           const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    if (!json_is_array(*out) || json_array_size(*out) > INT32_MAX) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is %s, expected an array", path, key, where,
                       msi_json_type(*out));
    }
    return MS_OK;
}

static ms_status get_hex(const char *path, const char *where, const json_t *object, const char *key,
                         uint64_t *out)
{
    const char *text;

    MS_TRY(get_text(path, where, object, key, &text));
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is '%.40s', expected 16 hex digits", path,
                       key, where, text);
    }
    *out = strtoull(text, NULL, 16);
    return MS_OK;
}

/* Room for one more behind `n` entries. NULL when memory is out, and the list is as it was. */
static void *grown(void *list, int32_t n, size_t size)
{
    return (n & (n - 1)) != 0 ? list : realloc(list, (n == 0 ? 1 : 2 * (size_t)n) * size);
}

/* A file bears the name its writer gave it: nothing leads out of the checkpoint. */
static ms_status parse_file(const char *path, json_t *value, int64_t world, msi_manifest_file *f)
{
    static const char *const known[] = {"name", "size", "xxh3", NULL};
    const char *name;
    int32_t rank, of = 0;

    MS_TRY(get_text(path, "a file", value, "name", &name));
    if (!msi_shard_name_read(name, &rank, &of) || of != world || strlen(name) >= sizeof(f->name)) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: file name '%.200s' is none of a checkpoint of %lld ranks, expected one "
                       "like rank-00000-of-%05lld.safetensors",
                       path, name, (long long)world, (long long)world);
    }
    snprintf(f->name, sizeof(f->name), "%s", name);
    MS_TRY(get_count(path, f->name, value, "size", &f->nbytes));
    MS_TRY(get_hex(path, f->name, value, "xxh3", &f->hash));
    return msi_json_check_fields(path, f->name, value, known);
}

static int compare_files(const void *a, const void *b)
{
    const msi_manifest_file *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static ms_status check_files_differ(const msi_manifest *m, const char *path)
{
    const msi_manifest_file **sorted = malloc(((size_t)m->n_files + 1) * sizeof(*sorted));
    ms_status status = MS_OK;

    if (sorted == NULL) {
        return no_memory(path);
    }
    for (int32_t i = 0; i < m->n_files; i++) {
        sorted[i] = &m->files[i];
    }
    qsort(sorted, (size_t)m->n_files, sizeof(*sorted), compare_files);
    for (int32_t i = 1; i < m->n_files && status == MS_OK; i++) {
        if (compare_files(&sorted[i - 1], &sorted[i]) == 0) {
            status =
                MS_FAIL(MS_FORMAT_ERROR, "%s: file '%s' stands there twice", path, sorted[i]->name);
        }
    }
    free(sorted);
    return status;
}

static ms_status parse_whole(const char *path, const json_t *value, msi_manifest_tensor *t)
{
    const char *dtype;
    const json_t *shape;

    MS_TRY(get_text(path, t->key, value, "dtype", &dtype));
    MS_TRY(get_array(path, t->key, value, "shape", &shape));
    t->whole.dtype = msi_st_dtype(dtype);
    if (t->whole.dtype == MS_DTYPE_NONE) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' has unknown dtype '%.40s'", path, t->key,
                       dtype);
    }
    if (json_array_size(shape) > MS_MAX_DIMS) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' has %zu dimensions, expected at most %d",
                       path, t->key, json_array_size(shape), MS_MAX_DIMS);
    }
    t->whole.ndim = (int32_t)json_array_size(shape);
    t->whole.numel = 1;
    for (int32_t i = 0; i < t->whole.ndim; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);

        t->whole.shape[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
        if (t->whole.shape[i] < 0 ||
            __builtin_mul_overflow(t->whole.numel, t->whole.shape[i], &t->whole.numel) ||
            t->whole.numel > INT64_MAX / 16) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' has a shape that is none", path, t->key);
        }
    }
    return MS_OK;
}

/* A file or piece: small, or none. */
static ms_status parse_entry(json_t **value, const msi_json_source *source, const char *where,
                             const char *text, size_t n)
{
    if (n > MSI_JSON_TREE_MAX) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: %s is described by %zu bytes, expected at most %d",
                       source->path, where, n, MSI_JSON_TREE_MAX);
    }
    return ms_json_parse(value, source, text, n);
}

static ms_status parse_piece(const msi_manifest *m, const char *path, json_t *value,
                             const msi_manifest_tensor *t, int64_t next, msi_manifest_piece *p)
{
    static const char *const known[] = {"file", "start", "numel", "offset", NULL};
    int64_t file, width = ms_dtype_size(t->whole.dtype);

    MS_TRY(get_count(path, t->key, value, "file", &file));
    MS_TRY(get_count(path, t->key, value, "start", &p->start));
    MS_TRY(get_count(path, t->key, value, "numel", &p->numel));
    MS_TRY(get_count(path, t->key, value, "offset", &p->offset));
    if (file >= m->n_files) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' lies in file %lld, expected below %d", path,
                       t->key, (long long)file, m->n_files);
    }
    p->file = (int32_t)file;
    if (p->start != next || p->numel == 0 || p->numel > t->whole.numel - next) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: '%.200s' has a piece [%lld, + %lld), expected one from %lld that ends "
                       "by %lld",
                       path, t->key, (long long)p->start, (long long)p->numel, (long long)next,
                       (long long)t->whole.numel);
    }
    if (p->offset > m->files[file].nbytes ||
        p->numel > (m->files[file].nbytes - p->offset) / width) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: '%.200s' lies at byte %lld of %s, expected within its %lld bytes", path,
                       t->key, (long long)p->offset, m->files[file].name,
                       (long long)m->files[file].nbytes);
    }
    m->files[file].n_pieces++;
    return msi_json_check_fields(path, t->key, value, known);
}

static ms_status parse_pieces(const msi_manifest *m, const msi_json_object *o,
                              msi_manifest_tensor *t)
{
    const char *path = o->source->path;
    const msi_json_member *pieces;
    int64_t next = 0;
    char *text;
    size_t n;

    MS_TRY(msi_json_object_apart(o, t->key, "pieces", '[', &pieces));
    msi_json_array array = {.at = pieces->value, .end = pieces->value + pieces->n};

    MS_TRY(msi_json_next(o->source, &array, &text, &n));
    while (text != NULL) {
        msi_manifest_piece *list = grown(t->pieces, t->n_pieces, sizeof(*list));
        json_t *value;

        if (list == NULL) {
            return no_memory(path);
        }
        t->pieces = list;
        MS_TRY(parse_entry(&value, o->source, t->key, text, n));
        const ms_status status = parse_piece(m, path, value, t, next, &list[t->n_pieces]);

        json_decref(value);
        MS_TRY(status);
        next += list[t->n_pieces++].numel;
        MS_TRY(msi_json_next(o->source, &array, &text, &n));
    }
    return next == t->whole.numel
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR,
                         "%s: '%.200s' has pieces for %lld elements, expected %lld", path, t->key,
                         (long long)next, (long long)t->whole.numel);
}

static ms_status fill_tensor(const msi_manifest *m, const msi_json_object *o,
                             msi_manifest_tensor *t)
{
    const char *path = o->source->path, *key;

    MS_TRY(get_text(path, "a tensor", o->fields, "key", &key));
    t->key = strdup(key);
    if (t->key == NULL) {
        return no_memory(path);
    }
    MS_TRY(parse_whole(path, o->fields, t));
    MS_TRY(parse_pieces(m, o, t));
    return msi_json_object_check(o, t->key);
}

static ms_status parse_tensor(const msi_manifest *m, const msi_json_source *source, char *text,
                              size_t n, msi_manifest_tensor *t)
{
    static const char *const known[] = {"key", "shape", "dtype", "pieces", NULL};
    msi_json_object o;
    ms_status status = msi_json_object_read(&o, source, "a tensor", text, n, known, known + 3);

    if (status == MS_OK) {
        status = fill_tensor(m, &o, t);
    }
    msi_json_object_dispose(&o);
    return status;
}

static int compare_keys(const void *a, const void *b, void *user)
{
    const msi_manifest *m = user;

    return strcmp(m->tensors[*(const int32_t *)a].key, m->tensors[*(const int32_t *)b].key);
}

static ms_status index_keys(msi_manifest *m, const char *path)
{
    m->by_key = malloc(((size_t)m->n_tensors + 1) * sizeof(*m->by_key));
    if (m->by_key == NULL) {
        return no_memory(path);
    }
    for (int32_t i = 0; i < m->n_tensors; i++) {
        m->by_key[i] = i;
    }
    qsort_r(m->by_key, (size_t)m->n_tensors, sizeof(*m->by_key), compare_keys, m);
    for (int32_t i = 1; i < m->n_tensors; i++) {
        if (compare_keys(&m->by_key[i - 1], &m->by_key[i], m) == 0) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' stands there twice", path,
                           m->tensors[m->by_key[i]].key);
        }
    }
    return MS_OK;
}

const msi_manifest_tensor *msi_manifest_find(const msi_manifest *m, const char *key)
{
    int32_t low = 0, high = m->n_tensors;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const msi_manifest_tensor *t = &m->tensors[m->by_key[middle]];
        int order = strcmp(key, t->key);

        if (order == 0) {
            return t;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

static ms_status check_version(const char *path, const json_t *root)
{
    const char *format;
    int64_t version;

    MS_TRY(get_text(path, "the manifest", root, "format", &format));
    MS_TRY(get_count(path, "the manifest", root, "version", &version));
    if (strcmp(format, "moonshard checkpoint") != 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: has format '%.40s', expected 'moonshard checkpoint'",
                       path, format);
    }
    if (version < 1 || version > MSI_MANIFEST_VERSION) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: has version %lld, expected 1 to %d", path,
                       (long long)version, MSI_MANIFEST_VERSION);
    }
    return MS_OK;
}

bool msi_is_step(const json_t *step)
{
    const json_int_t value = json_integer_value(step);

    return step == NULL ||
           (json_is_integer(step) && value >= 0 && value <= (json_int_t)1 << MSI_STEP_BITS);
}

static const char *step_text(const json_t *step, char text[32])
{
    snprintf(text, 32, "%lld", (long long)json_integer_value(step));
    return json_is_integer(step) ? text : msi_json_type(step);
}

/* The step stands in the manifest as in the meta data, or in neither. */
static ms_status check_step(msi_manifest *m, const char *path, const json_t *step,
                            const json_t *copy)
{
    char in_meta[32], in_root[32];

    if (!msi_is_step(step)) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: 'step' of the meta data is %s, expected an integer from 0 to 2^%d",
                       path, step_text(step, in_meta), MSI_STEP_BITS);
    }
    m->step = step != NULL ? json_integer_value(step) : -1;
    if (step == NULL ? copy != NULL : !json_equal(step, copy)) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: 'step' of the manifest is %s, expected %s as in the meta data", path,
                       step_text(copy, in_root), step_text(step, in_meta));
    }
    return MS_OK;
}

/* A copy of sound JSON without white space between its tokens. NULL when memory is out. */
static char *compact(const char *text, size_t n)
{
    char *out = malloc(n + 1), *to = out;
    bool in_string = false;

    for (size_t i = 0; i < n && out != NULL; i++) {
        if (in_string || strchr(" \t\r\n", text[i]) == NULL) {
            *to++ = text[i];
        }
        if (in_string && text[i] == '\\') {
            *to++ = text[++i];
        } else if (text[i] == '"') {
            in_string = !in_string;
        }
    }
    if (out != NULL) {
        *to = '\0';
    }
    return out;
}

static ms_status parse_meta(msi_manifest *m, const msi_json_object *root)
{
    static const char *const known[] = {"step", NULL};
    const msi_json_source *source = root->source;
    const json_t *copy = json_object_get(root->fields, "step");
    const msi_json_member *text;

    MS_TRY(msi_json_object_apart(root, "the manifest", "meta", '{', &text));
    m->meta = compact(text->value, text->n);
    if (m->meta == NULL) {
        return no_memory(source->path);
    }
    msi_json_object meta;
    ms_status status = msi_json_object_read(&meta, source, "the meta data", text->value, text->n,
                                            known, known + 1);

    if (status == MS_OK) {
        status = check_step(m, source->path, json_object_get(meta.fields, "step"), copy);
    }
    msi_json_object_dispose(&meta);
    return status;
}

static ms_status parse_files(msi_manifest *m, const msi_json_object *root, int64_t world)
{
    const char *path = root->source->path;
    const msi_json_member *files;
    char *text;
    size_t n;

    MS_TRY(msi_json_object_apart(root, "the manifest", "files", '[', &files));
    msi_json_array array = {.at = files->value, .end = files->value + files->n};

    MS_TRY(msi_json_next(root->source, &array, &text, &n));
    while (text != NULL) {
        msi_manifest_file *list = grown(m->files, m->n_files, sizeof(*list));
        json_t *value;

        if (list == NULL) {
            return no_memory(path);
        }
        m->files = list;
        list[m->n_files] = (msi_manifest_file){.nbytes = 0};
        MS_TRY(parse_entry(&value, root->source, "a file", text, n));
        const ms_status status = parse_file(path, value, world, &list[m->n_files++]);

        json_decref(value);
        MS_TRY(status);
        MS_TRY(msi_json_next(root->source, &array, &text, &n));
    }
    return check_files_differ(m, path);
}

static ms_status parse_tensors(msi_manifest *m, const msi_json_object *root)
{
    const msi_json_member *tensors;
    char *text;
    size_t n;

    MS_TRY(msi_json_object_apart(root, "the manifest", "tensors", '[', &tensors));
    msi_json_array array = {.at = tensors->value, .end = tensors->value + tensors->n};

    MS_TRY(msi_json_next(root->source, &array, &text, &n));
    while (text != NULL) {
        msi_manifest_tensor *list = grown(m->tensors, m->n_tensors, sizeof(*list));

        if (list == NULL) {
            return no_memory(root->source->path);
        }
        m->tensors = list;
        list[m->n_tensors] = (msi_manifest_tensor){.n_pieces = 0};
        /* counted first: what it allocates is freed with the others */
        MS_TRY(parse_tensor(m, root->source, text, n, &list[m->n_tensors++]));
        MS_TRY(msi_json_next(root->source, &array, &text, &n));
    }
    return index_keys(m, root->source->path);
}

/* The manifest's own hash covers its content, not its spacing. `text` is that of the manifest. */
static ms_status check_own_hash(msi_manifest *m, const msi_json_object *root, char *text, size_t n)
{
    const char *path = root->source->path;
    const msi_json_source source = {.path = path, .part = "", .begin = text};
    uint64_t found;

    MS_TRY(get_hex(path, "the manifest", root->fields, "xxh3", &m->hash));
    MS_TRY(msi_json_hash(&found, &source, text, n, "xxh3"));
    return found == m->hash
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: its content has hash %016llx, expected %016llx",
                         path, (unsigned long long)found, (unsigned long long)m->hash);
}

static ms_status parse_root(msi_manifest *m, const msi_json_object *root, char *text, size_t n)
{
    const char *path = root->source->path;
    uint64_t nonce;
    int64_t world;

    MS_TRY(check_version(path, root->fields));
    MS_TRY(msi_json_object_check(root, "the manifest"));
    MS_TRY(check_own_hash(m, root, text, n));
    MS_TRY(get_count(path, "the manifest", root->fields, "world", &world));
    MS_TRY(get_hex(path, "the manifest", root->fields, "nonce", &nonce));
    if (world < 1 || world > INT32_MAX) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: 'world' of the manifest is %lld, expected 1 to %d",
                       path, (long long)world, INT32_MAX);
    }
    MS_TRY(parse_meta(m, root));
    MS_TRY(parse_files(m, root, world));
    return parse_tensors(m, root);
}

ms_status msi_manifest_parse(msi_manifest *m, const char *path, char *text, size_t n)
{
    static const char *const known[] = {"files", "tensors", "meta", "format", "version",
                                        "world", "nonce",   "step", "xxh3",   NULL};
    static const char *const apart[] = {"files", "tensors", "meta", NULL};
    char *copy = malloc(n + 1);
    const msi_json_source source = {.path = path, .part = "", .begin = copy};
    msi_json_object root;
    ms_status status;

    *m = (msi_manifest){0};
    if (copy == NULL) {
        return no_memory(path);
    }
    memcpy(copy, text, n);
    status = msi_json_object_read(&root, &source, "the manifest", copy, n, known, apart);
    if (status == MS_OK) {
        status = parse_root(m, &root, text, n);
    }
    if (status != MS_OK) {
        msi_manifest_dispose(m);
    }
    msi_json_object_dispose(&root);
    free(copy);
    return status;
}

static const char *past_space(const char *at)
{
    return at + strspn(at, " \t\n\r");
}

void msi_manifest_nonce(char *nonce, const char *head)
{
    static const char name[] = "\"nonce\"";
    const char *at = strstr(head, name);

    at = at != NULL ? past_space(at + strlen(name)) : "";
    at = *at == ':' ? past_space(at + 1) : "";
    at = *at == '"' ? at + 1 : "";
    snprintf(nonce, MSI_NONCE_ROOM, "%.*s", msi_begins_with_nonce(at) ? MSI_NONCE_DIGITS : 0, at);
}

void msi_manifest_dispose(msi_manifest *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        free(m->tensors[i].key);
        free(m->tensors[i].pieces);
    }
    free(m->tensors);
    free(m->files);
    free(m->by_key);
    free(m->meta);
    *m = (msi_manifest){0};
}
