/* What ranks compare at first use. Plans and values of replicas must be equal (error); the origin
 * of shards and the numerics should be (warning). */
#include "array.h"
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the plan ---------------------------------------------------------------------------------- */

/* A tree's plan, equal on all ranks. */
typedef struct tree_entry {
    int32_t n_units;
    msi_option_record options;
} tree_entry;

/* One unit's plan, equal on all ranks. */
typedef struct plan_entry {
    msi_label name;
    int64_t numel, shard_numel;
    uint64_t params; /* hash of names, shapes, flags, order */
    int32_t n_params, orig_dtype;
    msi_option_record options;
} plan_entry;

/* One parameter's plan; gathered only to report which one differs. */
typedef struct param_entry {
    msi_label name;
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim, requires_grad;
} param_entry;

static param_entry param_entry_of(const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;
    param_entry e;

    memset(&e, 0, sizeof(e));
    msi_label_set(&e.name, p->name);
    memcpy(e.shape, param->shape, sizeof(*e.shape) * (size_t)param->ndim);
    e.ndim = param->ndim;
    e.requires_grad = p->tensor->requires_grad;
    return e;
}

static void describe(const ms_fsdp_unit *u, plan_entry *e)
{
    ms_fsdp_unit_options effective = u->options;

    memset(e, 0, sizeof(*e));
    effective.param_dtype = u->param_dtype;
    effective.reduce_dtype = u->reduce_dtype;
    e->options = msi_options_record(&effective, &msi_fsdp_unit_options);
    e->name = u->label;
    e->numel = u->numel;
    e->shard_numel = u->shard_numel;
    e->n_params = u->n_params;
    e->orig_dtype = u->orig_dtype;
    for (int32_t p = 0; p < u->n_params; p++) {
        const param_entry param = param_entry_of(&u->params[p]);

        e->params = msi_mix64(e->params ^ ms_name_key(u->params[p].name)) ^
                    ms_hash_bytes(&param, sizeof(param));
    }
}

/* "'h.0' (1,234 elements of f32 in 12 parameters, 617 in each shard)" */
static void entry_text(const plan_entry *e, char *text, size_t nbytes)
{
    if (e->n_params == 0) {
        snprintf(text, nbytes, "missing");
        return;
    }
    snprintf(text, nbytes, "'%s' (%lld elements of %s in %d parameters, %lld in each shard)",
             e->name.text, (long long)e->numel, ms_dtype_name(e->orig_dtype), (int)e->n_params,
             (long long)e->shard_numel);
}

/* "'h.0.weight' (4, 4), frozen" */
static void param_text(const param_entry *e, char *text, size_t nbytes)
{
    snprintf(text, nbytes, "'%s' %s%s", e->name.text, msi_shape_text(e->ndim, e->shape),
             e->requires_grad != 0 ? "" : ", frozen");
}

/* Suffix for texts that differ beyond the cut. */
static const char *where_cut(const char *first, const char *other)
{
    return strcmp(first, other) == 0 ? ", not the same where it is cut" : "";
}

/* Unit `i` has as many parameters and elements on ranks 0 and q, but they differ: gather them and
 * report the first difference (every rank finds the same). */
static ms_status name_param(ms_fsdp_tree *tree, int32_t i, int32_t q)
{
    const ms_fsdp_unit *u = tree->units[i];
    int64_t nbytes = (int64_t)sizeof(param_entry) * u->n_params;
    param_entry *mine = calloc((size_t)u->n_params, sizeof(*mine));
    param_entry *all = calloc((size_t)u->n_params * (size_t)tree->world, sizeof(*all));
    char first[320], other[320];
    ms_status status = MS_OK;

    if (mine == NULL || all == NULL) {
        status =
            MS_FAIL(MS_OUT_OF_MEMORY, "no memory to compare the parameters of unit '%s'", u->name);
        goto done;
    }
    for (int32_t p = 0; p < u->n_params; p++) {
        mine[p] = param_entry_of(&u->params[p]);
    }
    MS_TRY_GOTO(msi_tree_gather(tree, "the first use of FSDP (parameters)", mine, nbytes, all),
                done);
    for (int32_t p = 0; p < u->n_params && status == MS_OK; p++) {
        const param_entry *theirs = &all[(int64_t)q * u->n_params + p];

        if (memcmp(&all[p], theirs, sizeof(*theirs)) != 0) {
            param_text(&all[p], first, sizeof(first));
            param_text(theirs, other, sizeof(other));
            status =
                MS_FAIL(MS_COMM_ERROR,
                        "the ranks wrapped different models: parameter %d of unit '%s' is %s "
                        "on rank %d and %s on rank %d%s",
                        (int)p, u->name, first, (int)msi_comm_rank_in_job(tree->comm, 0), other,
                        (int)msi_comm_rank_in_job(tree->comm, q), where_cut(first, other));
        }
    }
done:
    free(mine);
    free(all);
    return status;
}

