#include "slots_plan.h"
#include "array.h"

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

/* The largest size in the ring with which ring and home slots have the fewest bytes, of such sizes
 * the greatest. A ring slot has the largest size, so that one large unit costs it n_ring times. */
static ms_status choose_ring(const msi_slot_wish *wishes, int32_t n, int32_t n_ring, int64_t *out)
{
    int64_t *sizes, homes = 0, least = INT64_MAX;
    int32_t n_sizes = 0;

    *out = 0;
    MS_TRY(msi_new_array(&sizes, n, "units to plan"));
    for (int32_t i = 0; i < n; i++) {
        if (wants_ring(&wishes[i])) {
            sizes[n_sizes++] = wishes[i].nbytes;
        }
    }
    if (n_sizes > 0) {
        qsort(sizes, (size_t)n_sizes, sizeof(*sizes), compare_bytes);
    }
    for (int32_t i = n_sizes - 1; i >= 0; i--) { /* larger ones have homes */
        const int64_t nbytes = sizes[i] * (i < n_ring ? i + 1 : n_ring) + homes;

        if (nbytes < least) {
            least = nbytes;
            *out = sizes[i];
        }
        homes += sizes[i];
    }
    free(sizes);
    return MS_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A ring slot has the largest size that a unit needs. */
static void size_ring(const msi_slot_wish *wishes, int32_t n, int32_t n_ring, msi_slots_plan *p)
{
    int32_t n_ringed = 0;

    for (int32_t i = 0; i < n; i++) {
        if (wants_ring(&wishes[i])) {
            p->word_bytes = larger(p->word_bytes, wishes[i].word_bytes);
            p->ring_bytes = larger(p->ring_bytes, msi_round_up(wishes[i].nbytes, MSI_PAGE));
            p->own_bytes = larger(p->own_bytes, msi_round_up(wishes[i].own_bytes, MSI_PAGE));
            n_ringed++;
        }
    }
    p->n_ring = n_ringed < n_ring ? n_ringed : n_ring;
}

static void place(msi_slot_wish *wishes, int32_t n, msi_slots_plan *p)
{
    int64_t at_words = p->word_bytes * p->world * p->n_ring, offset;

    if (p->n_ring + p->n_homes == 0) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        if (wishes[i].owns) {
            wishes[i].at_words = at_words;
            at_words += wishes[i].word_bytes * p->world;
        }
    }
    p->offset = msi_round_up(at_words, MSI_PAGE);
    p->own_nbytes = p->own_bytes * p->n_ring;
    offset = p->offset + p->ring_bytes * p->n_parts * p->n_ring;
    for (int32_t i = 0; i < n; i++) {
        if (wishes[i].owns) {
            wishes[i].offset = offset;
            offset += msi_round_up(wishes[i].nbytes, MSI_PAGE) * p->n_parts;
            p->own_nbytes += msi_round_up(wishes[i].own_bytes, MSI_PAGE);
        }
    }
    p->nbytes = offset;
}

/* Layout nccl: bytes of a slot's full parameters, and of the shards in a row if those are apart. */
static int64_t gathered_bytes(const msi_group_facts *g, int32_t world, int64_t size)
{
    return msi_group_gathered(g, world) * size +
           (msi_group_packs(g) ? msi_round_up(g->full_numel * size, 256) : 0);
}

static ms_status plan_slots(msi_slot_wish *wishes, int32_t n, int32_t n_ring, int32_t world,
                            int32_t n_parts, msi_slots_plan *p)
{
    int64_t most;

    *p = (msi_slots_plan){.world = world, .n_parts = n_parts};
    for (int32_t i = 0; i < n; i++) {
        wishes[i].owns = wishes[i].nbytes > 0 && wishes[i].keeps;
    }
    MS_TRY(choose_ring(wishes, n, n_ring, &most));
    for (int32_t i = 0; i < n; i++) {
        wishes[i].owns = wishes[i].owns || wishes[i].nbytes > most;
        p->n_homes += wishes[i].owns;
    }
    size_ring(wishes, n, n_ring, p);
    place(wishes, n, p);
    return MS_OK;
}

