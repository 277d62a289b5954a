/* The link `latest` of a folder of checkpoints. */
#ifndef MSI_POINTER_H
#define MSI_POINTER_H

#include "base.h"

#include <limits.h>

typedef struct msi_pointer {
    char text[256];          /* what it says, from anywhere and cut; "": there is no link */
    char name[NAME_MAX + 1]; /* of what it leads to in the folder, however that is spelt; "": it
                                leads elsewhere or nowhere */
} msi_pointer;

ms_status msi_pointer_read(msi_pointer *p, const char *root);

#endif
