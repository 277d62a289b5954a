/* A single file, written under a temporary name and then renamed. */
#ifndef MSI_ATOMIC_FILE_H
#define MSI_ATOMIC_FILE_H

#include "io.h"

typedef struct msi_atomic_file {
    msi_path target; /* the file to replace */
    msi_path path;   /* the temporary file */
    int fd;          /* `path`, locked ([Note: locks] in paths.h); -1: none */
} msi_atomic_file;

/* Begin writing the file at `path`: missing, a regular file, or a link to one, which is followed;
 * else MS_VALUE_ERROR. Removes what dead writers of this file left. */
ms_status msi_atomic_file_begin(msi_atomic_file *f, const char *path);
/* If `status` is MS_OK sync and rename the file, else remove it.
 * @return the outcome: a failure leaves the old file unchanged. A failure after the rename is a
 *         warning, since the new file is complete */
ms_status msi_atomic_file_end(msi_atomic_file *f, ms_status status);

#endif
