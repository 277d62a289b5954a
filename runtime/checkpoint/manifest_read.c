/* Reading manifests: every field is checked before anything is opened or allocated by it. */
#include "folder.h"
#include "json_text.h"
#include "manifest.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static ms_status no_memory(const char *path)
{
    return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", path);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a real",    "true",     "false",    "null"};

    return value == NULL ? "nothing" : names[json_typeof(value)];
}

/* Are all fields of `object` among `known`, which ends with NULL? */
static ms_status check_fields(const char *path, const char *where, json_t *object,
                              const char *const *known)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        int32_t i = 0;

        while (known[i] != NULL && strcmp(known[i], name) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: %s has an unknown field '%s'", path, where,
                           msi_foreign_name(name));
        }
    }
    return MS_OK;
}

/* An integer of at least 0. `where` says which part of the manifest `object` is. */
static ms_status get_count(const char *path, const char *where, const json_t *object,
                           const char *key, int64_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%s' of %s is %s, expected an integer of at least 0",
                       path, key, where, json_is_integer(value) ? "negative" : type_name(value));
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
                       type_name(json_object_get(object, key)));
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
                       type_name(*out));
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

/* The manifest's own hash covers its content, not its spacing: that of the object without the hash,
 * compact and with sorted keys. */
static ms_status check_own_hash(const char *path, json_t *root, uint64_t *expected)
{
    uint64_t found;
    char *text;

    MS_TRY(get_hex(path, "the manifest", root, "xxh3", expected));
    json_object_del(root, "xxh3");
    text = ms_json_text(root, JSON_COMPACT | JSON_SORT_KEYS);
    if (text == NULL) {
        return no_memory(path);
    }
    found = ms_hash_bytes(text, (int64_t)strlen(text));
    free(text);
    if (found != *expected) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: its content has hash %016llx, expected %016llx", path,
                       (unsigned long long)found, (unsigned long long)*expected);
    }
    return MS_OK;
}

/* A file bears the name its writer gave it: nothing leads out of the checkpoint. */
static ms_status parse_file(const char *path, json_t *value, int64_t world, msi_manifest_file *f)
{
    static const char *const known[] = {"name", "size", "xxh3", NULL};
    int32_t rank, of = 0;

    MS_TRY(get_text(path, "a file", value, "name", &f->name));
    if (!msi_shard_name_read(f->name, &rank, &of) || of != world) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: file name '%.200s' is none of a checkpoint of %lld ranks, expected one "
                       "like rank-00000-of-%05lld.safetensors",
                       path, f->name, (long long)world, (long long)world);
    }
    MS_TRY(get_count(path, f->name, value, "size", &f->nbytes));
    MS_TRY(get_hex(path, f->name, value, "xxh3", &f->hash));
    return check_fields(path, f->name, value, known);
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
    return check_fields(path, t->key, value, known);
}

static ms_status parse_tensor(const msi_manifest *m, const char *path, json_t *value,
                              msi_manifest_tensor *t)
{
    static const char *const known[] = {"key", "shape", "dtype", "pieces", NULL};
    const json_t *pieces;
    int64_t next = 0;

    MS_TRY(get_text(path, "a tensor", value, "key", &t->key));
    MS_TRY(parse_whole(path, value, t));
    MS_TRY(get_array(path, t->key, value, "pieces", &pieces));
    t->pieces = calloc(json_array_size(pieces) + 1, sizeof(*t->pieces));
    if (t->pieces == NULL) {
        return no_memory(path);
    }
    t->n_pieces = (int32_t)json_array_size(pieces);
    for (int32_t i = 0; i < t->n_pieces; i++) {
        MS_TRY(parse_piece(m, path, json_array_get(pieces, (size_t)i), t, next, &t->pieces[i]));
        next += t->pieces[i].numel;
    }
    if (next != t->whole.numel) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' has pieces for %lld elements, expected %lld",
                       path, t->key, (long long)next, (long long)t->whole.numel);
    }
    return check_fields(path, t->key, value, known);
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

    if (!json_is_object(root)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: is %s, expected an object", path, type_name(root));
    }
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
    return json_is_integer(step) ? text : type_name(step);
}

/* The step stands in the manifest as in the meta data, or in neither. */
static ms_status parse_step(msi_manifest *m, const char *path, const json_t *meta)
{
    const json_t *step = json_object_get(meta, "step"), *copy = json_object_get(m->root, "step");
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

static ms_status parse_root(msi_manifest *m, const char *path)
{
    static const char *const known[] = {"format",  "version", "world", "nonce", "files",
                                        "tensors", "meta",    "step",  NULL};
    const json_t *files, *tensors, *meta;
    uint64_t nonce;
    int64_t world;

    MS_TRY(check_version(path, m->root));
    MS_TRY(check_own_hash(path, m->root, &m->hash));
    MS_TRY(check_fields(path, "the manifest", m->root, known));
    MS_TRY(get_count(path, "the manifest", m->root, "world", &world));
    MS_TRY(get_hex(path, "the manifest", m->root, "nonce", &nonce));
    MS_TRY(get_array(path, "the manifest", m->root, "files", &files));
    MS_TRY(get_array(path, "the manifest", m->root, "tensors", &tensors));
    if (world < 1 || world > INT32_MAX) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: 'world' of the manifest is %lld, expected 1 to %d",
                       path, (long long)world, INT32_MAX);
    }
    meta = json_object_get(m->root, "meta");
    if (!json_is_object(meta)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: 'meta' of the manifest is %s, expected an object",
                       path, type_name(meta));
    }
    MS_TRY(parse_step(m, path, meta));
    m->meta = ms_json_text(meta, JSON_COMPACT);
    m->files = calloc(json_array_size(files) + 1, sizeof(*m->files));
    m->tensors = calloc(json_array_size(tensors) + 1, sizeof(*m->tensors));
    if (m->meta == NULL || m->files == NULL || m->tensors == NULL) {
        return no_memory(path);
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        MS_TRY(parse_file(path, json_array_get(files, i), world, &m->files[m->n_files]));
        m->n_files++;
    }
    MS_TRY(check_files_differ(m, path));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        m->n_tensors++; /* counted first: what it allocates is freed with the others */
        MS_TRY(parse_tensor(m, path, json_array_get(tensors, i), &m->tensors[i]));
    }
    return index_keys(m, path);
}

ms_status msi_manifest_parse(msi_manifest *m, const char *path, const char *text, size_t n)
{
    const msi_json_source source = {.path = path, .part = "", .begin = text};
    ms_status status;

    *m = (msi_manifest){0};
    MS_TRY(msi_json_parse(&m->root, &source, text, n));
    status = parse_root(m, path);
    if (status != MS_OK) {
        msi_manifest_dispose(m);
    }
    return status;
}

void msi_manifest_dispose(msi_manifest *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        free(m->tensors[i].pieces);
    }
    free(m->tensors);
    free(m->files);
    free(m->by_key);
    free(m->meta);
    json_decref(m->root);
    *m = (msi_manifest){0};
}
