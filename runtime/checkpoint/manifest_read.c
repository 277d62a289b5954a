/* Reading manifests: every field is checked before it is used to open or allocate. */
#include "manifest.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static ms_status no_memory(const char *path)
{
    return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the contents of %s", path);
}

/* An integer >= 0. `where`: the part of the manifest, for errors. */
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

/* A file must have the name its writer gave it, so no path leaves the checkpoint. */
static ms_status parse_file(const char *path, const json_t *value, int64_t world,
                            msi_manifest_file *f)
{
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
    return get_hex(path, f->name, value, "xxh3", &f->hash);
}

static ms_status parse_whole(const char *path, const json_t *value, msi_manifest_tensor *t)
{
    ms_param_extent *whole = &t->whole;
    const char *dtype;
    const json_t *shape;

    MS_TRY(get_text(path, t->key, value, "dtype", &dtype));
    MS_TRY(get_array(path, t->key, value, "shape", &shape));
    whole->dtype = msi_st_dtype(dtype);
    if (whole->dtype == MS_DTYPE_NONE) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' has unknown dtype '%.40s'", path, t->key,
                       dtype);
    }
    whole->ndim = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < whole->ndim && i < MS_MAX_DIMS; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);

        whole->shape[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
    }
    return msi_extent_check(t->key, whole, &whole->numel) == MS_OK
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: %s", path, ms_error_message());
}

static ms_status parse_piece(const msi_manifest *m, const char *path, const json_t *value,
                             const msi_manifest_tensor *t, int64_t next, msi_manifest_piece *p)
{
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
    return MS_OK;
}

/* `*t` is freed with the manifest, also on failure. */
static ms_status parse_tensor(const msi_manifest *m, const char *path, const json_t *value,
                              msi_manifest_tensor *t)
{
    const json_t *pieces;
    const char *key;
    int64_t next = 0;

    MS_TRY(get_text(path, "a tensor", value, "key", &key));
    t->key = strdup(key);
    if (t->key == NULL) {
        return no_memory(path);
    }
    MS_TRY(parse_whole(path, value, t));
    MS_TRY(get_array(path, key, value, "pieces", &pieces));
    const int32_t n = (int32_t)json_array_size(pieces);

    t->pieces = calloc((size_t)n + 1, sizeof(*t->pieces));
    if (t->pieces == NULL) {
        return no_memory(path);
    }
    for (t->n_pieces = 0; t->n_pieces < n; t->n_pieces++) {
        msi_manifest_piece *p = &t->pieces[t->n_pieces];

        MS_TRY(parse_piece(m, path, json_array_get(pieces, (size_t)t->n_pieces), t, next, p));
        next += p->numel;
    }
    return next == t->whole.numel
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR,
                         "%s: '%.200s' has pieces for %lld elements, expected %lld", path, t->key,
                         (long long)next, (long long)t->whole.numel);
}

static int compare_keys(const void *a, const void *b)
{
    msi_manifest_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

static ms_status index_keys(msi_manifest *m, const char *path)
{
    m->by_key = calloc((size_t)m->n_tensors + 1, sizeof(*m->by_key));
    if (m->by_key == NULL) {
        return no_memory(path);
    }
    for (int32_t i = 0; i < m->n_tensors; i++) {
        m->by_key[i] = &m->tensors[i];
    }
    qsort(m->by_key, (size_t)m->n_tensors, sizeof(*m->by_key), compare_keys);
    for (int32_t i = 1; i < m->n_tensors; i++) {
        if (compare_keys(&m->by_key[i - 1], &m->by_key[i]) == 0) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: '%.200s' is there twice", path, m->by_key[i]->key);
        }
    }
    return MS_OK;
}

