/* Making manifests: ranks report what they wrote; the reports are checked and joined. */
#include "comm.h"
#include "manifest.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static ms_status no_memory(void)
{
    return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a manifest");
}

ms_status msi_extent_check(const char *what, const ms_param_extent *extent, int64_t *whole_numel)
{
    int64_t numel = 1;

    if (ms_dtype_size(extent->dtype) == 0 || extent->ndim < 0 || extent->ndim > MS_MAX_DIMS) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "'%s': dtype %d and %d dimensions, expected a dtype and at "
                       "most %d",
                       what, extent->dtype, extent->ndim, MS_MAX_DIMS);
    }
    for (int32_t i = 0; i < extent->ndim; i++) {
        if (extent->shape[i] < 0 || __builtin_mul_overflow(numel, extent->shape[i], &numel) ||
            numel > INT64_MAX / 16) {
            return MS_FAIL(MS_VALUE_ERROR, "'%s': shape %s is none", what,
                           msi_shape_text(extent->ndim, extent->shape));
        }
    }
    if (extent->start < 0 || extent->numel < 0 || extent->start > numel ||
        extent->numel > numel - extent->start) {
        return MS_FAIL(MS_VALUE_ERROR, "'%s': elements [%lld, + %lld), expected within %lld", what,
                       (long long)extent->start, (long long)extent->numel, (long long)numel);
    }
    *whole_numel = numel;
    return MS_OK;
}

json_t *msi_report_new(void)
{
    json_t *report = json_pack("{s:[], s:[], s:[]}", "same", "files", "tensors");

    if (report == NULL) {
        no_memory();
    }
    return report;
}

ms_status msi_report_file(json_t *report, const char *name, int64_t nbytes, uint64_t hash)
{
    char hex[17];

    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)hash);
    return json_array_append_new(json_object_get(report, "files"),
                                 json_pack("{s:s, s:I, s:s}", "name", name, "size",
                                           (json_int_t)nbytes, "xxh3", hex)) == 0
               ? MS_OK
               : no_memory();
}

/* {file, start, numel, offset}. NULL if memory is out. */
static json_t *piece_new(int32_t file, int64_t start, int64_t numel, int64_t offset)
{
    return json_pack("{s:i, s:I, s:I, s:I}", "file", (int)file, "start", (json_int_t)start, "numel",
                     (json_int_t)numel, "offset", (json_int_t)offset);
}

ms_status msi_report_tensor(json_t *report, const char *key, const ms_param_extent *extent,
                            int32_t file, int64_t offset)
{
    json_t *tensor = json_pack("{s:s, s:[], s:s, s:[]}", "key", key, "shape", "dtype",
                               msi_st_dtype_name(extent->dtype), "pieces");
    json_t *shape = json_object_get(tensor, "shape"), *pieces = json_object_get(tensor, "pieces");
    bool ok = tensor != NULL;

    for (int32_t i = 0; i < extent->ndim; i++) {
        ok = ok && json_array_append_new(shape, json_integer(extent->shape[i])) == 0;
    }
    if (extent->numel > 0) {
        ok = ok && json_array_append_new(
                       pieces, piece_new(file, extent->start, extent->numel, offset)) == 0;
    }
    ok = ok && json_array_append(json_object_get(report, "tensors"), tensor) == 0;
    json_decref(tensor);
    return ok ? MS_OK : no_memory();
}

ms_status msi_report_same(json_t *report, const char *what, const char *text)
{
    if (!msi_is_printable(what) || !msi_is_printable(text)) {
        return MS_FAIL(MS_VALUE_ERROR, "'%s' is '%s', expected UTF-8 without control characters",
                       msi_foreign_name(what), msi_foreign_name(text));
    }
    return json_array_append_new(json_object_get(report, "same"),
                                 json_pack("[s, s]", what, text)) == 0
               ? MS_OK
               : no_memory();
}

