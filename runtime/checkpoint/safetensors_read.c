/* Reading safetensors files of any origin: every header field is checked against the file. */
#include "io.h"
#include "op.h"
#include "safetensors.h"

#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct st_entry {
    char *name;
    const char *dtype; /* static, the format's */
    int32_t ndim;
    int64_t shape[MS_MAX_DIMS]; /* the first, if more */
    int64_t begin, end;         /* in the data section */
} st_entry;

struct ms_safetensors {
    char *path;
    int fd;
    int64_t data; /* offset of the data section */
    int32_t n;
    st_entry *entries; /* by begin, end, name */
};

/* Every dtype of the format, in bits; ours first, in their order. */
static const struct {
    const char *name;
    int32_t bits;
    int32_t dtype;
} DTYPES[] = {
    {"F32", 32, MS_DTYPE_F32},
    {"F64", 64, MS_DTYPE_F64},
    {"BF16", 16, MS_DTYPE_BF16},
    {"I64", 64, MS_DTYPE_I64},
    {"U8", 8, MS_DTYPE_U8},
    {"BOOL", 8, MS_DTYPE_BOOL},
    {"F16", 16, MS_DTYPE_F16},
    {"I32", 32, MS_DTYPE_I32},
    {"I8", 8, MS_DTYPE_NONE},
    {"I16", 16, MS_DTYPE_NONE},
    {"U16", 16, MS_DTYPE_NONE},
    {"U32", 32, MS_DTYPE_NONE},
    {"U64", 64, MS_DTYPE_NONE},
    {"C64", 64, MS_DTYPE_NONE},
    {"F8_E5M2", 8, MS_DTYPE_NONE},
    {"F8_E4M3", 8, MS_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, MS_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, MS_DTYPE_NONE},
    {"F8_E8M0", 8, MS_DTYPE_NONE},
    {"F6_E2M3", 6, MS_DTYPE_NONE},
    {"F6_E3M2", 6, MS_DTYPE_NONE},
    {"F4", 4, MS_DTYPE_NONE},
};

static int32_t find_dtype(const char *name)
{
    for (int32_t i = 0; i < MSI_COUNT(DTYPES); i++) {
        if (strcmp(DTYPES[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

const char *msi_st_dtype_name(int32_t dtype)
{
    return DTYPES[dtype].name; /* ours are first, in order */
}

int32_t msi_st_dtype(const char *name)
{
    int32_t i = find_dtype(name);

    return i >= 0 ? DTYPES[i].dtype : MS_DTYPE_NONE;
}

static ms_status bad(const char *path, const char *name, const char *what)
{
    return MS_FAIL(MS_FORMAT_ERROR, "%s: tensor '%s': %s", path, msi_foreign_name(name), what);
}

/* Size in bytes of numel elements of `bits`. */
static ms_status entry_bytes(const char *path, st_entry *e, const json_t *shape, int32_t bits,
                             int64_t *nbytes)
{
    int64_t total = bits;
    bool empty = false;
    size_t i;
    json_t *dim;

    e->ndim = (int32_t)json_array_size(shape);
    json_array_foreach(shape, i, dim)
    {
        int64_t size = json_is_integer(dim) ? json_integer_value(dim) : -1;

        if (size < 0) {
            return bad(path, e->name, "a size in its shape is no integer of at least 0");
        }
        if (i < MS_MAX_DIMS) {
            e->shape[i] = size;
        }
        empty = empty || size == 0;
        if (__builtin_mul_overflow(total, size == 0 ? 1 : size, &total)) {
            return bad(path, e->name, "its shape has more elements than 64 bits count");
        }
    }
    if (empty) {
        total = 0;
    }
    if (total % 8 != 0) {
        return bad(path, e->name, "its bits fill no whole bytes");
    }
    *nbytes = total / 8;
    return MS_OK;
}

static ms_status read_fields(const char *path, st_entry *e, const json_t *value)
{
    const json_t *dtype = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    int64_t nbytes = 0;

    if (!json_is_object(value) || json_object_size(value) != 3 || !json_is_string(dtype) ||
        !json_is_array(shape) || json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end)) {
        return bad(path, e->name, "expected exactly dtype, shape and two data_offsets");
    }
    int32_t kind = find_dtype(json_string_value(dtype));

    if (kind < 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: tensor '%s' has unknown dtype '%.40s'", path,
                       msi_foreign_name(e->name), msi_foreign_name(json_string_value(dtype)));
    }
    e->dtype = DTYPES[kind].name;
    MS_TRY(entry_bytes(path, e, shape, DTYPES[kind].bits, &nbytes));
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin || e->end - e->begin != nbytes) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: tensor '%s' has bytes [%lld, %lld), expected %lld by its shape", path,
                       msi_foreign_name(e->name), (long long)e->begin, (long long)e->end,
                       (long long)nbytes);
    }
    return MS_OK;
}

