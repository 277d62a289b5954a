/* Names and folders of checkpoints: what belongs to us under a root, who writes it, and removing
 * nothing else. */
#ifndef MSI_PATHS_H
#define MSI_PATHS_H

#include "comm.h"
#include "io.h"

#define MSI_MANIFEST_NAME "manifest.json"
/* A file or folder that is being written is called "<name>.tmp-<nonce>". */
#define MSI_TEMPORARY_MARK ".tmp-"
enum { MSI_SHARD_NAME = 64 }; /* bytes of a name, zero included */

/* -- names ------------------------------------------------------------------------------------- */

/* Name of file number `part` (from 0) of a rank. */
void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part);
/* Is `name` such a name? Of which rank and number of ranks? */
bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world);
/* The temporary name of what goes to `place`. */
ms_status msi_temporary_path(msi_path path, const char *place, const char *nonce);
/* Is `entry` a temporary name of `name`, or (NULL) of any? */
bool msi_is_temporary(const char *entry, const char *name);
/* The step of which `name` is the ms_checkpoint_step_name(); -1: of none. */
int64_t msi_folder_step(const char *name);

/* -- folders ----------------------------------------------------------------------------------- */

/* Call `fn` for each entry, without "." and "..", until it fails. A folder that is not there has
 * none. `links`: a symbolic link to a folder is followed. MS_IO_ERROR with errno. */
ms_status msi_folder_each(const char *path, bool links,
                          ms_status (*fn)(void *user, const char *folder, const char *name),
                          void *user);

typedef enum msi_contents {
    MSI_CONTENTS_GONE,   /* nothing is at the path */
    MSI_CONTENTS_EMPTY,  /* an empty folder */
    MSI_CONTENTS_OURS,   /* a folder that holds a manifest or a file of a rank */
    MSI_CONTENTS_OTHERS, /* a folder of something else */
    MSI_CONTENTS_NO_FOLDER,
    MSI_CONTENTS_LINK,
} msi_contents;

ms_status msi_folder_look(msi_contents *contents, const char *path);

/* [Note: locks] Processes that write and prune under one root use flock(). A writer locks its
 * temporary folder until the checkpoint is published and `latest` points there (the lock stays with
 * the folder when it is renamed), and the checkpoint it replaces until that is removed. Whoever
 * removes a folder locks it meanwhile. Single files (atomic_file.h) are locked alike. So what is
 * temporary and not locked was left by a writer that died. */
typedef enum msi_lock {
    MSI_LOCK_OURS,
    MSI_LOCK_BUSY,
    MSI_LOCK_GONE, /* nothing is at the path */
    MSI_LOCK_NONE, /* the file system has no locks */
} msi_lock;

/* Try to lock the folder at `path`, which is no link, until `*fd` is closed. `*fd` is -1 when the
 * lock is busy or the folder gone. */
ms_status msi_folder_lock(int *fd, msi_lock *lock, const char *path);
/* Create a folder (else a file) with a temporary name for `place` and lock it. `nonce` has room for
 * MSI_NONCE_ROOM bytes and begins with `mark`. On failure nothing is left. */
ms_status msi_temporary_new(int *fd, msi_path path, char *nonce, const char *mark,
                            const char *place, bool folder);
/* Remove the files of a checkpoint from the folder at `path`, then the folder. Links are not
 * followed. Files of others stay, and the folder with them: then `*others` is true. */
ms_status msi_folder_remove(const char *path, bool *others);
/* The same, after a rename to a temporary name of `place`: nobody sees a part of the folder, and no
 * late rank adds to it. With files of others in it, the folder gets its name back. */
ms_status msi_folder_retire(const char *path, const char *place, bool *others);
/* Remove what writers that died left in `root`: of checkpoint `name` and of `latest`, or of all
 * (NULL). What cannot be removed is a warning. */
ms_status msi_folder_sweep(const char *root, const char *name);

/* -- the link `latest` ------------------------------------------------------------------------- */

typedef struct msi_pointer {
    char text[256];          /* the link's target as written, cut; "": there is no link */
    char name[NAME_MAX + 1]; /* of the entry of the root it leads to; "": it leads elsewhere */
} msi_pointer;

ms_status msi_pointer_read(msi_pointer *p, const char *root);

/* -- owners ------------------------------------------------------------------------------------ */

/* Groups of one job must not replace each other's checkpoints. The nonce of a writer begins with
 * the mark of its group: digits of the job, of the least rank, and of a hash of all members. It is
 * in the name of the temporary folder and in the manifest. */
typedef struct msi_owner {
    char mark[13];
} msi_owner;

msi_owner msi_owner_of(const ms_comm *comm);
/* MS_VALUE_ERROR: another group of the job writes, or has saved, checkpoint `name` under `root`;
 * where that is the name of a step, or NULL, any step. Of two writers that ask, each with its own
 * folder locked, one at least is refused. What cannot be read belongs to nobody. */
ms_status msi_owner_check(const char *root, const char *name, const msi_owner *asks);

#endif