static int64_t field(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* A rank's piece of a tensor. */
typedef struct written {
    int32_t rank;
    msi_manifest_piece piece;
} written;

static int compare_written(const void *a, const void *b)
{
    const written *x = a, *y = b;

    if (x->piece.start != y->piece.start) {
        return x->piece.start < y->piece.start ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Collect the ranks' pieces of tensor number `i`, ascending; returns their number. */
static int32_t collect(written *list, json_t *const *reports, int32_t world, size_t i,
                       const int32_t *first_file)
{
    int32_t n = 0;

    for (int32_t r = 0; r < world; r++) {
        const json_t *t = json_array_get(json_object_get(reports[r], "tensors"), i);
        const json_t *piece = json_array_get(json_object_get(t, "pieces"), 0);

        if (piece != NULL) {
            list[n++] = (written){.rank = r,
                                  .piece = {.file = first_file[r] + (int32_t)field(piece, "file"),
                                            .start = field(piece, "start"),
                                            .numel = field(piece, "numel"),
                                            .offset = field(piece, "offset")}};
        }
    }
    qsort(list, (size_t)n, sizeof(*list), compare_written);
    return n;
}

/* Error unless each element is in exactly one piece. */
static ms_status check_tiling(const char *key, int64_t numel, const written *list, int32_t n,
                              const ms_comm *comm)
{
    int64_t next = 0;

    for (int32_t p = 0; p < n && list[p].piece.start <= next; p++) {
        if (list[p].piece.start < next) {
            return MS_FAIL(MS_VALUE_ERROR, "element %lld of '%.200s' was added by ranks %d and %d",
                           (long long)list[p].piece.start, key,
                           (int)msi_comm_rank_in_job(comm, list[p - 1].rank),
                           (int)msi_comm_rank_in_job(comm, list[p].rank));
        }
        next += list[p].piece.numel;
    }
    return next == numel ? MS_OK
                         : MS_FAIL(MS_VALUE_ERROR, "element %lld of '%.200s' was added by no rank",
                                   (long long)next, key);
}

static int64_t numel_of(const json_t *shape)
{
    int64_t numel = 1;
    json_t *dim;
    size_t d;

    json_array_foreach(shape, d, dim)
    {
        numel *= json_integer_value(dim);
    }
    return numel;
}

/* Join tensor number `i` of all ranks into an entry of `joined`. `list`: room for a piece of each.
 */
static ms_status join_tensor(json_t *joined, json_t *const *reports, const ms_comm *comm, size_t i,
                             const int32_t *first_file, written *list)
{
    const json_t *first = json_array_get(json_object_get(reports[0], "tensors"), i);
    json_t *shape = json_object_get(first, "shape");
    const char *key = json_string_value(json_object_get(first, "key"));
    const int32_t n = collect(list, reports, ms_comm_size(comm), i, first_file);

    MS_TRY(check_tiling(key, numel_of(shape), list, n, comm));
    json_t *entry = json_pack("{s:s, s:O, s:O, s:[]}", "key", key, "shape", shape, "dtype",
                              json_object_get(first, "dtype"), "pieces");
    json_t *pieces = json_object_get(entry, "pieces");
    bool ok = entry != NULL;

    for (int32_t p = 0; p < n && ok; p++) {
        const msi_manifest_piece *piece = &list[p].piece;

        ok = json_array_append_new(
                 pieces, piece_new(piece->file, piece->start, piece->numel, piece->offset)) == 0;
    }
    ok = ok && json_array_append(joined, entry) == 0;
    json_decref(entry);
    return ok ? MS_OK : no_memory();
}

/* Position shortly before the first difference. */
static size_t difference(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n]) {
        n++;
    }
    return n < 30 ? 0 : n - 20;
}

/* Ranks in the job of two members. */
typedef struct rank_pair {
    int first, other;
} rank_pair;

/* Error unless another rank reported the first one's texts. */
static ms_status check_reported(const json_t *first, const json_t *other, rank_pair r)
{
    const json_t *a = json_object_get(first, "same"), *b = json_object_get(other, "same");
    size_t n = json_array_size(a) > json_array_size(b) ? json_array_size(a) : json_array_size(b);

    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        const char *what = json_string_value(json_array_get(x != NULL ? x : y, 0));
        const char *x_text = json_string_value(json_array_get(x, 1));
        const char *y_text = json_string_value(json_array_get(y, 1));

        if (x == NULL || y == NULL || !json_equal(json_array_get(x, 0), json_array_get(y, 0))) {
            return MS_FAIL(MS_VALUE_ERROR, "only one of rank %d and rank %d gives %s", r.first,
                           r.other, what);
        }
        const size_t from = difference(x_text, y_text);

        if (strcmp(x_text, y_text) != 0) {
            return MS_FAIL(MS_VALUE_ERROR, "%s is %s%.100s on rank %d and %s%.100s on rank %d",
                           what, from > 0 ? "..." : "", x_text + from, r.first,
                           from > 0 ? "..." : "", y_text + from, r.other);
        }
    }
    return MS_OK;
}

