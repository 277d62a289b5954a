/* Extents: the ranges that a rank owns, with their positions in its shard and in the whole. Code
 * that publishes, reduces or loads loops over extents, for every layout. */
#ifndef MSI_LAYOUT_EXTENT_H
#define MSI_LAYOUT_EXTENT_H

#include "layout.h"

typedef struct msi_extent {
    int32_t param;    /* -1: everything in the range, with padding */
    int64_t start;    /* first element, in the parameter; in the whole for -1 */
    int64_t numel;    /* elements */
    int64_t in_full;  /* position in the full parameters, in elements */
    int64_t in_shard; /* position in the owner's shard */
    int64_t in_grad;  /* position in the owner's reduced gradient */
} msi_extent;

/* Extents of `rank` (MS_INDEX_ERROR if invalid), for a gradient in the layout of a shard. Layout
 * flat has one, of shard_numel elements; layout rows one for each parameter of which it has rows.
 */
ms_status msi_layout_extents(const ms_layout *layout, int32_t rank, msi_extent *extents,
                             int32_t *n);
/* Elements of all ranks' shards in a row, the result of an all-gather. */
int64_t msi_layout_gathered_numel(const ms_layout *layout);
/* Elements of the full parameters in a row, as forward reads them. Layout flat: those gathered,
 * since the whole with its padding is the shards in a row. Layout rows: without their padding. */
int64_t msi_layout_full_numel(const ms_layout *layout);
/* True: the full parameters are the shards in a row. */
bool msi_layout_in_rank_order(const ms_layout *layout);
/* Most extents of a rank: room for msi_layout_extents(). */
int32_t msi_layout_most_extents(const ms_layout *layout);

#endif