ms_status msi_plan_param_slots(const msi_group_facts *groups, int32_t n, int32_t n_ring,
                               int32_t world, msi_slots_layout layout, msi_slot_wish *wishes,
                               msi_slots_plan *plan)
{
    const bool pulls = layout == MSI_SLOTS_PULL && world > 1; /* alone, no peers */
    const bool sends = layout == MSI_SLOTS_NCCL && world > 1;

    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];
        const int64_t size = g->shares ? ms_dtype_size(msi_widest_dtype(g, g->param_dtype)) : 0;

        wishes[i] = (msi_slot_wish){.nbytes = size * (pulls ? g->shard_numel : g->full_numel),
                                    .own_bytes = sends   ? gathered_bytes(g, world, size)
                                                 : pulls ? size * g->full_numel
                                                         : 0,
                                    .word_bytes = MSI_SLOT_WORDS,
                                    .keeps = g->is_root || g->keeps || g->keeps_after_backward};
    }
    MS_TRY(plan_slots(wishes, n, n_ring, world, pulls ? world : sends ? 0 : 1, plan));
    plan->layout = pulls ? MSI_SLOTS_PULL : sends ? MSI_SLOTS_NCCL : MSI_SLOTS_SHARED;
    return MS_OK;
}

msi_pieces msi_plan_pieces(int64_t full_numel, int64_t shard_numel, int32_t n_shards, bool packs,
                           bool replicated, int32_t world, int32_t dtype)
{
    const int64_t size = ms_dtype_size(dtype);
    const int64_t each = replicated ? msi_plan_chunk_size(full_numel, world) : shard_numel;
    const int64_t packed = packs ? msi_round_up(full_numel * size, 256) : 0;
    const int64_t staging = packed + msi_round_up(each * n_shards * size, 256);

    return (msi_pieces){each, packed, staging, staging + each * world * size};
}

int32_t msi_gradient_slot_dtype(const msi_group_facts *g, bool wide)
{
    return wide ? msi_node_dtype(g) : msi_widest_dtype(g, g->reduce_dtype);
}

msi_roots msi_plan_roots(int64_t nbytes, int64_t numel, int32_t hosts, int32_t node_dtype)
{
    const int64_t each = msi_round_up(numel * ms_dtype_size(node_dtype), 64);
    const int64_t received = msi_round_up(nbytes, 64), sent = received + each * hosts;

    return (msi_roots){each, received, sent, sent + each * hosts};
}

/* Bytes of a part: a rank's gradient, and on several hosts roots. */
static int64_t part_bytes(const msi_group_facts *g, int32_t dtype, int32_t world, int32_t hosts)
{
    const int64_t nbytes = g->full_numel * ms_dtype_size(dtype);
    const int64_t numel =
        g->is_sharded ? g->shard_numel : msi_plan_chunk_size(g->full_numel, world);

    return hosts == 1 ? nbytes : msi_plan_roots(nbytes, numel, hosts, msi_node_dtype(g)).nbytes;
}

ms_status msi_plan_gradient_slots(const msi_group_facts *groups, int32_t n, bool wide,
                                  int32_t world, int32_t hosts, msi_slots_layout layout,
                                  msi_slot_wish *wishes, msi_slots_plan *plan)
{
    const bool sends = layout == MSI_SLOTS_NCCL && world > 1;

    for (int32_t i = 0; i < n; i++) {
        const msi_group_facts *g = &groups[i];
        const int32_t dtype = msi_gradient_slot_dtype(g, wide);
        const msi_pieces p = msi_plan_pieces(g->full_numel, g->shard_numel,
                                             g->is_sharded ? msi_group_shards(g, world) : world,
                                             msi_group_packs(g), !g->is_sharded, world, dtype);

        wishes[i] = (msi_slot_wish){
            .nbytes = g->trains ? part_bytes(g, dtype, world, sends ? 1 : hosts) : 0,
            .own_bytes = g->trains && sends ? p.nbytes : 0,
            .word_bytes = MSI_SLOT_WORDS + msi_round_up(g->n_params, MSI_SLOT_WORDS / 2),
            .keeps = g->is_root};
    }
    MS_TRY(plan_slots(wishes, n, MSI_GRADIENT_RING, world, sends ? 0 : world / hosts, plan));
    plan->layout = sends ? MSI_SLOTS_NCCL : MSI_SLOTS_SHARED;
    return MS_OK;
}

msi_slots_plan msi_slots_plan_of_one(const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n)
{
    msi_slots_plan p = *plan;

    p.world = 1;
    p.n_parts = p.n_parts > 0;
    place(wishes, n, &p);
    return p;
}

int64_t msi_slots_plan_one(const msi_slots_plan *p, int64_t *offset)
{
    *offset = msi_round_up(p->word_bytes * p->world, MSI_PAGE);
    return *offset + p->ring_bytes * p->n_parts;
}
