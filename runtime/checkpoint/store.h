/* The checkpoints under a root, in the order of trying. */
#ifndef MSI_STORE_H
#define MSI_STORE_H

#include "moonshard/checkpoint.h"

typedef struct msi_found {
    char *name;
    int64_t step;
} msi_found;

typedef struct msi_listing {
    const char *root; /* borrowed */
    int64_t from;     /* only those named by their step, from this one; -1: all */
    bool warns;       /* warn about skipped ones */
    bool gone;        /* another process removed a candidate */
    bool lost;        /* `latest` points to no checkpoint of the root */
    msi_found *list;  /* `latest`'s, then by step, newest first */
    int32_t n, next;  /* next: for msi_listing_next() */
    int32_t n_broken;
    char broken[900]; /* reasons of the broken ones, truncated */
} msi_listing;

/* List the checkpoints under `root` with a valid manifest and files of the right sizes; none if it
 * is missing. Candidates are folders (not links) with a manifest or a rank's file that are neither
 * temporary nor hidden. MS_IO_ERROR if one cannot be read now, except without permission if it is
 * not named by a step. The caller disposes of the listing, in any case. */
ms_status msi_listing_read(msi_listing *l, const char *root, int64_t from, bool warns);
/* The next candidate's name, owned by the listing; NULL at the end. */
const char *msi_listing_next(msi_listing *l);
/* A candidate failed to open or is damaged, by the thread's error. Counts as broken unless another
 * process removed it. */
ms_status msi_listing_pass_over(msi_listing *l, const char *name);
/* Result without an intact candidate: MS_OK if there was none at all, MS_IO_ERROR if other
 * processes removed the listed ones. */
ms_status msi_listing_none(const msi_listing *l);
void msi_listing_dispose(msi_listing *l);

#endif
