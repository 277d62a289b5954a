/* The tree: all units of one model, made once, compared by all ranks, closed with the context. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"
#include "unshard.h"

#include <stdlib.h>
#include <string.h>

void msi_tree_unsummon(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        u->is_summoned = false;
        msi_unit_restore_gradients(u);
        if (u->summoned != NULL) {
            msi_storage_release(u->summoned);
            u->summoned = NULL;
            u->master->readonly = NULL;
            msi_unit_show(u);
        }
    }
    free(tree->words);
    tree->words = NULL;
    tree->run.summoned = false;
}

/* Free what a tree owns, but not the struct. */
static void dispose(ms_fsdp_tree *tree)
{
    if (tree->ctx == NULL) {
        return;
    }
    ms_fsdp_tree_hide_shards(tree, false);
    msi_schedule_free(tree);
    msi_tree_unsummon(tree);
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (u->state != MS_UNIT_SHARDED) {
            msi_storage_unbind(u->full);
            msi_unit_set(u, MS_UNIT_SHARDED);
        }
        msi_passes_free(&tree->course[i]);
        free(tree->course[i].ahead_forward.units);
        free(tree->course[i].ahead_backward.units);
        msi_unit_dispose(u);
        MSI_HANDLE(u, MSI_MAGIC_FSDP_UNIT);
        free(u);
    }
    tree->n_units = 0;
    msi_pools_free(tree);
    free(tree->units);
    free(tree->course);
    free(tree->params);
    ms_comm_release(tree->shards);
    ms_comm_release(tree->comm);
    tree->ctx = NULL;
}

static void close_trees(void *first)
{
    for (msi_chained *link = first, *next; link != NULL; link = next) {
        ms_fsdp_tree *tree = link->owner;

        next = link->next;
        dispose(tree);
    }
}

static ms_status arrays_new(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, int32_t n_units)
{
    int64_t n_params = 0;

    for (int32_t i = 0; i < n_units; i++) {
        n_params += units[i]->n_params;
    }
    MS_TRY(msi_new_array(&tree->units, n_units, "units of a tree"));
    MS_TRY(msi_new_array(&tree->course, n_units, "units of a tree"));
    return msi_new_array(&tree->params, n_params, "parameters of a tree");
}

static void list_unit(ms_fsdp_tree *tree, ms_fsdp_unit *u)
{
    tree->course[u->index] =
        (msi_unit_schedule){.unit = u, .first_param = tree->n_params, .post_index = -1};
    for (int32_t p = 0; p < u->n_params; p++) {
        tree->params[tree->n_params++] = (msi_listed_param){u->params[p].tensor, u, p};
    }
}

ms_status ms_fsdp_tree_new(ms_fsdp_tree **out, ms_comm *comm, const ms_fsdp_tree_options *options,
                           ms_fsdp_unit *const *units, int32_t n_units, bool root_has_unit)
{
    ms_comm *shards = NULL;
    ms_fsdp_tree_options o;

    *out = NULL;
    MS_TRY(msi_options_take(&o, options, &msi_fsdp_tree_options));
    if (root_has_unit && n_units < 1) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "root_has_unit is true for a tree of %d units, expected the root's first",
                       (int)n_units);
    }
    for (int32_t i = 0; i < n_units; i++) {
        if (units[i]->run != NULL) {
            return MS_FAIL(MS_VALUE_ERROR, "unit '%s' is in a tree already", units[i]->name);
        }
        if (units[i]->comm != comm) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "unit '%s' is sharded over another group (%d ranks) than the tree's "
                           "(%d ranks)",
                           units[i]->name, (int)units[i]->world, (int)ms_comm_size(comm));
        }
        if (units[i]->is_sharded && shards != NULL && units[i]->shards != shards) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "unit '%s' divides its parameters among other ranks (%d) than the units "
                           "before it (%d)",
                           units[i]->name, (int)units[i]->shard_world, (int)ms_comm_size(shards));
        }
        shards = units[i]->is_sharded ? units[i]->shards : shards;
        units[i]->index = i;
    }
    for (int32_t i = 0; i < n_units; i++) {
        if (units[i]->index != i) {
            return MS_FAIL(MS_VALUE_ERROR, "unit '%s' is listed twice", units[i]->name);
        }
    }
    ms_fsdp_tree *tree;

    MS_TRY(msi_new_array(&tree, 1, "tree of units"));
    tree->ctx = msi_context();
    tree->comm = comm;
    tree->options = o;
    tree->rank = ms_comm_rank(comm);
    tree->world = ms_comm_size(comm);
    tree->shards = shards != NULL ? shards : comm;
    tree->shard_rank = ms_comm_rank(tree->shards);
    tree->shard_world = ms_comm_size(tree->shards);
    tree->slots_wish = msi_pools_wish();
    tree->run.owner = tree;
    tree->last_backward = true;
    ms_status status = arrays_new(tree, units, n_units);

    if (status != MS_OK) {
        free(tree->units);
        free(tree->course);
        free(tree);
        return status;
    }
    ms_comm_retain(comm);
    ms_comm_retain(tree->shards);
    msi_chain_add(tree->ctx, MSI_ROOM_FSDP, &tree->chained, tree, close_trees);
    for (int32_t i = 0; i < n_units; i++) {
        msi_unit_delist(units[i]);
        tree->units[i] = units[i];
        list_unit(tree, units[i]);
        units[i]->run = &tree->run;
        units[i]->is_root = i == 0 && root_has_unit;
    }
    tree->n_units = n_units;
    tree->magic = MSI_MAGIC_FSDP_TREE;
    *out = tree;
    return MS_OK;
}

