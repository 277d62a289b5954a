/* A single file that is written under a temporary name and then renamed. */
#ifndef MSI_ATOMIC_FILE_H
#define MSI_ATOMIC_FILE_H

#include "io.h"

typedef struct msi_atomic_file {
    msi_path target; /* the file to replace */
    msi_path path;   /* the file that is written */
    int fd;          /* `path`, locked ([Note: locks] in paths.h); -1: none */
} msi_atomic_file;

/* Begin to write the file at `path`: nothing, a regular file, or a link to one, which is followed.
 * MS_VALUE_ERROR for anything else. Removes what writers of this file left that died. */
ms_status msi_atomic_file_begin(msi_atomic_file *f, const char *path);
/* With `status` MS_OK sync the file and rename it, else remove it.
 * @return the outcome: a failure leaves the old file as it was. A failure after the rename is a
 * warning, as the new file is there and whole */
ms_status msi_atomic_file_end(msi_atomic_file *f, ms_status status);

#endif
