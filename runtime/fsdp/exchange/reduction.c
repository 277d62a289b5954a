#include "reduction.h"

/* -- the slot ---------------------------------------------------------------------------------- */

/* No backward writes it now. An earlier gradient in it is reduced first. */
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
    return slot->generation > 1 ? msi_progress_wait(r->progress, slot->seq, all_read, r) : MS_OK;
}

void *msi_reduction_part(const msi_reduction *r, int32_t rank)
{
    return r->slot->rw + rank * r->slot->stride;
}

bool *msi_reduction_flags(const msi_reduction *r, int32_t rank)
{
    return (bool *)msi_reduction_part(r, rank) + r->flags_at;
}

bool msi_reduction_has(const msi_reduction *r, int32_t index)
{
    for (int32_t q = 0; q < r->world; q++) {
        if (atomic_load_explicit(&r->slot->words[q].whole, memory_order_relaxed) != 0 ||
            msi_reduction_flags(r, q)[index]) {
            return true;
        }
    }
    return false;
}

static void set_phase(msi_reduction *r, int32_t phase)
{
    r->phase = phase;
    r->user->changed(r->unit);
}

static void release(msi_reduction *r)
{
    msi_drain(r->pool->ctx); /* what reads it */
    atomic_store(&r->slot->words[r->rank].released, r->slot->generation);
    msi_comm_ring(r->pool->comm);
    r->slot->holder = NULL;
    r->slot = NULL;
}

/* -- the sum ----------------------------------------------------------------------------------- */

static char *element(const msi_reduction *r, int32_t rank, int64_t i)
{
    return (char *)msi_reduction_part(r, rank) + i * ms_dtype_size(r->dtype);
}

/* The tree over ranks for elements [first, first + n). */
static ms_status sum(const msi_reduction *r, int64_t first, int64_t n, void *out, int32_t dtype,
                     bool add)
{
    msi_tree_source src[r->world];
    const msi_tree_args args = {.n = n,
                                .n_src = r->world,
                                .src = src,
                                .out = out,
                                .round_dtype = r->round_dtype,
                                .factor = r->factor,
                                .accumulate = add};

    for (int32_t q = 0; q < r->world; q++) {
        src[q] = (msi_tree_source){element(r, q, first), r->dtype};
    }
    return n > 0 ? msi_dispatch("reduce", MSI_K_tree, dtype, &args) : MS_OK;
}

/* n sums out of rank q's part, from element `first` on. */
static ms_status take_sums(const msi_reduction *r, int32_t q, int64_t first, int64_t n, void *out,
                           bool add)
{
    msi_ew_args args = {
        .in = {element(r, q, first)}, .in_dtype = r->dtype, .out = out, .accumulate = add};

    args.loop.ndim = 1;
    args.loop.shape[0] = n;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    return n > 0 ? msi_dispatch("reduce", MSI_K_copy, r->sum_dtype, &args) : MS_OK;
}

/* Is the sum kept in another type than the tree computes in? The tree computes in that of its
 * result, so its result stays in this rank's part then, where no peer reads these elements, and is
 * converted at the end, as micro-batches are summed in the type of the slot. */
static bool converts(const msi_reduction *r)
{
    return (r->sum_dtype == MS_DTYPE_F64) != (r->dtype == MS_DTYPE_F64);
}

static ms_status sum_extent(const msi_reduction *r, const msi_extent *e, void *out, bool add)
{
    if (!converts(r)) {
        return sum(r, e->in_full, e->numel, out, r->sum_dtype, add);
    }
    MS_TRY(sum(r, e->in_full, e->numel, element(r, r->rank, e->in_full), r->dtype, false));
    return take_sums(r, r->rank, e->in_full, e->numel, out, add);
}

static ms_status sum_own(msi_reduction *r)
{
    void *shard;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &shard, &add));
    for (int32_t i = 0; i < r->n_own; i++) {
        const msi_extent *e = &r->own[i];

        MS_TRY(sum_extent(r, e, (char *)shard + e->in_shard * ms_dtype_size(r->sum_dtype), add));
    }
    return MS_OK;
}

/* Rank q's chunk of a replica's gradient. */
static void chunk_of(const msi_reduction *r, int32_t q, int64_t *first, int64_t *n)
{
    int64_t chunk = msi_round_up((r->total + r->world - 1) / r->world, 16);

    *first = chunk * q < r->total ? chunk * q : r->total;
    *n = *first + chunk < r->total ? chunk : r->total - *first;
}

