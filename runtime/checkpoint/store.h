/* The checkpoints under a root, in the order in which they are tried. */
#ifndef MSI_STORE_H
#define MSI_STORE_H

#include "moonshard/checkpoint.h"

typedef struct msi_found {
    char *name;
    int64_t step;
} msi_found;

typedef struct msi_listing {
    const char *root; /* borrowed */
    int64_t from;     /* only those named by their own step, from this one on; -1: all */
    bool warns;       /* about what is passed over */
    bool gone;        /* a candidate was removed by another process */
    bool lost;        /* `latest` leads to no checkpoint of the root */
    msi_found *list;  /* where `latest` points, then by step, newest first */
    int32_t n, next;  /* `next`: of msi_listing_next() */
    int32_t n_broken;
    char broken[900]; /* what is wrong with the broken ones; cut */
} msi_listing;

/* List the checkpoints under `root` whose manifest is sound and whose files have their sizes; none
 * when there is no such folder. Each folder (no link) counts that holds a manifest or a file of a
 * rank, is not temporary and not hidden. MS_IO_ERROR for one that cannot be read now, unless
 * permission is missing and its name is not that of a step. The caller disposes of the listing,
 * also after a failure. */
ms_status msi_listing_read(msi_listing *l, const char *root, int64_t from, bool warns);
/* The next candidate's name, valid as long as the listing; NULL: there is none. */
const char *msi_listing_next(msi_listing *l);
/* A candidate did not open, or is damaged; the thread's error says why. It counts as broken, unless
 * another process has removed it. */
ms_status msi_listing_pass_over(msi_listing *l, const char *name);
/* No candidate was intact: MS_OK when there was no checkpoint at all, MS_IO_ERROR when other
 * processes have removed what was listed. */
ms_status msi_listing_none(const msi_listing *l);
void msi_listing_dispose(msi_listing *l);

#endif
