/* What every layout has: parameters in a row, with padding. */
#include "array.h"
#include "base.h"
#include "layout_kind.h"

#include <stdlib.h>
#include <string.h>

/* Above this, products with the world size may overflow. */
static const int64_t NUMEL_MAX = INT64_C(1) << 60;

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

ms_status msi_layout_new(ms_layout **out, const msi_layout_kind *kind, const int64_t *numels,
                         int32_t n, int64_t align, int64_t multiple, int32_t world_size)
{
    ms_layout *l;
    bool fits = true;

    *out = NULL;
    if (n < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "a layout needs at least one parameter, got %d", n);
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
    l->kind = kind;
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
    if (!fits || !pad_to(l, multiple)) {
        ms_layout_free(l);
        return MS_FAIL(MS_VALUE_ERROR, "a flat of %d parameters has more than 2^60 elements", n);
    }
    *out = l;
    return MS_OK;
}

void ms_layout_free(ms_layout *layout)
{
    if (layout != NULL) {
        MSI_HANDLE(layout, MSI_MAGIC_LAYOUT);
        free(layout->entry_of);
        free(layout->entries);
        free(layout->row_numel);
        free(layout->in_shard);
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

static ms_status check_rank(const ms_layout *layout, int32_t rank)
{
    return rank >= 0 && rank < layout->world_size
               ? MS_OK
               : MS_FAIL(MS_INDEX_ERROR, "rank %d of a world of %d", rank, layout->world_size);
}

ms_status ms_layout_piece_get(const ms_layout *layout, int32_t rank, int32_t param,
                              ms_layout_piece *piece)
{
    *piece = (ms_layout_piece){0};
    MS_TRY(check_rank(layout, rank));
    if (param < 0 || param >= layout->n_params) {
        return MS_FAIL(MS_INDEX_ERROR, "parameter %d of a layout with %d", param, layout->n_params);
    }
    layout->kind->piece(layout, rank, param, piece);
    return MS_OK;
}

static bool have_equal_entries(const ms_layout *a, const ms_layout *b)
{
    for (int32_t i = 0; i < a->n_entries; i++) {
        const ms_layout_entry *x = &a->entries[i], *y = &b->entries[i];

        if (x->offset != y->offset || x->numel != y->numel || x->param != y->param) {
            return false;
        }
    }
    return true;
}

bool ms_layout_equal(const ms_layout *a, const ms_layout *b)
{
    return a->kind == b->kind && a->world_size == b->world_size &&
           a->shard_numel == b->shard_numel && a->n_params == b->n_params &&
           a->n_entries == b->n_entries && have_equal_entries(a, b) &&
           (a->row_numel == NULL ||
            memcmp(a->row_numel, b->row_numel, (size_t)a->n_params * sizeof(*a->row_numel)) == 0);
}

int64_t msi_layout_gathered_numel(const ms_layout *layout)
{
    return layout->world_size * layout->shard_numel;
}

bool msi_layout_in_rank_order(const ms_layout *layout)
{
    return layout->kind->in_rank_order;
}

int64_t msi_layout_full_numel(const ms_layout *layout)
{
    return layout->kind->in_rank_order ? msi_layout_gathered_numel(layout) : layout->total;
}

int32_t msi_layout_most_extents(const ms_layout *layout)
{
    return layout->n_params;
}

ms_status msi_layout_extents(const ms_layout *layout, int32_t rank, msi_extent *extents, int32_t *n)
{
    MS_TRY(check_rank(layout, rank));
    *n = layout->kind->extents(layout, rank, extents);
    return MS_OK;
}
