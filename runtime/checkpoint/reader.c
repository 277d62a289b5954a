/* Reading a checkpoint at any world size: intersects the requested elements with the manifest's
 * pieces. A file's hash is verified before its first use.
 *
 * A checkpoint may be replaced or removed while it is read. So manifest and files are opened at
 * once, in the folder opened first, and stay open. */
#include "reader.h"
#include "op.h"
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct shard {
    int fd; /* -1: not opened */
    bool verified;
} shard;

struct ms_checkpoint {
    msi_path path;
    msi_manifest manifest;
    shard *shards; /* one per file of the manifest */
};

/* Error for a folder without a manifest; for a root of checkpoints it shows the last one. */
static ms_status fail_without_manifest(const ms_checkpoint *c, const char *path)
{
    msi_pointer latest = {0};
    const bool is_root = msi_pointer_read(&latest, c->path) == MS_OK && latest.name[0] != '\0';

    errno = ENOENT;
    if (!is_root) {
        return msi_io_fail("open", path);
    }
    return MS_FAIL(MS_IO_ERROR,
                   "open %s: No such file or directory; the checkpoint saved last there is %s/%s",
                   path, c->path, msi_foreign_name(latest.name));
}

/* The caller frees `text`. */
static ms_status read_manifest_text(char **text, int64_t *nbytes, const ms_checkpoint *c, int dir,
                                    const char *path)
{
    int fd;
    ms_status status = msi_io_open(&fd, nbytes, dir, MSI_MANIFEST_NAME, path);

    if (status != MS_OK) {
        return status == MS_IO_ERROR && errno == ENOENT ? fail_without_manifest(c, path) : status;
    }
    if (*nbytes > MSI_MANIFEST_MAX) {
        status = MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes, expected at most %d", path,
                         (long long)*nbytes, MSI_MANIFEST_MAX);
    } else if ((*text = malloc((size_t)*nbytes + 1)) == NULL) {
        status =
            MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %s (%lld bytes)", path, (long long)*nbytes);
    } else {
        status = msi_io_read(fd, path, *text, *nbytes, 0);
    }
    close(fd);
    return status;
}

static ms_status read_manifest(ms_checkpoint *c, int dir)
{
    char *text = NULL;
    int64_t nbytes;
    msi_path path;

    MS_TRY(msi_path_set(path, "%s/%s", c->path, MSI_MANIFEST_NAME));
    ms_status status = read_manifest_text(&text, &nbytes, c, dir, path);

    if (status == MS_OK) {
        status = msi_manifest_parse(&c->manifest, path, text, (size_t)nbytes);
    }
    const int error = errno;

    free(text);
    errno = error;
    return status;
}

/* Open file `i` and compare its size with the manifest. */
static ms_status open_file(ms_checkpoint *c, int dir, int32_t i)
{
    const msi_manifest_file *file = &c->manifest.files[i];
    int64_t nbytes;
    msi_path path;

    MS_TRY(msi_path_set(path, "%s/%s", c->path, file->name));
    const ms_status status = msi_io_open(&c->shards[i].fd, &nbytes, dir, file->name, path);

    if (status == MS_IO_ERROR && errno == ENOENT && c->manifest.n_folders > 1) {
        return MS_OK; /* [Note: files of other hosts] */
    }
    MS_TRY(status);
    return nbytes == file->nbytes ? MS_OK
                                  : MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes, expected %lld",
                                            path, (long long)nbytes, (long long)file->nbytes);
}

static ms_status open_files(ms_checkpoint *c, int dir)
{
    const int32_t n = c->manifest.n_files;

    c->shards = calloc((size_t)n + 1, sizeof(*c->shards));
    if (c->shards == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the files of %s", c->path);
    }
    for (int32_t i = 0; i < n; i++) {
        c->shards[i].fd = -1;
    }
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(open_file(c, dir, i));
    }
    return MS_OK;
}

/* Open the folder at c->path or, if missing, what an interrupted replacement left beside it ([Note:
 * replacing in steps]). */
static ms_status open_folder(ms_checkpoint *c, int *dir)
{
    *dir = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*dir >= 0 || errno != ENOENT) {
        return *dir >= 0 ? MS_OK : msi_io_fail("open", c->path);
    }
    msi_path aside;

    MS_TRY(msi_path_set(aside, "%s.old", c->path));
    *dir = open(aside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*dir < 0) {
        errno = ENOENT;
        return MS_FAIL(MS_IO_ERROR, "open %s/%s: No such file or directory", c->path,
                       MSI_MANIFEST_NAME);
    }
    msi_warn("UserWarning", "%s is not there: its replacement was cut short, %s is read", c->path,
             aside);
    memcpy(c->path, aside, sizeof(aside));
    return MS_OK;
}

