/* What training will hold, in bytes: from units, options and the schedule, before anything runs. */
#include "fsdp.h"

static bool is_trainable(const ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].tensor->requires_grad) {
            return true;
        }
    }
    return false;
}

static int64_t shard_bytes(const ms_fsdp_unit *u)
{
    return u->shard_numel * ms_dtype_size(u->orig_dtype);
}

/* A NO_SHARD unit in a lower precision has a second copy. */
static int64_t master_bytes(const ms_fsdp_unit *u)
{
    const bool resident = !u->is_sharded && u->param_dtype != u->orig_dtype;

    return shard_bytes(u) + (resident ? u->shard_numel * ms_dtype_size(u->param_dtype) : 0);
}

/* An optimizer keeps no state for padding, and none for what has no gradient. */
static int64_t state_bytes(const ms_fsdp_unit *u)
{
    int64_t numel = 0;

    for (int32_t i = 0; i < u->n_params; i++) {
        numel += u->params[i].tensor->requires_grad ? u->params[i].piece.numel : 0;
    }
    return numel * ms_dtype_size(u->orig_dtype);
}

/* -- gradients --------------------------------------------------------------------------------- */

/* What levels.c holds of a unit when `n` backwards of no_sync are kept: level j where bit j of n is
 * set, a leaf at level 0, inner nodes above. */
static int64_t level_bytes(const ms_fsdp_unit *u, uint64_t n)
{
    const int64_t leaf = (n & 1) != 0 ? ms_dtype_size(u->reduce_dtype) : 0;
    const int64_t nodes = (int64_t)__builtin_popcountll(n >> 1) * ms_dtype_size(msi_node_dtype(u));

    return msi_leaf_numel(u) * (leaf + nodes);
}

/* What one backward does to a unit: bytes of gradients before and after it, of the leaf while it is
 * open, and of what its end takes beside that for a moment. */
typedef struct course {
    int64_t before, leaf, merging, after;
} course;

/* The backward after `n` kept ones; `last`: it reduces. */
static course course_of(const ms_fsdp_unit *u, uint64_t n, bool last)
{
    const bool narrow = u->reduce_dtype != msi_node_dtype(u); /* two leaves need a new node ... */
    const bool merges = narrow && (n & 1) != 0 && !(last && n == 1); /* ... unless in the slot */
    const bool in_slot = last && (n == 0 || !narrow);

    if (!is_trainable(u)) {
        return (course){0};
    }
    return (course){
        .before = level_bytes(u, n),
        .leaf = in_slot ? 0 : msi_leaf_numel(u) * ms_dtype_size(u->reduce_dtype),
        .merging = merges ? msi_leaf_numel(u) * ms_dtype_size(msi_node_dtype(u)) : 0,
        .after = last ? shard_bytes(u) : level_bytes(u, n + 1),
    };
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The most that gradients take in the backward after `n` kept ones. Units' leaves are open one at a
 * time, the last unit's first; the root's from the first op to the last, as grad_slots.c has it. */
static int64_t backward_bytes(const ms_fsdp_tree *tree, uint64_t n, bool last)
{
    int64_t live = 0, peak = 0;

    for (int32_t i = 0; i < tree->n_units; i++) {
        const course c = course_of(tree->units[i], n, last);

        live += c.before + (tree->units[i]->is_root ? c.leaf : 0);
    }
    for (int32_t i = tree->n_units - 1; i >= 0; i--) {
        const course c = course_of(tree->units[i], n, last);

        live += tree->units[i]->is_root ? 0 : c.leaf;
        peak = largest(peak, live + c.merging);
        live += c.after - c.before - c.leaf;
        peak = largest(peak, live);
    }
    return peak;
}

/* The most they take in a step of m backwards. Of the kept counts with t trailing ones, all of
 * which merge alike, the one with the most levels above holds most. */
static int64_t gradient_bytes(const ms_fsdp_tree *tree, int64_t m)
{
    int64_t peak = backward_bytes(tree, (uint64_t)m - 1, true);

    for (int32_t t = 0; ((int64_t)1 << t) < m; t++) { /* backwards 1 to m - 1 keep theirs */
        const int64_t ones = ((int64_t)1 << t) - 1, above = (m - 2 - ones) >> (t + 1);
        int64_t most = 1;

        while (2 * most <= above + 1) {
            most *= 2;
        }
        peak = largest(peak, backward_bytes(tree, (uint64_t)((most - 1) << (t + 1) | ones), false));
    }
    return peak;
}

/* -- the plan ---------------------------------------------------------------------------------- */

ms_status ms_fsdp_tree_plan_get(ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan)
{
    *plan = (ms_fsdp_plan){0};
    if (micro_batches < 1 || micro_batches > (int64_t)1 << MSI_MAX_LEVELS) {
        return MS_FAIL(MS_VALUE_ERROR, "a plan for %lld micro-batches, expected 1 to 2^%d",
                       (long long)micro_batches, MSI_MAX_LEVELS);
    }
    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(msi_gradients_bytes(tree, micro_batches > 1, &plan->arena));
    for (int32_t i = 0; i < tree->n_segments; i++) {
        plan->arena += tree->segments[i].nbytes;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        plan->masters += master_bytes(tree->units[i]);
        plan->per_state += state_bytes(tree->units[i]);
    }
    plan->gradients = gradient_bytes(tree, micro_batches);
    plan->same_numerics = tree->same_numerics;
    return MS_OK;
}
