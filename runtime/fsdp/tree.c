/* The tree: all units of one model, made once, agreed upon by all ranks, closed with the context.
 */
#include "fsdp.h"

#include <stdlib.h>
#include <string.h>

void ms_fsdp_tree_options_init(ms_fsdp_tree_options *o)
{
    *o = (ms_fsdp_tree_options){.struct_size = sizeof(*o),
                                .backward_prefetch = MS_FSDP_PREFETCH_PRE};
}

/* Trees, and units in no tree, of a context: closing it finds them. */
typedef struct registry {
    ms_fsdp_tree **trees;
    ms_fsdp_unit **units;
    int32_t n_trees, n_units;
} registry;

/* Free all a tree holds; the struct stays for its owner to free. */
static void dispose(ms_fsdp_tree *tree)
{
    if (tree->ctx == NULL) {
        return;
    }
    msi_schedule_free(tree);
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (u->state != MS_UNIT_SHARDED) {
            u->full->data = NULL;
            msi_unit_show_shards(u);
        }
        msi_unit_dispose(u);
        free(u);
    }
    tree->n_units = 0;
    msi_slots_free(tree);
    msi_gradients_free(tree);
    free(tree->units);
    tree->ctx = NULL;
}

static void close_registry(void *state)
{
    registry *r = state;

    for (int32_t i = 0; i < r->n_trees; i++) {
        dispose(r->trees[i]);
    }
    for (int32_t i = 0; i < r->n_units; i++) {
        msi_unit_dispose(r->units[i]);
    }
    free(r->trees);
    free(r->units);
    free(r);
}

static ms_status registry_of(ms_context *ctx, registry **out)
{
    if (ctx->room[MSI_ROOM_FSDP] == NULL) {
        ctx->room[MSI_ROOM_FSDP] = calloc(1, sizeof(registry));
        ctx->close[MSI_ROOM_FSDP] = close_registry;
    }
    *out = ctx->room[MSI_ROOM_FSDP];
    return *out != NULL ? MS_OK : MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the list of trees");
}

static ms_status enlist(ms_fsdp_tree *tree)
{
    registry *r;

    MS_TRY(registry_of(tree->ctx, &r));
    ms_fsdp_tree **trees = realloc(r->trees, sizeof(*trees) * (size_t)(r->n_trees + 1));

    if (trees == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the list of trees");
    }
    r->trees = trees;
    trees[r->n_trees++] = tree;
    return MS_OK;
}

static void delist(ms_fsdp_tree *tree)
{
    registry *r = tree->ctx->room[MSI_ROOM_FSDP];

    for (int32_t i = 0; i < r->n_trees; i++) {
        if (r->trees[i] == tree) {
            r->trees[i] = r->trees[--r->n_trees];
            return;
        }
    }
}

ms_status msi_unit_enlist(ms_fsdp_unit *u)
{
    registry *r;

    MS_TRY(registry_of(u->ctx, &r));
    ms_fsdp_unit **units = realloc(r->units, sizeof(*units) * (size_t)(r->n_units + 1));

    if (units == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the list of units");
    }
    r->units = units;
    units[r->n_units++] = u;
    return MS_OK;
}

void msi_unit_delist(ms_fsdp_unit *u)
{
    registry *r = u->ctx->room[MSI_ROOM_FSDP];

    for (int32_t i = 0; r != NULL && i < r->n_units; i++) {
        if (r->units[i] == u) {
            r->units[i] = r->units[--r->n_units];
            return;
        }
    }
}

ms_status ms_fsdp_tree_new(ms_fsdp_tree **out, ms_comm *comm, const ms_fsdp_tree_options *options,
                           ms_fsdp_unit *const *units, int32_t n_units, bool root_has_unit)
{
    ms_fsdp_tree_options o;
    ms_status status = MS_OK;

    *out = NULL;
    ms_fsdp_tree_options_init(&o);
    if (options != NULL) {
        if (options->struct_size == 0 || options->struct_size > sizeof(o)) {
            return MS_FAIL(MS_VALUE_ERROR, "tree options have size %u, expected 1 to %zu",
                           options->struct_size, sizeof(o));
        }
        memcpy(&o, options, options->struct_size);
    }
    for (int32_t i = 0; i < n_units; i++) {
        if (units[i]->tree != NULL) {
            return MS_FAIL(MS_VALUE_ERROR, "unit '%s' is in a tree already", units[i]->name);
        }
    }
    ms_fsdp_tree *tree = calloc(1, sizeof(*tree));

    if (tree == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a tree of %d units", (int)n_units);
    }
    tree->ctx = msi_context();
    tree->comm = comm;
    tree->options = o;
    tree->rank = ms_comm_rank(comm);
    tree->world = ms_comm_size(comm);
    tree->sync = true;
    tree->has_root_unit = root_has_unit;
    tree->units = calloc((size_t)n_units + 1, sizeof(*tree->units));
    if (tree->units == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a tree of %d units", (int)n_units);
        goto failed;
    }
    MS_TRY_GOTO(enlist(tree), failed);
    for (int32_t i = 0; i < n_units; i++) {
        msi_unit_delist(units[i]);
        tree->units[i] = units[i];
        units[i]->tree = tree;
        units[i]->index = i;
        units[i]->is_root = i == 0 && root_has_unit;
    }
    tree->n_units = n_units;
    *out = tree;
    return MS_OK;
failed:
    free(tree->units);
    free(tree);
    return status;
}

void ms_fsdp_tree_free(ms_fsdp_tree *tree)
{
    if (tree == NULL) {
        return;
    }
    if (tree->ctx != NULL) {
        delist(tree);
        dispose(tree);
    }
    free(tree);
}

/* -- agreement --------------------------------------------------------------------------------- */

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
static ms_status agree(ms_fsdp_tree *tree)
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

ms_status ms_fsdp_tree_init(ms_fsdp_tree *tree)
{
    if (tree->ctx == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the tree was closed with its context");
    }
    if (tree->initialized) {
        return MS_OK;
    }
    if (tree->failed) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the tree could not be initialised before");
    }
    tree->failed = true; /* until all of this succeeded */
    MS_TRY(agree(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(ms_fsdp_unit_materialize(tree->units[i]));
    }
    MS_TRY(msi_slots_new(tree));
    MS_TRY(msi_gradients_new(tree));
    MS_TRY(msi_schedule_new(tree));
    tree->failed = false;
    tree->initialized = true;
    return MS_OK;
}

ms_status ms_fsdp_tree_plan_get(ms_fsdp_tree *tree, ms_fsdp_plan *plan)
{
    *plan = (ms_fsdp_plan){0};
    MS_TRY(ms_fsdp_tree_init(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];
        int64_t shard = u->shard_numel * ms_dtype_size(u->orig_dtype);
        bool resident = !u->is_sharded && u->param_dtype != u->orig_dtype;

        plan->masters += shard + (resident ? u->shard_numel * ms_dtype_size(u->param_dtype) : 0);
        plan->gradients += shard;
        plan->per_state += shard;
    }
    for (int32_t i = 0; i < tree->n_segments; i++) {
        plan->arena += tree->segments[i].nbytes;
    }
    for (int32_t i = 0; i < tree->n_grad_segments; i++) {
        plan->arena += tree->grad_segments[i].nbytes;
    }
    return MS_OK;
}
