/* Gradients of one rank: born in place, handed on when complete.
 *
 * A leaf is the gradient of one backward on one rank, in the reduce dtype; inside it the first
 * contribution to a parameter stores and later ones add, in program order. What becomes of leaves:
 * [Note: gradient tree] in levels.c. */
#include "fsdp.h"

#include <string.h>

/* -- the leaf ---------------------------------------------------------------------------------- */

/* The leaf is born in the slot when it, or what it merges into in place, is what peers read. */
static ms_status begin_leaf(ms_fsdp_unit *u)
{
    int64_t nbytes = msi_leaf_numel(u) * ms_dtype_size(u->reduce_dtype);
    bool in_slot = u->tree->sync && u->reduce_dtype == msi_slot_dtype(u);

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
    MS_TRY(msi_masters_check(u->tree, "backward"));
    if (!u->expecting) {
        MS_TRY(msi_backward_may_begin(u->tree));
    }
    u->expecting = true;
    u->pending++;
    return MS_OK;
}

ms_status msi_unit_check_kept(const ms_fsdp_unit *u)
{
    return u->tree->given_up && u->expecting ? MS_FAIL(MS_RUNTIME_ERROR, "%s", u->absent) : MS_OK;
}

static ms_status check_expected(const ms_fsdp_unit *u)
{
    if (!u->expecting) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "unit '%s' was made while a backward ran that reaches its parameters; wrap "
                       "them before, or when it has ended",
                       u->name);
    }
    return msi_unit_check_kept(u);
}

static ms_status sink_dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    ms_fsdp_unit *u = user;
    msi_unit_param *p = &u->params[index];
    const msi_param *param = p->tensor->param;

    MS_TRY(check_expected(u));
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
    MS_TRY(check_expected(u));
    return --u->pending == 0 ? msi_unit_gradient_complete(u) : MS_OK;
}

void msi_unit_sinks_install(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].sink = (msi_grad_sink){sink_expect, sink_dest, sink_done, u, i};
        u->params[i].tensor->sink = &u->params[i].sink;
    }
}

/* Parameters nothing came for have -0, which leaves what is added to it as it is (0 makes 0 of -0),
 * padding has zeros. */
static ms_status fill_gaps(ms_fsdp_unit *u)
{
    int64_t size = ms_dtype_size(u->reduce_dtype);
    char *leaf = u->leaf;

    for (int32_t i = 0; i < ms_layout_n_entries(u->layout); i++) {
        ms_layout_entry e;

        MS_TRY(ms_layout_entry_get(u->layout, i, &e));
        if (e.param >= 0 && !u->params[e.param].contributed) {
            msi_view v = {.storage = u->leaf_storage, .offset = e.offset};

            msi_view_set_contiguous(&v, u->reduce_dtype, 1, &e.numel);
            MS_TRY(msi_fill(&v, -0.0));
        } else if (e.param < 0) {
            memset(leaf + e.offset * size, 0, (size_t)(e.numel * size));
        }
    }
    memset(leaf + u->total * size, 0, (size_t)((msi_leaf_numel(u) - u->total) * size));
    return MS_OK;
}

/* -- complete, or given up --------------------------------------------------------------------- */

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
        return msi_unit_keep_leaf(u);
    }
    MS_TRY(msi_unit_fold_into_slot(u));
    return msi_gradient_announce(u);
}

void msi_unit_gradient_drop(ms_fsdp_unit *u, bool all)
{
    msi_gradient_abandon(u);
    if (u->leaf_private) {
        msi_release(u->ctx, u->leaf);
    }
    u->leaf = NULL;
    u->leaf_private = false;
    if (u->leaf_storage != NULL) {
        u->leaf_storage->data = NULL;
    }
    u->pending = 0;
    if (all) { /* units may be at different leaves now: drop all that was accumulated */
        msi_unit_levels_free(u);
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].contributed = u->params[i].arrived = false;
        if (all) {
            ms_tensor_free(u->params[i].tensor->grad);
            u->params[i].tensor->grad = NULL;
            u->params[i].reduced = false;
        }
    }
    msi_unit_gradient_trim(u);
}
