/* The tree over the micro-batches of one rank, and what may be seen of it before it is reduced.
 *
 * [Note: gradient tree] Leaves of one rank merge as a binary counter (no_sync): leaf k merges as
 * often as k has trailing ones. Then the ranks' roots merge by the same rule. With m micro-batches
 * a rank (m a power of two) leaf i = r m + k stands at the same place of the same tree whatever the
 * number of ranks, so the sum has the same bits. Inner nodes are f32 (f64 for f64); the one
 * multiplication comes after the tree, then one rounding.
 *
 * The model counts, not the unit: one that a micro-batch does not reach has an empty leaf there,
 * and empty + x = x. So it is the same tree for every unit, however the model was wrapped. Level j
 * of a unit may hold something when bit j of the count is set. */
#include "fsdp.h"

#include <string.h>

bool msi_unit_has_levels(const ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        if (u->level[i].data != NULL) {
            return true;
        }
    }
    return false;
}

void msi_unit_levels_free(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        msi_release(u->ctx, u->level[i].data);
        u->level[i].data = NULL;
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].accumulated = false;
    }
}

/* -- merging ----------------------------------------------------------------------------------- */

/* a + b in the node dtype, into `out`, or into whichever operand has room, or into new memory (only
 * two leaves need that). Frees the private operands it does not reuse; `b_private` tells about b.
 * After an error both are as before. */
static ms_status merge(ms_fsdp_unit *u, msi_level a, msi_level b, bool b_private, void *out,
                       msi_level *merged)
{
    msi_tree_args args = {.n = msi_leaf_numel(u),
                          .n_src = 2,
                          .src_dtype = {a.dtype, b.dtype},
                          .src = {a.data, b.data},
                          .round_dtype = msi_node_dtype(u),
                          .factor = 1};

    if (out == NULL) {
        out = a.dtype == msi_node_dtype(u)                ? a.data
              : b.dtype == msi_node_dtype(u) && b_private ? b.data
                                                          : NULL;
    }
    if (out == NULL) {
        MS_TRY(msi_alloc(u->ctx, args.n * ms_dtype_size(msi_node_dtype(u)), MS_MEM_GRADIENT, &out));
    }
    args.out = out;
    MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, msi_node_dtype(u), &args));
    if (a.data != out) {
        msi_release(u->ctx, a.data);
    }
    if (b_private && b.data != out) {
        msi_release(u->ctx, b.data);
    }
    *merged = (msi_level){out, msi_node_dtype(u)};
    return MS_OK;
}

/* The leaf, or what it has become, and level j become one, in `out` or as merge() chooses. Either
 * may be empty. `dtype` is the leaf's. After an error both are as before. */
static ms_status merge_level(ms_fsdp_unit *u, int32_t j, void *out, int32_t *dtype)
{
    msi_level low = u->level[j], node = {u->leaf, *dtype};

    if (low.data == NULL) {
        return MS_OK;
    }
    if (node.data == NULL) {
        node = low;
    } else {
        MS_TRY(merge(u, low, node, u->leaf_private, out, &node));
    }
    u->level[j].data = NULL;
    u->leaf = node.data;
    u->leaf_private = node.data != out;
    *dtype = node.dtype;
    return MS_OK;
}

ms_status msi_unit_keep_leaf(ms_fsdp_unit *u)
{
    int32_t j = 0, dtype = u->reduce_dtype;

    for (; (u->tree->n_kept >> j & 1) != 0; j++) {
        MS_TRY(merge_level(u, j, NULL, &dtype));
    }
    u->level[j] = (msi_level){u->leaf, dtype};
    u->leaf = NULL;
    u->leaf_private = false;
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].accumulated |= u->params[i].contributed;
        u->params[i].contributed = false;
    }
    return MS_OK;
}

/* Peers learn with the gradient which parameters it is one of. */
static void tell_used(ms_fsdp_unit *u)
{
    bool *used = msi_grad_slot_used(u, u->rank), whole = true;

    for (int32_t i = 0; i < u->n_params; i++) {
        used[i] = u->params[i].contributed || u->params[i].accumulated;
        u->params[i].contributed = u->params[i].accumulated = false;
        whole = whole && used[i];
    }
    atomic_store_explicit(&u->grad_slot->words[u->rank].whole, whole, memory_order_relaxed);
}

int32_t msi_slot_dtype(const ms_fsdp_unit *u)
{
    return u->tree->n_kept > 0 ? msi_node_dtype(u) : u->reduce_dtype;
}

/* What had nothing to merge with, as the slot wants it. */
static ms_status move_into_slot(ms_fsdp_unit *u, int32_t dtype)
{
    const int64_t n = msi_leaf_numel(u);
    void *slot = msi_grad_slot_data(u, u->rank);

    if (dtype == u->slot_dtype) {
        memcpy(slot, u->leaf, (size_t)(n * ms_dtype_size(dtype)));
    } else {
        msi_tree_args args = {.n = n,
                              .n_src = 1,
                              .src_dtype = {dtype},
                              .src = {u->leaf},
                              .out = slot,
                              .round_dtype = u->slot_dtype,
                              .factor = 1};

        MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, u->slot_dtype, &args));
    }
    msi_release(u->ctx, u->leaf);
    return MS_OK;
}

