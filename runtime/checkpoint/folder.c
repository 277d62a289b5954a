/* Removing checkpoints and what dead writers left. A folder of checkpoints belongs to its user, who
 * may have put anything into it; only files that bear our names, in folders that bear our names or
 * hold our manifest, are ever removed. */
#include "folder.h"
#include "io.h"
#include "manifest.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool msi_folder_is_leftover(const char *name)
{
    const char *mark = strrchr(name, '.');

    return mark != NULL && strncmp(mark, ".tmp-", 5) == 0 && strlen(mark + 5) == 16 &&
           strspn(mark + 5, "0123456789abcdef") == 16;
}

/* The text after `prefix` and at least one digit, NULL when `text` does not begin so. */
static const char *after_number(const char *text, const char *prefix)
{
    const size_t n = strlen(prefix);

    if (text == NULL || strncmp(text, prefix, n) != 0 || !isdigit((unsigned char)text[n])) {
        return NULL;
    }
    return text + n + strspn(text + n, "0123456789");
}

/* manifest.json, rank-<r>-of-<W>.safetensors or rank-<r>-of-<W>.<k>.safetensors */
static bool is_our_file(const char *name)
{
    const char *rest = after_number(after_number(name, "rank-"), "-of-");
    const char *further = after_number(rest, ".");

    rest = further != NULL ? further : rest;
    return strcmp(name, MSI_MANIFEST_NAME) == 0 ||
           (rest != NULL && strcmp(rest, ".safetensors") == 0);
}

static ms_status remove_files(int fd, const char *path)
{
    DIR *dir = fdopendir(fd);
    ms_status status = MS_OK;

    if (dir == NULL) {
        status = msi_io_fail("read", path);
        close(fd);
        return status;
    }
    for (struct dirent *e = readdir(dir); e != NULL && status == MS_OK; e = readdir(dir)) {
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

/* Does a writer hold the lock on its temporary folder? */
static bool is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;

    if (fd >= 0) {
        close(fd);
    }
    return locked;
}

static ms_status remove_leftover(const char *path)
{
    struct stat st;
    bool others; /* stay, and nobody needs to hear of it with every save */

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", path);
    }
    if (S_ISLNK(st.st_mode)) { /* of `latest`, before its rename */
        return msi_io_unlink(path);
    }
    return S_ISDIR(st.st_mode) && !is_locked(path) ? msi_folder_remove(path, &others) : MS_OK;
}

ms_status msi_folder_sweep(const char *root, const char *name)
{
    const size_t n = name != NULL ? strlen(name) : 0;
    DIR *dir = opendir(root);
    ms_status status = MS_OK;

    if (dir == NULL) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", root);
    }
    for (struct dirent *e = readdir(dir); e != NULL && status == MS_OK; e = readdir(dir)) {
        char *path;

        if (!msi_folder_is_leftover(e->d_name) ||
            (name != NULL &&
             (strncmp(e->d_name, name, n) != 0 || strlen(e->d_name) != n + strlen(".tmp-") + 16))) {
            continue;
        }
        path = msi_io_path("%s/%s", root, e->d_name);
        status = path != NULL ? MS_OK : MS_OUT_OF_MEMORY;
        if (status == MS_OK && remove_leftover(path) != MS_OK) {
            msi_warn("UserWarning", "what a writer left is not removed: %s", ms_error_message());
        }
        free(path);
    }
    closedir(dir);
    return status;
}
