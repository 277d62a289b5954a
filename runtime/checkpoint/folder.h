/* What in a folder of checkpoints is ours, who holds it, and removing nothing else. */
#ifndef MSI_FOLDER_H
#define MSI_FOLDER_H

#include "names.h"

/* What is at a path. */
typedef enum msi_contents {
    MSI_CONTENTS_OURS, /* a folder itself, no link, that holds a file with a name of ours */
    MSI_CONTENTS_OTHERS,
    MSI_CONTENTS_GONE, /* nothing */
} msi_contents;

/* MS_IO_ERROR, with errno, for a folder that may not be looked into. */
ms_status msi_folder_look(msi_contents *contents, const char *path);
/* [Note: who holds a folder] Processes that write and prune under one root tell each other by
 * flock() on folders. A writer holds its temporary folder until the checkpoint is published and
 * `latest` points there (the lock goes where the folder is renamed), and the checkpoint it replaces
 * until that is removed; whoever removes a folder holds it meanwhile. Single files that are written
 * beside their place (beside.h) are held alike. */
typedef enum msi_hold {
    MSI_HOLD_OURS,
    MSI_HOLD_OTHERS,
    MSI_HOLD_GONE, /* nothing at the path, or not any more what was there at first */
    MSI_HOLD_NONE, /* some network file systems have no locks */
} msi_hold;

/* Try to hold what was opened as `fd` at `path` until it is closed. */
ms_status msi_hold_open(int fd, msi_hold *hold, const char *path);
/* Make what has a temporary name beside `place` that no other writer has, and hold it. `make` gives
 * a descriptor of it, -1 when it was removed meanwhile: somebody who sweeps may come before it is
 * held. Then, and when the name is taken (EEXIST), another is made. `*fd` (-1 before) and `*path`
 * (NULL before) are the caller's, also when it fails, and name nothing of others; `nonce` has room
 * for MSI_NONCE_ROOM bytes and begins with `mark`, a few of its 16 digits or "". */
ms_status msi_hold_new(int *fd, char **path, char *nonce, const char *mark, const char *place,
                       ms_status (*make)(int *fd, const char *path));
/* Make a folder and open it: what msi_hold_new() asks for. */
ms_status msi_folder_make(int *fd, const char *path);
/* Try to hold the folder at `path`, which is no link, until `*fd` is closed. `*fd` is -1 when it is
 * others' or gone. */
ms_status msi_folder_hold(int *fd, msi_hold *hold, const char *path);
/* Remove the files a writer makes from the folder at `path`, then the folder. Links are not
 * followed, and a folder that is gone already is fine. What is not ours stays, and the folder with
 * it: then `*others` is true. */
ms_status msi_folder_remove(const char *path, bool *others);
/* As msi_folder_remove(), but first give the folder the name `doomed`, so that nobody sees it with
 * files missing and no late rank adds to it. It gets its name back when it holds things of others.
 */
ms_status msi_folder_retire(const char *path, const char *doomed, bool *others);
/* Remove what dead writers left in `root`, and nothing that is held: of checkpoint `name` and
 * of `latest` only, or of all (NULL). Warns about what cannot be removed. */
ms_status msi_folder_sweep(const char *root, const char *name);
/* As msi_folder_sweep(), but what those left that wrote the single file `name`. */
ms_status msi_folder_sweep_files(const char *root, const char *name);

#endif
