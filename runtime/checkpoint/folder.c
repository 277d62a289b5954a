/* Removing checkpoints and what dead writers left. A folder of checkpoints belongs to its user, who
 * may have put anything into it; only files that bear our names, in folders that bear our names or
 * hold our manifest, are ever removed. */
#include "folder.h"
#include "io.h"
#include "manifest.h"
#include "moonshard/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_our_file(const char *name)
{
    int32_t rank, world;

    return strcmp(name, MSI_MANIFEST_NAME) == 0 || msi_shard_name_read(name, &rank, &world);
}

ms_status msi_folder_look(msi_contents *contents, const char *path)
{
    DIR *dir = msi_io_folder(path);
    struct dirent *e;
    ms_status status;

    *contents = dir == NULL && errno == ENOENT ? MSI_CONTENTS_GONE : MSI_CONTENTS_OTHERS;
    if (dir == NULL) {
        /* ENOTDIR, ELOOP: something else, a link */
        const bool none = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;

        return none ? MS_OK : msi_io_fail("open", path);
    }
    while ((status = msi_io_next(&e, dir, path)) == MS_OK && e != NULL &&
           *contents != MSI_CONTENTS_OURS) {
        *contents = is_our_file(e->d_name) ? MSI_CONTENTS_OURS : MSI_CONTENTS_OTHERS;
    }
    closedir(dir);
    return status;
}

/* Is what is open still at `path`? */
static ms_status is_at(bool *there, int fd, const char *path)
{
    struct stat seen, st;

    *there = false;
    if (fstat(fd, &seen) != 0) {
        return msi_io_fail("stat", path);
    }
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", path);
    }
    *there = seen.st_dev == st.st_dev && seen.st_ino == st.st_ino;
    return MS_OK;
}

ms_status msi_hold_open(int fd, msi_hold *hold, const char *path)
{
    bool there;

    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        MS_TRY(is_at(&there, fd, path));
        *hold = there ? MSI_HOLD_OURS : MSI_HOLD_GONE;
    } else if (errno == EWOULDBLOCK) {
        *hold = MSI_HOLD_OTHERS;
    } else if (errno == EOPNOTSUPP || errno == ENOTSUP || errno == ENOLCK || errno == ENOSYS) {
        *hold = MSI_HOLD_NONE;
    } else {
        return msi_io_fail("lock", path);
    }
    return MS_OK;
}

/* One attempt: MSI_HOLD_GONE when the name was taken, or what was made is gone. `*path` is NULL
 * when there is nothing of ours. */
static ms_status make_and_hold(int *fd, char **path, msi_hold *hold,
                               ms_status (*make)(int *fd, const char *path))
{
    *hold = MSI_HOLD_GONE;
    ms_status status = make(fd, *path);
    const bool taken = status == MS_IO_ERROR && errno == EEXIST;

    if (status == MS_OK && *fd >= 0) {
        status = msi_hold_open(*fd, hold, *path);
    }
    if (status != MS_OK && !taken) {
        return status;
    }
    if (*hold != MSI_HOLD_OURS && *hold != MSI_HOLD_NONE) {
        if (*fd >= 0) {
            close(*fd);
        }
        *fd = -1;
        free(*path);
        *path = NULL;
    }
    return MS_OK;
}

ms_status msi_hold_new(int *fd, char **path, char *nonce, const char *mark, const char *place,
                       ms_status (*make)(int *fd, const char *path))
{
    for (int attempt = 0; attempt < 10; attempt++) {
        msi_hold hold;

        MS_TRY(msi_io_nonce(nonce));
        memcpy(nonce, mark, strlen(mark));
        *path = msi_temporary_path(place, nonce);
        if (*path == NULL) {
            return MS_OUT_OF_MEMORY;
        }
        MS_TRY(make_and_hold(fd, path, &hold, make));
        if (*path != NULL) {
            return MS_OK;
        }
    }
    return MS_FAIL(MS_IO_ERROR,
                   "%s" MSI_TEMPORARY_MARK "%s: somebody takes or removes it as fast as it is made",
                   place, nonce);
}

ms_status msi_folder_make(int *fd, const char *path)
{
    MS_TRY(msi_io_mkdir(path));
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *fd >= 0 || errno == ENOENT ? MS_OK : msi_io_fail("open", path);
}

/* Open what is at `path` and try to hold it. */
static ms_status open_and_hold(int *fd, msi_hold *hold, const char *path, int flags)
{
    *fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0) {
        *hold = MSI_HOLD_GONE;
        return errno == ENOENT ? MS_OK : msi_io_fail("open", path);
    }
    const ms_status status = msi_hold_open(*fd, hold, path);

    if (status != MS_OK || *hold == MSI_HOLD_OTHERS || *hold == MSI_HOLD_GONE) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

