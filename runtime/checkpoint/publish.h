/* The last steps of a checkpoint, by one rank.
 *
 * [Note: order on disk] Ranks write into `<root>/<name>.tmp-<nonce>`, each its own files, and sync
 * them. When all have, rank 0 writes the manifest, syncs it and the folder, renames the folder,
 * syncs the root, and moves the pointer `latest`. Before the rename nothing but the temporary
 * folder has changed; after it everything the manifest names is on disk. An older checkpoint of the
 * same name changes places with the new one and is removed last. */
#ifndef MSI_PUBLISH_H
#define MSI_PUBLISH_H

#include "base.h"

/* Write the manifest into `folder`, whose files are synced, and make it `<root>/<name>`. On failure
 * the folder is where it was, and so is an older checkpoint. */
ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const char *manifest);

#endif
