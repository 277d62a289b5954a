/* The tree: all units of one model, made once, agreed upon by all ranks, closed with the context.
 */
#include "fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ms_fsdp_tree_options defaults = {.struct_size = sizeof(defaults),
                                              .backward_prefetch = MS_FSDP_PREFETCH_PRE};

void ms_fsdp_tree_options_init(ms_fsdp_tree_options *o, uint32_t struct_size)
{
    msi_struct_give(o, struct_size, &defaults, sizeof(defaults));
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
    ms_fsdp_tree_hide_shards(tree, false);
    msi_schedule_free(tree);
    if (tree->summoned) {
        (void)ms_fsdp_tree_unsummon(tree, false);
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (u->state != MS_UNIT_SHARDED) {
            u->full->data = NULL;
            u->state = MS_UNIT_SHARDED;
            msi_unit_show(u);
        }
        msi_unit_dispose(u);
        msi_live_remove(&u->live);
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
        msi_live_close(&r->trees[i]->live);
    }
    for (int32_t i = 0; i < r->n_units; i++) {
        msi_unit_dispose(r->units[i]);
        msi_live_close(&r->units[i]->live);
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

static const msi_field option_fields[] = {
    MSI_FIELD(ms_fsdp_tree_options, struct_size),
    MSI_FIELD(ms_fsdp_tree_options, backward_prefetch),
    MSI_FIELD(ms_fsdp_tree_options, forward_prefetch),
    MSI_FIELD(ms_fsdp_tree_options, n_slots),
};

static ms_status take_options(ms_fsdp_tree_options *o, const ms_fsdp_tree_options *given)
{
    *o = defaults;
    if (given != NULL) {
        MS_TRY(msi_struct_take(o, given, "ms_fsdp_tree_options", option_fields,
                               MSI_COUNT(option_fields)));
    }
    if (o->backward_prefetch < MS_FSDP_PREFETCH_NONE ||
        o->backward_prefetch > MS_FSDP_PREFETCH_POST) {
        return MS_FAIL(MS_VALUE_ERROR, "backward_prefetch %d is none, expected 0 to %d",
                       (int)o->backward_prefetch, MS_FSDP_PREFETCH_POST);
    }
    if (o->n_slots < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "n_slots is %d, expected 0 or more", (int)o->n_slots);
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_new(ms_fsdp_tree **out, ms_comm *comm, const ms_fsdp_tree_options *options,
                           ms_fsdp_unit *const *units, int32_t n_units, bool root_has_unit)
{
    ms_fsdp_tree_options o;
    ms_status status = MS_OK;

    *out = NULL;
    MS_TRY(take_options(&o, options));
    if (root_has_unit && n_units < 1) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "root_has_unit is true for a tree of %d units, expected the root's first",
                       (int)n_units);
    }
    for (int32_t i = 0; i < n_units; i++) {
        for (int32_t j = 0; j < i; j++) {
            if (units[j] == units[i]) {
                return MS_FAIL(MS_VALUE_ERROR, "unit '%s' is listed twice", units[i]->name);
            }
        }
        if (units[i]->tree != NULL) {
            return MS_FAIL(MS_VALUE_ERROR, "unit '%s' is in a tree already", units[i]->name);
        }
        if (units[i]->comm != comm) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "unit '%s' is sharded over another group (%d ranks) than the tree's "
                           "(%d ranks)",
                           units[i]->name, (int)units[i]->world, (int)ms_comm_size(comm));
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
    msi_live_add(&tree->live, MSI_LIVE_FSDP_TREE, tree);
    *out = tree;
    return MS_OK;
failed:
    free(tree->units);
    free(tree);
    return status;
}

static void free_tree(void *user)
{
    ms_fsdp_tree *tree = user;

    if (tree->ctx != NULL) { /* else closed with its context */
        delist(tree);
        dispose(tree);
    }
    free(tree);
}

void ms_fsdp_tree_free(ms_fsdp_tree *tree)
{
    if (tree == NULL) {
        return;
    }
    msi_live_remove(&tree->live); /* what its owner let go of is no longer his */
    if (tree->ctx == NULL) {
        free_tree(tree);
        return;
    }
    tree->freeing = (msi_deferred){.fn = free_tree, .user = tree};
    msi_backward_defer(tree->ctx, &tree->freeing); /* a collector may come in the middle of one */
}

/* -- init -------------------------------------------------------------------------------------- */

ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out)
{
    msi_label label;

    msi_label_set(&label, what);
    return msi_comm_gather_named(tree->comm, &label, tree->model, in, nbytes, out);
}

/* [Note: giving up] What this rank has named and does not finish, its peers may still count on. On
 * a forward or backward they do whether it has named anything yet or not: replicas name nothing
 * until they reduce, and that of the next batch would be taken for that of this one. When they fail
 * at the same place of the program they say so too, and all go on; one that fails alone is told
 * apart by what it says here, also when it tries again what only it has to do again. Any other call
 * that has named nothing is this rank's own affair; peers are told when it comes out. */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_RESET, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    char text[4096];
    uint64_t seq;

    snprintf(text, sizeof(text), "%s%s%s", what, what[0] != '\0' ? ": " : "", ms_error_message());
    ms_comm_failed(tree->comm, text);
    if (tree->named && !msi_comm_broken(tree->comm)) {
        (void)msi_comm_publish(tree->comm, &fp, &seq);
    }
    tree->named = false;
}

static ms_status make_ready(ms_fsdp_tree *tree)
{
    if (tree->model == 0) {
        tree->model = msi_comm_count_model(tree->comm);
    }
    tree->named = true;
    msi_tree_note_options(tree);
    MS_TRY(msi_plans_agree(tree));
    MS_TRY(msi_numerics_agree(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(ms_fsdp_unit_materialize(tree->units[i]));
    }
    MS_TRY(msi_values_agree(tree));
    MS_TRY(msi_slots_new(tree));
    MS_TRY(msi_gradients_new(tree));
    return msi_schedule_new(tree);
}

ms_status ms_fsdp_tree_init(ms_fsdp_tree *tree)
{
    if (tree->ctx == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the tree was closed with its context");
    }
    if (tree->initialized) {
        return MS_OK;
    }
    ms_status status = make_ready(tree);

    if (status != MS_OK) { /* the next call begins anew */
        msi_schedule_free(tree);
        msi_slots_free(tree);
        msi_gradients_free(tree);
        msi_tree_give_up(tree, "the first use of FSDP");
        return status;
    }
    tree->initialized = true;
    return MS_OK;
}
