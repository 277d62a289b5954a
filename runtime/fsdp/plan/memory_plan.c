/* Bytes that training allocates, computed from numbers before anything runs. */
#include "memory_plan.h"

int64_t msi_plan_masters(const msi_group_facts *groups, int32_t n)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];
        const bool resident = !g->is_sharded && (g->param_dtype != g->orig_dtype || g->offloads);

        nbytes += g->shard_numel * ((g->offloads ? 0 : ms_dtype_size(g->orig_dtype)) +
                                    (resident ? ms_dtype_size(g->param_dtype) : 0));
    }
    return nbytes;
}

int64_t msi_plan_state(const msi_group_facts *groups, int32_t n)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < n; i++) {
        nbytes +=
            groups[i].offloads ? 0 : groups[i].trained_numel * ms_dtype_size(groups[i].orig_dtype);
    }
    return nbytes;
}

/* -- gradients --------------------------------------------------------------------------------- */

/* Bytes of a unit's levels after `n` kept backwards (no_sync): level j if bit j of n is set; level
 * 0 is a micro-batch's gradient, higher ones are inner nodes. */
static int64_t level_bytes(const msi_group_facts *g, uint64_t n)
{
    const int64_t micro = (n & 1) != 0 ? ms_dtype_size(g->reduce_dtype) : 0;
    const int64_t nodes = (int64_t)__builtin_popcountll(n >> 1) * ms_dtype_size(msi_node_dtype(g));

    return g->full_numel * (micro + nodes);
}

/* Bytes of a unit's gradients in one backward: before and after it, of the open micro-batch, and
 * temporarily at its end. */
typedef struct backward_memory {
    int64_t before, micro, merging, after;
} backward_memory;

/* The backward after `n` kept ones; `last`: it reduces. */
static backward_memory memory_of(const msi_group_facts *g, uint64_t n, bool last)
{
    const bool narrow = g->reduce_dtype != msi_node_dtype(g); /* two of them need a new node */
    const bool merges = narrow && (n & 1) != 0 && !(last && n == 1); /* except in the slot */
    const bool in_slot = last && (n == 0 || !narrow);

    if (!g->trains) {
        return (backward_memory){0};
    }
    return (backward_memory){
        .before = level_bytes(g, n),
        .micro = in_slot ? 0 : g->full_numel * ms_dtype_size(g->reduce_dtype),
        .merging = merges ? g->full_numel * ms_dtype_size(msi_node_dtype(g)) : 0,
        .after = !last         ? level_bytes(g, n + 1)
                 : g->offloads ? 0
                               : msi_reduced_numel(g) * ms_dtype_size(g->grad_dtype),
    };
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Peak bytes of gradients in the backward after `n` kept ones. Units' gradients are open one at a
 * time, the last unit's first; the root's during all of it, like its slot. */
static int64_t backward_bytes(const msi_group_facts *groups, int32_t n_groups, uint64_t n,
                              bool last)
{
    int64_t live = 0, peak = 0;

    for (int32_t i = 0; i < n_groups; i++) {
        const backward_memory c = memory_of(&groups[i], n, last);

        live += c.before + (groups[i].is_root ? c.micro : 0);
    }
    for (int32_t i = n_groups - 1; i >= 0; i--) {
        const backward_memory c = memory_of(&groups[i], n, last);

        live += groups[i].is_root ? 0 : c.micro;
        peak = largest(peak, live + c.merging);
        live += c.after - c.before - c.micro;
        peak = largest(peak, live);
    }
    return peak;
}

/* Peak in a step of m backwards. Kept counts with t trailing ones merge alike; of these the one
 * with the most higher levels has the peak. */
int64_t msi_plan_gradients(const msi_group_facts *groups, int32_t n_groups, int64_t m)
{
    int64_t peak = backward_bytes(groups, n_groups, (uint64_t)m - 1, true);

    for (int32_t t = 0; ((int64_t)1 << t) < m; t++) { /* backwards 1 to m - 1 are kept */
        const int64_t ones = ((int64_t)1 << t) - 1, above = (m - 2 - ones) >> (t + 1);
        int64_t most = 1;

        while (2 * most <= above + 1) {
            most *= 2;
        }
        peak = largest(peak, backward_bytes(groups, n_groups,
                                            (uint64_t)((most - 1) << (t + 1) | ones), false));
    }
    return peak;
}
