/* The checkpoints of one folder. */
#ifndef MSI_STORE_H
#define MSI_STORE_H

#include "moonshard/checkpoint.h"

typedef struct msi_found {
    char *name;
    int64_t step;
} msi_found;

/* Newest first: by step, equal ones by name. */
typedef struct msi_listing {
    msi_found *list;
    int32_t n;
} msi_listing;

/* Checkpoints under `root` whose manifest is sound and whose files have their sizes; none when
 * there is no such folder. `tell`: warn about those that are not so. The caller owns the struct,
 * the runtime its contents. */
ms_status msi_listing_read(msi_listing *l, const char *root, bool tell);
void msi_listing_dispose(msi_listing *l);
/* A checkpoint did not open, the thread's error says why: MS_OK when it is broken and passed over
 * (with a warning if `tell`), else `status`. */
ms_status msi_pass_over(ms_status status, bool tell);

#endif
