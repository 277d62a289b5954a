#include "step_plan.h"
#include "array.h"

#include "memory_plan.h"

#include <stdlib.h>

/* -- checks ------------------------------------------------------------------------------------ */

static ms_status check_number(int32_t i, const char *name, int64_t number, int64_t least,
                              int64_t most)
{
    return number >= least && number <= most
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s of group %d is %lld, expected %lld to %lld", name,
                         (int)i, (long long)number, (long long)least, (long long)most);
}

static ms_status check_dtype(int32_t i, const char *name, int32_t dtype)
{
    return ms_dtype_is_floating(dtype)
               ? MS_OK
               : MS_FAIL(MS_TYPE_ERROR, "%s of group %d is %s (%d), expected a floating dtype",
                         name, (int)i, ms_dtype_name(dtype), (int)dtype);
}

static ms_status check_group(const msi_group_facts *g, int32_t i)
{
    MS_TRY(check_number(i, "full_numel", g->full_numel, 0, (int64_t)1 << 53));
    MS_TRY(check_number(i, "shard_numel", g->shard_numel, 0, g->full_numel));
    MS_TRY(check_number(i, "trained_numel", g->trained_numel, 0, g->shard_numel));
    MS_TRY(check_number(i, "n_params", g->n_params, 1, INT32_MAX));
    MS_TRY(check_dtype(i, "orig_dtype", g->orig_dtype));
    MS_TRY(check_dtype(i, "param_dtype", g->param_dtype));
    MS_TRY(check_dtype(i, "reduce_dtype", g->reduce_dtype));
    return i == 0 || !g->is_root
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "group %d of a plan is the root's, expected the first",
                         (int)i);
}

ms_status msi_plan_check(const msi_group_facts *groups, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(check_group(&groups[i], i));
    }
    return MS_OK;
}

/* -- bytes of other ranks ---------------------------------------------------------------------- */

int64_t msi_plan_gathers(const msi_group_facts *g, int64_t micro_batches)
{
    if (!g->shares) {
        return 0;
    }
    return (g->keeps_after_backward ? 1 : micro_batches) + /* values change once a step */
           (g->keeps || g->forward_only ? 0 : micro_batches);
}

static int64_t gathered(const msi_group_facts *groups, int32_t n, int32_t world,
                        int64_t micro_batches)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];

        nbytes += msi_plan_gathers(g, micro_batches) *
                  (msi_group_gathered(g, world) - g->shard_numel) * ms_dtype_size(g->param_dtype);
    }
    return nbytes;
}

/* Elements of peers' gradients that a rank reads. Shard: its own extents of each. Replica: its
 * chunk of each, then the peers' summed chunks. */
static int64_t elements_reduced(const msi_group_facts *g, const msi_step *s)
{
    if (g->is_sharded) {
        return (s->world - 1) * msi_reduced_numel(g);
    }
    const int64_t chunk = msi_plan_chunk(g->full_numel, s->rank, s->world).numel;

    return (s->world - 1) * chunk + g->full_numel - chunk;
}

static int64_t reduced(const msi_group_facts *groups, int32_t n, const msi_step *s, bool wide)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];
        const int32_t dtype = wide ? msi_node_dtype(g) : g->reduce_dtype;

        nbytes += g->trains ? elements_reduced(g, s) * ms_dtype_size(dtype) : 0;
    }
    return nbytes;
}

int32_t msi_plan_shards(const msi_group_facts *groups, int32_t n, int32_t world)
{
    for (int32_t i = 0; i < n; i++) {
        if (groups[i].n_shards > 0) {
            return groups[i].n_shards;
        }
    }
    return world;
}

/* -- a step ------------------------------------------------------------------------------------ */

static ms_status plan_slots(const msi_group_facts *groups, int32_t n, const msi_step *s, bool wide,
                            ms_fsdp_plan *plan)
{
    msi_slot_wish *wishes;
    ms_status status = MS_OK;
    msi_slots_plan p, g;

    MS_TRY(msi_new_array(&wishes, n, "units to plan"));
    MS_TRY_GOTO(msi_plan_param_slots(groups, n, s->n_ring, msi_plan_shards(groups, n, s->world),
                                     s->layout, wishes, &p),
                done);
    MS_TRY_GOTO(msi_plan_gradient_slots(groups, n, wide, s->world, s->hosts, s->layout, wishes, &g),
                done);
    plan->param_ring = p.n_ring;
    plan->param_homes = p.n_homes;
    plan->param_slots = p.nbytes + p.own_nbytes;
    plan->own_slots = p.own_nbytes;
    plan->gradient_ring = g.n_ring;
    plan->gradient_homes = g.n_homes;
    plan->gradient_slots = g.nbytes + g.own_nbytes;
    plan->own_gradients = g.own_nbytes;
    plan->arena = plan->param_slots + plan->gradient_slots;
done:
    free(wishes);
    return status;
}

/* No sum overflows: each is below all elements in the widest dtype, times the gathers of a step or
 * the ranks, with words. */
static ms_status check_fits(const msi_group_facts *groups, int32_t n, const msi_step *s)
{
    double elements = 0;

    for (int32_t i = 0; i < n; i++) {
        elements += (double)groups[i].full_numel + MSI_PAGE + (double)groups[i].n_params;
    }
    return elements * 16 * ((double)s->world + 2 * (double)s->micro_batches) < 0x1p63
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR,
                         "a plan of %d units over %d ranks and %lld micro-batches may come to more "
                         "than 2^63 bytes",
                         (int)n, (int)s->world, (long long)s->micro_batches);
}

ms_status msi_plan_step(const msi_group_facts *groups, int32_t n, const msi_step *s,
                        ms_fsdp_plan *plan)
{
    const bool accumulates = s->micro_batches > 1;

    MS_TRY(check_fits(groups, n, s));
    MS_TRY(plan_slots(groups, n, s, s->wide || accumulates, plan));
    plan->masters = msi_plan_masters(groups, n);
    plan->per_state = msi_plan_state(groups, n);
    plan->gradients = msi_plan_gradients(groups, n, s->micro_batches);
    plan->gathered = gathered(groups, n, s->world, s->micro_batches);
    plan->reduced = reduced(groups, n, s, accumulates);
    return MS_OK;
}
