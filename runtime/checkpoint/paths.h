/* Names and folders of checkpoints: which belong to us under a root, who writes them, and removing
 * nothing else. */
#ifndef MSI_PATHS_H
#define MSI_PATHS_H

#include "io.h"

#define MSI_MANIFEST_NAME "manifest.json"
/* An unfinished file or folder has the name "<name>.tmp-<nonce>". */
#define MSI_TEMPORARY_MARK ".tmp-"
enum { MSI_SHARD_NAME = 64 }; /* bytes of a name, with its zero */

/* -- names ------------------------------------------------------------------------------------- */

/* Name of file number `part` (from 0) of a rank. */
void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part);
/* True if `name` is such a name; sets rank and number of ranks. */
bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world);
/* The temporary name for `target`. */
ms_status msi_temporary_path(msi_path path, const char *target, const char *nonce);
/* True if temporary, of `name` or (NULL) of any. */
bool msi_is_temporary(const char *entry, const char *name);
/* The step whose ms_checkpoint_step_name() is `name`, or -1. */
int64_t msi_folder_step(const char *name);

/* -- folders ----------------------------------------------------------------------------------- */

/* Call `fn` for each entry except "." and ".." until it fails. A missing folder has none. `links`:
 * follow a symbolic link to a folder. MS_IO_ERROR with errno. */
ms_status msi_folder_each(const char *path, bool links,
                          ms_status (*fn)(void *user, const char *folder, const char *name),
                          void *user);

typedef enum msi_contents {
    MSI_CONTENTS_GONE,   /* missing */
    MSI_CONTENTS_EMPTY,  /* an empty folder */
    MSI_CONTENTS_OURS,   /* a folder with a manifest or a rank's file */
    MSI_CONTENTS_OTHERS, /* a folder with other contents */
    MSI_CONTENTS_NO_FOLDER,
    MSI_CONTENTS_LINK,
} msi_contents;

ms_status msi_folder_look(msi_contents *contents, const char *path);

/* [Note: locks] Processes that write and prune under one root use flock(). A writer locks its
 * temporary folder until the checkpoint is published and `latest` points there (a rename keeps the
 * lock), and the replaced checkpoint until it is removed. Removing a folder locks it. Single files
 * (atomic_file.h) likewise. So an unlocked temporary name is a dead writer's. */
typedef enum msi_lock {
    MSI_LOCK_OURS,
    MSI_LOCK_BUSY,
    MSI_LOCK_GONE, /* nothing at the path */
    MSI_LOCK_NONE, /* the file system has no locks */
} msi_lock;

/* Try to lock the folder at `path` (not a link) until `*fd` is closed. `*fd` is -1 if it is locked
 * by another or missing. */
ms_status msi_folder_lock(int *fd, msi_lock *lock, const char *path);
/* Create a folder (or file) with a temporary name for `target` and lock it. `nonce` has
 * MSI_NONCE_ROOM bytes. A failure leaves nothing. */
ms_status msi_temporary_new(int *fd, msi_path path, char *nonce, const char *target, bool folder);
/* Create the folder with the temporary name `path`, which another host has chosen, and lock it.
 * `*fd` is -1 if a third host, which shares the root, has made it. */
ms_status msi_temporary_folder(int *fd, const char *path);
/* Remove the files of a checkpoint from the folder at `path`, then the folder. Does not follow
 * links. Foreign files remain, with the folder: then `*others` is true. */
ms_status msi_folder_remove(const char *path, bool *others);
/* The same, after a rename to a temporary name of `target`: nobody sees a partial folder or adds
 * files late. With foreign files the folder gets its name back. */
ms_status msi_folder_retire(const char *path, const char *target, bool *others);
/* Remove what dead writers left in `root`: of checkpoint `name` and of `latest`, or all (NULL).
 * Warns about what it cannot remove. */
ms_status msi_folder_sweep(const char *root, const char *name);

/* -- the link `latest` ------------------------------------------------------------------------- */

typedef struct msi_pointer {
    char text[256];          /* the link's target, truncated; "": no link */
    char name[NAME_MAX + 1]; /* entry of the root it points to; "": elsewhere */
} msi_pointer;

ms_status msi_pointer_read(msi_pointer *p, const char *root);

#endif
