/* The checkpoints of one folder. */
#ifndef MSI_STORE_H
#define MSI_STORE_H

#include "moonshard/checkpoint.h"

typedef struct msi_found {
    char *name;
    int64_t step;
} msi_found;

typedef struct msi_listing {
    msi_found *list; /* where `latest` points, then newest first: by step, equal ones by name */
    int32_t n, n_broken;
    char broken[900]; /* what is wrong with each that was passed over; cut */
    char lost[256];   /* what `latest` says when it leads to no checkpoint of the folder; cut */
} msi_listing;

/* Checkpoints under `root` whose manifest is sound and whose files have their sizes; none when
 * there is no such folder. `tell`: warn about those that are not so. Anything counts as a
 * checkpoint that msi_folder_holds_ours(), unless its writer has not published it or its name is
 * hidden. The caller owns the struct, the runtime its contents. */
ms_status msi_listing_read(msi_listing *l, const char *root, bool tell);
void msi_listing_dispose(msi_listing *l);
/* Leave what is named by its step (ms_checkpoint_step_name()), in order. `tell`: warn when what
 * would have come first is not. */
void msi_listing_leave_steps(msi_listing *l, const char *root, bool tell);
/* A checkpoint did not open, the thread's error says why: MS_OK when it is broken and passed over
 * (with a warning if `tell`), else `status`. */
ms_status msi_listing_pass_over(msi_listing *l, ms_status status, bool tell);
/* None that was listed is intact: MS_OK when there was none at all, nor does `latest` say so. */
ms_status msi_listing_none(const msi_listing *l, const char *root);

#endif
