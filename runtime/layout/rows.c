/* Layout rows: every parameter is cut along dimension 0, as torch.chunk cuts. A shard has the rows
 * of every parameter in order, each padded to those of rank 0, so that all shards are equally long;
 * the full parameters have no such padding. */
#include "array.h"
#include "base.h"
#include "layout_kind.h"

#include <stdlib.h>

/* Above this, products with the world size may overflow. */
static const int64_t ROWS_MAX = INT64_C(1) << 60;

ms_status ms_layout_rows(int64_t rows, int32_t world_size, int32_t rank, int64_t *first,
                         int64_t *count, int64_t *padded)
{
    if (rows < 0 || rows > ROWS_MAX) {
        return MS_FAIL(MS_VALUE_ERROR, "cannot cut %lld rows", (long long)rows);
    }
    if (world_size < 1 || rank < 0 || rank >= world_size) {
        return MS_FAIL(MS_VALUE_ERROR, "rank %d of a world of %d", rank, world_size);
    }
    *padded = msi_ceil_div(rows, world_size);
    *first = msi_smaller(rank * *padded, rows);
    *count = msi_smaller(*padded, rows - *first);
    return MS_OK;
}

static void cut(ms_layout *l, const int64_t *numels, const int64_t *row_numels)
{
    for (int32_t i = 0; i < l->n_params; i++) {
        const int64_t rows = row_numels[i] > 0 ? numels[i] / row_numels[i] : 0;

        l->row_numel[i] = row_numels[i];
        l->in_shard[i] = l->shard_numel;
        l->shard_numel += msi_ceil_div(rows, l->world_size) * row_numels[i];
    }
}

ms_status ms_layout_by_rows(ms_layout **out, const int64_t *numels, const int64_t *row_numels,
                            int32_t n, int64_t align, int32_t world_size)
{
    ms_layout *l;

    *out = NULL;
    MS_TRY(msi_layout_new(&l, &msi_layout_kind_rows, numels, n, align, 1, world_size));
    ms_status status = msi_new_array(&l->row_numel, n, "rows of a layout");

    if (status == MS_OK) {
        status = msi_new_array(&l->in_shard, n, "rows of a layout");
    }
    for (int32_t i = 0; status == MS_OK && i < n; i++) {
        if (row_numels[i] < 0 || numels[i] % (row_numels[i] > 0 ? row_numels[i] : 1) != 0) {
            status = MS_FAIL(MS_VALUE_ERROR, "parameter %d has %lld elements in rows of %lld", i,
                             (long long)numels[i], (long long)row_numels[i]);
        }
    }
    if (status != MS_OK) {
        ms_layout_free(l);
        return status;
    }
    cut(l, numels, row_numels);
    *out = l;
    return MS_OK;
}

static void piece_of(const ms_layout *l, int32_t rank, int32_t param, ms_layout_piece *piece)
{
    const int64_t numel = l->entries[l->entry_of[param]].numel, row = l->row_numel[param];
    const int64_t rows = row > 0 ? numel / row : 0, each = msi_ceil_div(rows, l->world_size);
    const int64_t first = msi_smaller(rank * each, rows);

    piece->present = true;
    piece->offset_in_shard = l->in_shard[param];
    piece->start = first * row;
    piece->numel = msi_smaller(each, rows - first) * row;
}

static int32_t extents_of(const ms_layout *l, int32_t rank, msi_extent *extents)
{
    int32_t n = 0;

    for (int32_t i = 0; i < l->n_params; i++) {
        ms_layout_piece p;

        piece_of(l, rank, i, &p);
        if (p.numel > 0) {
            extents[n++] = (msi_extent){.param = i,
                                        .start = p.start,
                                        .numel = p.numel,
                                        .in_full = l->entries[l->entry_of[i]].offset + p.start,
                                        .in_shard = p.offset_in_shard,
                                        .in_grad = p.offset_in_shard};
        }
    }
    return n;
}

const msi_layout_kind msi_layout_kind_rows = {false, piece_of, extents_of};
