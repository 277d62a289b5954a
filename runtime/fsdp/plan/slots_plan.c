#include "slots_plan.h"

#include <stdlib.h>

static int compare_bytes(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static bool wants_ring(const msi_slot_wish *wish)
{
    return wish->nbytes > 0 && !wish->owns;
}

/* Of those that want the ring. */
static ms_status median(const msi_slot_wish *wishes, int32_t n, int64_t *out)
{
    int64_t *sizes = malloc(sizeof(*sizes) * ((size_t)n + 1));
    int32_t n_sizes = 0;

    *out = 0;
    if (sizes == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to plan %d units", (int)n);
    }
    for (int32_t i = 0; i < n; i++) {
        if (wants_ring(&wishes[i])) {
            sizes[n_sizes++] = wishes[i].nbytes;
        }
    }
    if (n_sizes > 0) {
        qsort(sizes, (size_t)n_sizes, sizeof(*sizes), compare_bytes);
        *out = sizes[n_sizes / 2];
    }
    free(sizes);
    return MS_OK;
}

static void place_homes(msi_slot_wish *wishes, int32_t n, msi_slots_plan *p)
{
    int64_t at_words = (int64_t)MSI_SLOT_WORDS * p->world * p->n_ring;
    int64_t offset = p->offset + p->ring_bytes * p->n_parts * p->n_ring;

    for (int32_t i = 0; i < n; i++) {
        if (wishes[i].owns) {
            wishes[i].at_words = at_words;
            wishes[i].offset = offset;
            at_words += (int64_t)MSI_SLOT_WORDS * p->world;
            offset += msi_round_up(wishes[i].nbytes, MSI_PAGE) * p->n_parts;
        }
    }
    p->nbytes = offset;
}

static ms_status plan_slots(msi_slot_wish *wishes, int32_t n, int32_t n_ring, int32_t world,
                            int32_t n_parts, msi_slots_plan *p)
{
    int32_t n_ringed = 0;
    int64_t middle;

    *p = (msi_slots_plan){.world = world, .n_parts = n_parts};
    for (int32_t i = 0; i < n; i++) {
        wishes[i].owns = wishes[i].nbytes > 0 && wishes[i].keeps;
    }
    MS_TRY(median(wishes, n, &middle));
    for (int32_t i = 0; i < n; i++) {
        wishes[i].owns = wishes[i].owns || wishes[i].nbytes > 2 * middle;
        p->n_homes += wishes[i].owns;
        if (wants_ring(&wishes[i])) {
            p->ring_bytes = wishes[i].nbytes > p->ring_bytes ? wishes[i].nbytes : p->ring_bytes;
            n_ringed++;
        }
    }
    p->ring_bytes = msi_round_up(p->ring_bytes, MSI_PAGE);
    p->n_ring = n_ringed < n_ring ? n_ringed : n_ring;
    if (p->n_ring + p->n_homes > 0) {
        p->offset =
            msi_round_up((int64_t)MSI_SLOT_WORDS * world * (p->n_ring + p->n_homes), MSI_PAGE);
        place_homes(wishes, n, p);
    }
    return MS_OK;
}

ms_status msi_plan_param_slots(const msi_group_facts *groups, int32_t n, int32_t n_ring,
                               int32_t world, msi_slot_wish *wishes, msi_slots_plan *plan)
{
    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];

        wishes[i] =
            (msi_slot_wish){.nbytes = g->shares ? g->full_numel * ms_dtype_size(g->param_dtype) : 0,
                            .keeps = g->is_root || g->keeps};
    }
    return plan_slots(wishes, n, n_ring, world, 1, plan);
}

int64_t msi_plan_gradient_bytes(const msi_group_facts *g, bool wide)
{
    return g->full_numel * ms_dtype_size(wide ? msi_node_dtype(g->reduce_dtype) : g->reduce_dtype);
}

ms_status msi_plan_gradient_slots(const msi_group_facts *groups, int32_t n, bool wide,
                                  int32_t world, msi_slot_wish *wishes, msi_slots_plan *plan)
{
    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];

        wishes[i] = (msi_slot_wish){.nbytes = msi_plan_gradient_bytes(g, wide) + g->n_params,
                                    .keeps = g->is_root};
    }
    return plan_slots(wishes, n, MSI_GRADIENT_RING, world, world, plan);
}

int64_t msi_slots_plan_one(int32_t world, int32_t n_parts, int64_t ring_bytes, int64_t *offset)
{
    *offset = msi_round_up((int64_t)MSI_SLOT_WORDS * world, MSI_PAGE);
    return *offset + ring_bytes * n_parts;
}
