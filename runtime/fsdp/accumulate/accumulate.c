#include "accumulate.h"

/* -- the running micro-batch ------------------------------------------------------------------- */

ms_status msi_micro_new(msi_accumulator *a)
{
    MS_TRY(msi_alloc(a->ctx, a->numel * ms_dtype_size(a->micro_dtype), MS_MEM_GRADIENT, &a->own));
    a->micro = a->own->data;
    return MS_OK;
}

void msi_micro_in_slot(msi_accumulator *a, void *slot)
{
    a->micro = slot;
    a->own = NULL;
}

void msi_micro_drop(msi_accumulator *a)
{
    msi_release(a->own);
    a->micro = NULL;
    a->own = NULL;
}

/* -- merging ----------------------------------------------------------------------------------- */

bool msi_accumulator_holds(const msi_accumulator *a)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        if (a->level[i].block != NULL) {
            return true;
        }
    }
    return false;
}

void msi_accumulator_free_levels(msi_accumulator *a)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        msi_release(a->level[i].block);
        a->level[i].block = NULL;
    }
}

/* Sum `low` and the current gradient (`*dtype`) in the node dtype: in `slot`, in place if one of
 * them has that dtype, else in new memory (two micro-batches). Frees the blocks no longer needed.
 * After an error both are unchanged. */
static ms_status merge(msi_accumulator *a, msi_node low, void *slot, int32_t *dtype)
{
    const msi_tree_source src[] = {{low.block->data, low.dtype}, {a->micro, *dtype}};
    msi_tree_args args = {.n = a->numel,
                          .n_src = 2,
                          .src = src,
                          .out = slot,
                          .round_dtype = a->node_dtype,
                          .factor = 1};
    msi_mem_block *into = NULL, *made = NULL;

    if (slot == NULL) {
        into = low.dtype == a->node_dtype ? low.block : *dtype == a->node_dtype ? a->own : NULL;
        if (into == NULL) {
            MS_TRY(
                msi_alloc(a->ctx, args.n * ms_dtype_size(a->node_dtype), MS_MEM_GRADIENT, &made));
            into = made;
        }
        args.out = into->data;
    }
    ms_status status = msi_dispatch("gradient accumulation", MSI_K_tree, a->node_dtype, &args);

    if (status != MS_OK) {
        msi_release(made);
        return status;
    }
    if (low.block != into) {
        msi_release(low.block);
    }
    if (a->own != into) {
        msi_release(a->own);
    }
    a->micro = args.out;
    a->own = into;
    *dtype = a->node_dtype;
    return MS_OK;
}

/* Merge level j into the current gradient, which has `dtype`, in `slot` or where merge() chooses.
 * Either may be empty. After an error both are unchanged. */
static ms_status merge_level(msi_accumulator *a, int32_t j, void *slot, int32_t *dtype)
{
    const msi_node low = a->level[j];

    if (low.block == NULL) {
        return MS_OK;
    }
    if (a->micro == NULL) {
        a->micro = low.block->data;
        a->own = low.block;
        *dtype = low.dtype;
    } else {
        MS_TRY(merge(a, low, slot, dtype));
    }
    a->level[j].block = NULL;
    return MS_OK;
}

ms_status msi_accumulator_keep(msi_accumulator *a, uint64_t n_kept)
{
    int32_t j = 0, dtype = a->micro_dtype;

    for (; (n_kept >> j & 1) != 0; j++) {
        MS_TRY(merge_level(a, j, NULL, &dtype));
    }
    a->level[j] = (msi_node){a->own, dtype};
    a->micro = NULL;
    a->own = NULL;
    return MS_OK;
}

/* Copy an unmerged gradient to the slot, in the slot's dtype. */
static ms_status move(msi_accumulator *a, int32_t dtype, void *slot, int32_t slot_dtype)
{
    if (dtype == slot_dtype) {
        return msi_mem_copy(a->ctx, slot, a->micro, a->numel * ms_dtype_size(dtype));
    }
    const msi_tree_source src = {a->micro, dtype};
    const msi_tree_args args = {.n = a->numel,
                                .n_src = 1,
                                .src = &src,
                                .out = slot,
                                .round_dtype = slot_dtype,
                                .factor = 1};

    return msi_dispatch("gradient accumulation", MSI_K_tree, slot_dtype, &args);
}

ms_status msi_accumulator_fold(msi_accumulator *a, void *slot, int32_t slot_dtype)
{
    int32_t dtype = a->micro_dtype, last = -1;

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        last = a->level[j].block != NULL ? j : last;
    }
    for (int32_t j = 0; j <= last; j++) {
        void *to = j == last && slot_dtype == a->node_dtype ? slot : NULL; /* a merge's dtype */

        MS_TRY(merge_level(a, j, to, &dtype));
    }
    if (a->own != NULL) {
        MS_TRY(move(a, dtype, slot, slot_dtype));
    }
    msi_micro_drop(a);
    return MS_OK;
}

/* -- reading it before the reduction ----------------------------------------------------------- */

ms_status msi_accumulator_sum(const msi_accumulator *a, int64_t first, int64_t n, void *out)
{
    msi_tree_source src[2] = {{NULL, 0}, {out, a->node_dtype}};
    msi_tree_args args = {
        .n = n, .src = src, .out = out, .round_dtype = a->node_dtype, .factor = 1};

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        const msi_node *level = &a->level[j];

        if (level->block == NULL) {
            continue;
        }
        src[0] = (msi_tree_source){(char *)level->block->data + first * ms_dtype_size(level->dtype),
                                   level->dtype};
        args.n_src = args.n_src == 0 ? 1 : 2;
        MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, a->node_dtype, &args));
    }
    return MS_OK;
}