/* Error unless another rank added the first one's tensors, in order. */
static ms_status check_same(const json_t *first, const json_t *other, rank_pair r)
{
    const json_t *a = json_object_get(first, "tensors"), *b = json_object_get(other, "tensors");
    size_t n = json_array_size(a) > json_array_size(b) ? json_array_size(a) : json_array_size(b);

    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        const char *x_key = json_string_value(json_object_get(x, "key"));
        const char *y_key = json_string_value(json_object_get(y, "key"));
        const bool same = x != NULL && y != NULL && strcmp(x_key, y_key) == 0;

        if (!same || !json_equal(json_object_get(x, "shape"), json_object_get(y, "shape")) ||
            !json_equal(json_object_get(x, "dtype"), json_object_get(y, "dtype"))) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "rank %d added '%.120s' as tensor %zu, rank %d added '%.120s'%s",
                           r.other, y != NULL ? y_key : "nothing", i, r.first,
                           x != NULL ? x_key : "nothing", same ? " of another shape or dtype" : "");
        }
    }
    return MS_OK;
}

/* Join files and tensors of all ranks into the arrays of `root`. */
static ms_status join_reports(json_t *root, json_t *const *reports, const ms_comm *comm)
{
    const int32_t world = ms_comm_size(comm);
    int32_t *first_file = calloc((size_t)world, sizeof(*first_file));
    written *list = calloc((size_t)world, sizeof(*list));
    json_t *files = json_object_get(root, "files"), *tensors = json_object_get(root, "tensors");
    ms_status status = first_file != NULL && list != NULL ? MS_OK : no_memory();

    for (int32_t r = 0; r < world && status == MS_OK; r++) {
        const rank_pair pair = {msi_comm_rank_in_job(comm, 0), msi_comm_rank_in_job(comm, r)};

        first_file[r] = (int32_t)json_array_size(files);
        status = check_reported(reports[0], reports[r], pair);
        if (status == MS_OK) {
            status = check_same(reports[0], reports[r], pair);
        }
        if (status == MS_OK &&
            json_array_extend(files, json_object_get(reports[r], "files")) != 0) {
            status = no_memory();
        }
    }
    for (size_t i = 0;
         status == MS_OK && i < json_array_size(json_object_get(reports[0], "tensors")); i++) {
        status = join_tensor(tensors, reports, comm, i, first_file, list);
    }
    free(first_file);
    free(list);
    return status;
}

/* Add the manifest's hash and write its text. */
static ms_status seal(msi_manifest_draft *draft, json_t *root)
{
    char hex[17], *canonical = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);

    if (canonical == NULL) {
        return no_memory();
    }
    draft->hash = ms_hash_bytes(canonical, (int64_t)strlen(canonical));
    free(canonical);
    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)draft->hash);
    if (json_object_set_new(root, "xxh3", json_string(hex)) != 0) {
        return no_memory();
    }
    draft->text = json_dumps(root, JSON_INDENT(1));
    return draft->text != NULL ? MS_OK : no_memory();
}

ms_status msi_manifest_build(msi_manifest_draft *draft, json_t *const *reports, const ms_comm *comm,
                             const char *nonce, int32_t n_folders, json_t *meta)
{
    json_t *step = json_object_get(meta, "step");
    json_t *root =
        json_pack("{s:s, s:i, s:i, s:s, s:[], s:[], s:O}", "format", "moonshard checkpoint",
                  "version", MSI_MANIFEST_VERSION, "world", (int)ms_comm_size(comm), "nonce", nonce,
                  "files", "tensors", "meta", meta);
    ms_status status = MS_OK;

    *draft = (msi_manifest_draft){0};
    if (root == NULL || (json_is_integer(step) && json_object_set(root, "step", step) != 0)) {
        status = no_memory();
    }
    if (status == MS_OK && n_folders > 1 &&
        json_object_set_new(root, "folders", json_integer(n_folders)) != 0) {
        status = no_memory();
    }
    if (status == MS_OK) {
        status = join_reports(root, reports, comm);
    }
    if (status == MS_OK) {
        status = seal(draft, root);
    }
    json_decref(root);
    if (status != MS_OK) {
        msi_manifest_draft_dispose(draft);
    }
    return status;
}

void msi_manifest_draft_dispose(msi_manifest_draft *draft)
{
    free(draft->text);
    *draft = (msi_manifest_draft){0};
}

ms_status msi_manifest_compare(const msi_manifest *m, const char *path,
                               const msi_manifest_draft *draft)
{
    return m->hash == draft->hash
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: its manifest reads as another one than was written",
                         path);
}