/* Metadata is checked and dropped. */
static ms_status check_metadata(const char *path, const json_t *metadata)
{
    const char *name;
    json_t *value;

    if (!json_is_object(metadata)) {
        return bad(path, "__metadata__", "expected an object");
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, name, value)
    {
        if (!json_is_string(value)) {
            return bad(path, "__metadata__", "expected strings only");
        }
    }
    return MS_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const st_entry *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Entries must cover the data without gaps or overlaps. */
static ms_status check_cover(const ms_safetensors *f, int64_t data_bytes)
{
    int64_t next = 0;

    for (int32_t i = 0; i < f->n; i++) {
        const st_entry *e = &f->entries[i];

        if (e->begin != next) {
            return MS_FAIL(
                MS_FORMAT_ERROR, "%s: tensor '%s' begins at byte %lld of the data, expected %lld",
                f->path, msi_foreign_name(e->name), (long long)e->begin, (long long)next);
        }
        next = e->end;
    }
    if (next != data_bytes) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes of data, expected %lld by its header",
                       f->path, (long long)data_bytes, (long long)next);
    }
    return MS_OK;
}

static ms_status read_entries(ms_safetensors *f, json_t *header)
{
    const char *name;
    json_t *value;

    if (!json_is_object(header)) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: the header is no object", f->path);
    }
    f->entries = calloc(json_object_size(header) + 1, sizeof(*f->entries));
    if (f->entries == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the entries of %s", f->path);
    }
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            MS_TRY(check_metadata(f->path, value));
            continue;
        }
        st_entry *e = &f->entries[f->n];

        e->name = strdup(name);
        if (e->name == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the entries of %s", f->path);
        }
        f->n++;
        MS_TRY(read_fields(f->path, e, value));
    }
    qsort(f->entries, (size_t)f->n, sizeof(*f->entries), compare_entries);
    return MS_OK;
}

/* The format torch.save() wrote, by its first bytes; NULL: none. */
static const char *format_of_torch(const void *bytes)
{
    static const struct {
        char first[5];
        const char *name;
    } formats[] = {
        {"PK\3\4", "a zip archive, as torch.save writes"},
        {"\x80\2", "a pickle, as torch.save wrote before"},
    };

    for (int32_t i = 0; i < MSI_COUNT(formats); i++) {
        if (memcmp(bytes, formats[i].first, strlen(formats[i].first)) == 0) {
            return formats[i].name;
        }
    }
    return NULL;
}

static ms_status read_header(ms_safetensors *f, int64_t file_bytes)
{
    uint64_t length;

    if (file_bytes < 8) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes, expected at least 8", f->path,
                       (long long)file_bytes);
    }
    MS_TRY(msi_io_read(f->fd, f->path, &length, 8, 0));
    const char *other = format_of_torch(&length);

    length = le64toh(length);
    if (length > MSI_ST_HEADER_MAX || length > (uint64_t)file_bytes - 8) {
        if (other != NULL) {
            return MS_FAIL(MS_FORMAT_ERROR,
                           "%s: is %s, expected a safetensors file (in Python: "
                           "safetensors.torch.save_file(state_dict, path))",
                           f->path, other);
        }
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: a header of %llu bytes, expected at most %d and a file of %lld to hold "
                       "it",
                       f->path, (unsigned long long)length, MSI_ST_HEADER_MAX,
                       (long long)file_bytes);
    }
    char *text = malloc(length + 1);
    json_t *header = NULL;

    if (text == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the header of %s (%llu bytes)", f->path,
                       (unsigned long long)length);
    }
    ms_status status = msi_io_read(f->fd, f->path, text, (int64_t)length, 8);

    if (status == MS_OK) {
        status = msi_json_parse(&header, f->path, "header, ", text, (size_t)length);
    }
    free(text);
    if (status == MS_OK) {
        status = read_entries(f, header);
    }
    json_decref(header);
    MS_TRY(status);
    f->data = 8 + (int64_t)length;
    return check_cover(f, file_bytes - f->data);
}

ms_status ms_safetensors_open(ms_safetensors **out, const char *path)
{
    int64_t nbytes;
    int fd;

    *out = NULL;
    MS_TRY(msi_io_open(&fd, &nbytes, AT_FDCWD, path, path));
    ms_safetensors *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        close(fd);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to open %s", path);
    }
    f->fd = fd;
    f->path = strdup(path);
    ms_status status = f->path != NULL ? read_header(f, nbytes)
                                       : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to open %s", path);

    if (status != MS_OK) {
        ms_safetensors_close(f);
        return status;
    }
    *out = f;
    return MS_OK;
}

