/* Reading a checkpoint at any world size: the elements asked for are intersected with the pieces in
 * the manifest, and read from where they lie. A file's hash is verified before its first use, and
 * the manifest compared with the file's header, on the descriptor that is then read from.
 *
 * [Note: one checkpoint] A checkpoint may be replaced or removed while it is read. So manifest and
 * files are opened at once, again when there is another manifest afterwards, and stay open: what is
 * read is all of one checkpoint, also when it is gone. */
#include "reader.h"
#include "io.h"
#include "pointer.h"
#include "safetensors.h"
#include "tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_ATTEMPTS = 100 };

typedef struct shard {
    char *path;
    int fd; /* -1: not opened */
    bool verified;
} shard;

struct ms_checkpoint {
    uint32_t magic;
    char *path;
    msi_manifest manifest;
    shard *shards; /* one per file of the manifest */
};

/* Open it for reading. Whoever gave the folder of the checkpoints is told of the one in there. */
static ms_status open_manifest(int *fd, int64_t *nbytes, const ms_checkpoint *c, const char *path)
{
    msi_pointer latest = {0};
    ms_status status = msi_io_open(fd, nbytes, path, false);

    if (status != MS_IO_ERROR || errno != ENOENT) {
        return status;
    }
    const bool is_root = msi_pointer_read(&latest, c->path) == MS_OK && latest.name[0] != '\0';

    errno = ENOENT;
    if (!is_root) {
        return msi_io_fail("open", path);
    }
    return MS_FAIL(MS_IO_ERROR,
                   "open %s: No such file or directory; the checkpoint saved last there is %s/%s",
                   path, c->path, msi_foreign_name(latest.name));
}

static ms_status read_manifest(ms_checkpoint *c)
{
    char *path = msi_io_path("%s/%s", c->path, MSI_MANIFEST_NAME), *text = NULL;
    int64_t nbytes;
    int fd = -1;
    ms_status status = MS_OUT_OF_MEMORY;

    if (path == NULL) {
        return status;
    }
    MS_TRY_GOTO(open_manifest(&fd, &nbytes, c, path), done);
    if (nbytes > MSI_MANIFEST_MAX) {
        status = MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes, expected at most %d", path,
                         (long long)nbytes, MSI_MANIFEST_MAX);
        goto done;
    }
    text = malloc((size_t)nbytes + 1);
    if (text == NULL) {
        status =
            MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %s (%lld bytes)", path, (long long)nbytes);
        goto done;
    }
    MS_TRY_GOTO(msi_io_read(fd, path, text, nbytes, 0), done);
    status = msi_manifest_parse(&c->manifest, path, text, (size_t)nbytes);
done:
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    free(path);
    return status;
}

/* Open file `i` and see that it has the size the manifest says. */
static ms_status open_file(ms_checkpoint *c, int32_t i)
{
    const int64_t expected = c->manifest.files[i].nbytes;
    shard *s = &c->shards[i];
    int64_t nbytes;

    s->path = msi_io_path("%s/%s", c->path, c->manifest.files[i].name);
    if (s->path == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    ms_status status = msi_io_open(&s->fd, &nbytes, s->path, false);

    if (status != MS_OK) {
        s->fd = -1;
        return status;
    }
    return nbytes == expected ? MS_OK
                              : MS_FAIL(MS_FORMAT_ERROR, "%s: has %lld bytes, expected %lld",
                                        s->path, (long long)nbytes, (long long)expected);
}

static ms_status open_files(ms_checkpoint *c)
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
        MS_TRY(open_file(c, i));
    }
    return MS_OK;
}

/* Where the checkpoint lies: at `path`, or aside when its replacement was cut short (see
 * [Note: replacing in steps]). malloced. */
static char *find_folder(const char *path)
{
    char *aside;

    if (access(path, F_OK) == 0 || errno != ENOENT) {
        return msi_io_path("%s", path);
    }
    aside = msi_io_path("%s.old", path);
    if (aside != NULL && access(aside, F_OK) != 0 && errno == ENOENT) {
        free(aside);
        return msi_io_path("%s", path);
    }
    return aside;
}

