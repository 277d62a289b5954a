/* Full parameters behind their handles for a while, and writing them back. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"
#include "unshard.h"

#include <stdlib.h>
#include <string.h>

/* The unit after `i` that this summon is about, or tree->n_units. */
static int32_t next_unit(const ms_fsdp_tree *tree, int32_t i)
{
    do {
        i++;
    } while (i < tree->n_units && !tree->units[i]->is_summoned);
    return i;
}

static int64_t count_params(const ms_fsdp_tree *tree)
{
    int64_t n = 0;

    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        n += tree->units[i]->n_params;
    }
    return n;
}

/* For each parameter a word of this rank, one of every rank, and their union. Allocated early, so
 * that leaving needs no memory. */
static ms_status words_new(ms_fsdp_tree *tree)
{
    const int64_t n = count_params(tree);

    return msi_new_array(&tree->words, n * (tree->world + 2) + 1, "words to summon parameters");
}

/* Union over the ranks of the n words at tree->words. */
static ms_status gather_union(ms_fsdp_tree *tree, const char *what, int64_t n, uint64_t *any)
{
    uint64_t *all = tree->words + n;

    MS_TRY(msi_tree_gather(tree, what, tree->words, n * (int64_t)sizeof(*all), all));
    memset(any, 0, (size_t)n * sizeof(*any));
    for (int64_t i = 0; i < n * tree->world; i++) {
        any[i % n] |= all[i];
    }
    return MS_OK;
}

static ms_status summon_gradients(ms_fsdp_tree *tree)
{
    const int64_t n = count_params(tree);
    uint64_t *own = tree->words, *any = own + n * (tree->world + 1);
    int64_t at = 0;

    if (n == 0) {
        return MS_OK;
    }
    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++) {
            own[at++] = tree->units[i]->params[p].tensor->grad != NULL;
        }
    }
    MS_TRY(gather_union(tree, "summon_full_params (which gradients exist)", n, any));
    at = 0;
    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        MS_TRY(msi_unit_summon_gradients(tree->units[i], any + at));
        at += tree->units[i]->n_params;
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_summon(ms_fsdp_tree *tree, bool with_grads)
{
    return ms_fsdp_tree_summon_units(tree, tree->units, tree->n_units, with_grads);
}

ms_status ms_fsdp_tree_summon_units(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, int32_t n_units,
                                    bool with_grads)
{
    ms_status status = MS_OK;

    MS_TRY(ms_fsdp_tree_init(tree));
    for (int32_t i = 0; i < n_units; i++) {
        if (units[i]->run != &tree->run) {
            return MS_FAIL(MS_VALUE_ERROR, "summon: unit '%s' is in another tree", units[i]->name);
        }
    }
    if (msi_in_backward(&tree->run) || msi_unit_in_forward(tree) != NULL) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "Cannot manually unshard parameters during forward/backward");
    }
    if (tree->run.summoned) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "Cannot manually unshard parameters when already unsharding parameters");
    }
    for (int32_t i = 0; i < n_units; i++) {
        units[i]->is_summoned = true;
    }
    status = words_new(tree);
    if (status != MS_OK) {
        msi_tree_unsummon(tree);
        return status;
    }
    msi_progress_begin(&tree->run.progress);
    for (int32_t i = next_unit(tree, -1); i < tree->n_units && status == MS_OK;
         i = next_unit(tree, i)) {
        ms_fsdp_unit *u = tree->units[i];

        status = msi_unit_gather_flat(u, "summon_full_params of unit", &u->summoned);
        if (status == MS_OK) {
            u->master->readonly = "shows a shard, of which summon_full_params has made a full "
                                  "copy; write into the parameter itself";
            msi_unit_show(u);
        }
    }
    if (status == MS_OK && with_grads) {
        status = summon_gradients(tree);
    }
    tree->run.summoned = true;
    if (status != MS_OK) {
        msi_tree_give_up(tree, "summon_full_params");
        (void)ms_fsdp_tree_unsummon(tree, false);
    }
    return status;
}

/* This rank's extents of a parameter where they are kept, and where the script has seen them. */
static msi_view kept_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    return msi_flat_view(u, u->master, p->piece.offset_in_shard, p->piece.numel);
}

static msi_view seen_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    return msi_flat_view(u, u->summoned, p->offset + p->piece.start, p->piece.numel);
}

/* Does the copy have other values in the extents of this rank? */
static ms_status compare_own(const ms_fsdp_unit *u, const msi_unit_param *p, uint64_t *changed)
{
    const msi_view kept = kept_view(u, p), seen = seen_view(u, p);
    const size_t nbytes = (size_t)(p->piece.numel * ms_dtype_size(u->orig_dtype));
    msi_host_view a = {0}, b = {0};
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&a, &kept, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&b, &seen, MSI_HOST_READS), done);
    *changed = memcmp(a.data, b.data, nbytes) != 0;
done:
    status = msi_host_view_end(&a, status);
    return msi_host_view_end(&b, status);
}

static ms_status keep_piece(ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_view kept = kept_view(u, p), seen = seen_view(u, p);

    return msi_mem_copy(u->ctx, msi_view_ptr(&kept), msi_view_ptr(&seen),
                        p->piece.numel * ms_dtype_size(u->orig_dtype));
}

/* Which parameters changed on any rank. */
static ms_status gather_changes(ms_fsdp_tree *tree, int64_t n, uint64_t *changed)
{
    int64_t at = 0;

    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++) {
            MS_TRY(compare_own(tree->units[i], &tree->units[i]->params[p], &tree->words[at++]));
        }
    }
    return gather_union(tree, "the end of summon_full_params", n, changed);
}

/* A parameter counts as written on all ranks when any rank's extents of it changed. What nobody
 * changed stays valid for backward. */
static ms_status write_back(ms_fsdp_tree *tree)
{
    const int64_t n = count_params(tree);
    uint64_t *changed = tree->words + n * (tree->world + 1);
    int64_t at = 0;

    if (n == 0) {
        return MS_OK;
    }
    MS_TRY(gather_changes(tree, n, changed));
    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++, at++) {
            if (changed[at] != 0) {
                MS_TRY(keep_piece(tree->units[i], &tree->units[i]->params[p]));
                MS_TRY(ms_param_touch(tree->units[i]->params[p].tensor));
            }
        }
    }
    return MS_OK;
}

static ms_status keep_gradients(ms_fsdp_tree *tree)
{
    for (int32_t i = next_unit(tree, -1); i < tree->n_units; i = next_unit(tree, i)) {
        MS_TRY(msi_unit_keep_gradients(tree->units[i]));
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_unsummon(ms_fsdp_tree *tree, bool writeback)
{
    ms_status status = MS_OK;

    if (!tree->run.summoned) {
        return MS_FAIL(MS_ASSERTION_ERROR, "the parameters are not summoned");
    }
    if (writeback) {
        status = write_back(tree);
        status = status == MS_OK ? keep_gradients(tree) : status;
    }
    msi_tree_unsummon(tree);
    return status;
}

bool ms_fsdp_tree_summoned(const ms_fsdp_tree *tree)
{
    return tree->run.summoned;
}
