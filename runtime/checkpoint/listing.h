/* The checkpoints under a root. */
#ifndef MSI_LISTING_H
#define MSI_LISTING_H

#include "moonshard/checkpoint.h"

typedef struct msi_found {
    char *name;
    int64_t step;
    bool unread; /* it cannot be read now, and `step` is what its name says */
} msi_found;

typedef struct msi_listing {
    msi_found *list; /* where `latest` points, then newest first: by step, equal ones by name */
    int32_t n, n_broken, n_notes;
    char **notes;     /* what a search warns about */
    char broken[900]; /* what is wrong with each that was passed over; cut */
    char lost[256];   /* what `latest` says when it leads to no checkpoint of the folder; cut */
    bool stale;       /* others have removed or saved one meanwhile, which may be missing here */
} msi_listing;

/* Checkpoints under `root` whose manifest is sound and whose files have their sizes; none when
 * there is no such folder. Every folder counts as a checkpoint that is MSI_CONTENTS_OURS, unless
 * its writer has not published it or its name is hidden. One that cannot be read now is listed when
 * it is named by a step, else MS_IO_ERROR; but a folder that may not be opened is none, and noted,
 * unless `latest` leads there. The caller owns the struct, the runtime its contents.
 * @param from  only those that are named by a step from this one on; -1: all */
ms_status msi_listing_read(msi_listing *l, const char *root, int64_t from);
void msi_listing_dispose(msi_listing *l);
/* A checkpoint of the listing is not intact, the thread's error says why: it is broken and noted
 * so, or gone, and the listing stale. */
ms_status msi_listing_pass_over(msi_listing *l, const char *root, const char *name);
/* Put number `i` before the others. */
void msi_listing_move_first(msi_listing *l, int32_t i);
/* Leave what is named by its step (ms_checkpoint_step_name()), in order; note when what would have
 * come first is not. */
void msi_listing_leave_steps(msi_listing *l, const char *root);

#endif
