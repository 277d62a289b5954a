/* A single file that is written beside its place and put there whole. */
#ifndef MSI_BESIDE_H
#define MSI_BESIDE_H

#include "base.h"

typedef struct msi_beside {
    char *target; /* what will be replaced */
    char *path;   /* what is written meanwhile */
    int fd;       /* `path`, held ([Note: who holds a folder] in folder.h); -1: none */
} msi_beside;

/* Begin to write the file at `path`: nothing, a regular file, or a link to one, which is followed.
 * MS_VALUE_ERROR when anything else is there. Removes what others left that died while they wrote
 * it. */
ms_status msi_beside_begin(msi_beside *b, const char *path);
/* When `status` is MS_OK, sync the file and put it in place, else remove it. Frees `b`'s contents.
 * @return the outcome: a failure leaves what was there as it was. What fails after the rename is a
 * warning, as the new file is there and whole */
ms_status msi_beside_end(msi_beside *b, ms_status status);

#endif
