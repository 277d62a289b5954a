#include "accumulate.h"

/* -- the running micro-batch ------------------------------------------------------------------- */

ms_status msi_micro_new(msi_accumulator *a)
{
    MS_TRY(msi_alloc(a->ctx, a->numel * ms_dtype_size(a->micro_dtype), MS_MEM_GRADIENT, &a->micro));
    a->is_ours = true;
    return MS_OK;
}

void msi_micro_in_slot(msi_accumulator *a, void *slot)
{
    a->micro = slot;
    a->is_ours = false;
}

void msi_micro_drop(msi_accumulator *a)
{
    if (a->is_ours) {
        msi_release(a->ctx, a->micro);
    }
    a->micro = NULL;
    a->is_ours = false;
}

/* -- merging ----------------------------------------------------------------------------------- */

bool msi_accumulator_holds(const msi_accumulator *a)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        if (a->level[i].data != NULL) {
            return true;
        }
    }
    return false;
}

void msi_accumulator_free_levels(msi_accumulator *a)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        msi_release(a->ctx, a->level[i].data);
        a->level[i].data = NULL;
    }
}

/* low + high in the node dtype, into `out`, or into whichever operand has room, or into new memory
 * (only two micro-batches need that). Frees the operands of ours that it does not reuse. After an
 * error both are as before. */
static ms_status merge(msi_accumulator *a, msi_node low, msi_node high, bool high_is_ours,
                       void *out, msi_node *merged)
{
    const msi_tree_source src[] = {{low.data, low.dtype}, {high.data, high.dtype}};
    msi_tree_args args = {
        .n = a->numel, .n_src = 2, .src = src, .round_dtype = a->node_dtype, .factor = 1};

    if (out == NULL) {
        out = low.dtype == a->node_dtype                    ? low.data
              : high.dtype == a->node_dtype && high_is_ours ? high.data
                                                            : NULL;
    }
    if (out == NULL) {
        MS_TRY(msi_alloc(a->ctx, args.n * ms_dtype_size(a->node_dtype), MS_MEM_GRADIENT, &out));
    }
    args.out = out;
    MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, a->node_dtype, &args));
    if (low.data != out) {
        msi_release(a->ctx, low.data);
    }
    if (high_is_ours && high.data != out) {
        msi_release(a->ctx, high.data);
    }
    *merged = (msi_node){out, a->node_dtype};
    return MS_OK;
}

/* What is at hand and level j become one, in `out` or as merge() chooses. Either may be empty.
 * `dtype` is that of what is at hand. After an error both are as before. */
static ms_status merge_level(msi_accumulator *a, int32_t j, void *out, int32_t *dtype)
{
    msi_node low = a->level[j], node = {a->micro, *dtype};

    if (low.data == NULL) {
        return MS_OK;
    }
    if (node.data == NULL) {
        node = low;
    } else {
        MS_TRY(merge(a, low, node, a->is_ours, out, &node));
    }
    a->level[j].data = NULL;
    a->micro = node.data;
    a->is_ours = node.data != out;
    *dtype = node.dtype;
    return MS_OK;
}

ms_status msi_accumulator_keep(msi_accumulator *a, uint64_t n_kept)
{
    int32_t j = 0, dtype = a->micro_dtype;

    for (; (n_kept >> j & 1) != 0; j++) {
        MS_TRY(merge_level(a, j, NULL, &dtype));
    }
    a->level[j] = (msi_node){a->micro, dtype};
    a->micro = NULL;
    a->is_ours = false;
    return MS_OK;
}

/* What had nothing to merge with, as the slot wants it. */
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
        last = a->level[j].data != NULL ? j : last;
    }
    for (int32_t j = 0; j <= last; j++) {
        MS_TRY(merge_level(a, j, j == last ? slot : NULL, &dtype));
    }
    if (a->is_ours) {
        MS_TRY(move(a, dtype, slot, slot_dtype));
    }
    msi_micro_drop(a);
    return MS_OK;
}

/* -- what may be seen of it before it is reduced ----------------------------------------------- */

ms_status msi_accumulator_sum(const msi_accumulator *a, int64_t first, int64_t n, void *out)
{
    msi_tree_source src[2] = {{NULL, 0}, {out, a->node_dtype}};
    msi_tree_args args = {
        .n = n, .src = src, .out = out, .round_dtype = a->node_dtype, .factor = 1};

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        const msi_node *level = &a->level[j];

        if (level->data == NULL) {
            continue;
        }
        src[0] = (msi_tree_source){(char *)level->data + first * ms_dtype_size(level->dtype),
                                   level->dtype};
        args.n_src = args.n_src == 0 ? 1 : 2;
        MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, a->node_dtype, &args));
    }
    return MS_OK;
}
