#include "atomic_file.h"
#include "paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file to write. Follows a link, as opening to write does. */
static ms_status find_target(msi_path target, const char *path)
{
    const size_t n = strlen(path);

    if (n == 0 || path[n - 1] == '/') {
        return MS_FAIL(MS_VALUE_ERROR, "'%s' %s, expected the path of a file", path,
                       n == 0 ? "is empty" : "ends with '/' and so names a folder");
    }
    struct stat st;
    bool there = lstat(path, &st) == 0;
    const bool linked = there && S_ISLNK(st.st_mode);

    if (linked) {
        there = stat(path, &st) == 0;
    }
    if (!there && errno != ENOENT) {
        return msi_io_fail("write", path);
    }
    if (there ? !S_ISREG(st.st_mode) : linked) {
        return MS_FAIL(MS_VALUE_ERROR, "%s is %s, expected a regular file or nothing", path,
                       !there                ? "a symbolic link to nothing"
                       : S_ISDIR(st.st_mode) ? "a folder"
                                             : "a pipe or a device");
    }
    if (linked) {
        return realpath(path, target) != NULL ? MS_OK : msi_io_fail("write", path);
    }
    return msi_path_set(target, "%s", path);
}

/* Make the folder of `target`, and remove what dead writers of it left, if it can be read. */
static ms_status prepare_folder(const char *target)
{
    const char *slash = strrchr(target, '/');
    msi_path folder;

    MS_TRY(msi_path_parent(folder, target));
    MS_TRY(msi_io_mkdir_all(folder));
    const ms_status status = msi_folder_sweep(folder, slash != NULL ? slash + 1 : target);

    return status == MS_IO_ERROR && errno == EACCES ? MS_OK : status;
}

ms_status msi_atomic_file_begin(msi_atomic_file *f, const char *path)
{
    char nonce[MSI_NONCE_ROOM];

    f->fd = -1;
    MS_TRY(find_target(f->target, path));
    MS_TRY(prepare_folder(f->target));
    return msi_temporary_new(&f->fd, f->path, nonce, f->target, false);
}

ms_status msi_atomic_file_end(msi_atomic_file *f, ms_status status)
{
    if (status == MS_OK) {
        status = msi_io_sync(f->fd, f->path);
    }
    if (status == MS_OK) {
        status = msi_io_rename(f->path, f->target);
    }
    if (status != MS_OK && f->fd >= 0) {
        unlink(f->path);
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    if (status == MS_OK && msi_io_sync_parent(f->target) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", f->target,
                 ms_error_message());
    }
    return status;
}