static void free_tree(void *user)
{
    ms_fsdp_tree *tree = user;

    if (tree->ctx != NULL) { /* else closed with its context */
        msi_chain_remove(tree->ctx, MSI_ROOM_FSDP, &tree->chained);
        dispose(tree);
    }
    free(tree);
}

void ms_fsdp_tree_free(ms_fsdp_tree *tree)
{
    if (tree == NULL) {
        return;
    }
    MSI_HANDLE(tree, MSI_MAGIC_FSDP_TREE);
    if (tree->ctx == NULL) {
        free_tree(tree);
        return;
    }
    tree->freeing = (msi_deferred){.fn = free_tree, .user = tree};
    msi_backward_defer(tree->ctx, &tree->freeing); /* a garbage collector may run inside one */
}

/* -- init -------------------------------------------------------------------------------------- */

static ms_status make_ready(ms_fsdp_tree *tree)
{
    if (tree->run.model == 0) {
        tree->run.model = msi_comm_count_model(tree->comm);
    }
    msi_progress_commit(&tree->run.progress);
    MS_TRY(msi_plans_agree(tree));
    MS_TRY(msi_numerics_agree(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(ms_fsdp_unit_materialize(tree->units[i]));
    }
    MS_TRY(msi_values_agree(tree));
    MS_TRY(msi_pools_new(tree));
    return msi_schedule_new(tree);
}

ms_status ms_fsdp_tree_init(ms_fsdp_tree *tree)
{
    if (tree->ctx == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the tree was closed with its context");
    }
    if (tree->run.phase != MSI_UNUSED) {
        return MS_OK;
    }
    ms_status status = make_ready(tree);

    if (status != MS_OK) { /* the next call starts again */
        msi_schedule_free(tree);
        msi_pools_free(tree);
        msi_tree_give_up(tree, "the first use of FSDP");
        return status;
    }
    tree->run.phase = MSI_IDLE;
    return MS_OK;
}

/* -- plans ------------------------------------------------------------------------------------- */

static ms_status check_step(int64_t micro_batches)
{
    if (micro_batches < 1 || micro_batches > (int64_t)1 << MSI_MAX_LEVELS) {
        return MS_FAIL(MS_VALUE_ERROR, "a plan for %lld micro-batches, expected 1 to 2^%d",
                       (long long)micro_batches, MSI_MAX_LEVELS);
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_dry_run(ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan)
{
    *plan = (ms_fsdp_plan){0};
    MS_TRY(check_step(micro_batches));
    plan->same_numerics = tree->same_numerics;
    return msi_pools_plan(tree, micro_batches, plan);
}

ms_status ms_fsdp_dry_run(ms_fsdp_plan *plan, ms_comm *comm, const ms_fsdp_tree_options *options,
                          const ms_fsdp_group *groups, int32_t n_groups, int64_t micro_batches)
{
    ms_fsdp_tree_options o;

    *plan = (ms_fsdp_plan){0};
    MS_TRY(msi_options_take(&o, options, &msi_fsdp_tree_options));
    MS_TRY(msi_plan_check(groups, n_groups));
    MS_TRY(check_step(micro_batches));
    return msi_groups_plan(groups, n_groups, comm, &o, msi_pools_wish(), false, micro_batches,
                           plan);
}

ms_status ms_fsdp_tree_plan_get(ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan)
{
    *plan = (ms_fsdp_plan){0};
    MS_TRY(check_step(micro_batches));
    MS_TRY(ms_fsdp_tree_init(tree));
    return ms_fsdp_tree_dry_run(tree, micro_batches, plan);
}
