/* Extents: what a rank holds, as stretches with their places in its shard and in the whole. Who
 * publishes, reduces or loads loops over extents, whatever the layout. */
#ifndef MSI_LAYOUT_EXTENT_H
#define MSI_LAYOUT_EXTENT_H

#include "layout.h"

typedef struct msi_extent {
    int32_t param;    /* -1: of all that lies there, padding too */
    int64_t start;    /* first element held, in the parameter; in the whole for -1 */
    int64_t numel;    /* elements */
    int64_t in_full;  /* place in the full parameters, in elements ... */
    int64_t in_shard; /* ... and in the shard of the rank that holds it */
} msi_extent;

/* Extents of `rank` (MS_INDEX_ERROR for one that is none). Of a flat layout one, of shard_numel
 * elements. */
ms_status msi_layout_extents(const ms_layout *layout, int32_t rank, msi_extent *extents,
                             int32_t *n);
/* Elements of all ranks' shards, one behind the other: what an all-gather of shards fills. Of a
 * flat layout it is the whole as it lies, with the zeros on its right. */
int64_t msi_layout_gathered_numel(const ms_layout *layout);
/* The most that a rank has: room for msi_layout_extents(). */
int32_t msi_layout_most_extents(const ms_layout *layout);

#endif
