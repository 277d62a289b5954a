/* Files. Every error has the path and the system's reason, every write is complete or an error, and
 * a test can make any step fail. */
#ifndef MSI_IO_H
#define MSI_IO_H

#include "base.h"

#include <limits.h>

/* Test hook: called before every step that changes the disk ("mkdir", "create", "write", "fsync",
 * "rename", "exchange", "symlink", "unlink", "rmdir"). Returns an errno to fail with, or 0. Per
 * thread. */
typedef int (*msi_io_hook_fn)(const char *step, const char *path);
extern _Thread_local msi_io_hook_fn msi_io_hook;

typedef char msi_path[PATH_MAX];
/* MS_IO_ERROR if it is too long. */
ms_status msi_path_set(msi_path path, const char *format, ...) MSI_PRINTF(2, 3);
/* The parent folder of the path `of`. */
ms_status msi_path_parent(msi_path parent, const char *of);
/* Error "<what> <path>: <reason>" from errno, which is kept. MS_IO_ERROR; MS_OUT_OF_MEMORY and
 * MS_RUNTIME_ERROR (too many open files) if the file is not the cause. */
ms_status msi_io_fail(const char *what, const char *path);
/* Unique hexadecimal digits, and a zero. */
enum { MSI_NONCE_DIGITS = 16, MSI_NONCE_ROOM = MSI_NONCE_DIGITS + 1 };
ms_status msi_io_nonce(char *text);

/* A new file, readable and writable; MS_IO_ERROR if it exists. */
ms_status msi_io_create(int *fd, const char *path);
/* Open the regular file `name` of folder `dir` for reading; `path` is for errors. A symbolic link
 * is followed if `dir` is AT_FDCWD, else an error. `*fd` is -1 on failure. */
ms_status msi_io_open(int *fd, int64_t *nbytes, int dir, const char *name, const char *path);
ms_status msi_io_write(int fd, const char *path, const void *data, int64_t nbytes, int64_t offset);
/* Exactly `nbytes`; MS_FORMAT_ERROR if the file is shorter. */
ms_status msi_io_read(int fd, const char *path, void *data, int64_t nbytes, int64_t offset);
/* XXH3 of a file's first `nbytes`, as `xxhsum -H3` prints it. */
ms_status msi_io_hash(int fd, const char *path, int64_t nbytes, uint64_t *hash);
/* Wait until all writes are on disk. */
ms_status msi_io_sync(int fd, const char *path);
ms_status msi_io_sync_folder(const char *path);
/* Sync the parent folder of `path`. */
ms_status msi_io_sync_parent(const char *path);
/* For a missing path. MS_IO_ERROR if a link on the way is dangling, e.g. to an unmounted volume, as
 * the path may exist there. */
ms_status msi_io_absent(const char *path);
/* Make a folder; the second with parents, and it may exist. */
ms_status msi_io_mkdir(const char *path);
ms_status msi_io_mkdir_all(const char *path);
ms_status msi_io_rename(const char *from, const char *to);
/* Exchange two paths atomically. `*able` is false if the file system cannot. */
ms_status msi_io_exchange(bool *able, const char *from, const char *to);
ms_status msi_io_symlink(const char *target, const char *path);
ms_status msi_io_unlink(const char *path);
/* Remove an empty folder; a missing one is no error. Sets errno. */
ms_status msi_io_rmdir(const char *path);

#endif
