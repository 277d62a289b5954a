/* Hash of a model's values, independent of its wrapping. */
#include "array.h"
#include "schedule.h"
#include "unshard.h"

#include <stdlib.h>

/* hashes[p] = hash of parameter p of a unit. */
static ms_status hash_unit(ms_fsdp_unit *u, uint64_t *hashes)
{
    msi_storage *full;
    ms_status status = MS_OK;

    MS_TRY(msi_unit_gather_flat(u, "hash of unit", &full));
    for (int32_t p = 0; p < u->n_params && status == MS_OK; p++) {
        const msi_view values = msi_flat_view(u, full, u->params[p].offset, u->params[p].numel);

        status = msi_view_hash(&values, &hashes[p]);
    }
    msi_storage_release(full);
    return status;
}

/* Hashes of the tree's parameters. */
static ms_status hash_units(ms_fsdp_tree *tree, uint64_t *hashes)
{
    msi_progress_begin(&tree->run.progress);
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_status status = hash_unit(tree->units[i], hashes + tree->course[i].first_param);

        if (status != MS_OK) {
            msi_tree_give_up(tree, "hash");
            return status;
        }
    }
    return MS_OK;
}

/* hashes[i] of this rank's values, for plain parameters. */
static ms_status hash_plain(const msi_listed_param *places, int32_t n, uint64_t *hashes, bool *any)
{
    *any = false;
    for (int32_t i = 0; i < n; i++) {
        hashes[i] = 0;
        if (places[i].unit == NULL) {
            MS_TRY(ms_tensor_hash(places[i].tensor, &hashes[i]));
            *any = true;
        }
    }
    return MS_OK;
}

/* Hashes of the values if all ranks' are equal, else of all ranks' hashes. `all`: room for n per
 * rank. */
static ms_status gather_plain(ms_fsdp_tree *tree, int32_t n, uint64_t *hashes, uint64_t *all)
{
    MS_TRY(msi_tree_gather(tree, "hash of ignored parameters", hashes, n * (int64_t)sizeof(*hashes),
                           all));
    for (int32_t i = 0; i < n; i++) {
        bool equal = true;

        for (int32_t q = 1; q < tree->world; q++) {
            equal = equal && all[(int64_t)q * n + i] == all[i];
        }
        hashes[i] = all[i];
        for (int32_t q = 1; !equal && q < tree->world; q++) {
            hashes[i] = msi_mix64(hashes[i] ^ all[(int64_t)q * n + i]);
        }
    }
    return MS_OK;
}

/* Local failures come first, since peers wait for a gather once it has begun. */
ms_status ms_fsdp_tree_hash(ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                            uint64_t *hash)
{
    uint64_t *hashes = NULL, *plain = NULL, *all_plain = NULL, h = 0;
    msi_param_list order;
    bool any_plain;
    ms_status status;

    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(msi_masters_check(&tree->run, "hash"));
    MS_TRY(msi_param_list_new(tree, params, n_params, true, &order));
    const msi_listed_param *places = order.places;
    const int32_t n = order.n;

    MS_TRY_GOTO(msi_new_array(&hashes, tree->n_params, "hashes of parameters"), done);
    MS_TRY_GOTO(msi_new_array(&plain, n, "hashes of parameters"), done);
    MS_TRY_GOTO(msi_new_array(&all_plain, (int64_t)n * tree->world, "hashes of parameters"), done);
    MS_TRY_GOTO(hash_plain(places, n, plain, &any_plain), done);
    MS_TRY_GOTO(hash_units(tree, hashes), done);
    if (any_plain && tree->world > 1) {
        MS_TRY_GOTO(gather_plain(tree, n, plain, all_plain), done);
    }
    for (int32_t i = 0; i < n; i++) {
        const ms_fsdp_unit *u = places[i].unit;

        h = u != NULL
                ? msi_params_fold(h, hashes[tree->course[u->index].first_param + places[i].index],
                                  msi_listed_in_unit(&places[i])->name)
                : msi_params_fold(h, plain[i], msi_tensor_label(places[i].tensor));
    }
    *hash = h;
done:
    msi_release(order.block);
    free(hashes);
    free(plain);
    free(all_plain);
    return status;
}
