#include "reduction_ops.h"

/* -- the slot ---------------------------------------------------------------------------------- */

/* True if no backward writes it. An older gradient is reduced first. */
static bool may_be_taken(const msi_slot *slot)
{
    const msi_reduction *holder = slot->holder;

    return holder == NULL || holder->phase != MSI_GRAD_WRITING;
}

static bool all_read(void *user)
{
    const msi_reduction *r = user;

    return msi_slot_is_read(r->slot, r->world);
}

void msi_reduction_connect(msi_reduction *r, msi_slot_pool *pool)
{
    const bool between = pool->devices != NULL;

    r->pool = pool;
    r->hosts = msi_comm_hosts(pool->comm);
    r->ops = msi_slot_hosts(pool) > 1
                 ? r->replicated ? &msi_reduce_chunks_of_roots : &msi_reduce_roots
             : !r->replicated ? between ? &msi_reduce_pieces : &msi_reduce_parts
             : between        ? &msi_reduce_gathered
             : r->world == 1  ? &msi_reduce_parts
                              : &msi_reduce_chunks;
}

ms_status msi_reduction_open(msi_reduction *r)
{
    msi_slot *slot = r->home != NULL ? r->home : msi_slot_oldest(r->pool, may_be_taken);

    if (slot == NULL) {
        MS_TRY(msi_slot_grow(r->pool, &slot));
    }
    if (slot->holder != NULL) {
        MS_TRY(msi_reduction_wait(slot->holder));
    }
    msi_slot_take(r->pool, slot, r);
    r->slot = slot;
    if (slot->generation == 1) {
        return MS_OK;
    }
    MS_TRY(msi_progress_wait(r->progress, r->pool->comm, slot->seq, all_read, r));
    MS_TRY(msi_stream_dep_after(r->pool->ctx, MSI_DEP_REUSED, MSI_STREAM_COMPUTE, slot->used));
    return msi_slot_await(r->pool, slot, MSI_DEP_READ, MSI_STREAM_COMPUTE, MSI_SLOT_RELEASED,
                          slot->generation - 1);
}

void *msi_reduction_part(const msi_reduction *r, int32_t rank)
{
    return msi_slot_part(r->slot, rank);
}

bool *msi_reduction_flags(const msi_reduction *r, int32_t rank)
{
    return msi_slot_flags_of(r->slot, rank);
}

bool msi_reduction_has(const msi_reduction *r, int32_t index)
{
    for (int32_t q = 0; q < r->world; q++) {
        if (atomic_load_explicit(&msi_slot_words_of(r->slot, q)->whole, memory_order_relaxed) !=
                0 ||
            msi_reduction_flags(r, q)[index]) {
            return true;
        }
    }
    return false;
}

void msi_reduction_set(msi_reduction *r, int32_t phase)
{
    r->phase = phase;
    r->user->changed(r->unit);
}

static void release(msi_reduction *r)
{
    msi_slot_publish(r->pool, r->slot, MSI_STREAM_REDUCE, MSI_SLOT_RELEASED);
    r->summed = r->slot->used = msi_stream_dep_mark(r->pool->ctx, MSI_STREAM_REDUCE);
    r->slot->holder = NULL;
    r->slot = NULL;
}

void msi_reduction_join(const msi_reduction *r)
{
    msi_stream_dep_join(r->pool->ctx, MSI_DEP_ARRIVED, MSI_STREAM_COMPUTE, r->summed);
}

/* -- its task ---------------------------------------------------------------------------------- */

/* What all ranks must have done before this one goes on. */
static msi_slot_event awaited(const msi_reduction *r)
{
    return r->phase == MSI_GRAD_REDUCED  ? MSI_SLOT_REDUCED
           : r->phase == MSI_GRAD_ROOTED ? MSI_SLOT_ROOTED
                                         : MSI_SLOT_FILLED;
}

static bool all_are_ready(const msi_task *task)
{
    const msi_reduction *r = (const msi_reduction *)task;
    const msi_slot_event what = awaited(r);
    const uint64_t own_hash = atomic_load_explicit(
        &msi_slot_words_of(r->slot, r->rank)->schedule_hash, memory_order_relaxed);

    for (int32_t q = 0; q < r->world; q++) {
        if (!msi_slot_has(r->slot, q, what, own_hash)) {
            return false; /* not yet, or ranks differ, which the wait detects */
        }
    }
    return true;
}

