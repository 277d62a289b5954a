/* Layout flat: rank r's shard is elements [r * shard, (r + 1) * shard) of all parameters in a row.
 *
 * [Note: two kinds of padding] With alignment, every parameter begins at a multiple of `align`, and
 * the flat is padded to a multiple of the world size, so a reduce-scatter can read it directly.
 * Without it the flat is only the parameters; shards are padded on the right, and trailing ranks
 * may have only zeros. */
#include "base.h"
#include "layout_kind.h"

ms_status ms_layout_flat(ms_layout **out, const int64_t *numels, int32_t n, int64_t align,
                         int32_t world_size)
{
    MS_TRY(msi_layout_new(out, &msi_layout_kind_flat, numels, n, align, align > 1 ? world_size : 1,
                          world_size));
    (*out)->shard_numel = msi_ceil_div((*out)->total, world_size);
    return MS_OK;
}

/* Compares shard and parameter as inclusive ranges. So an empty parameter, [a, a - 1], is present
 * in a shard with the elements on both its sides. */
static void piece_of(const ms_layout *l, int32_t rank, int32_t param, ms_layout_piece *piece)
{
    const ms_layout_entry *e = &l->entries[l->entry_of[param]];
    int64_t shard_first = rank * l->shard_numel;
    int64_t shard_last = shard_first + l->shard_numel - 1;
    int64_t first = e->offset;
    int64_t last = e->offset + e->numel - 1;

    if (shard_first <= last && shard_last >= first) {
        piece->present = true;
        piece->start = shard_first <= first ? 0 : shard_first - first;
        piece->offset_in_shard = shard_first <= first ? first - shard_first : 0;
        piece->numel = msi_smaller(last, shard_last) - first - piece->start + 1;
    }
}

static int32_t extents_of(const ms_layout *l, int32_t rank, msi_extent *extents)
{
    extents[0] = (msi_extent){.param = -1,
                              .start = rank * l->shard_numel,
                              .numel = l->shard_numel,
                              .in_full = rank * l->shard_numel};
    return 1;
}

const msi_layout_kind msi_layout_kind_flat = {true, piece_of, extents_of};