ms_status msi_unit_fold_into_slot(ms_fsdp_unit *u)
{
    int32_t dtype = u->reduce_dtype, last = -1;

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        last = u->level[j].data != NULL ? j : last;
    }
    if (u->grad_slot == NULL) {
        MS_TRY(msi_grad_slot_take(u));
    }
    u->slot_dtype = msi_slot_dtype(u);
    for (int32_t j = 0; j <= last; j++) {
        MS_TRY(merge_level(u, j, j == last ? msi_grad_slot_data(u, u->rank) : NULL, &dtype));
    }
    if (u->leaf_private) {
        MS_TRY(move_into_slot(u, dtype));
    }
    u->leaf = NULL;
    u->leaf_private = false;
    tell_used(u);
    return MS_OK;
}

/* -- what the parameters' handles tell --------------------------------------------------------- */

static void *level_data(const ms_fsdp_unit *u, int32_t j, int32_t index)
{
    const msi_level *level = &u->level[j];

    return (char *)level->data + u->params[index].offset * ms_dtype_size(level->dtype);
}

/* The levels' sum for one parameter, smallest first as the fold will be, in `out` (node dtype). */
static ms_status fold_param(const ms_fsdp_unit *u, int32_t index, void *out)
{
    msi_tree_args args = {
        .n = u->params[index].numel, .out = out, .round_dtype = msi_node_dtype(u), .factor = 1};

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        if (u->level[j].data == NULL) {
            continue;
        }
        args.src[0] = level_data(u, j, index);
        args.src_dtype[0] = u->level[j].dtype;
        args.src[1] = out;
        args.src_dtype[1] = msi_node_dtype(u);
        args.n_src = args.n_src == 0 ? 1 : 2;
        MS_TRY(msi_dispatch("gradient accumulation", MSI_K_tree, msi_node_dtype(u), &args));
    }
    return MS_OK;
}

bool msi_unit_accumulates(void *unit, int32_t index)
{
    const ms_fsdp_unit *u = unit;

    return u->params[index].accumulated;
}

/* A handle on the copy; what were written into it would go nowhere. */
static ms_status show_copy(ms_tensor **out, ms_context *ctx, const msi_view *copy)
{
    copy->storage->readonly = "is a copy of what no_sync has accumulated; give another value to "
                              "set_grad()";
    return msi_tensor_new(out, ctx, copy);
}

ms_status msi_unit_accumulated(void *unit, int32_t index, ms_tensor **out)
{
    ms_fsdp_unit *u = unit;
    const msi_param *param = u->params[index].tensor->param;
    msi_view sum, like = {.dtype = u->param_dtype}, v = {.storage = NULL};
    ms_status status;

    *out = NULL;
    msi_view_set_contiguous(&like, u->param_dtype, param->ndim, param->shape);
    MS_TRY(msi_view_like(&sum, u->ctx, &like, msi_node_dtype(u), MS_MEM_GRADIENT, false));
    MS_TRY_GOTO(fold_param(u, index, msi_view_ptr(&sum)), done);
    if (sum.dtype == like.dtype) {
        status = show_copy(out, u->ctx, &sum);
        goto done;
    }
    MS_TRY_GOTO(msi_view_like(&v, u->ctx, &like, like.dtype, MS_MEM_GRADIENT, false), done);
    MS_TRY_GOTO(msi_copy(&v, &sum, false), done);
    status = show_copy(out, u->ctx, &v);
done:
    msi_storage_release(v.storage);
    msi_storage_release(sum.storage);
    return status;
}

static ms_status write_level(ms_fsdp_unit *u, int32_t j, int32_t index, const msi_view *value)
{
    const int64_t nbytes = u->params[index].numel * ms_dtype_size(u->level[j].dtype);
    const msi_param *param = u->params[index].tensor->param;
    msi_view dst = {.storage = NULL};

    if (value == NULL) {
        memset(level_data(u, j, index), 0, (size_t)nbytes);
        return MS_OK;
    }
    MS_TRY(msi_storage_wrap(&dst.storage, u->ctx, MS_STORAGE_BORROWED, level_data(u, j, index),
                            nbytes));
    msi_view_set_contiguous(&dst, u->level[j].dtype, param->ndim, param->shape);
    ms_status status = msi_copy(&dst, value, false);

    msi_storage_release(dst.storage);
    return status;
}

/* The value goes into one level and zeros into the others: their sum is the value. */
ms_status msi_unit_replace_accumulated(void *unit, int32_t index, const msi_view *value)
{
    ms_fsdp_unit *u = unit;
    const msi_param *param = u->params[index].tensor->param;
    msi_view whole = {.storage = NULL};
    bool any = false;

    msi_view_set_contiguous(&whole, u->param_dtype, param->ndim, param->shape);
    if (value != NULL && !msi_view_same_shape(value, &whole)) {
        return MS_FAIL(MS_VALUE_ERROR, "the accumulated gradient of '%s' has shape %s, expected %s",
                       u->params[index].name, msi_shape_text(value->ndim, value->shape),
                       msi_shape_text(param->ndim, param->shape));
    }
    if (value != NULL && value->dtype != whole.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "the accumulated gradient of '%s' is %s, expected %s",
                       u->params[index].name, ms_dtype_name(value->dtype),
                       ms_dtype_name(whole.dtype));
    }
    u->params[index].accumulated = value != NULL;
    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        if (u->level[j].data != NULL) {
            MS_TRY(write_level(u, j, index, value));
            value = NULL;
        }
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        any |= u->params[i].accumulated;
    }
    if (!any) {
        msi_unit_levels_free(u);
    }
    return MS_OK;
}