static ms_status reduce(msi_task *task, bool *finished)
{
    msi_reduction *r = (msi_reduction *)task;

    if (r->ops->roots != NULL && r->phase == MSI_GRAD_READY) {
        MS_TRY(r->ops->roots(r));
        msi_slot_publish(r->pool, r->slot, MSI_STREAM_REDUCE, MSI_SLOT_ROOTED);
        msi_reduction_set(r, MSI_GRAD_ROOTED);
        return MS_OK;
    }
    if (r->ops->chunk != NULL && r->phase != MSI_GRAD_REDUCED) {
        MS_TRY(r->ops->chunk(r));
        msi_slot_publish(r->pool, r->slot, MSI_STREAM_REDUCE, MSI_SLOT_REDUCED);
        msi_reduction_set(r, MSI_GRAD_REDUCED);
        return MS_OK;
    }
    MS_TRY(r->ops->finish(r));
    r->user->arrived(r->unit);
    release(r);
    msi_reduction_set(r, MSI_GRAD_NONE);
    *finished = true;
    return MS_OK;
}

static void drop_task(msi_task *task)
{
    msi_reduction *r = (msi_reduction *)task;

    if (r->slot != NULL) {
        msi_slot_drop(r->pool, r->slot);
        release(r);
        msi_reduction_join(r);
    }
    msi_reduction_set(r, MSI_GRAD_NONE);
    r->user->dropped(r->unit);
}

void msi_reduction_drop(msi_reduction *r)
{
    if (r->user != NULL) {
        msi_progress_remove(r->progress, &r->task);
        drop_task(&r->task);
    }
}

ms_status msi_reduction_close(msi_reduction *r, int32_t dtype, double factor, bool whole)
{
    msi_slot_word *own = msi_slot_words_of(r->slot, r->rank);

    r->written = msi_stream_dep_mark(r->pool->ctx, MSI_STREAM_COMPUTE);
    r->dtype = dtype;
    r->factor = factor;
    r->fp.dtype = (int16_t)dtype;
    r->fp.slot = r->slot->number;
    r->fp.generation = r->slot->generation;
    atomic_store_explicit(&own->whole, whole, memory_order_relaxed);
    MS_TRY(msi_progress_publish(r->progress, r->pool->comm, &r->fp, &r->seq));
    r->slot->seq = r->seq;
    r->task.order = MSI_TASK_REDUCE;
    r->task.possible = all_are_ready;
    r->task.step = reduce;
    r->task.drop = drop_task;
    msi_progress_add(r->progress, &r->task);
    r->phase = MSI_GRAD_READY;
    atomic_store_explicit(&own->schedule_hash, msi_comm_schedule_hash(r->pool->comm),
                          memory_order_relaxed);
    if (r->ops->commit != NULL) {
        MS_TRY(r->ops->commit(r));
    }
    msi_slot_publish(r->pool, r->slot, MSI_STREAM_COMPUTE, MSI_SLOT_FILLED);
    r->user->changed(r->unit);
    return msi_progress_run(r->progress);
}

/* A rank that dropped the chunk this rank needs, or -1. */
static int32_t dropped_by(const msi_reduction *r)
{
    return r->phase == MSI_GRAD_REDUCED || r->phase == MSI_GRAD_ROOTED
               ? msi_slot_dropped_by(r->slot, r->world, awaited(r))
               : -1;
}

static bool is_reduced_or_dropped(void *user)
{
    const msi_reduction *r = user;

    return r->phase == MSI_GRAD_NONE || dropped_by(r) >= 0;
}

ms_status msi_reduction_wait(msi_reduction *r)
{
    MS_TRY(msi_progress_wait(r->progress, r->pool->comm, r->seq, is_reduced_or_dropped, r));
    if (r->phase != MSI_GRAD_NONE) {
        return msi_comm_dropped(r->pool->comm, r->seq, dropped_by(r));
    }
    msi_reduction_join(r);
    return MS_OK;
}

ms_status msi_reductions_finish(msi_progress *progress, const msi_slot_pool *pool)
{
    msi_task *task;

    while ((task = msi_progress_first(progress, MSI_TASK_REDUCE)) != NULL) {
        MS_TRY(msi_reduction_wait((msi_reduction *)task));
    }
    msi_stream_dep_join(pool->ctx, MSI_DEP_SUMMED, MSI_STREAM_COMPUTE,
                        msi_stream_dep_mark(pool->ctx, MSI_STREAM_REDUCE));
    return MS_OK;
}
