#include "gather.h"

#include "backend.h"

/* -- the slot: filling ------------------------------------------------------------------------- */

static bool is_free(const msi_slot *slot)
{
    return slot->holder == NULL;
}

static bool slot_available(const msi_gather *g)
{
    return g->home != NULL ? is_free(g->home) : msi_slot_oldest(g->pool, is_free) != NULL;
}

static bool may_fill(const msi_task *task)
{
    const msi_gather *g = (const msi_gather *)task;

    return msi_slot_is_read(g->slot, g->pool->plan.world);
}

static ms_status fill(msi_task *task, bool *finished)
{
    msi_gather *g = (msi_gather *)task;
    msi_slot_word *own = &g->slot->words[ms_comm_rank(g->pool->comm)];

    MS_TRY(g->fill(g->unit, g->slot->rw));
    MS_TRY(msi_settle(g->ctx));
    atomic_store_explicit(&own->said, g->said, memory_order_relaxed);
    atomic_store(&own->filled, g->slot->generation);
    msi_comm_ring(g->pool->comm);
    g->filled(g->unit);
    *finished = true;
    return MS_OK;
}

static void release(msi_gather *g, bool unfilled)
{
    msi_slot_word *own = &g->slot->words[ms_comm_rank(g->pool->comm)];

    msi_drain(g->ctx); /* what reads it */
    if (unfilled) {
        atomic_store(&own->dropped, g->slot->generation);
    }
    atomic_store(&own->released, g->slot->generation);
    g->slot->holder = NULL;
    g->slot = NULL;
    msi_comm_ring(g->pool->comm);
}

static void drop(msi_task *task)
{
    release((msi_gather *)task, true);
}

static ms_status slot_begin(msi_gather *g)
{
    msi_slot *slot = g->home != NULL ? g->home : msi_slot_oldest(g->pool, is_free);

    if (slot == NULL) {
        MS_TRY(msi_slot_grow(g->pool, &slot));
    }
    MS_ASSERT(is_free(slot));
    g->fp.slot = slot->number;
    g->fp.generation = slot->generation + 1;
    g->progress->named = true;
    MS_TRY(msi_comm_publish(g->pool->comm, &g->fp, &g->seq));
    g->said = msi_comm_said(g->pool->comm);
    msi_comm_count(g->pool->comm, g->fp.kind);
    msi_slot_take(g->pool, slot, g);
    g->slot = slot;
    g->task.order = MSI_TASK_FILL;
    g->task.possible = may_fill;
    g->task.step = fill;
    g->task.drop = drop;
    msi_progress_add(g->progress, &g->task);
    return MS_OK;
}

/* -- the slot: reading ------------------------------------------------------------------------- */

/* Ranks that differ may have filled the slot with two units: not ready, so the wait compares. */
static bool all_filled_or_dropped(void *user)
{
    const msi_gather *g = user;

    for (int32_t q = 0; q < g->pool->plan.world; q++) {
        if (!msi_slot_has(g->slot, q, MSI_SLOT_FILLED, g->said) &&
            !msi_slot_has_dropped(g->slot, q, MSI_SLOT_FILLED)) {
            return false;
        }
    }
    return true;
}

static ms_status slot_ready(msi_gather *g, bool stale, void **full)
{
    (void)stale;
    MS_TRY(msi_progress_wait(g->progress, g->seq, all_filled_or_dropped, g));
    const int32_t q = msi_slot_dropped_by(g->slot, g->pool->plan.world, MSI_SLOT_FILLED);

    if (q >= 0) {
        return msi_comm_dropped(g->pool->comm, g->seq, q);
    }
    *full = g->slot->ro;
    return MS_OK;
}

static void slot_end(msi_gather *g)
{
    if (g->slot != NULL) {
        const bool unfilled = g->task.listed;

        msi_progress_remove(g->progress, &g->task);
        release(g, unfilled);
    }
}

const msi_gather_ops msi_gather_slot = {true, slot_available, slot_begin, slot_ready, slot_end};

/* -- without peers ----------------------------------------------------------------------------- */

static bool always_available(const msi_gather *g)
{
    (void)g;
    return true;
}

static ms_status nothing_begins(msi_gather *g)
{
    (void)g;
    return MS_OK;
}

static void nothing_ends(msi_gather *g)
{
    (void)g;
}

static ms_status alias_ready(msi_gather *g, bool stale, void **full)
{
    *full = g->data;
    return stale ? g->fill(g->unit, g->data) : MS_OK;
}

static ms_status resident_ready(msi_gather *g, bool stale, void **full)
{
    if (g->data != NULL) {
        *full = g->data;
        return stale ? g->fill(g->unit, g->data) : MS_OK;
    }
    MS_TRY(msi_alloc(g->ctx, g->nbytes, MS_MEM_PARAMETER, full));
    ms_status status = g->fill(g->unit, *full);

    if (status != MS_OK) {
        msi_release(g->ctx, *full);
        return status;
    }
    g->data = *full;
    return MS_OK;
}

const msi_gather_ops msi_gather_alias = {false, always_available, nothing_begins, alias_ready,
                                         nothing_ends};
const msi_gather_ops msi_gather_resident = {false, always_available, nothing_begins, resident_ready,
                                            nothing_ends};

void msi_gather_dispose(msi_gather *g)
{
    if (g->ops == &msi_gather_resident) {
        msi_release(g->ctx, g->data);
    }
    g->data = NULL;
}
