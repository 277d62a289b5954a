/* Gradients of one rank: born in place, merged over micro-batches.
 *
 * [Note: gradient tree] A leaf is the gradient of one backward on one rank, in the reduce dtype;
 * inside it the first contribution to a parameter stores and later ones add, in program order.
 * Leaves of one rank merge as a binary counter (no_sync): leaf k merges as often as k has trailing
 * ones. Then the ranks' roots merge by the same rule. With m micro-batches a rank (m a power of
 * two) leaf i = r m + k stands at the same place of the same tree whatever the number of ranks, so
 * the sum has the same bits. Inner nodes are f32 (f64 for f64); the one multiplication comes after
 * the tree, then one rounding. */
#include "fsdp.h"

#include <string.h>

/* -- the leaf ---------------------------------------------------------------------------------- */

static bool has_levels(const ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        if (u->level[i].data != NULL) {
            return true;
        }
    }
    return false;
}

/* The leaf is born in the slot when it, or what it merges into in place, is what peers read. */
static ms_status begin_leaf(ms_fsdp_unit *u)
{
    int64_t nbytes = msi_leaf_numel(u) * ms_dtype_size(u->reduce_dtype);
    bool in_slot = u->tree->sync && (!has_levels(u) || u->reduce_dtype == msi_node_dtype(u));

    if (u->leaf_storage == NULL) {
        MS_TRY(msi_storage_wrap(&u->leaf_storage, u->ctx, MS_STORAGE_BORROWED, NULL, nbytes));
        u->leaf_storage->absent = "the unit's gradient was handed on";
    }
    if (in_slot) {
        MS_TRY(msi_grad_slot_take(u));
        u->leaf = msi_grad_slot_data(u, u->rank);
    } else {
        MS_TRY(msi_alloc(u->ctx, nbytes, MS_MEM_GRADIENT, &u->leaf));
    }
    u->leaf_private = !in_slot;
    u->leaf_storage->data = u->leaf;
    u->leaf_storage->nbytes = nbytes;
    u->grad_phase = MSI_GRAD_WRITING;
    msi_unit_changed(u);
    return MS_OK;
}

static ms_status sink_expect(void *user, int32_t index)
{
    ms_fsdp_unit *u = user;

    if (u->tree == NULL || !u->tree->initialized) {
        return MS_FAIL(
            MS_RUNTIME_ERROR,
            "parameter '%s' of unit '%s' is differentiated outside its FSDP root's forward",
            u->params[index].name, u->name);
    }
    if (u->tree->summoned) {
        return MS_FAIL(MS_RUNTIME_ERROR, "backward inside summon_full_params (parameter '%s')",
                       u->params[index].name);
    }
    u->expecting = true;
    u->pending++;
    return MS_OK;
}

static ms_status sink_dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    ms_fsdp_unit *u = user;
    msi_unit_param *p = &u->params[index];
    const msi_param *param = p->tensor->param;

    if (u->grad_phase != MSI_GRAD_WRITING) {
        MS_ASSERT(u->grad_phase == MSI_GRAD_NONE || u->grad_slot != NULL);
        if (u->grad_phase != MSI_GRAD_NONE) { /* an earlier backward's reduction is still queued */
            MS_TRY(msi_gradients_finish(u->tree));
        }
        MS_TRY(begin_leaf(u));
    }
    *dst = (msi_view){.storage = u->leaf_storage, .offset = p->offset};
    msi_view_set_contiguous(dst, u->reduce_dtype, param->ndim, param->shape);
    *add = p->contributed;
    p->contributed = true;
    return MS_OK;
}

static ms_status sink_done(void *user, int32_t index)
{
    ms_fsdp_unit *u = user;

    (void)index;
    return --u->pending == 0 ? msi_unit_gradient_complete(u) : MS_OK;
}

void msi_unit_sinks_install(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].sink = (msi_grad_sink){sink_expect, sink_dest, sink_done, u, i};
        u->params[i].tensor->sink = &u->params[i].sink;
    }
}

