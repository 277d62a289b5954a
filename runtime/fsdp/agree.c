/* What ranks tell each other before they train together: the plan, which must be equal, and what
 * decides the bits of their results, which had better be. */
#include "fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the plan ---------------------------------------------------------------------------------- */

/* What must be equal on all ranks about one unit. */
typedef struct plan_entry {
    char name[64];
    int64_t numel, shard_numel;
    uint64_t params; /* hash of names, shapes, order */
    int32_t strategy, orig_dtype, param_dtype, reduce_dtype, n_params;
} plan_entry;

static void describe(const ms_fsdp_tree *tree, int32_t i, plan_entry *e)
{
    const ms_fsdp_unit *u = tree->units[i];

    memset(e, 0, sizeof(*e));
    strncpy(e->name, u->name, sizeof(e->name) - 1);
    e->numel = u->numel;
    e->shard_numel = u->shard_numel;
    e->strategy = u->options.strategy;
    e->orig_dtype = u->orig_dtype;
    e->param_dtype = u->param_dtype;
    e->reduce_dtype = u->reduce_dtype;
    e->n_params = u->n_params;
    for (int32_t p = 0; p < u->n_params; p++) {
        const msi_param *param = u->params[p].tensor->param;

        e->params = msi_mix64(e->params ^ ms_name_key(u->params[p].name)) ^
                    ms_hash_bytes(param->shape, (int64_t)sizeof(int64_t) * param->ndim);
    }
}

/* "'h.0' (1,234 elements in 12 parameters, FULL_SHARD, dtypes f32/bf16/f32)" */
static void entry_text(const plan_entry *e, char *text, size_t nbytes)
{
    static const char *const strategies[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"};

    if (e->n_params == 0) {
        snprintf(text, nbytes, "missing");
        return;
    }
    snprintf(text, nbytes, "'%s' (%lld elements in %d parameters, %s, dtypes %s/%s/%s)", e->name,
             (long long)e->numel, e->n_params, strategies[e->strategy],
             ms_dtype_name(e->orig_dtype), ms_dtype_name(e->param_dtype),
             ms_dtype_name(e->reduce_dtype));
}

/* Compare plans `all` (world, most) with rank 0's. */
static ms_status compare_plans(const plan_entry *all, int32_t world, int32_t most)
{
    char first[256], other[256];

    for (int32_t i = 0; i < most; i++) {
        for (int32_t q = 1; q < world; q++) {
            const plan_entry *theirs = &all[(int64_t)q * most + i];

            if (memcmp(&all[i], theirs, sizeof(*theirs)) != 0) {
                entry_text(&all[i], first, sizeof(first));
                entry_text(theirs, other, sizeof(other));
                return MS_FAIL(MS_COMM_ERROR,
                               "the ranks wrapped different models: unit %d is %s on rank 0 and "
                               "%s on rank %d%s",
                               (int)i, first, other, (int)q,
                               all[i].params != theirs->params && strcmp(first, other) == 0
                                   ? ", with other names, shapes or order of parameters"
                                   : "");
            }
        }
    }
    return MS_OK;
}

/* The most units any rank has, into `*most` (0 before). */
static ms_status largest_tree(ms_fsdp_tree *tree, int32_t *most)
{
    int32_t *counts = calloc((size_t)tree->world, sizeof(*counts));

    if (counts == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to compare the plans of %d ranks",
                       (int)tree->world);
    }
    ms_status status =
        msi_comm_gather_bytes(tree->comm, "plan size", &tree->n_units, sizeof(*counts), counts);

    for (int32_t q = 0; status == MS_OK && q < tree->world; q++) {
        *most = counts[q] > *most ? counts[q] : *most;
    }
    free(counts);
    return status;
}

ms_status msi_plans_agree(ms_fsdp_tree *tree)
{
    int32_t most = 0;

    MS_TRY(largest_tree(tree, &most));
    plan_entry *mine = calloc((size_t)most + 1, sizeof(*mine));
    plan_entry *all = calloc((size_t)most * (size_t)tree->world + 1, sizeof(*all));
    ms_status status = MS_OK;

    if (mine == NULL || all == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory to compare plans of %d units", (int)most);
    }
    for (int32_t i = 0; status == MS_OK && i < tree->n_units; i++) {
        describe(tree, i, &mine[i]);
    }
    if (status == MS_OK && most > 0) {
        status =
            msi_comm_gather_bytes(tree->comm, "plan", mine, (int64_t)sizeof(*mine) * most, all);
    }
    if (status == MS_OK) {
        status = compare_plans(all, tree->world, most);
    }
    free(mine);
    free(all);
    return status;
}

/* -- numerics ---------------------------------------------------------------------------------- */

enum { NUMERICS_TEXT = 320 };

ms_status msi_numerics_agree(ms_fsdp_tree *tree)
{
    char mine[NUMERICS_TEXT] = "";
    char *all;

    tree->same_numerics = true;
    if (tree->world == 1) {
        return MS_OK;
    }
    all = calloc((size_t)tree->world, NUMERICS_TEXT);
    if (all == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to compare the numerics of %d ranks",
                       (int)tree->world);
    }
    strncpy(mine, ms_numerics(), NUMERICS_TEXT - 1);
    ms_status status = msi_comm_gather_bytes(tree->comm, "numerics", mine, NUMERICS_TEXT, all);

    for (int32_t q = 1; status == MS_OK && q < tree->world && tree->same_numerics; q++) {
        const char *theirs = all + (size_t)q * NUMERICS_TEXT;

        if (strcmp(all, theirs) != 0) {
            tree->same_numerics = false;
            if (tree->rank == 0) {
                msi_warn("UserWarning",
                         "the ranks compute differently, so results are not the same for every "
                         "strategy and world size: rank 0 has %s; rank %d has %s",
                         all, (int)q, theirs);
            }
        }
    }
    free(all);
    return status;
}
