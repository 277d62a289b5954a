/* Files: complete writes, synced, with errors that have path and reason. */
#include "io.h"

#include "bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Thread_local msi_io_hook_fn msi_io_hook;

enum { CHUNK = 4 << 20 };

/* True, with errno set, if the test hook makes this step fail. */
static bool hooked(const char *step, const char *path)
{
    int error = MSI_UNLIKELY(msi_io_hook != NULL) ? msi_io_hook(step, path) : 0;

    if (error != 0) {
        errno = error;
    }
    return error != 0;
}

ms_status msi_io_fail(const char *what, const char *path)
{
    char reason[128], limit[MSI_BOUND_TEXT];
    int error = errno;
    msi_bound by = error == EFBIG ? msi_bound_of(error) : (msi_bound){0};

    const ms_status kind = error == ENOMEM                      ? MS_OUT_OF_MEMORY
                           : error == EMFILE || error == ENFILE ? MS_RUNTIME_ERROR
                                                                : MS_IO_ERROR;

    MS_FAIL(kind, "%s %s: %s%s", what, path, strerror_r(error, reason, sizeof(reason)),
            msi_bound_text(by, limit, sizeof(limit)));
    errno = error;
    return kind;
}

ms_status msi_path_set(msi_path path, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int n = vsnprintf(path, sizeof(msi_path), format, args);

    va_end(args);
    errno = ENAMETOOLONG;
    return n >= 0 && n < (int)sizeof(msi_path) ? MS_OK : msi_io_fail("open", path);
}

ms_status msi_path_parent(msi_path parent, const char *of)
{
    msi_path copy;

    MS_TRY(msi_path_set(copy, "%s", of));
    return msi_path_set(parent, "%s", dirname(copy));
}

ms_status msi_io_nonce(char *text)
{
    uint64_t value;

    if (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
        return msi_io_fail("read", "the system's random numbers");
    }
    snprintf(text, MSI_NONCE_ROOM, "%016llx", (unsigned long long)value);
    return MS_OK;
}

ms_status msi_io_create(int *fd, const char *path)
{
    *fd = hooked("create", path) ? -1 : open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return *fd >= 0 ? MS_OK : msi_io_fail("create", path);
}

