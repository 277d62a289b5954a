/* Writing safetensors: headers, elements, and whole files, atomically. */
#include "atomic_file.h"
#include "io.h"
#include "op.h"
#include "outcome.h"
#include "safetensors.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static ms_status no_memory(void)
{
    return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a safetensors header");
}

json_t *msi_st_header_new(void)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");

    if (header == NULL) {
        no_memory();
    }
    return header;
}

ms_status msi_st_header_add(json_t *header, const char *name, int32_t dtype, int32_t ndim,
                            const int64_t *shape, int64_t begin, int64_t end)
{
    json_t *sizes, *checked;

    errno = 0;
    checked = json_string(name); /* NULL also if not UTF-8 */
    if (checked == NULL) {
        return errno == ENOMEM ? no_memory()
                               : MS_FAIL(MS_VALUE_ERROR, "the name of a tensor is no UTF-8 text");
    }
    json_decref(checked);
    if (json_object_get(header, name) != NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "the name '%s' is %s", name,
                       strcmp(name, "__metadata__") == 0 ? "reserved" : "given twice");
    }
    sizes = json_array();
    for (int32_t i = 0; i < ndim; i++) {
        json_array_append_new(sizes, json_integer(shape[i]));
    }
    if (json_array_size(sizes) != (size_t)ndim ||
        json_object_set_new(header, name,
                            json_pack("{s:s, s:O, s:[I, I]}", "dtype", msi_st_dtype_name(dtype),
                                      "shape", sizes, "data_offsets", (json_int_t)begin,
                                      (json_int_t)end)) != 0) {
        json_decref(sizes);
        return no_memory();
    }
    json_decref(sizes);
    return MS_OK;
}

ms_status msi_st_header_text(char **text, int64_t *nbytes, const json_t *header, int64_t room)
{
    char *json = json_dumps(header, JSON_COMPACT);
    uint64_t length;

    *text = NULL;
    if (json == NULL) {
        return no_memory();
    }
    int64_t used = (int64_t)strlen(json);

    *nbytes = room > 0 ? room : 8 + (used + 7) / 8 * 8;
    if (8 + used > *nbytes || *nbytes - 8 > MSI_ST_HEADER_MAX) {
        free(json);
        return MS_FAIL(MS_VALUE_ERROR, "a safetensors header of %lld bytes, expected at most %lld",
                       (long long)used,
                       (long long)(room > 0 ? room - 8 : (int64_t)MSI_ST_HEADER_MAX));
    }
    *text = malloc((size_t)*nbytes);
    if (*text == NULL) {
        free(json);
        return no_memory();
    }
    length = htole64((uint64_t)(*nbytes - 8));
    memcpy(*text, &length, 8);
    memcpy(*text + 8, json, (size_t)used);
    memset(*text + 8 + used, ' ', (size_t)(*nbytes - 8 - used));
    free(json);
    return MS_OK;
}

ms_status msi_st_write_view(int fd, const char *path, ms_context *ctx, const msi_view *v,
                            int64_t offset)
{
    msi_view flat = *v;
    const int64_t nbytes = msi_view_numel(v) * ms_dtype_size(v->dtype);
    msi_host_view host;
    ms_status status;

    if (nbytes == 0) {
        return MS_OK;
    }
    if (!msi_view_contiguous(v)) {
        MS_TRY(msi_view_like(&flat, ctx, v, v->dtype, MS_MEM_SCRATCH, true));
    }
    status = msi_host_view_begin(&host, &flat, MSI_HOST_READS);
    if (status == MS_OK) {
        status = msi_host_view_end(&host, msi_io_write(fd, path, host.data, nbytes, offset));
    }
    if (flat.storage != v->storage) {
        msi_storage_release(flat.storage);
    }
    return status;
}

typedef struct named {
    const ms_tensor *tensor;
    const char *name;
} named;

/* Wide dtypes first, so that mapped tensors are aligned; then by name. */
static int compare_named(const void *a, const void *b)
{
    const named *x = a, *y = b;
    int64_t wx = ms_dtype_size(x->tensor->v.dtype), wy = ms_dtype_size(y->tensor->v.dtype);

    return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

static ms_status write_all(int fd, const char *path, const named *list, int32_t n)
{
    json_t *header = msi_st_header_new();
    char *text = NULL;
    int64_t header_bytes, at = 0;
    ms_status status = header != NULL ? MS_OK : MS_OUT_OF_MEMORY;

    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        const msi_view *v = &list[i].tensor->v;
        int64_t end = at + msi_view_numel(v) * ms_dtype_size(v->dtype);

        status = msi_st_header_add(header, list[i].name, v->dtype, v->ndim, v->shape, at, end);
        at = end;
    }
    if (status == MS_OK) {
        status = msi_st_header_text(&text, &header_bytes, header, 0);
    }
    if (status == MS_OK) {
        status = msi_io_write(fd, path, text, header_bytes, 0);
        at = header_bytes;
    }
    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        const msi_view *v = &list[i].tensor->v;

        status = msi_st_write_view(fd, path, list[i].tensor->ctx, v, at);
        at += msi_view_numel(v) * ms_dtype_size(v->dtype);
    }
    free(text);
    json_decref(header);
    return status;
}

ms_status ms_safetensors_save(const char *path, ms_tensor *const *tensors, int32_t n_tensors,
                              const char *const *names)
{
    msi_atomic_file file;
    named *list;
    ms_status status;

    msi_op_host(msi_context(), "tensors are written to a file");
    list = malloc(((size_t)n_tensors + 1) * sizeof(*list));
    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of %d tensors", n_tensors);
    }
    for (int32_t i = 0; i < n_tensors; i++) {
        list[i] = (named){.tensor = tensors[i], .name = names[i]};
    }
    qsort(list, (size_t)n_tensors, sizeof(*list), compare_named);
    status = msi_atomic_file_begin(&file, path);
    if (status == MS_OK) {
        status = msi_atomic_file_end(&file, write_all(file.fd, file.path, list, n_tensors));
    }
    free(list);
    return status;
}

ms_status ms_safetensors_export(ms_comm *comm, const char *path, ms_tensor *const *tensors,
                                int32_t n_tensors, const char *const *names)
{
    MS_TRY(msi_outcome_check_group(comm, "checkpoint.export"));
    const int32_t world = ms_comm_size(comm);
    msi_outcome own = {0}, all[world];

    msi_outcome_path(&own, path);
    MS_TRY(msi_outcome_agree(comm, "begin an export", &own, all));
    MS_TRY(msi_outcome_same_path(all, comm, "exports to"));
    if (ms_comm_rank(comm) == 0) {
        msi_outcome_keep(&own, ms_safetensors_save(path, tensors, n_tensors, names));
    }
    return msi_outcome_agree(comm, "export", &own, all);
}