/* Error if rank q's options differ from rank 0's. `of`: " of unit 'h.0'", or "". */
static ms_status compare_options(const ms_fsdp_tree *tree, const msi_option_table *table,
                                 const char *of, const msi_option_record *first,
                                 const msi_option_record *theirs, int32_t q)
{
    char text[MSI_OPTION_TEXT], other[MSI_OPTION_TEXT];

    for (int32_t i = 0; i < table->n_options; i++) {
        const msi_option *o = &table->options[i];

        if (first->numbers[i] != theirs->numbers[i]) {
            return MS_FAIL(MS_COMM_ERROR,
                           "the ranks wrapped different models: %s%s is %s on rank %d and %s on "
                           "rank %d",
                           o->name, of, msi_option_text(o, first->numbers[i], text),
                           (int)msi_comm_rank_in_job(tree->comm, 0),
                           msi_option_text(o, theirs->numbers[i], other),
                           (int)msi_comm_rank_in_job(tree->comm, q));
        }
    }
    return MS_OK;
}

/* Compare plans `all` (world, most) with rank 0's. */
static ms_status compare_plans(ms_fsdp_tree *tree, const plan_entry *all, int32_t most)
{
    char first[256], other[256];

    for (int32_t i = 0; i < most; i++) {
        for (int32_t q = 1; q < tree->world; q++) {
            const plan_entry *theirs = &all[(int64_t)q * most + i];

            if (memcmp(&all[i], theirs, sizeof(*theirs)) == 0) {
                continue;
            }
            if (memcmp(&all[i].name, &theirs->name, sizeof(theirs->name)) == 0 &&
                all[i].orig_dtype == theirs->orig_dtype) {
                snprintf(first, sizeof(first), " of unit '%s'", all[i].name.text);
                MS_TRY(compare_options(tree, &msi_fsdp_unit_options, first, &all[i].options,
                                       &theirs->options, q));
            }
            entry_text(&all[i], first, sizeof(first));
            entry_text(theirs, other, sizeof(other));
            if (strcmp(first, other) == 0) {
                MS_TRY(name_param(tree, i, q));
            }
            return MS_FAIL(MS_COMM_ERROR,
                           "the ranks wrapped different models: unit %d is %s on rank %d and %s on "
                           "rank %d%s",
                           (int)i, first, (int)msi_comm_rank_in_job(tree->comm, 0), other,
                           (int)msi_comm_rank_in_job(tree->comm, q), where_cut(first, other));
        }
    }
    return MS_OK;
}

/* Compare options of trees, and find the maximum number of units, to `*most` (first 0). */
static ms_status compare_trees(ms_fsdp_tree *tree, int32_t *most)
{
    const tree_entry mine = {tree->n_units,
                             msi_options_record(&tree->options, &msi_fsdp_tree_options)};
    tree_entry *all;

    MS_TRY(msi_new_array(&all, tree->world, "ranks' plans to compare"));
    ms_status status =
        msi_tree_gather(tree, "the first use of FSDP (number of units)", &mine, sizeof(mine), all);

    for (int32_t q = 0; status == MS_OK && q < tree->world; q++) {
        *most = all[q].n_units > *most ? all[q].n_units : *most;
        status =
            compare_options(tree, &msi_fsdp_tree_options, "", &all[0].options, &all[q].options, q);
    }
    free(all);
    return status;
}

/* `mine` (most), `all` (world, most), both zeroed. */
static ms_status compare_with_peers(ms_fsdp_tree *tree, int32_t most, plan_entry *mine,
                                    plan_entry *all)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        describe(tree->units[i], &mine[i]);
    }
    if (most == 0) {
        return MS_OK;
    }
    MS_TRY(msi_tree_gather(tree, "the first use of FSDP (units)", mine,
                           (int64_t)sizeof(*mine) * most, all));
    return compare_plans(tree, all, most);
}

ms_status msi_plans_agree(ms_fsdp_tree *tree)
{
    plan_entry *mine = NULL, *all = NULL;
    int32_t most = 0;
    ms_status status;

    if (!msi_tree_has_peers(tree)) {
        return MS_OK;
    }
    MS_TRY(compare_trees(tree, &most));
    MS_TRY_GOTO(msi_new_array(&mine, most, "units to compare"), done);
    MS_TRY_GOTO(msi_new_array(&all, (int64_t)most * tree->world, "units to compare"), done);
    status = compare_with_peers(tree, most, mine, all);
done:
    free(mine);
    free(all);
    return status;
}

/* -- values ------------------------------------------------------------------------------------ */

