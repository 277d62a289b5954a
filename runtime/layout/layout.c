/* Offsets in the flat buffer, padding, and owners of elements.
 *
 * [Note: two kinds of padding] With alignment, every parameter begins at a multiple of `align`, and
 * the flat is padded to a multiple of the world size, so a reduce-scatter can read it directly.
 * Without it the flat is only the parameters; shards are padded on the right, and trailing ranks
 * may have only zeros. In both cases rank r's shard is [r * shard, (r + 1) * shard). */
#include "layout.h"
#include "array.h"
#include "base.h"
#include "extent.h"

#include <stdlib.h>

struct ms_layout {
    uint32_t magic;
    int64_t total;
    int64_t shard_numel;
    int32_t world_size;
    int32_t n_params;
    int32_t n_entries;
    int32_t *entry_of;        /* (n_params) index of the parameter's entry */
    ms_layout_entry *entries; /* (n_entries) */
};

/* Above this, products with the world size may overflow. */
static const int64_t NUMEL_MAX = INT64_C(1) << 60;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Append `numel` elements; true while the flat is addressable. */
static bool append(ms_layout *l, int64_t numel, int32_t param)
{
    if (numel > NUMEL_MAX - l->total) {
        return false;
    }
    l->entries[l->n_entries++] =
        (ms_layout_entry){.offset = l->total, .numel = numel, .param = param};
    l->total += numel;
    return true;
}

/* Append padding to a multiple of `multiple`. */
static bool pad_to(ms_layout *l, int64_t multiple)
{
    int64_t over = l->total % multiple;

    return over == 0 || append(l, multiple - over, -1);
}

ms_status ms_layout_flat(ms_layout **out, const int64_t *numels, int32_t n, int64_t align,
                         int32_t world_size)
{
    ms_layout *l;
    bool fits = true;

    *out = NULL;
    if (n < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "a flat layout needs at least one parameter, got %d", n);
    }
    if (align < 0 || align > NUMEL_MAX) {
        return MS_FAIL(MS_VALUE_ERROR, "alignment must not be negative, got %lld",
                       (long long)align);
    }
    if (world_size < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "world size must be at least 1, got %d", world_size);
    }
    for (int32_t i = 0; i < n; i++) {
        if (numels[i] < 0) {
            return MS_FAIL(MS_VALUE_ERROR, "parameter %d has %lld elements", i,
                           (long long)numels[i]);
        }
    }

    MS_TRY(msi_new_array(&l, 1, "layout"));
    l->magic = MSI_MAGIC_LAYOUT;
    ms_status status = msi_new_array(&l->entry_of, n, "parameters of a layout");
    if (status == MS_OK) { /* padding before each, and last */
        status = msi_new_array(&l->entries, 2 * (int64_t)n + 1, "entries of a layout");
    }
    if (status != MS_OK) {
        ms_layout_free(l);
        return status;
    }
    l->world_size = world_size;
    l->n_params = n;
    for (int32_t i = 0; i < n && fits; i++) {
        fits = align <= 1 || pad_to(l, align);
        if (fits) {
            l->entry_of[i] = l->n_entries;
            fits = append(l, numels[i], i);
        }
    }
    if (fits && align > 1) {
        fits = pad_to(l, world_size);
    }
    if (!fits) {
        ms_layout_free(l);
        return MS_FAIL(MS_VALUE_ERROR, "a flat of %d parameters has more than 2^60 elements", n);
    }
    l->shard_numel = ceil_div(l->total, world_size);
    *out = l;
    return MS_OK;
}

void ms_layout_free(ms_layout *layout)
{
    if (layout != NULL) {
        MSI_HANDLE(layout, MSI_MAGIC_LAYOUT);
        free(layout->entry_of);
        free(layout->entries);
        free(layout);
    }
}

int64_t ms_layout_total(const ms_layout *layout)
{
    return layout->total;
}

int64_t ms_layout_shard_numel(const ms_layout *layout)
{
    return layout->shard_numel;
}

int32_t ms_layout_n_entries(const ms_layout *layout)
{
    return layout->n_entries;
}

ms_status ms_layout_entry_get(const ms_layout *layout, int32_t i, ms_layout_entry *entry)
{
    if (i < 0 || i >= layout->n_entries) {
        return MS_FAIL(MS_INDEX_ERROR, "entry %d of a layout with %d", i, layout->n_entries);
    }
    *entry = layout->entries[i];
    return MS_OK;
}

int64_t ms_layout_offset(const ms_layout *layout, int32_t param)
{
    return layout->entries[layout->entry_of[param]].offset;
}

/* Compares shard and parameter as inclusive ranges. So an empty parameter, [a, a - 1], is present
 * in a shard with the elements on both its sides. */
ms_status ms_layout_piece_get(const ms_layout *layout, int32_t rank, int32_t param,
                              ms_layout_piece *piece)
{
    *piece = (ms_layout_piece){0};
    if (rank < 0 || rank >= layout->world_size) {
        return MS_FAIL(MS_INDEX_ERROR, "rank %d of a world of %d", rank, layout->world_size);
    }
    if (param < 0 || param >= layout->n_params) {
        return MS_FAIL(MS_INDEX_ERROR, "parameter %d of a layout with %d", param, layout->n_params);
    }

    const ms_layout_entry *e = &layout->entries[layout->entry_of[param]];
    int64_t shard_first = rank * layout->shard_numel;
    int64_t shard_last = shard_first + layout->shard_numel - 1;
    int64_t first = e->offset;
    int64_t last = e->offset + e->numel - 1;

    if (shard_first <= last && shard_last >= first) {
        piece->present = true;
        piece->start = shard_first <= first ? 0 : shard_first - first;
        piece->offset_in_shard = shard_first <= first ? first - shard_first : 0;
        piece->numel = smaller(last, shard_last) - first - piece->start + 1;
    }
    return MS_OK;
}

int64_t msi_layout_gathered_numel(const ms_layout *layout)
{
    return layout->world_size * layout->shard_numel;
}

int32_t msi_layout_most_extents(const ms_layout *layout)
{
    (void)layout;
    return 1;
}

ms_status msi_layout_extents(const ms_layout *layout, int32_t rank, msi_extent *extents, int32_t *n)
{
    if (rank < 0 || rank >= layout->world_size) {
        return MS_FAIL(MS_INDEX_ERROR, "rank %d of a world of %d", rank, layout->world_size);
    }
    extents[0] = (msi_extent){.param = -1,
                              .start = rank * layout->shard_numel,
                              .numel = layout->shard_numel,
                              .in_full = rank * layout->shard_numel};
    *n = 1;
    return MS_OK;
}

ms_status ms_layout_rows(int64_t rows, int32_t world_size, int32_t rank, int64_t *first,
                         int64_t *count, int64_t *padded)
{
    if (rows < 0 || rows > NUMEL_MAX) {
        return MS_FAIL(MS_VALUE_ERROR, "cannot cut %lld rows", (long long)rows);
    }
    if (world_size < 1 || rank < 0 || rank >= world_size) {
        return MS_FAIL(MS_VALUE_ERROR, "rank %d of a world of %d", rank, world_size);
    }
    *padded = ceil_div(rows, world_size);
    *first = smaller(rank * *padded, rows);
    *count = smaller(*padded, rows - *first);
    return MS_OK;
}
