/* Full parameters behind their handles for a while, and writing them back. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"
#include "unshard.h"

#include <stdlib.h>
#include <string.h>

/* The next summoned parameter from index `i` on, or tree->n_params. */
static int32_t next_param(const ms_fsdp_tree *tree, int32_t i)
{
    while (i < tree->n_params && !tree->params[i].unit->is_summoned) {
        i++;
    }
    return i;
}

/* For each summoned parameter a word of this rank, one of every rank, and their union. Allocated
 * early, so that leaving needs no memory. */
static ms_status words_new(ms_fsdp_tree *tree)
{
    tree->n_words = 0;
    for (int32_t i = next_param(tree, 0); i < tree->n_params; i = next_param(tree, i + 1)) {
        tree->n_words++;
    }
    return msi_new_array(&tree->words, (int64_t)tree->n_words * (tree->world + 2) + 1,
                         "words to summon parameters");
}

/* Union over the ranks of the words at tree->words, to `*any`. */
static ms_status gather_union(ms_fsdp_tree *tree, const char *what, const uint64_t **any)
{
    const int64_t n = tree->n_words;
    uint64_t *all = tree->words + n, *sum = all + n * tree->world;

    MS_TRY(msi_tree_gather(tree, what, tree->words, n * (int64_t)sizeof(*all), all));
    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t i = 0; i < n * tree->world; i++) {
        sum[i % n] |= all[i];
    }
    *any = sum;
    return MS_OK;
}

static ms_status summon_gradients(ms_fsdp_tree *tree)
{
    uint64_t *own = tree->words;
    const uint64_t *any;

    if (tree->n_words == 0) {
        return MS_OK;
    }
    for (int32_t i = next_param(tree, 0); i < tree->n_params; i = next_param(tree, i + 1)) {
        *own++ = tree->params[i].tensor->grad != NULL;
    }
    MS_TRY(gather_union(tree, "summon_full_params (which gradients exist)", &any));
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->is_summoned) {
            MS_TRY(msi_unit_summon_gradients(tree->units[i], any));
            any += tree->units[i]->n_params;
        }
    }
    return MS_OK;
}

static ms_status summon_unit(ms_fsdp_unit *u)
{
    MS_TRY(msi_unit_gather_flat(u, "summon_full_params of unit", &u->summoned));
    u->master->readonly = "shows a shard, of which summon_full_params has made a full copy; write "
                          "into the parameter itself";
    msi_unit_show(u);
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
    for (int32_t i = 0; i < tree->n_units && status == MS_OK; i++) {
        status = tree->units[i]->is_summoned ? summon_unit(tree->units[i]) : MS_OK;
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

/* This rank's elements of a parameter where they are kept, and where the script has seen them. */
static msi_view kept_view(const msi_listed_param *at)
{
    return msi_piece_view(at->unit, msi_listed_in_unit(at), at->unit->master);
}

static msi_view seen_view(const msi_listed_param *at)
{
    const msi_unit_param *p = msi_listed_in_unit(at);

    return msi_flat_view(at->unit, at->unit->summoned, p->offset + p->piece.start, p->piece.numel);
}

/* Does the copy have other values in the extents of this rank? */
static ms_status compare_own(const msi_listed_param *at, uint64_t *changed)
{
    const msi_view kept = kept_view(at), seen = seen_view(at);
    const size_t nbytes = (size_t)(msi_view_numel(&kept) * ms_dtype_size(kept.dtype));
    msi_host_view a = {0}, b = {0};
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&a, &kept, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&b, &seen, MSI_HOST_READS), done);
    *changed = memcmp(a.data, b.data, nbytes) != 0;
done:
    status = msi_host_view_end(&a, status);
    return msi_host_view_end(&b, status);
}

static ms_status keep_piece(const msi_listed_param *at)
{
    const msi_view kept = kept_view(at), seen = seen_view(at);

    return msi_mem_copy(at->unit->ctx, msi_view_ptr(&kept), msi_view_ptr(&seen),
                        msi_view_numel(&kept) * ms_dtype_size(kept.dtype));
}

/* A parameter counts as written on all ranks when any rank's extents of it changed. What nobody
 * changed stays valid for backward. */
static ms_status write_back(ms_fsdp_tree *tree)
{
    uint64_t *own = tree->words;
    const uint64_t *changed;

    if (tree->n_words == 0) {
        return MS_OK;
    }
    for (int32_t i = next_param(tree, 0); i < tree->n_params; i = next_param(tree, i + 1)) {
        MS_TRY(compare_own(&tree->params[i], own++));
    }
    MS_TRY(gather_union(tree, "the end of summon_full_params", &changed));
    for (int32_t i = next_param(tree, 0); i < tree->n_params; i = next_param(tree, i + 1)) {
        if (*changed++ != 0) {
            MS_TRY(keep_piece(&tree->params[i]));
            MS_TRY(ms_param_touch(tree->params[i].tensor));
        }
    }
    return MS_OK;
}

/* Units that are not summoned have no full gradients: nothing happens for them. */
static ms_status keep_gradients(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
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
