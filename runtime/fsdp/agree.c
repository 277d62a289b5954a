/* What ranks tell each other before they train together: the plan, which must be equal, and what
 * decides the bits of their results, which had better be. */
#include "fsdp.h"

#include <stdlib.h>
#include <string.h>

/* -- the plan ---------------------------------------------------------------------------------- */

/* What must be equal on all ranks about one unit. */
typedef struct plan_entry {
    char name[64];
    int64_t numel, shard_numel;
    uint64_t params; /* hash of names, shapes, order */
    int32_t strategy, orig_dtype, param_dtype, reduce_dtype, n_params, n_units;
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
    e->n_units = tree->n_units;
    for (int32_t p = 0; p < u->n_params; p++) {
        const msi_param *param = u->params[p].tensor->param;

        e->params = msi_mix64(e->params ^ ms_name_key(u->params[p].name)) ^
                    ms_hash_bytes(param->shape, (int64_t)sizeof(int64_t) * param->ndim);
    }
}

/* Every rank's plan beside this one's; names the first unit that differs. */
ms_status msi_plans_agree(ms_fsdp_tree *tree)
{
    int32_t n = tree->n_units, most = n;
    int32_t counts[128];
    plan_entry *mine = NULL, *all = NULL;
    ms_status status;

    if (tree->world > MSI_COUNT(counts)) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "world size is %d, expected at most %d",
                       (int)tree->world, MSI_COUNT(counts));
    }
    MS_TRY(msi_comm_gather_bytes(tree->comm, "plan size", &n, sizeof(n), counts));
    for (int32_t q = 0; q < tree->world; q++) {
        most = counts[q] > most ? counts[q] : most;
    }
    mine = calloc((size_t)most + 1, sizeof(*mine));
    all = calloc(((size_t)most + 1) * (size_t)tree->world, sizeof(*all));
    if (mine == NULL || all == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory to compare plans of %d units", (int)most);
        goto done;
    }
    for (int32_t i = 0; i < n; i++) {
        describe(tree, i, &mine[i]);
    }
    MS_TRY_GOTO(
        msi_comm_gather_bytes(tree->comm, "plan", mine, (int64_t)sizeof(*mine) * (most + 1), all),
        done);
    for (int32_t i = 0; i < most && status == MS_OK; i++) {
        const plan_entry *first = &all[i];

        for (int32_t q = 1; q < tree->world && status == MS_OK; q++) {
            const plan_entry *other = &all[(int64_t)q * (most + 1) + i];

            if (memcmp(first, other, sizeof(*first)) != 0) {
                status = MS_FAIL(
                    MS_COMM_ERROR,
                    "the ranks wrapped different models: unit %d is '%s' (%lld elements "
                    "in %d parameters, strategy %d, dtypes %s/%s/%s) on rank 0 and '%s' "
                    "(%lld elements in %d parameters, strategy %d, dtypes %s/%s/%s) on "
                    "rank %d",
                    (int)i, first->name, (long long)first->numel, first->n_params, first->strategy,
                    ms_dtype_name(first->orig_dtype), ms_dtype_name(first->param_dtype),
                    ms_dtype_name(first->reduce_dtype), other->name, (long long)other->numel,
                    other->n_params, other->strategy, ms_dtype_name(other->orig_dtype),
                    ms_dtype_name(other->param_dtype), ms_dtype_name(other->reduce_dtype), (int)q);
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
