/* A root belongs to its user and may contain anything. Only files with our names are removed, from
 * folders with our names or our manifest. */
#include "paths.h"
#include "moonshard/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- names ------------------------------------------------------------------------------------- */

ms_status msi_temporary_path(msi_path path, const char *target, const char *nonce)
{
    return msi_path_set(path, "%s" MSI_TEMPORARY_MARK "%s", target, nonce);
}

bool msi_is_temporary(const char *entry, const char *name)
{
    const char *mark = strrchr(entry, '.');
    const size_t n_mark = strlen(MSI_TEMPORARY_MARK);

    if (mark == NULL || strncmp(mark, MSI_TEMPORARY_MARK, n_mark) != 0 ||
        strlen(mark + n_mark) != MSI_NONCE_DIGITS ||
        strspn(mark + n_mark, "0123456789abcdef") != MSI_NONCE_DIGITS) {
        return false;
    }
    return name == NULL ||
           (strlen(name) == (size_t)(mark - entry) && strncmp(entry, name, strlen(name)) == 0);
}

void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part)
{
    char number[16] = "";

    if (part > 0) {
        snprintf(number, sizeof(number), ".%d", (int)part);
    }
    snprintf(name, MSI_SHARD_NAME, "rank-%05d-of-%05d%s.safetensors", (int)rank, (int)world,
             number);
}

bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world)
{
    char again[MSI_SHARD_NAME];
    int r, w, part = 0;

    if (sscanf(name, "rank-%9d-of-%9d.%9d", &r, &w, &part) < 2 || r < 0 || r >= w || part < 0) {
        return false;
    }
    msi_shard_name(again, r, w, part);
    *rank = r;
    *world = w;
    return strcmp(name, again) == 0;
}

const char *ms_checkpoint_step_name(int64_t step)
{
    static _Thread_local char name[32];

    snprintf(name, sizeof(name), "step-%08lld", (long long)step);
    return name;
}

int64_t msi_folder_step(const char *name)
{
    const int64_t step = strtoll(name + strcspn(name, "0123456789"), NULL, 10);

    return strcmp(name, ms_checkpoint_step_name(step)) == 0 ? step : -1;
}

static bool is_our_file(const char *name)
{
    int32_t rank, world;

    return strcmp(name, MSI_MANIFEST_NAME) == 0 || msi_shard_name_read(name, &rank, &world);
}

/* -- folders ----------------------------------------------------------------------------------- */

static ms_status each_entry(DIR *dir, const char *path,
                            ms_status (*fn)(void *user, const char *folder, const char *name),
                            void *user)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(dir);

        if (e == NULL) { /* only errno separates an error from the end */
            return errno == 0 ? MS_OK : msi_io_fail("read", path);
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            MS_TRY(fn(user, path, e->d_name));
        }
    }
}

ms_status msi_folder_each(const char *path, bool links,
                          ms_status (*fn)(void *user, const char *folder, const char *name),
                          void *user)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | (links ? 0 : O_NOFOLLOW) | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir == NULL) {
        const ms_status status = errno == ENOENT ? msi_io_absent(path) : msi_io_fail("open", path);

        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    const ms_status status = each_entry(dir, path, fn, user);

    closedir(dir);
    return status;
}

static ms_status look_at(void *user, const char *folder, const char *name)
{
    msi_contents *contents = user;

    (void)folder;
    if (*contents != MSI_CONTENTS_OURS) {
        *contents = is_our_file(name) ? MSI_CONTENTS_OURS : MSI_CONTENTS_OTHERS;
    }
    return MS_OK;
}

ms_status msi_folder_look(msi_contents *contents, const char *path)
{
    struct stat st;

    *contents = MSI_CONTENTS_GONE;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT || errno == ENOTDIR ? MS_OK : msi_io_fail("stat", path);
    }
    *contents = S_ISDIR(st.st_mode)   ? MSI_CONTENTS_EMPTY
                : S_ISLNK(st.st_mode) ? MSI_CONTENTS_LINK
                                      : MSI_CONTENTS_NO_FOLDER;
    return S_ISDIR(st.st_mode) ? msi_folder_each(path, false, look_at, contents) : MS_OK;
}

/* -- locks ------------------------------------------------------------------------------------- */

/* GONE: the file was removed meanwhile. */
static ms_status lock_open(int fd, msi_lock *lock, const char *path)
{
    struct stat seen, st = {0};

    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (fstat(fd, &seen) != 0 || (lstat(path, &st) != 0 && errno != ENOENT)) {
            return msi_io_fail("stat", path);
        }
        *lock =
            seen.st_dev == st.st_dev && seen.st_ino == st.st_ino ? MSI_LOCK_OURS : MSI_LOCK_GONE;
    } else if (errno == EWOULDBLOCK) {
        *lock = MSI_LOCK_BUSY;
    } else if (errno == EOPNOTSUPP || errno == ENOTSUP || errno == ENOLCK || errno == ENOSYS) {
        *lock = MSI_LOCK_NONE;
    } else {
        return msi_io_fail("lock", path);
    }
    return MS_OK;
}

/* Lock `*fd`, opened at `path`. If BUSY, GONE or an error, it is closed and -1. */
static ms_status lock_or_close(int *fd, msi_lock *lock, const char *path)
{
    const ms_status status = lock_open(*fd, lock, path);

    if (status != MS_OK || *lock == MSI_LOCK_BUSY || *lock == MSI_LOCK_GONE) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static ms_status open_and_lock(int *fd, msi_lock *lock, const char *path, int flags)
{
    *lock = MSI_LOCK_GONE;
    *fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", path);
    }
    return lock_or_close(fd, lock, path);
}

