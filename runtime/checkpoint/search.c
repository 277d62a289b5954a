/* The newest intact checkpoint under a root, also where others save and prune meanwhile. */
#include "search.h"
#include "base.h"

#include <stdlib.h>

enum { MAX_LISTINGS = 100 };

/* List until nothing was saved or removed meanwhile. */
static ms_status list(msi_search *s)
{
    ms_status status;

    s->next = 0;
    do {
        msi_listing_dispose(&s->listing);
        status = msi_listing_read(&s->listing, s->root, -1);
        s->n_listings++;
    } while (status == MS_OK && s->listing.stale && s->n_listings < MAX_LISTINGS);
    if (s->steps) {
        msi_listing_leave_steps(&s->listing, s->root);
    }
    return status;
}

ms_status msi_search_begin(msi_search *s, const char *root, bool steps)
{
    *s = (msi_search){.root = root, .steps = steps};
    return list(s);
}

const char *msi_search_next(msi_search *s)
{
    return s->next < s->listing.n ? s->listing.list[s->next++].name : NULL;
}

ms_status msi_search_pass_over(msi_search *s)
{
    MS_TRY(msi_listing_pass_over(&s->listing, s->root, s->listing.list[s->next - 1].name));
    return s->listing.stale && s->n_listings < MAX_LISTINGS ? list(s) : MS_OK;
}

ms_status msi_search_none(const msi_search *s)
{
    const msi_listing *l = &s->listing;

    if (l->n_broken > 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s holds %d checkpoint%s, %s: %s", s->root, l->n_broken,
                       l->n_broken > 1 ? "s" : "",
                       l->n_broken > 1 ? "none of them intact" : "which is not intact", l->broken);
    }
    if (l->lost[0] != '\0') {
        return MS_FAIL(MS_FORMAT_ERROR,
                       "%s/latest points at '%s', but no checkpoint of this folder is there",
                       s->root, msi_foreign_name(l->lost));
    }
    return l->stale ? MS_FAIL(MS_IO_ERROR, "%s: checkpoints are removed as fast as they are listed",
                              s->root)
                    : MS_OK;
}

void msi_search_end(msi_search *s)
{
    for (int32_t i = 0; i < s->listing.n_notes; i++) {
        msi_warn("UserWarning", "%s", s->listing.notes[i]);
    }
    msi_listing_dispose(&s->listing);
}