ms_status msi_io_open(int *fd, int64_t *nbytes, int dir, const char *name, const char *path)
{
    const bool links = dir == AT_FDCWD;
    ms_status status = MS_OK;
    struct stat st;

    /* O_NONBLOCK: do not wait for a pipe's writer */
    *fd = openat(dir, name, O_RDONLY | (links ? 0 : O_NOFOLLOW) | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0 && errno == ELOOP && !links) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s: is a symbolic link, expected a file", path);
    }
    if (*fd < 0) {
        return msi_io_fail("open", path);
    }
    if (fstat(*fd, &st) != 0) {
        status = msi_io_fail("stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = MS_FAIL(MS_FORMAT_ERROR, "%s: is no regular file", path);
    }
    if (status != MS_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    *nbytes = st.st_size;
    return MS_OK;
}

static ssize_t write_some(int fd, const char *path, const char *data, int64_t nbytes,
                          int64_t offset)
{
    ssize_t n;

    do {
        n = hooked("write", path)
                ? -1
                : pwrite(fd, data, (size_t)(nbytes < CHUNK ? nbytes : CHUNK), offset);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* A file-size limit raises SIGXFSZ, which ends the process. It is blocked and discarded, so that
 * the write fails with EFBIG. */
ms_status msi_io_write(int fd, const char *path, const void *data, int64_t nbytes, int64_t offset)
{
    const char *next = data;
    sigset_t too_big, before;
    ms_status status = MS_OK;

    sigemptyset(&too_big);
    sigaddset(&too_big, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_big, &before);
    while (nbytes > 0) {
        ssize_t n = write_some(fd, path, next, nbytes, offset);

        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            status = msi_io_fail("write", path);
            sigtimedwait(&too_big, NULL, &(struct timespec){0});
            break;
        }
        next += n;
        offset += n;
        nbytes -= n;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

ms_status msi_io_read(int fd, const char *path, void *data, int64_t nbytes, int64_t offset)
{
    char *next = data;
    int64_t end = offset + nbytes;

    while (offset < end) {
        ssize_t n = pread(fd, next, (size_t)(end - offset < CHUNK ? end - offset : CHUNK), offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return msi_io_fail("read", path);
        }
        if (n == 0) {
            return MS_FAIL(MS_FORMAT_ERROR, "%s: ends at byte %lld, expected at least %lld", path,
                           (long long)offset, (long long)end);
        }
        next += n;
        offset += n;
    }
    return MS_OK;
}

ms_status msi_io_hash(int fd, const char *path, int64_t nbytes, uint64_t *hash)
{
    enum { BUFFER = 256 << 10 }; /* fits the second-level cache */
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(BUFFER);
    ms_status status = MS_OK;

    if (state == NULL || buffer == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory to hash %s", path);
    } else {
        XXH3_64bits_reset(state);
    }
    for (int64_t at = 0; at < nbytes && status == MS_OK; at += BUFFER) {
        int64_t n = nbytes - at < BUFFER ? nbytes - at : BUFFER;

        status = msi_io_read(fd, path, buffer, n, at);
        if (status == MS_OK) {
            XXH3_64bits_update(state, buffer, (size_t)n);
        }
    }
    if (status == MS_OK) {
        *hash = XXH3_64bits_digest(state);
    }
    free(buffer);
    XXH3_freeState(state);
    return status;
}

ms_status msi_io_sync(int fd, const char *path)
{
    return !hooked("fsync", path) && fsync(fd) == 0 ? MS_OK : msi_io_fail("sync", path);
}

ms_status msi_io_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ms_status status = MS_OK;

    if (fd < 0) {
        return msi_io_fail("open", path);
    }
    /* EINVAL: the file system cannot sync folders */
    if (hooked("fsync", path) || (fsync(fd) != 0 && errno != EINVAL)) {
        status = msi_io_fail("sync", path);
    }
    close(fd);
    return status;
}

ms_status msi_io_sync_parent(const char *path)
{
    msi_path parent;

    MS_TRY(msi_path_parent(parent, path));
    return msi_io_sync_folder(parent);
}

ms_status msi_io_mkdir(const char *path)
{
    return hooked("mkdir", path) || mkdir(path, 0777) != 0 ? msi_io_fail("mkdir", path) : MS_OK;
}

static bool leads_nowhere(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) != 0;
}

ms_status msi_io_absent(const char *path)
{
    msi_path part;

    for (size_t n = 1; n <= strlen(path); n++) {
        if (path[n] == '/' || path[n] == '\0') {
            MS_TRY(msi_path_set(part, "%.*s", (int)n, path));
            if (leads_nowhere(part)) {
                return MS_FAIL(MS_IO_ERROR, "%s is a symbolic link to nothing", part);
            }
        }
    }
    return MS_OK;
}

/* Make one folder in an existing one. */
static ms_status make_part(const char *part)
{
    struct stat st;

    if (stat(part, &st) == 0) {
        return MS_OK;
    }
    MS_TRY(errno == ENOENT ? msi_io_absent(part) : msi_io_fail("stat", part));
    const ms_status status = msi_io_mkdir(part);

    if (status != MS_OK && stat(part, &st) != 0) { /* else another process made it */
        return status;
    }
    return msi_io_sync_parent(part);
}

ms_status msi_io_mkdir_all(const char *path)
{
    msi_path part;

    for (size_t n = 1; n <= strlen(path); n++) {
        if (path[n] == '/' || path[n] == '\0') {
            MS_TRY(msi_path_set(part, "%.*s", (int)n, path));
            MS_TRY(make_part(part));
        }
    }
    return MS_OK;
}

ms_status msi_io_rename(const char *from, const char *to)
{
    return hooked("rename", to) || rename(from, to) != 0 ? msi_io_fail("rename to", to) : MS_OK;
}

ms_status msi_io_exchange(bool *able, const char *from, const char *to)
{
    *able =
        !hooked("exchange", to) && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
    return *able || errno == EINVAL || errno == ENOSYS ? MS_OK : msi_io_fail("rename to", to);
}

ms_status msi_io_symlink(const char *target, const char *path)
{
    return hooked("symlink", path) || symlink(target, path) != 0 ? msi_io_fail("symlink", path)
                                                                 : MS_OK;
}

ms_status msi_io_unlink(const char *path)
{
    return hooked("unlink", path) || unlink(path) != 0 ? msi_io_fail("remove", path) : MS_OK;
}

ms_status msi_io_rmdir(const char *path)
{
    if (!hooked("rmdir", path) && (rmdir(path) == 0 || errno == ENOENT)) {
        return MS_OK;
    }
    return msi_io_fail("remove", path);
}
