/* The two layouts, a table of functions each, and what both share. */
#ifndef MSI_LAYOUT_KIND_H
#define MSI_LAYOUT_KIND_H

#include "extent.h"

typedef struct msi_layout_kind {
    /* Is the full one the shards in a row? Else an all-gather's result is copied by extents. */
    bool in_rank_order;
    /* `rank` and `param` are valid. `*piece` is zeroed. */
    void (*piece)(const ms_layout *l, int32_t rank, int32_t param, ms_layout_piece *piece);
    /* Returns their number. */
    int32_t (*extents)(const ms_layout *l, int32_t rank, msi_extent *extents);
} msi_layout_kind;

extern const msi_layout_kind msi_layout_kind_flat, msi_layout_kind_rows;

struct ms_layout {
    uint32_t magic;
    const msi_layout_kind *kind;
    int64_t total;
    int64_t shard_numel;
    int32_t world_size;
    int32_t n_params;
    int32_t n_entries;
    int32_t *entry_of;        /* (n_params) index of the parameter's entry */
    ms_layout_entry *entries; /* (n_entries) */
    int64_t *row_numel;       /* rows: (n_params) elements of a row, else NULL */
    int64_t *in_shard;        /* rows: (n_params) offset of the parameter's piece in a shard */
};

static inline int64_t msi_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static inline int64_t msi_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A layout of `n` parameters of `numels` elements in a row, each at a multiple of `align`, and then
 * padding to a multiple of `multiple`. Shards are not yet set. */
ms_status msi_layout_new(ms_layout **out, const msi_layout_kind *kind, const int64_t *numels,
                         int32_t n, int64_t align, int64_t multiple, int32_t world_size);

#endif
