#include "beside.h"
#include "folder.h"
#include "io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is there that is no regular file. */
static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* The file to write, malloced. A link is followed, as by any program that opens it to write. */
static ms_status find_target(char **target, const char *path)
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
                       there ? kind_of(st.st_mode) : "a symbolic link to nothing");
    }
    *target = linked ? realpath(path, NULL) : strdup(path);
    return *target != NULL ? MS_OK : msi_io_fail("write", path);
}

/* Remove what is left of writers of `target` in its folder. One that may not be read keeps it. */
static ms_status sweep(const char *folder, const char *target)
{
    const char *slash = strrchr(target, '/');
    const ms_status status = msi_folder_sweep_files(folder, slash != NULL ? slash + 1 : target);

    return status == MS_IO_ERROR && errno == EACCES ? MS_OK : status;
}

/* Make the folder of `target` when it is missing; clear what dead writers left when it is there. */
static ms_status prepare_folder(const char *target)
{
    char *folder = msi_io_parent(target);
    ms_status status = folder != NULL ? msi_io_mkdir_all(folder) : MS_OUT_OF_MEMORY;

    if (status == MS_OK) {
        status = sweep(folder, target);
    }
    free(folder);
    return status;
}

ms_status msi_beside_begin(msi_beside *b, const char *path)
{
    char nonce[MSI_NONCE_ROOM];

    *b = (msi_beside){.fd = -1};
    ms_status status = find_target(&b->target, path);

    if (status == MS_OK) {
        status = prepare_folder(b->target);
    }
    if (status == MS_OK) {
        status = msi_hold_new(&b->fd, &b->path, nonce, "", b->target, msi_io_create);
    }
    return status == MS_OK ? MS_OK : msi_beside_end(b, status);
}

ms_status msi_beside_end(msi_beside *b, ms_status status)
{
    if (status == MS_OK) {
        status = msi_io_sync(b->fd, b->path);
    }
    if (status == MS_OK) {
        status = msi_io_rename(b->path, b->target);
    }
    if (status != MS_OK && b->fd >= 0) {
        unlink(b->path);
    }
    if (b->fd >= 0) {
        close(b->fd);
    }
    if (status == MS_OK && msi_io_sync_parent(b->target) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", b->target,
                 ms_error_message());
    }
    free(b->path);
    free(b->target);
    return status;
}
