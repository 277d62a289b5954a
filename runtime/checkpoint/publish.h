/* Publishing: making a folder of files a checkpoint. */
#ifndef MSI_PUBLISH_H
#define MSI_PUBLISH_H

#include "manifest.h"

/* Error unless `<root>/<name>` can be replaced: missing, an empty folder, a checkpoint, or a folder
 * with a step's name. */
ms_status msi_checkpoint_check_target(const char *root, const char *name);
/* Write the manifest into `folder`, sync both, open the folder as a reader and compare the
 * manifest, rename the folder to `<root>/<name>`, set the link `<root>/latest`, sync the root.
 * Before the rename a failure changes only `folder`. A later failure is a warning, as the
 * checkpoint exists. */
ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const msi_manifest_draft *draft);

#endif