ms_status msi_folder_lock(int *fd, msi_lock *lock, const char *path)
{
    return open_and_lock(fd, lock, path, O_RDONLY | O_DIRECTORY);
}

/* One attempt: `*fd` is -1 if the name is taken, or it was swept before the lock. */
static ms_status create_and_lock(int *fd, const char *path, bool folder)
{
    msi_lock lock = MSI_LOCK_GONE;
    ms_status status = folder ? msi_io_mkdir(path) : msi_io_create(fd, path);

    if (status != MS_OK) {
        return status == MS_IO_ERROR && errno == EEXIST ? MS_OK : status;
    }
    if (folder) {
        status = msi_folder_lock(fd, &lock, path);
        if (status != MS_OK) {
            rmdir(path);
        }
        return status;
    }
    status = lock_or_close(fd, &lock, path);
    if (status != MS_OK) {
        unlink(path);
    }
    return status;
}

ms_status msi_temporary_new(int *fd, msi_path path, char *nonce, const char *target, bool folder)
{
    *fd = -1;
    for (int attempt = 0; attempt < 10; attempt++) {
        MS_TRY(msi_io_nonce(nonce));
        MS_TRY(msi_temporary_path(path, target, nonce));
        MS_TRY(create_and_lock(fd, path, folder));
        if (*fd >= 0) {
            return MS_OK;
        }
    }
    return MS_FAIL(MS_IO_ERROR, "%s: another process takes each such name", path);
}

ms_status msi_temporary_folder(int *fd, const char *path)
{
    *fd = -1;
    return create_and_lock(fd, path, true);
}

/* -- removing ---------------------------------------------------------------------------------- */

static ms_status remove_file(void *user, const char *folder, const char *name)
{
    msi_path path;

    (void)user;
    if (!is_our_file(name)) {
        return MS_OK;
    }
    MS_TRY(msi_path_set(path, "%s/%s", folder, name));
    const ms_status status = msi_io_unlink(path);

    return status == MS_IO_ERROR && errno == ENOENT ? MS_OK : status;
}

ms_status msi_folder_remove(const char *path, bool *others)
{
    *others = false;
    MS_TRY(msi_folder_each(path, false, remove_file, NULL));
    const ms_status status = msi_io_rmdir(path);

    *others = status != MS_OK && (errno == ENOTEMPTY || errno == EEXIST);
    return *others ? MS_OK : status;
}

ms_status msi_folder_retire(const char *path, const char *target, bool *others)
{
    char nonce[MSI_NONCE_ROOM];
    msi_path doomed;

    *others = false;
    MS_TRY(msi_io_nonce(nonce));
    MS_TRY(msi_temporary_path(doomed, target, nonce));
    MS_TRY(msi_io_rename(path, doomed));
    MS_TRY(msi_folder_remove(doomed, others));
    return *others ? msi_io_rename(doomed, path) : MS_OK;
}

/* The link `latest` before its rename, whose writer has the checkpoint locked. */
static ms_status remove_link(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const ms_status status = busy ? MS_OK : msi_io_unlink(path);

    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* Remove what no process has locked; without file system locks, nothing. Opens files for writing,
 * as some network file systems require for locks. */
static ms_status remove_unlocked(const char *path, bool folder)
{
    bool others;
    msi_lock lock;
    int fd;

    MS_TRY(open_and_lock(&fd, &lock, path, folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_NONBLOCK));
    const ms_status status = lock != MSI_LOCK_OURS ? MS_OK
                             : folder              ? msi_folder_remove(path, &others)
                                                   : msi_io_unlink(path);

    if (fd >= 0) {
        close(fd);
    }
    return status;
}

static ms_status sweep_entry(void *user, const char *root, const char *entry)
{
    const char *name = user;
    ms_status status = MS_OK;
    struct stat st;
    msi_path path;

    if (!msi_is_temporary(entry, name) && !msi_is_temporary(entry, "latest")) {
        return MS_OK;
    }
    MS_TRY(msi_path_set(path, "%s/%s", root, entry));
    if (lstat(path, &st) != 0) {
        return MS_OK;
    }
    const bool folder = S_ISDIR(st.st_mode), file = S_ISREG(st.st_mode) && name != NULL;

    if (S_ISLNK(st.st_mode)) {
        status = remove_link(path);
    } else if (folder || file) {
        status = remove_unlocked(path, folder);
    }
    if (status != MS_OK && errno != ENOENT) {
        msi_warn("UserWarning", "what a writer left is not removed: %s", ms_error_message());
    }
    return MS_OK;
}

ms_status msi_folder_sweep(const char *root, const char *name)
{
    return msi_folder_each(root, true, sweep_entry, (void *)(uintptr_t)name);
}

/* -- the link `latest` ------------------------------------------------------------------------- */

static bool is_same_folder(const char *a, const char *b)
{
    struct stat of_a, of_b;

    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

ms_status msi_pointer_read(msi_pointer *p, const char *root)
{
    msi_path link, target, parent;

    *p = (msi_pointer){0};
    MS_TRY(msi_path_set(link, "%s/latest", root));
    if (readlink(link, p->text, sizeof(p->text) - 1) < 0) {
        return errno == ENOENT || errno == EINVAL ? MS_OK : msi_io_fail("read", link);
    }
    if (realpath(link, target) == NULL) { /* users move the link */
        return errno == EACCES || errno == ENOMEM ? msi_io_fail("follow", link) : MS_OK;
    }
    MS_TRY(msi_path_parent(parent, target));
    if (is_same_folder(parent, root)) {
        snprintf(p->name, sizeof(p->name), "%s", strrchr(target, '/') + 1);
    }
    return MS_OK;
}