const msi_manifest_tensor *msi_manifest_find(const msi_manifest *m, const char *key)
{
    msi_manifest_tensor wanted = {.key = (char *)(uintptr_t)key}, *w = &wanted;
    msi_manifest_tensor **found =
        bsearch(&w, m->by_key, (size_t)m->n_tensors, sizeof(*m->by_key), compare_keys);

    return found != NULL ? *found : NULL;
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

static ms_status parse_meta(msi_manifest *m, const char *path, const json_t *root)
{
    const json_t *meta = json_object_get(root, "meta"), *step = json_object_get(meta, "step");

    if (!json_is_object(meta)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: 'meta' of the manifest is %s, expected an object",
                       path, msi_json_type(meta));
    }
    if (!msi_is_step(step)) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: 'step' of the meta data is %s, expected an integer from 0 to 2^%d",
                       path, json_is_integer(step) ? "out of range" : msi_json_type(step),
                       MSI_STEP_BITS);
    }
    m->step = step != NULL ? json_integer_value(step) : -1;
    m->meta = json_dumps(meta, JSON_COMPACT);
    return m->meta != NULL ? MS_OK : no_memory(path);
}

static ms_status parse_files(msi_manifest *m, const char *path, const json_t *root, int64_t world)
{
    const json_t *files;

    MS_TRY(get_array(path, "the manifest", root, "files", &files));
    m->n_files = (int32_t)json_array_size(files);
    m->files = calloc((size_t)m->n_files + 1, sizeof(*m->files));
    if (m->files == NULL) {
        return no_memory(path);
    }
    for (int32_t i = 0; i < m->n_files; i++) {
        MS_TRY(parse_file(path, json_array_get(files, (size_t)i), world, &m->files[i]));
    }
    return MS_OK;
}

static ms_status parse_tensors(msi_manifest *m, const char *path, const json_t *root)
{
    const json_t *tensors;

    MS_TRY(get_array(path, "the manifest", root, "tensors", &tensors));
    const int32_t n = (int32_t)json_array_size(tensors);

    m->tensors = calloc((size_t)n + 1, sizeof(*m->tensors));
    if (m->tensors == NULL) {
        return no_memory(path);
    }
    while (m->n_tensors < n) {
        const int32_t i = m->n_tensors++;

        MS_TRY(parse_tensor(m, path, json_array_get(tensors, (size_t)i), &m->tensors[i]));
    }
    return index_keys(m, path);
}

/* The manifest's own hash covers content, not spacing. Removes it from `root`. */
static ms_status check_own_hash(msi_manifest *m, const char *path, json_t *root)
{
    MS_TRY(get_hex(path, "the manifest", root, "xxh3", &m->hash));
    json_object_del(root, "xxh3");
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);

    if (text == NULL) {
        return no_memory(path);
    }
    const uint64_t found = ms_hash_bytes(text, (int64_t)strlen(text));

    free(text);
    return found == m->hash
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: its content has hash %016llx, expected %016llx",
                         path, (unsigned long long)found, (unsigned long long)m->hash);
}

static ms_status parse_root(msi_manifest *m, const char *path, json_t *root)
{
    int64_t world;

    if (!json_is_object(root)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: is %s, expected an object", path, msi_json_type(root));
    }
    MS_TRY(check_version(path, root));
    MS_TRY(check_own_hash(m, path, root));
    MS_TRY(get_count(path, "the manifest", root, "world", &world));
    m->n_folders = 1;
    if (json_object_get(root, "folders") != NULL) {
        MS_TRY(get_count(path, "the manifest", root, "folders", &m->n_folders));
    }
    MS_TRY(parse_meta(m, path, root));
    MS_TRY(parse_files(m, path, root, world));
    return parse_tensors(m, path, root);
}

ms_status msi_manifest_parse(msi_manifest *m, const char *path, const char *text, size_t n)
{
    json_t *root;

    *m = (msi_manifest){0};
    MS_TRY(msi_json_parse(&root, path, "", text, n));
    const ms_status status = parse_root(m, path, root);

    json_decref(root);
    if (status != MS_OK) {
        msi_manifest_dispose(m);
    }
    return status;
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
