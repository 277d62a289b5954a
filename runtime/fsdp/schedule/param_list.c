/* The order of a model's parameters. Numbers are folded over parameters in this order, so that the
 * wrapping does not change the last bit. */
#include "schedule.h"

#include <stdlib.h>

static int compare_places(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const msi_listed_param *)a)->tensor;
    uintptr_t y = (uintptr_t)((const msi_listed_param *)b)->tensor;

    return (x > y) - (x < y);
}

/* Check that no parameter is listed twice; `whole`: that every parameter of the tree is listed.
 * Sorts `sorted`. */
static ms_status check_list(const ms_fsdp_tree *tree, msi_listed_param *sorted, int32_t n,
                            bool whole)
{
    int32_t n_held = tree->n_params;

    qsort(sorted, (size_t)n, sizeof(*sorted), compare_places);
    for (int32_t i = 0; i < n; i++) {
        n_held -= sorted[i].unit != NULL;
        if (i > 0 && sorted[i].tensor == sorted[i - 1].tensor) {
            return MS_FAIL(MS_VALUE_ERROR, "parameter '%s' is listed twice",
                           msi_tensor_label(sorted[i].tensor));
        }
    }
    return n_held == 0 || !whole
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%d parameters of the tree's units are not listed",
                         (int)n_held);
}

/* From the heap, so that a steady step allocates nothing from the system. */
static ms_status places_new(const ms_fsdp_tree *tree, int32_t n, msi_mem_block **out)
{
    return msi_host_alloc(tree->ctx, (int64_t)sizeof(msi_listed_param) * ((int64_t)n + 1),
                          MS_MEM_SCRATCH, out);
}

static ms_status list_params(const ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n,
                             bool whole, msi_listed_param *places)
{
    msi_mem_block *copy;

    MS_TRY(places_new(tree, n, &copy));
    msi_listed_param *sorted = copy->data;

    for (int32_t i = 0; i < n; i++) {
        const msi_param *param = params[i]->param;
        ms_fsdp_unit *u = param != NULL ? param->unit : NULL;

        if (whole && u != NULL && msi_tree_of(u) != tree) {
            msi_release(copy);
            return MS_FAIL(MS_VALUE_ERROR, "parameter '%s' belongs to another sharded model",
                           msi_tensor_label(params[i]));
        }
        places[i] = sorted[i] =
            (msi_listed_param){params[i], u, u != NULL ? param->unit_index : -1};
    }
    ms_status status = check_list(tree, sorted, n, whole);

    msi_release(copy);
    return status;
}

ms_status msi_param_list_new(const ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                             bool whole, msi_param_list *out)
{
    msi_mem_block *block;

    *out = (msi_param_list){tree->params, tree->n_params, NULL};
    if (params == NULL) {
        return MS_OK;
    }
    MS_TRY(places_new(tree, n_params, &block));
    const ms_status status = list_params(tree, params, n_params, whole, block->data);

    if (status != MS_OK) {
        msi_release(block);
        return status;
    }
    *out = (msi_param_list){block->data, n_params, block};
    return MS_OK;
}