/* Which manifest is at `path`? All zero: none. */
static ms_status identify(struct stat *manifest, const char *path)
{
    char *folder = find_folder(path);
    char *file = folder != NULL ? msi_io_path("%s/%s", folder, MSI_MANIFEST_NAME) : NULL;
    const ms_status status = file != NULL ? MS_OK : MS_OUT_OF_MEMORY;

    *manifest = (struct stat){0};
    if (file != NULL && lstat(file, manifest) != 0) {
        *manifest = (struct stat){0};
    }
    free(file);
    free(folder);
    return status;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Open what is at `path` now. */
static ms_status open_now(ms_checkpoint **out, const char *path)
{
    ms_checkpoint *c = calloc(1, sizeof(*c));

    if (c == NULL || (c->path = find_folder(path)) == NULL) {
        free(c);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to open %s", path);
    }
    ms_status status = read_manifest(c);

    if (status == MS_OK) {
        status = open_files(c);
    }
    if (status != MS_OK) {
        const int error = errno;

        ms_checkpoint_close(c);
        errno = error;
        return status;
    }
    *out = c;
    return MS_OK;
}

/* As open_now(), again while there is another one afterwards; its failure is the caller's only when
 * nothing has changed. */
static ms_status open_one(ms_checkpoint **out, const char *path)
{
    struct stat before, after;
    ms_status status;

    MS_TRY(identify(&after, path));
    for (int attempt = 1;; attempt++) {
        before = after;
        status = open_now(out, path);
        const int error = errno;
        const ms_status identified = identify(&after, path);

        errno = error;
        if (same_file(&before, &after) || attempt == OPEN_ATTEMPTS) {
            return status;
        }
        ms_checkpoint_close(*out);
        *out = NULL;
        MS_TRY(identified);
    }
}

ms_status ms_checkpoint_open(ms_checkpoint **out, const char *path)
{
    *out = NULL;
    MS_TRY(open_one(out, path));
    ms_checkpoint *c = *out;

    if (strcmp(c->path, path) != 0) {
        msi_warn("UserWarning", "%s is not there: its replacement was cut short, %s is read", path,
                 c->path);
    }
    c->magic = MSI_MAGIC_CHECKPOINT;
    return MS_OK;
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
        free(c->shards[i].path);
    }
    msi_manifest_dispose(&c->manifest);
    free(c->shards);
    free(c->path);
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

static ms_status check_hash(const ms_checkpoint *c, int32_t i, int fd)
{
    const msi_manifest_file *file = &c->manifest.files[i];
    uint64_t hash;

    MS_TRY(msi_io_hash(fd, c->shards[i].path, file->nbytes, &hash));
    return hash == file->hash
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR, "%s: its bytes have hash %016llx, expected %016llx",
                         c->shards[i].path, (unsigned long long)hash,
                         (unsigned long long)file->hash);
}

/* Does the one piece of `t` that lies in file `i` lie where the file's header says? */
static ms_status check_piece(const ms_checkpoint *c, int32_t i, const msi_manifest_tensor *t,
                             const msi_st_place *place, int32_t *n)
{
    const char *name = c->manifest.files[i].name;
    const int32_t before = *n;

    for (int32_t p = 0; p < t->n_pieces; p++) {
        const msi_manifest_piece *piece = &t->pieces[p];
        const int64_t offset = place->end - piece->numel * ms_dtype_size(t->whole.dtype);

        if (piece->file != i) {
            continue;
        }
        if (++*n > before + 1) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s/%s: '%s' has two pieces in %s, expected one",
                           c->path, MSI_MANIFEST_NAME, t->key, name);
        }
        if (place->dtype != t->whole.dtype) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s/%s: 'dtype' of '%s' is %s, but %s has it as %s",
                           c->path, MSI_MANIFEST_NAME, t->key, ms_dtype_name(t->whole.dtype), name,
                           ms_dtype_name(place->dtype));
        }
        if (offset < place->begin || piece->offset != offset) {
            return MS_FAIL(MS_FORMAT_ERROR,
                           "%s/%s: 'offset' of '%s' is %lld and 'numel' %lld, but %s has it in "
                           "bytes [%lld, %lld)",
                           c->path, MSI_MANIFEST_NAME, t->key, (long long)piece->offset,
                           (long long)piece->numel, name, (long long)place->begin,
                           (long long)place->end);
        }
    }
    return MS_OK;
}