void ms_safetensors_close(ms_safetensors *f)
{
    if (f == NULL) {
        return;
    }
    close(f->fd);
    for (int32_t i = 0; i < f->n; i++) {
        free(f->entries[i].name);
    }
    free(f->entries);
    free(f->path);
    free(f);
}

int32_t ms_safetensors_n(const ms_safetensors *f)
{
    return f->n;
}

const char *ms_safetensors_name(const ms_safetensors *f, int32_t i)
{
    return i >= 0 && i < f->n ? f->entries[i].name : "";
}

ms_status msi_st_read(int fd, const char *path, int32_t dtype, void *to, int64_t nbytes,
                      int64_t offset)
{
    uint8_t *bytes = to;

    MS_TRY(msi_io_read(fd, path, to, nbytes, offset));
    for (int64_t i = 0; dtype == MS_DTYPE_BOOL && i < nbytes; i++) {
        bytes[i] = bytes[i] != 0;
    }
    return MS_OK;
}

/* Entry `i`, of a dtype and a number of dimensions that tensors have. */
static ms_status readable_entry(const st_entry **out, const ms_safetensors *f, int32_t i)
{
    if (i < 0 || i >= f->n) {
        return MS_FAIL(MS_INDEX_ERROR, "tensor %d of %s, which has %d", i, f->path, f->n);
    }
    const st_entry *e = &f->entries[i];

    if (msi_st_dtype(e->dtype) == MS_DTYPE_NONE || e->ndim > MS_MAX_DIMS) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "%s: tensor '%s' is %s with %d dimensions; f32, f64, bf16, f16, i64, i32, "
                       "u8 and bool with up to %d can be read",
                       f->path, msi_foreign_name(e->name), e->dtype, e->ndim, MS_MAX_DIMS);
    }
    *out = e;
    return MS_OK;
}

/* A new tensor of the elements of `e` from byte `begin` of the data section on. */
static ms_status read_elements(ms_tensor **out, const ms_safetensors *f, const st_entry *e,
                               int64_t begin, int32_t ndim, const int64_t *shape)
{
    const int32_t dtype = msi_st_dtype(e->dtype);
    msi_host_view host;

    MS_TRY(ms_tensor_empty(out, dtype, ndim, shape));
    const int64_t nbytes = msi_view_numel(&(*out)->v) * ms_dtype_size(dtype);
    ms_status status = msi_host_view_begin(&host, &(*out)->v, MSI_HOST_WRITES);

    if (status == MS_OK) {
        status = msi_st_read(f->fd, f->path, dtype, host.data, nbytes, f->data + begin);
        status = msi_host_view_end(&host, status);
    }
    if (status != MS_OK) {
        ms_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

ms_status ms_safetensors_extent(const ms_safetensors *f, int32_t i, ms_param_extent *extent)
{
    const st_entry *e;

    MS_TRY(readable_entry(&e, f, i));
    *extent = (ms_param_extent){.ndim = e->ndim, .dtype = msi_st_dtype(e->dtype)};
    memcpy(extent->shape, e->shape, sizeof(extent->shape));
    extent->numel = (e->end - e->begin) / ms_dtype_size(extent->dtype);
    return MS_OK;
}

ms_status ms_safetensors_get(ms_tensor **out, const ms_safetensors *f, int32_t i)
{
    const st_entry *e;

    *out = NULL;
    msi_op_host(msi_context(), "a tensor is read from a file");
    MS_TRY(readable_entry(&e, f, i));
    return read_elements(out, f, e, e->begin, e->ndim, e->shape);
}

ms_status ms_safetensors_slice(ms_tensor **out, const ms_safetensors *f, int32_t i, int64_t start,
                               int64_t numel)
{
    ms_param_extent whole;

    *out = NULL;
    msi_op_host(msi_context(), "a tensor is read from a file");
    MS_TRY(ms_safetensors_extent(f, i, &whole));
    if (start < 0 || numel < 0 || numel > whole.numel || start > whole.numel - numel) {
        return MS_FAIL(MS_INDEX_ERROR, "%s: %lld elements from %lld of tensor '%s', which has %lld",
                       f->path, (long long)numel, (long long)start,
                       msi_foreign_name(f->entries[i].name), (long long)whole.numel);
    }
    const st_entry *e = &f->entries[i];

    return read_elements(out, f, e, e->begin + start * ms_dtype_size(whole.dtype), 1, &numel);
}
