/* When units are unsharded, prefetched and resharded, part 1: forward, and calls of the script.
 * (Part 2: backward.c.) */
#include "schedule.h"
#include "unshard.h"

#include <stdlib.h>

/* -- forward ----------------------------------------------------------------------------------- */

/* Reshard what any rank wrote. */
static void reshard_written(ms_fsdp_unit *const *units, int32_t n, const bool *written,
                            int32_t n_ranks)
{
    for (int64_t i = 0; i < (int64_t)n * n_ranks; i++) {
        if (written[i]) {
            msi_unit_reshard(units[i % n]);
        }
    }
}

/* Reshard units (n of the tree's) that are kept, or being gathered, with values older than any
 * rank's last write. Collective if there is one.
 *
 * [Note: writes into shards] All ranks know of writes by optimizers and loads. Writes of a script
 * through handles are local: for an element that one rank owns, the others own none. So ranks
 * exchange them where they would use a kept unit, at the start of a root forward. This is the only
 * wait there, and happens only if a unit is kept. In the middle of a forward or backward, where
 * handles show no shards, a rank notes that it gathers again. */
static ms_status renew(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, int32_t n)
{
    bool *own = tree->written, *all = own + n;
    const ms_fsdp_unit *kept = NULL;
    msi_label label;

    for (int32_t i = 0; i < n; i++) {
        if (units[i]->state == MS_UNIT_UNSHARDED && units[i]->values.outdated) {
            msi_unit_reshard(units[i]);
        }
        own[i] = msi_unit_differs(units[i]);
        if (kept == NULL && units[i]->state != MS_UNIT_SHARDED && units[i]->gather.ops->shares) {
            kept = units[i];
        }
    }
    if (kept == NULL) {
        return MS_OK;
    }
    msi_label_about(&label, "next use of unit", kept->name);
    if (msi_tree_has_peers(tree)) {
        MS_TRY(msi_progress_gather(&tree->run.progress, tree->comm, &label, tree->run.model, own, n,
                                   all));
        reshard_written(units, n, all, tree->world);
    } else {
        reshard_written(units, n, own, 1);
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_pre_forward(ms_fsdp_tree *tree)
{
    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(msi_masters_check(&tree->run, "forward"));
    MS_TRY(msi_pools_extend(tree));
    tree->forward_at = 0;
    /* peers rely on this rank's next backward even without a collective */
    msi_progress_commit(&tree->run.progress);
    /* now, since slots may serve other units first. Not inside a backward: ranks keep what their
     * graphs read, which may differ, and check each unit at its use */
    if (!msi_in_backward(&tree->run) || tree->run.phase == MSI_SETTLED || !msi_is_reached(tree)) {
        MS_TRY(renew(tree, tree->units, tree->n_units));
    }
    return msi_progress_run(&tree->run.progress);
}

ms_status ms_fsdp_tree_post_forward(ms_fsdp_tree *tree)
{
    msi_pass_leave_ended(tree, NULL);
    tree->pre_fixed = tree->pre_fixed || tree->pre.n > 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->state == MS_UNIT_PUBLISHED) {
            msi_skip(tree->units[i]);
        }
    }
    if (!msi_in_backward(&tree->run)) { /* else it is a hook's, a part of it */
        msi_progress_begin(&tree->run.progress);
    }
    return msi_progress_run(&tree->run.progress);
}

static ms_status check_in_tree(const ms_fsdp_unit *u)
{
    if (u->run == NULL || u->run->phase == MSI_UNUSED) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' is used before its tree was initialised",
                       u->name);
    }
    return MS_OK;
}

/* Prefetch the units listed for it, or by the option the next one in the first forward's order. */
static ms_status prefetch_forward(const ms_fsdp_unit *u)
{
    const ms_fsdp_tree *tree = msi_tree_of(u);
    const msi_unit_list *next = &msi_unit_schedule_of(u)->ahead_forward;

    for (int32_t i = 0; i < next->n; i++) {
        MS_TRY(msi_prefetch(next->units[i]));
    }
    return next->units == NULL && tree->options.forward_prefetch && tree->pre_fixed &&
                   tree->forward_at + 1 < tree->pre.n
               ? msi_prefetch(tree->pre.units[tree->forward_at + 1])
               : MS_OK;
}

ms_status ms_fsdp_unit_pre_forward(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = msi_tree_of(u);

    MS_TRY(check_in_tree(u));
    msi_pass_leave_ended(tree, NULL);
    if (tree->again != u) {
        msi_pass_keep_again(tree, NULL);
    }
    MS_TRY(msi_pass_begin(u));
    MS_TRY(msi_unit_gather_in(u, msi_unit_forward_dtype(u), 1));
    MS_TRY(msi_unit_unshard(u));
    if (!tree->pre_fixed && tree->pre.n < tree->n_units) {
        tree->pre.units[tree->pre.n++] = u;
    }
    while (tree->forward_at < tree->pre.n && tree->pre.units[tree->forward_at] != u) {
        tree->forward_at++;
    }
    return prefetch_forward(u);
}

ms_status ms_fsdp_unit_post_forward(ms_fsdp_unit *u, ms_tensor *const *outputs, int32_t n_outputs)
{
    ms_fsdp_tree *tree = msi_tree_of(u);

    MS_TRY(check_in_tree(u));
    msi_pass *pass = msi_pass_running(u);

    if (pass == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' ends a forward that it has not begun", u->name);
    }
    msi_pass_leave_ended(tree, pass);
    if (ms_grad_enabled()) {
        /* first, since it can be repeated: nothing after it allocates */
        MS_TRY(msi_pass_hook_outputs(pass, outputs, n_outputs));
        if (msi_unit_schedule_of(u)->post_index < 0 && tree->post.n < tree->n_units) {
            msi_unit_schedule_of(u)->post_index = tree->post.n;
            tree->post.units[tree->post.n++] = u;
        }
    }
    msi_pass_leave(tree, pass);
    return msi_progress_run(&tree->run.progress);
}

/* -- explicit unshard -------------------------------------------------------------------------- */

ms_status ms_fsdp_unit_begin_unshard(ms_fsdp_unit *u)
{
    MS_TRY(check_in_tree(u));
    MS_TRY(renew(msi_tree_of(u), &u, 1));
    return u->state == MS_UNIT_SHARDED ? msi_unit_publish(u) : MS_OK;
}

ms_status ms_fsdp_unit_unshard(ms_fsdp_unit *u)
{
    MS_TRY(check_in_tree(u));
    MS_TRY(renew(msi_tree_of(u), &u, 1));
    MS_TRY(msi_unit_unshard(u));
    u->use.held = true;
    msi_unit_show_use(u);
    return MS_OK;
}

ms_status ms_fsdp_unit_reshard(ms_fsdp_unit *u)
{
    MS_TRY(check_in_tree(u));
    msi_pass_leave_ended(msi_tree_of(u), NULL);
    const bool in_forward = msi_pass_running(u) != NULL;

    if (u->reduction.phase == MSI_GRAD_WRITING || in_forward) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' cannot be resharded during its %s", u->name,
                       in_forward ? "forward" : "backward");
    }
    msi_unit_reshard(u);
    return MS_OK;
}