/* Does the manifest say of file `i` what its own header says? */
static ms_status check_header(const ms_checkpoint *c, int32_t i, int fd)
{
    const msi_manifest_file *file = &c->manifest.files[i];
    const char *path = c->shards[i].path;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    ms_status status = MS_OK;
    ms_safetensors *header;
    int32_t n = 0;

    if (own < 0) {
        return msi_io_fail("open", path);
    }
    MS_TRY(msi_st_open_fd(&header, path, own, file->nbytes));
    for (int32_t e = 0; e < ms_safetensors_n(header) && status == MS_OK; e++) {
        const msi_st_place place = msi_st_place_of(header, e);
        const msi_manifest_tensor *t = msi_manifest_find(&c->manifest, place.name);

        if (t != NULL) { /* else all of it is in another file, too */
            status = check_piece(c, i, t, &place, &n);
        }
    }
    if (status == MS_OK && n != file->n_pieces) {
        status =
            MS_FAIL(MS_FORMAT_ERROR,
                    "%s/%s: 'pieces' of %d tensors are said to lie in %s, which has %d of them",
                    c->path, MSI_MANIFEST_NAME, file->n_pieces, file->name, n);
    }
    ms_safetensors_close(header);
    return status;
}

/* The descriptor of file `i`, verified. */
static ms_status verified(ms_checkpoint *c, int32_t i, int *fd)
{
    shard *s = &c->shards[i];

    if (!s->verified) {
        MS_TRY(check_hash(c, i, s->fd));
        MS_TRY(check_header(c, i, s->fd));
        s->verified = true;
    }
    *fd = s->fd;
    return MS_OK;
}

ms_status msi_checkpoint_verify(ms_checkpoint *c, int32_t first, int32_t stride)
{
    for (int32_t i = first; i < c->manifest.n_files; i += stride) {
        int fd;

        MS_TRY(verified(c, i, &fd));
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

/* Index of the piece that holds element `start`. */
static int32_t piece_at(const msi_manifest_tensor *t, int64_t start)
{
    int32_t low = 0, high = t->n_pieces;

    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;

        if (t->pieces[middle].start <= start) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Pass over the pieces that hold the elements of `extent`: verify their files, or (when `to` is
 * given) read them. */
static ms_status for_pieces(ms_checkpoint *c, const msi_manifest_tensor *t,
                            const ms_param_extent *extent, char *to)
{
    int64_t width = ms_dtype_size(extent->dtype);
    int64_t next = extent->start, end = extent->start + extent->numel;

    for (int32_t p = piece_at(t, next); next < end; p++) {
        const msi_manifest_piece *piece = &t->pieces[p];
        int64_t piece_end = piece->start + piece->numel;
        int64_t n = (piece_end < end ? piece_end : end) - next;
        int fd;

        MS_TRY(verified(c, piece->file, &fd));
        if (to != NULL) {
            MS_TRY(msi_st_read(fd, c->shards[piece->file].path, extent->dtype, to, n * width,
                               piece->offset + (next - piece->start) * width));
            to += n * width;
        }
        next += n;
    }
    return MS_OK;
}

ms_status msi_checkpoint_fetch(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                               void *to)
{
    const msi_manifest_tensor *t;

    MS_TRY(find(c, key, &t));
    return extent->numel > 0 ? for_pieces(c, t, extent, to) : MS_OK;
}

ms_status ms_checkpoint_read(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                             ms_tensor *local)
{
    msi_host_view host;

    MS_TRY(msi_checkpoint_check(c, key, extent, local));
    MS_TRY(msi_view_present(&local->v));
    MS_TRY(msi_checkpoint_fetch(c, key, extent, NULL)); /* a damaged file leaves `local` alone */
    MS_TRY(msi_host_view_begin(&host, &local->v, MSI_HOST_WRITES));
    ms_status status = msi_tensor_begin_write(local, "checkpoint");

    status = status == MS_OK ? msi_checkpoint_fetch(c, key, extent, host.data) : status;
    return msi_host_view_end(&host, status);
}

const msi_manifest *msi_checkpoint_manifest(const ms_checkpoint *c)
{
    return &c->manifest;
}