/* True if c->path is another folder since `dir` was opened. */
static bool is_replaced(const ms_checkpoint *c, int dir)
{
    struct stat opened, there;

    return fstat(dir, &opened) == 0 && stat(c->path, &there) == 0 &&
           (opened.st_ino != there.st_ino || opened.st_dev != there.st_dev);
}

/* `*replaced`: it failed because of a concurrent replacement. */
static ms_status open_once(ms_checkpoint **out, const char *path, bool *replaced)
{
    ms_checkpoint *c = calloc(1, sizeof(*c));
    int dir = -1;

    *replaced = false;
    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to open %s", path);
    }
    ms_status status = msi_path_set(c->path, "%s", path);

    if (status == MS_OK) {
        status = open_folder(c, &dir);
    }
    if (status == MS_OK) {
        status = read_manifest(c, dir);
    }
    if (status == MS_OK) {
        status = open_files(c, dir);
    }
    const int error = errno;

    *replaced = status != MS_OK && dir >= 0 && is_replaced(c, dir);
    if (dir >= 0) {
        close(dir);
    }
    if (status != MS_OK) {
        ms_checkpoint_close(c);
        errno = error;
        return status;
    }
    *out = c;
    return MS_OK;
}

ms_status ms_checkpoint_open(ms_checkpoint **out, const char *path)
{
    bool replaced = true;
    ms_status status = MS_OK;

    *out = NULL;
    for (int attempt = 0; replaced && attempt < 100; attempt++) {
        status = open_once(out, path, &replaced);
    }
    return status;
}

ms_status msi_checkpoint_missing(ms_status status)
{
    return status == MS_IO_ERROR && (errno == ENOENT || errno == ENOTDIR)
               ? MS_FAIL(MS_FORMAT_ERROR, "%s", ms_error_message())
               : status;
}

void ms_checkpoint_close(ms_checkpoint *c)
{
    if (c == NULL) {
        return;
    }
    for (int32_t i = 0; i < c->manifest.n_files && c->shards != NULL; i++) {
        if (c->shards[i].fd >= 0) {
            close(c->shards[i].fd);
        }
    }
    msi_manifest_dispose(&c->manifest);
    free(c->shards);
    free(c);
}

const char *ms_checkpoint_path(const ms_checkpoint *c)
{
    return c->path;
}

const char *ms_checkpoint_meta(const ms_checkpoint *c)
{
    return c->manifest.meta;
}

bool ms_checkpoint_has(const ms_checkpoint *c, const char *key)
{
    return key != NULL && msi_manifest_find(&c->manifest, key) != NULL;
}

int32_t ms_checkpoint_n_keys(const ms_checkpoint *c)
{
    return c->manifest.n_tensors;
}

const char *ms_checkpoint_key(const ms_checkpoint *c, int32_t i)
{
    return i >= 0 && i < c->manifest.n_tensors ? c->manifest.tensors[i].key : "";
}

static ms_status find(const ms_checkpoint *c, const char *key, const msi_manifest_tensor **t)
{
    *t = msi_manifest_find(&c->manifest, key);
    return *t != NULL ? MS_OK : MS_FAIL(MS_KEY_ERROR, "%s has no tensor '%s'", c->path, key);
}

ms_status ms_checkpoint_extent(const ms_checkpoint *c, const char *key, ms_param_extent *extent)
{
    const msi_manifest_tensor *t;

    MS_TRY(find(c, key, &t));
    *extent = t->whole;
    return MS_OK;
}

/* Verify the hash of file `i` before its first use. `path` is set. */
static ms_status verify_file(ms_checkpoint *c, int32_t i, msi_path path)
{
    const msi_manifest_file *file = &c->manifest.files[i];
    shard *s = &c->shards[i];
    uint64_t hash;

    MS_TRY(msi_path_set(path, "%s/%s", c->path, file->name));
    if (s->verified) {
        return MS_OK;
    }
    if (s->fd < 0) {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s: is not here; the checkpoint was saved in folders of %lld hosts", path,
                       (long long)c->manifest.n_folders);
    }
    MS_TRY(msi_io_hash(s->fd, path, file->nbytes, &hash));
    s->verified = hash == file->hash;
    return s->verified
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: its bytes have hash %016llx, expected %016llx", path,
                         (unsigned long long)hash, (unsigned long long)file->hash);
}

ms_status msi_checkpoint_verify(ms_checkpoint *c, int32_t first, int32_t stride)
{
    msi_path path;

    for (int32_t i = first; i < c->manifest.n_files; i += stride) {
        MS_TRY(msi_checkpoint_has_file(c, i) ? verify_file(c, i, path) : MS_OK);
    }
    return MS_OK;
}

static bool same_whole(const ms_param_extent *a, const ms_param_extent *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, sizeof(a->shape[0]) * (size_t)a->ndim) == 0;
}