ms_status msi_folder_hold(int *fd, msi_hold *hold, const char *path)
{
    return open_and_hold(fd, hold, path, O_RDONLY | O_DIRECTORY);
}

static ms_status remove_files(int fd, const char *path)
{
    DIR *dir = fdopendir(fd);
    ms_status status = MS_OK;
    struct dirent *e;

    if (dir == NULL) {
        status = msi_io_fail("read", path);
        close(fd);
        return status;
    }
    while (status == MS_OK && (status = msi_io_next(&e, dir, path)) == MS_OK && e != NULL) {
        if (is_our_file(e->d_name)) {
            status = msi_io_unlink_at(dirfd(dir), e->d_name, path);
        }
    }
    closedir(dir);
    return status;
}

ms_status msi_folder_remove(const char *path, bool *others)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    *others = false;
    if (fd < 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", path);
    }
    MS_TRY(remove_files(fd, path));
    const ms_status status = msi_io_rmdir(path);

    *others = status != MS_OK && (errno == ENOTEMPTY || errno == EEXIST);
    return *others ? MS_OK : status;
}

ms_status msi_folder_retire(const char *path, const char *doomed, bool *others)
{
    *others = false;
    MS_TRY(msi_io_rename(path, doomed));
    MS_TRY(msi_folder_remove(doomed, others));
    return *others ? msi_io_rename(doomed, path) : MS_OK;
}

/* A writer dies, or leaves none behind, before it lets go of its folder; so what can be held here
 * is no writer's any more, nor becomes one's while it is held. Where there are no locks nobody can
 * tell, and it stays. */
static ms_status remove_leftover_folder(const char *path)
{
    bool others; /* stay, and nobody needs to hear of it with every save */
    msi_hold hold;
    int fd;

    MS_TRY(msi_folder_hold(&fd, &hold, path));
    const ms_status status = hold == MSI_HOLD_OURS ? msi_folder_remove(path, &others) : MS_OK;

    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* `latest`, before its rename. Its writer still holds the checkpoint it points to. */
static ms_status remove_leftover_link(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ELOOP) {
        return msi_io_fail("open", path);
    }
    const bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const ms_status status = held ? MS_OK : msi_io_unlink(path);
    const bool gone = status != MS_OK && errno == ENOENT;

    if (fd >= 0) {
        close(fd);
    }
    return gone ? MS_OK : status;
}

static ms_status remove_leftover(const char *path)
{
    struct stat st;

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", path);
    }
    return S_ISLNK(st.st_mode)   ? remove_leftover_link(path)
           : S_ISDIR(st.st_mode) ? remove_leftover_folder(path)
                                 : MS_OK;
}

/* A file, before its rename. Opened to write, without which some network file systems give no
 * lock. */
static ms_status remove_leftover_file(const char *path)
{
    struct stat st;
    msi_hold hold;
    int fd;

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return MS_OK;
    }
    MS_TRY(open_and_hold(&fd, &hold, path, O_RDWR | O_NONBLOCK));
    const ms_status status = hold == MSI_HOLD_OURS ? msi_io_unlink(path) : MS_OK;

    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* Call `remove_one` for the leftovers of `name` (NULL: of all), and for those of `other`. */
static ms_status sweep(const char *root, const char *name, const char *other,
                       ms_status (*remove_one)(const char *path))
{
    DIR *dir = opendir(root);
    ms_status status = MS_OK;
    struct dirent *e;

    if (dir == NULL) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", root);
    }
    while (status == MS_OK && (status = msi_io_next(&e, dir, root)) == MS_OK && e != NULL) {
        char *path;

        if (!msi_is_temporary(e->d_name, name) && !msi_is_temporary(e->d_name, other)) {
            continue;
        }
        path = msi_io_path("%s/%s", root, e->d_name);
        status = path != NULL ? MS_OK : MS_OUT_OF_MEMORY;
        if (status == MS_OK && remove_one(path) != MS_OK) {
            msi_warn("UserWarning", "what a writer left is not removed: %s", ms_error_message());
        }
        free(path);
    }
    closedir(dir);
    return status;
}

ms_status msi_folder_sweep(const char *root, const char *name)
{
    return sweep(root, name, "latest", remove_leftover);
}

ms_status msi_folder_sweep_files(const char *root, const char *name)
{
    return sweep(root, name, name, remove_leftover_file);
}
