/* The step that makes a folder of files a checkpoint. */
#ifndef MSI_PUBLISH_H
#define MSI_PUBLISH_H

#include "manifest.h"

/* May `<root>/<name>` be replaced: is it nothing, an empty folder, a checkpoint, or a folder with
 * the name of a step? */
ms_status msi_checkpoint_check_target(const char *root, const char *name);
/* Write the manifest into `folder`, sync both, open the folder as a reader would and compare with
 * the manifest, rename the folder to `<root>/<name>`, point `<root>/latest` there, sync the root.
 * Up to the rename a failure leaves everything but `folder` as it was. A failure after it is a
 * warning, as the checkpoint is there. */
ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const msi_manifest_draft *draft);

#endif