ms_status msi_checkpoint_check(const ms_checkpoint *c, const char *key,
                               const ms_param_extent *extent, const ms_tensor *local)
{
    const msi_manifest_tensor *t;
    int64_t whole;

    MS_TRY(find(c, key, &t));
    MS_TRY(msi_extent_check(t->key, extent, &whole));
    if (!same_whole(&t->whole, extent)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' is %s of shape %s, expected %s of shape %s",
                       c->path, t->key, ms_dtype_name(t->whole.dtype),
                       msi_shape_text(t->whole.ndim, t->whole.shape), ms_dtype_name(extent->dtype),
                       msi_shape_text(extent->ndim, extent->shape));
    }
    if (local != NULL && (local->v.dtype != extent->dtype || local->v.ndim != 1 ||
                          local->v.shape[0] != extent->numel || !msi_view_contiguous(&local->v))) {
        return MS_FAIL(
            MS_VALUE_ERROR, "'%s' into %s of shape %s, expected %lld elements of %s without gaps",
            t->key, ms_dtype_name(local->v.dtype), msi_shape_text(local->v.ndim, local->v.shape),
            (long long)extent->numel, ms_dtype_name(extent->dtype));
    }
    return MS_OK;
}

/* The next piece with elements of `extent` from `*p` on, and the number of these; `next` is the
 * first that is not read yet. NULL: no more. */
static const msi_manifest_piece *next_piece(const msi_manifest_tensor *t,
                                            const ms_param_extent *extent, int32_t *p, int64_t next,
                                            int64_t *n)
{
    const int64_t end = extent->start + extent->numel;

    while (*p < t->n_pieces && next < end) {
        const msi_manifest_piece *piece = &t->pieces[(*p)++];
        const int64_t piece_end = piece->start + piece->numel;

        *n = (piece_end < end ? piece_end : end) - next;
        if (*n > 0) { /* else it ends before the extent */
            return piece;
        }
    }
    return NULL;
}

/* For all pieces with elements of `extent`: verify their files, or read them if `to` is given. */
static ms_status for_pieces(ms_checkpoint *c, const msi_manifest_tensor *t,
                            const ms_param_extent *extent, char *to)
{
    const int64_t width = ms_dtype_size(extent->dtype);
    const msi_manifest_piece *piece;
    int64_t next = extent->start, n;
    int32_t p = 0;
    msi_path path;

    while ((piece = next_piece(t, extent, &p, next, &n)) != NULL) {
        MS_TRY(verify_file(c, piece->file, path));
        if (to != NULL) {
            MS_TRY(msi_st_read(c->shards[piece->file].fd, path, extent->dtype, to, n * width,
                               piece->offset + (next - piece->start) * width));
            to += n * width;
        }
        next += n;
    }
    return MS_OK;
}

bool msi_checkpoint_has_file(const ms_checkpoint *c, int32_t file)
{
    return c->shards[file].fd >= 0;
}

bool msi_checkpoint_lacks(const ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                          bool *files)
{
    const msi_manifest_tensor *t = msi_manifest_find(&c->manifest, key);
    const msi_manifest_piece *piece;
    int64_t next = extent->start, n;
    int32_t p = 0;
    bool any = false;

    while (t != NULL && (piece = next_piece(t, extent, &p, next, &n)) != NULL) {
        if (!msi_checkpoint_has_file(c, piece->file)) {
            files[piece->file] = any = true;
        }
        next += n;
    }
    return any;
}

void msi_checkpoint_take_file(ms_checkpoint *c, int32_t file, int fd)
{
    c->shards[file].fd = fd;
}

ms_status msi_checkpoint_file_bytes(const ms_checkpoint *c, int32_t file, void *to, int64_t nbytes,
                                    int64_t offset)
{
    return msi_io_read(c->shards[file].fd, c->manifest.files[file].name, to, nbytes, offset);
}

ms_status msi_checkpoint_fetch(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                               void *to)
{
    const msi_manifest_tensor *t;

    MS_TRY(find(c, key, &t));
    return for_pieces(c, t, extent, to);
}

ms_status ms_checkpoint_read(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                             ms_tensor *local)
{
    msi_host_view host;

    msi_op_host(local->ctx, "a tensor is read from a checkpoint");
    MS_TRY(msi_checkpoint_check(c, key, extent, local));
    MS_TRY(msi_view_present(&local->v));
    MS_TRY(msi_checkpoint_fetch(c, key, extent, NULL)); /* damage leaves `local` unchanged */
    MS_TRY(msi_host_view_begin(&host, &local->v, MSI_HOST_WRITES));
    ms_status status = msi_tensor_begin_write(local, "checkpoint");

    status = status == MS_OK ? msi_checkpoint_fetch(c, key, extent, host.data) : status;
    return msi_host_view_end(&host, status);
}

const msi_manifest *msi_checkpoint_manifest(const ms_checkpoint *c)
{
    return &c->manifest;
}