static ms_status sum_chunk(msi_reduction *r)
{
    int64_t first, n;

    chunk_of(r, r->rank, &first, &n);
    MS_TRY(sum(r, first, n, element(r, r->rank, first), r->dtype, false));
    MS_TRY(msi_settle(r->pool->ctx));
    r->phase = MSI_GRAD_REDUCED;
    atomic_store(&r->slot->words[r->rank].reduced, r->slot->generation);
    msi_comm_ring(r->pool->comm);
    r->user->changed(r->unit);
    return MS_OK;
}

static ms_status copy_chunks(msi_reduction *r)
{
    void *out;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &out, &add));
    for (int32_t q = 0; q < r->world; q++) {
        int64_t first, n;

        chunk_of(r, q, &first, &n);
        MS_TRY(take_sums(r, q, first, n, (char *)out + first * ms_dtype_size(r->sum_dtype), add));
    }
    return MS_OK;
}

/* -- its task ---------------------------------------------------------------------------------- */

static bool all_are_ready(const msi_task *task)
{
    const msi_reduction *r = (const msi_reduction *)task;
    const int32_t what = r->phase == MSI_GRAD_REDUCED ? MSI_SLOT_REDUCED : MSI_SLOT_FILLED;
    const uint64_t said = atomic_load_explicit(&r->slot->words[r->rank].said, memory_order_relaxed);

    for (int32_t q = 0; q < r->world; q++) {
        if (!msi_slot_has(r->slot, q, what, said)) {
            return false; /* not yet; or ranks differ, which a wait finds out */
        }
    }
    return true;
}

static ms_status reduce(msi_task *task, bool *finished)
{
    msi_reduction *r = (msi_reduction *)task;

    if (r->replicated && r->world > 1) {
        if (r->phase == MSI_GRAD_READY) {
            return sum_chunk(r);
        }
        MS_TRY(copy_chunks(r));
    } else {
        MS_TRY(sum_own(r));
    }
    r->user->arrived(r->unit);
    release(r);
    set_phase(r, MSI_GRAD_NONE);
    *finished = true;
    return MS_OK;
}

static void give_up(msi_task *task)
{
    msi_reduction *r = (msi_reduction *)task;

    if (r->slot != NULL) {
        atomic_store(&r->slot->words[r->rank].dropped, r->slot->generation);
        release(r);
    }
    r->phase = MSI_GRAD_NONE;
    r->user->dropped(r->unit);
}

void msi_reduction_drop(msi_reduction *r)
{
    if (r->user != NULL) {
        msi_progress_remove(r->progress, &r->task);
        give_up(&r->task);
    }
}

ms_status msi_reduction_close(msi_reduction *r, int32_t dtype, double factor, bool whole)
{
    msi_slot_word *own = &r->slot->words[r->rank];

    MS_TRY(msi_settle(r->pool->ctx));
    r->dtype = dtype;
    r->factor = factor;
    r->fp.dtype = (int16_t)dtype;
    r->fp.slot = r->slot->number;
    r->fp.generation = r->slot->generation;
    atomic_store_explicit(&own->whole, whole, memory_order_relaxed);
    r->progress->named = true;
    MS_TRY(msi_comm_publish(r->pool->comm, &r->fp, &r->seq));
    msi_comm_count(r->pool->comm, r->fp.kind);
    r->slot->seq = r->seq;
    r->task.order = MSI_TASK_REDUCE;
    r->task.possible = all_are_ready;
    r->task.step = reduce;
    r->task.drop = give_up;
    msi_progress_add(r->progress, &r->task);
    r->phase = MSI_GRAD_READY;
    atomic_store_explicit(&own->said, msi_comm_said(r->pool->comm), memory_order_relaxed);
    atomic_store(&own->filled, r->slot->generation);
    msi_comm_ring(r->pool->comm);
    r->user->changed(r->unit);
    return msi_progress_run(r->progress);
}

/* A member whose chunk this rank needs and will not get, or -1. */
static int32_t dropped_by(const msi_reduction *r)
{
    return r->phase == MSI_GRAD_REDUCED ? msi_slot_dropped_by(r->slot, r->world, MSI_SLOT_REDUCED)
                                        : -1;
}

static bool is_reduced_or_dropped(void *user)
{
    const msi_reduction *r = user;

    return r->phase == MSI_GRAD_NONE || dropped_by(r) >= 0;
}

ms_status msi_reduction_wait(msi_reduction *r)
{
    MS_TRY(msi_progress_wait(r->progress, r->seq, is_reduced_or_dropped, r));
    return r->phase == MSI_GRAD_NONE ? MS_OK
                                     : msi_comm_dropped(r->pool->comm, r->seq, dropped_by(r));
}

ms_status msi_reductions_finish(msi_progress *progress)
{
    msi_task *task;

    while ((task = msi_progress_first(progress, MSI_TASK_REDUCE)) != NULL) {
        MS_TRY(msi_reduction_wait((msi_reduction *)task));
    }
    return MS_OK;
}