/* Zeros for parameters nothing came for, and for padding. */
static ms_status fill_gaps(ms_fsdp_unit *u)
{
    int64_t size = ms_dtype_size(u->reduce_dtype);
    char *leaf = u->leaf;

    for (int32_t i = 0; i < ms_layout_n_entries(u->layout); i++) {
        ms_layout_entry e;

        MS_TRY(ms_layout_entry_get(u->layout, i, &e));
        if (e.param < 0 || !u->params[e.param].contributed) {
            memset(leaf + e.offset * size, 0, (size_t)(e.numel * size));
        }
    }
    memset(leaf + u->total * size, 0, (size_t)((msi_leaf_numel(u) - u->total) * size));
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].contributed = false;
    }
    return MS_OK;
}

/* -- the tree over micro-batches --------------------------------------------------------------- */

void msi_unit_levels_free(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < MSI_MAX_LEVELS; i++) {
        msi_release(u->ctx, u->level[i].data);
        u->level[i].data = NULL;
    }
    if (u->leaf_private) {
        msi_release(u->ctx, u->leaf);
    }
    u->leaf = NULL;
    u->leaf_private = false;
}

/* a + b in the node dtype, into `out`, or into whichever operand has room, or into new memory.
 * Frees the private operands it does not reuse; `b_private` tells about b. */
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

/* no_sync: the leaf joins the binary counter. */
static ms_status keep_leaf(ms_fsdp_unit *u)
{
    msi_level node = {u->leaf, u->reduce_dtype};
    int32_t j = 0;

    for (; u->level[j].data != NULL; j++) {
        msi_level low = u->level[j];

        u->level[j].data = NULL;
        MS_TRY(merge(u, low, node, true, NULL, &node));
    }
    u->level[j] = node;
    u->leaf = NULL;
    u->leaf_private = false;
    return MS_OK;
}

/* The last leaf: fold every level, smallest first; the root ends in the slot. */
static ms_status fold_into_slot(ms_fsdp_unit *u)
{
    msi_level node = {u->leaf, u->reduce_dtype};
    bool node_private = u->leaf_private;
    int32_t last = -1;

    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        last = u->level[j].data != NULL ? j : last;
    }
    if (last >= 0 && u->grad_slot == NULL) {
        MS_TRY(msi_grad_slot_take(u));
    }
    for (int32_t j = 0; j <= last; j++) {
        msi_level low = u->level[j];

        if (low.data == NULL) {
            continue;
        }
        u->level[j].data = NULL;
        MS_TRY(merge(u, low, node, node_private, j == last ? msi_grad_slot_data(u, u->rank) : NULL,
                     &node));
        node_private = j != last;
    }
    u->leaf = NULL;
    u->leaf_private = false;
    u->slot_dtype = node.dtype;
    return MS_OK;
}

ms_status msi_unit_gradient_complete(ms_fsdp_unit *u)
{
    if (u->grad_phase != MSI_GRAD_WRITING) { /* every contribution was undefined */
        MS_TRY(begin_leaf(u));
    }
    MS_TRY(fill_gaps(u));
    u->leaf_storage->data = NULL;
    MS_TRY(msi_unit_post_backward(u));
    if (!u->tree->sync) {
        u->grad_phase = MSI_GRAD_NONE;
        return keep_leaf(u);
    }
    MS_TRY(fold_into_slot(u));
    return msi_gradient_announce(u);
}

void msi_unit_gradient_drop(ms_fsdp_unit *u)
{
    if (u->grad_phase == MSI_GRAD_WRITING && u->grad_slot != NULL) {
        atomic_store(&u->grad_slot->words[u->rank].read, u->grad_generation);
        u->grad_slot->holder = NULL;
        u->grad_slot = NULL;
        u->leaf = NULL;
        msi_comm_ring(u->comm);
    }
    if (u->leaf_private) {
        msi_release(u->ctx, u->leaf);
        u->leaf = NULL;
        u->leaf_private = false;
    }
    if (u->leaf_storage != NULL) {
        u->leaf_storage->data = NULL;
    }
    if (u->grad_phase == MSI_GRAD_WRITING) {
        u->grad_phase = MSI_GRAD_NONE;
    }
    u->pending = 0;
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].contributed = false;
        if (u->expecting) {
            ms_tensor_free(u->params[i].tensor->grad);
            u->params[i].tensor->grad = NULL;
        }
    }
}
