#include "slot.h"

#include "backend.h"

#include <stdlib.h>

static ms_status add_segment(msi_slot_pool *pool, int64_t nbytes, msi_segment **out)
{
    msi_segment *list = realloc(pool->segments, sizeof(*list) * (size_t)(pool->n_segments + 1));

    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for segment %d", (int)pool->n_segments);
    }
    pool->segments = list;
    MS_TRY(msi_segment_new(&list[pool->n_segments], pool->comm, nbytes));
    msi_count_external(pool->ctx, nbytes, MS_MEM_ARENA);
    *out = &list[pool->n_segments++];
    return MS_OK;
}

/* Parts of `stride` bytes from `offset` of a segment, words at `words`. */
static ms_status add_slot(msi_slot_pool *pool, const msi_segment *segment, int64_t words,
                          int64_t offset, int64_t stride, msi_slot **out)
{
    msi_slot **list = realloc(pool->slots, sizeof(*list) * (size_t)(pool->n_slots + 1));
    msi_slot *slot = calloc(1, sizeof(*slot));

    if (list != NULL) {
        pool->slots = list;
    }
    if (list == NULL || slot == NULL) {
        free(slot);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for slot %d", (int)pool->n_slots);
    }
    slot->words = (msi_slot_word *)(void *)(segment->rw + words);
    slot->rw = segment->rw + offset;
    slot->ro = segment->ro + offset;
    slot->stride = stride;
    slot->number = pool->n_slots;
    pool->slots[pool->n_slots++] = slot;
    *out = slot;
    return MS_OK;
}

static ms_status add_planned(msi_slot_pool *pool, const msi_slot_wish *wishes, int32_t n,
                             msi_slot **homes)
{
    const msi_slots_plan *p = &pool->plan;
    msi_segment *segment;
    msi_slot *slot;

    MS_TRY(add_segment(pool, p->nbytes, &segment));
    for (int32_t i = 0; i < p->n_ring; i++) {
        MS_TRY(add_slot(pool, segment, (int64_t)MSI_SLOT_WORDS * p->world * i,
                        p->offset + p->ring_bytes * p->n_parts * i, p->ring_bytes, &slot));
        slot->ring = true;
    }
    for (int32_t i = 0; i < n; i++) {
        if (wishes[i].owns) {
            MS_TRY(add_slot(pool, segment, wishes[i].at_words, wishes[i].offset,
                            msi_round_up(wishes[i].nbytes, MSI_PAGE), &homes[i]));
        }
    }
    return MS_OK;
}

ms_status msi_slot_pool_new(msi_slot_pool *pool, ms_context *ctx, ms_comm *comm,
                            const msi_slots_plan *plan, const msi_slot_wish *wishes, int32_t n,
                            msi_slot **homes)
{
    *pool = (msi_slot_pool){.ctx = ctx, .comm = comm, .plan = *plan};
    for (int32_t i = 0; i < n; i++) {
        homes[i] = NULL;
    }
    if (plan->nbytes == 0) {
        return MS_OK;
    }
    ms_status status = add_planned(pool, wishes, n, homes);

    if (status != MS_OK) {
        msi_slot_pool_free(pool);
    }
    return status;
}

void msi_slot_pool_free(msi_slot_pool *pool)
{
    for (int32_t i = 0; i < pool->n_slots; i++) {
        free(pool->slots[i]);
    }
    if (pool->n_segments > 0) {
        msi_drain(pool->ctx); /* what uses them has run */
    }
    for (int32_t i = 0; i < pool->n_segments; i++) {
        msi_count_external(pool->ctx, -pool->segments[i].nbytes, MS_MEM_ARENA);
        msi_segment_free(&pool->segments[i]);
    }
    free(pool->slots);
    free(pool->segments);
    *pool = (msi_slot_pool){.slots = NULL};
}

int64_t msi_slot_pool_bytes(const msi_slot_pool *pool)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < pool->n_segments; i++) {
        nbytes += pool->segments[i].nbytes;
    }
    return nbytes;
}

msi_slot *msi_slot_oldest(const msi_slot_pool *pool, bool (*may)(const msi_slot *slot))
{
    msi_slot *oldest = NULL;

    for (int32_t i = 0; i < pool->n_slots; i++) {
        msi_slot *s = pool->slots[i];

        if (s->ring && may(s) && (oldest == NULL || s->taken_at < oldest->taken_at)) {
            oldest = s;
        }
    }
    return oldest;
}

ms_status msi_slot_grow(msi_slot_pool *pool, msi_slot **slot)
{
    const msi_slots_plan *p = &pool->plan;
    int64_t offset, nbytes = msi_slots_plan_one(p->world, p->n_parts, p->ring_bytes, &offset);
    msi_segment *segment;

    MS_TRY(add_segment(pool, nbytes, &segment));
    MS_TRY(add_slot(pool, segment, 0, offset, p->ring_bytes, slot));
    (*slot)->ring = true;
    return MS_OK;
}

void msi_slot_take(msi_slot_pool *pool, msi_slot *slot, void *holder)
{
    slot->holder = holder;
    slot->taken_at = ++pool->n_taken;
    slot->generation++;
}

bool msi_slot_is_read(const msi_slot *slot, int32_t world)
{
    for (int32_t q = 0; q < world; q++) {
        if (atomic_load(&slot->words[q].released) + 1 < slot->generation) {
            return false;
        }
    }
    return true;
}

static uint64_t done(const msi_slot *slot, int32_t q, int32_t what)
{
    const msi_slot_word *word = &slot->words[q];

    return atomic_load(what == MSI_SLOT_REDUCED ? &word->reduced : &word->filled);
}

bool msi_slot_has(const msi_slot *slot, int32_t q, int32_t what, uint64_t said)
{
    return done(slot, q, what) >= slot->generation &&
           atomic_load_explicit(&slot->words[q].said, memory_order_relaxed) == said;
}

/* What it has done it had done before it dropped anything later: that is looked at last. */
bool msi_slot_has_dropped(const msi_slot *slot, int32_t q, int32_t what)
{
    return atomic_load(&slot->words[q].dropped) >= slot->generation &&
           done(slot, q, what) < slot->generation;
}

int32_t msi_slot_dropped_by(const msi_slot *slot, int32_t world, int32_t what)
{
    for (int32_t q = 0; q < world; q++) {
        if (msi_slot_has_dropped(slot, q, what)) {
            return q;
        }
    }
    return -1;
}
