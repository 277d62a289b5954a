/* The search for the newest intact checkpoint under a root. */
#ifndef MSI_SEARCH_H
#define MSI_SEARCH_H

#include "listing.h"

/* [Note: beside a writer] Between the listing of a root and the opening of what it lists another
 * process may save and prune: what is gone then was no broken checkpoint, and another one may be
 * there that was not listed. So a search lists again, and only the last listing is warned about,
 * when the search ends. */
typedef struct msi_search {
    const char *root; /* borrowed */
    bool steps;       /* only those that are named by their steps */
    msi_listing listing;
    int32_t next, n_listings;
} msi_search;

/* `s` is for msi_search_end(), also when this fails. */
ms_status msi_search_begin(msi_search *s, const char *root, bool steps);
/* Name of the next candidate, valid until the next call; NULL: there is none. */
const char *msi_search_next(msi_search *s);
/* The candidate named last did not open, or is damaged; the thread's error says why. It is broken,
 * and passed over, or gone, and the search begins again. */
ms_status msi_search_pass_over(msi_search *s);
/* All candidates were passed over: MS_OK when there was none at all, nor does `latest` say so. */
ms_status msi_search_none(const msi_search *s);
/* Tell what is to be warned about. */
void msi_search_end(msi_search *s);

#endif