/* Compared for one parameter: a replica's values, or the origin of a shard's. */
typedef struct first_values {
    uint64_t hash;
    uint64_t given; /* loaded or written by the script; else 0: made by a rule */
} first_values;

static ms_status first_values_of(const msi_listed_param *at, first_values *out)
{
    const ms_fsdp_unit *u = at->unit;
    const msi_unit_param *p = msi_listed_in_unit(at);

    *out = (first_values){p->origin, p->given};
    if (u->is_sharded) {
        return MS_OK;
    }
    const msi_view values = msi_flat_view(u, u->master, p->offset, p->numel);

    return msi_view_hash(&values, &out->hash);
}

/* Rank q's initial values of a parameter differ from rank 0's. For shards a different seed is
 * legal (rules, or tensors made parameters); loading or writing different values is not. */
static ms_status values_differ(const msi_listed_param *at, int32_t q, bool given, bool *warned)
{
    const ms_fsdp_unit *u = at->unit;
    const char *name = msi_listed_in_unit(at)->name;
    const int zero = msi_comm_rank_in_job(u->comm, 0), rank = msi_comm_rank_in_job(u->comm, q);

    if (!u->is_sharded) {
        return MS_FAIL(MS_COMM_ERROR,
                       "replicas of parameter '%s' (unit '%s', NO_SHARD) have other values on rank "
                       "%d than on rank %d; give all ranks one seed before the model is made, or "
                       "load one state dict on all of them",
                       name, u->name, rank, zero);
    }
    if (given) {
        return MS_FAIL(
            MS_COMM_ERROR,
            "parameter '%s' (unit '%s') was loaded or written before its first use, with "
            "other values on rank %d than on rank %d, and each rank would keep its own "
            "part; load or write the same on all ranks",
            name, u->name, rank, zero);
    }
    if (u->rank == 0 && !*warned) {
        msi_warn("UserWarning",
                 "initial values differ between ranks, and each rank keeps its own part of them "
                 "(parameter '%s': rank %d has another seed, rule or tensor than rank %d, or has "
                 "made other modules before); give all ranks one seed, load one state dict on all "
                 "of them, or wrap with sync_module_states",
                 name, rank, zero);
    }
    *warned = true;
    return MS_OK;
}

ms_status msi_values_agree(ms_fsdp_tree *tree)
{
    first_values *mine = NULL, *all = NULL;
    const int64_t n = tree->n_params;
    bool warned = false;
    ms_status status = MS_OK;

    if (!msi_tree_has_peers(tree) || n == 0) {
        return MS_OK;
    }
    MS_TRY_GOTO(msi_new_array(&mine, n, "parameters to compare"), done);
    MS_TRY_GOTO(msi_new_array(&all, n * tree->world, "parameters to compare"), done);
    for (int64_t i = 0; i < n; i++) {
        MS_TRY_GOTO(first_values_of(&tree->params[i], &mine[i]), done);
    }
    MS_TRY_GOTO(msi_tree_gather(tree, "the first use of FSDP (values)", mine,
                                n * (int64_t)sizeof(*mine), all),
                done);
    for (int64_t i = 0; i < n; i++) {
        for (int32_t q = 1; q < tree->world; q++) {
            const first_values *theirs = &all[q * n + i];
            const bool given = (theirs->given | all[i].given) != 0;

            if (theirs->hash != all[i].hash) {
                MS_TRY_GOTO(values_differ(&tree->params[i], q, given, &warned), done);
            }
        }
    }
done:
    free(mine);
    free(all);
    return status;
}

/* -- numerics ---------------------------------------------------------------------------------- */

enum { NUMERICS_TEXT = 320 };

ms_status msi_numerics_agree(ms_fsdp_tree *tree)
{
    char mine[NUMERICS_TEXT] = "";
    char(*all)[NUMERICS_TEXT];

    tree->same_numerics = true;
    if (!msi_tree_has_peers(tree)) {
        return MS_OK;
    }
    MS_TRY(msi_new_array(&all, tree->world, "ranks' numerics to compare"));
    strncpy(mine, ms_numerics(), NUMERICS_TEXT - 1);
    ms_status status =
        msi_tree_gather(tree, "the first use of FSDP (numerics)", mine, NUMERICS_TEXT, all);

    for (int32_t q = 1; status == MS_OK && q < tree->world && tree->same_numerics; q++) {
        const char *theirs = all[q];

        if (strcmp(all[0], theirs) != 0) {
            tree->same_numerics = false;
            if (tree->rank == 0) {
                msi_warn("UserWarning",
                         "the ranks compute differently, so results are not the same for every "
                         "strategy and world size: rank %d has %s; rank %d has %s",
                         (int)msi_comm_rank_in_job(tree->comm, 0), all[0],
                         (int)msi_comm_rank_in_job(tree->comm, q), theirs);
            }
        }
    }
    free(all);
    return status;
}
