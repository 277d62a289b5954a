/* Files, as checkpoints need them: every failure names the path and the system's reason, every
 * write is complete or an error, and a test can make the k-th step fail or be the last. */
#ifndef MSI_IO_H
#define MSI_IO_H

#include "base.h"

#include <dirent.h>

/* Test hook: called before every step that changes the disk ("mkdir", "create", "write", "fsync",
 * "rename", "exchange", "symlink", "unlink", "rmdir"). Returns an errno to fail with, or 0. Per
 * thread. */
typedef int (*msi_io_hook_fn)(const char *step, const char *path);
extern _Thread_local msi_io_hook_fn msi_io_hook;

/* A formatted path, malloced. NULL with the error set. */
char *msi_io_path(const char *format, ...) MSI_PRINTF(1, 2);
/* "<what> <path>: <reason>" from errno, which stays as it is. MS_IO_ERROR, or MS_OUT_OF_MEMORY and
 * MS_RUNTIME_ERROR (too many files are open) where the file is not to blame. */
ms_status msi_io_fail(const char *what, const char *path);
/* Hexadecimal digits no other writer has, and zero. */
enum { MSI_NONCE_DIGITS = 16, MSI_NONCE_ROOM = MSI_NONCE_DIGITS + 1 };
ms_status msi_io_nonce(char *text);

/* A new file, readable and writable; MS_IO_ERROR when it exists. */
ms_status msi_io_create(int *fd, const char *path);
/* A regular file for reading. `links`: symbolic ones are followed, else refused. */
ms_status msi_io_open(int *fd, int64_t *nbytes, const char *path, bool links);
ms_status msi_io_write(int fd, const char *path, const void *data, int64_t nbytes, int64_t offset);
/* Exactly `nbytes`; MS_FORMAT_ERROR when the file ends before. */
ms_status msi_io_read(int fd, const char *path, void *data, int64_t nbytes, int64_t offset);
/* XXH3 of a file's first `nbytes`: what `xxhsum -H3` prints. */
ms_status msi_io_hash(int fd, const char *path, int64_t nbytes, uint64_t *hash);
/* What was written is on the disk, and closing has nothing left to say. */
ms_status msi_io_sync(int fd, const char *path);
ms_status msi_io_sync_folder(const char *path);
/* The folder `path` lies in, malloced. NULL with the error set. */
char *msi_io_parent(const char *path);
/* Sync the folder `path` lies in. */
ms_status msi_io_sync_parent(const char *path);
/* The next entry of the open folder, whose path is only told; NULL at its end and on failure. */
ms_status msi_io_next(struct dirent **entry, DIR *dir, const char *path);
/* Open the folder itself, not one by a link. NULL with errno set. */
DIR *msi_io_folder(const char *path);
/* Is nothing in the folder (itself, not by a link)? */
ms_status msi_io_is_empty(bool *empty, const char *path);
/* Nothing is at `path`: MS_IO_ERROR when a link on the way leads nowhere, as where a volume is not
 * mounted, and something may well be there. */
ms_status msi_io_absent(const char *path);
/* Make a folder; with its parents. An existing one is fine for the second. */
ms_status msi_io_mkdir(const char *path);
ms_status msi_io_mkdir_all(const char *path);
ms_status msi_io_rename(const char *from, const char *to);
/* What became of a rename that asks for more than every file system and kernel can do. */
typedef enum msi_renamed {
    MSI_RENAMED,
    MSI_RENAME_TAKEN, /* something is at `to` */
    MSI_RENAME_UNABLE,
} msi_renamed;

/* As msi_io_rename() where nothing is at `to`. */
ms_status msi_io_rename_new(msi_renamed *renamed, const char *from, const char *to);
/* Let two paths change places in one step. */
ms_status msi_io_exchange(msi_renamed *renamed, const char *from, const char *to);
ms_status msi_io_symlink(const char *target, const char *path);
ms_status msi_io_unlink(const char *path);
/* Remove a file from the folder that is open as `dir`; one that is gone already is fine. */
ms_status msi_io_unlink_at(int dir, const char *name, const char *folder);
/* Remove an empty folder; one that is gone already is fine. errno tells why not. */
ms_status msi_io_rmdir(const char *path);

#endif
