#include "reduction.h"

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

static void set_phase(msi_reduction *r, int32_t phase)
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

/* -- the sum ----------------------------------------------------------------------------------- */

static char *element(const msi_reduction *r, int32_t rank, int64_t i)
{
    return (char *)msi_reduction_part(r, rank) + i * ms_dtype_size(r->dtype);
}

/* -- pieces of layout nccl --------------------------------------------------------------------- */

static bool moves_pieces(const msi_reduction *r)
{
    return r->pool->devices != NULL;
}

/* Hybrid shards are fewer than ranks. */
static bool sums_in_order(const msi_reduction *r)
{
    return r->pool->sums_in_order || r->n_shards != r->world;
}

static msi_pieces pieces_of(const msi_reduction *r)
{
    return msi_plan_pieces(r->replicated ? r->total : r->full, r->shard, r->n_shards, r->packs,
                           r->replicated, r->world, r->dtype);
}

/* The piece of this rank's gradient for rank q. */
static char *piece_for(const msi_reduction *r, const msi_pieces *p, int32_t q)
{
    const int32_t shard = r->replicated ? q : r->pool->shard_of[q];

    return r->slot->own + p->packed + shard * p->each * ms_dtype_size(r->dtype);
}

/* Rank q's piece for this rank. */
static char *piece_from(const msi_reduction *r, const msi_pieces *p, int32_t q)
{
    return q == r->rank ? piece_for(r, p, q)
                        : r->slot->own + p->staging + q * p->each * ms_dtype_size(r->dtype);
}

static ms_status exchange_pieces(const msi_reduction *r, const msi_pieces *p)
{
    msi_device_part parts[r->world];

    for (int32_t q = 0; q < r->world; q++) {
        parts[q] = (msi_device_part){.send = piece_for(r, p, q),
                                     .recv = piece_from(r, p, q),
                                     .n_send = p->each,
                                     .n_recv = p->each};
    }
    return msi_device_comm_exchange(r->pool->devices, MSI_STREAM_REDUCE, parts, r->dtype);
}

/* Move pieces to their ranks. */
static ms_status move_pieces(const msi_reduction *r, const msi_pieces *p)
{
    if (r->packs) {
        MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
                  r->user->pack(r->unit, r->slot->own, r->slot->own + p->packed));
    }
    if (sums_in_order(r)) {
        MS_TRY(exchange_pieces(r, p));
    } else {
        MS_TRY(msi_device_comm_reduce_scatter(r->pool->devices, MSI_STREAM_REDUCE,
                                              r->slot->own + p->packed, r->slot->own + p->staging,
                                              p->each, r->dtype));
    }
    return msi_slot_pool_complete(r->pool, r->progress, r->seq);
}

/* Sources of the sum of this rank's piece from element `in_piece` on. */
static int32_t list_pieces(const msi_reduction *r, int64_t in_piece, msi_tree_source *src)
{
    const msi_pieces p = pieces_of(r);
    const int64_t offset = in_piece * ms_dtype_size(r->dtype);

    if (!sums_in_order(r)) {
        src[0] = (msi_tree_source){r->slot->own + p.staging + offset, r->dtype};
        return 1;
    }
    for (int32_t q = 0; q < r->world; q++) {
        src[q] = (msi_tree_source){piece_from(r, &p, q) + offset, r->dtype};
    }
    return r->world;
}

static int32_t list_parts(const msi_reduction *r, int64_t first, msi_tree_source *src)
{
    const int32_t n = r->pool->mapped.n_parts > 0 ? r->pool->mapped.n_parts : 1;

    for (int32_t q = 0; q < n; q++) {
        src[q] = (msi_tree_source){element(r, q, first), r->dtype};
    }
    return n;
}

/* -- sums -------------------------------------------------------------------------------------- */

/* Tree sum over ranks of n elements, from `first` of the whole on, which is `in_piece` of this
 * rank's piece, in nodes of `node_dtype`. With hybrid sharding several ranks read the same elements
 * of all parts, so none writes into its part. In a fake group: a multiple of the one part. */
static ms_status sum(const msi_reduction *r, int64_t first, int64_t in_piece, int64_t n, void *out,
                     int32_t dtype, bool add)
{
    msi_tree_source src[r->world];
    const bool between = moves_pieces(r);
    const int32_t n_src = between ? list_pieces(r, in_piece, src) : list_parts(r, first, src);
    const bool all = between || n_src == r->world;
    const msi_tree_args args = {.n = n,
                                .n_src = n_src,
                                .src = src,
                                .out = out,
                                .round_dtype = r->round_dtype,
                                .factor = all ? r->factor : r->factor * r->world,
                                .accumulate = add,
                                .mixed =
                                    (dtype == MS_DTYPE_F64) != (r->node_dtype == MS_DTYPE_F64)};

    return n > 0 ? msi_dispatch("reduce", MSI_K_tree, dtype, &args) : MS_OK;
}

/* Copy n sums of rank q's part, from `first` on. */
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

/* REDUCE waits until all gradients are written. */
static ms_status await_gradients(const msi_reduction *r)
{
    MS_TRY(msi_stream_dep_after(r->pool->ctx, MSI_DEP_WRITTEN, MSI_STREAM_REDUCE, r->written));
    return msi_slot_await(r->pool, r->slot, MSI_DEP_READY, MSI_STREAM_REDUCE, MSI_SLOT_FILLED,
                          r->slot->generation);
}

/* It waits for a destination it adds to. */
static ms_status await_prepared(const msi_reduction *r, bool add)
{
    const ms_context *ctx = r->pool->ctx;

    return add ? msi_stream_dep_after(ctx, MSI_DEP_PREPARED, MSI_STREAM_REDUCE,
                                      msi_stream_dep_mark(ctx, MSI_STREAM_COMPUTE))
               : MS_OK;
}

static ms_status sum_extents(msi_reduction *r, void *shard, bool add)
{
    for (int32_t i = 0; i < r->n_own; i++) {
        const msi_extent *e = &r->own[i];

        MS_TRY(sum(r, e->in_full, e->in_shard, e->numel,
                   (char *)shard + e->in_grad * ms_dtype_size(r->sum_dtype), r->sum_dtype, add));
    }
    return MS_OK;
}

static ms_status sum_own(msi_reduction *r)
{
    void *shard;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &shard, &add));
    MS_TRY(await_gradients(r));
    MS_TRY(await_prepared(r, add));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, sum_extents(r, shard, add));
    return MS_OK;
}

static ms_status sum_chunk(msi_reduction *r)
{
    const msi_chunk own = msi_plan_chunk(r->total, r->rank, r->world);

    MS_TRY(await_gradients(r));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
              sum(r, own.first, 0, own.numel, element(r, r->rank, own.first), r->dtype, false));
    r->phase = MSI_GRAD_REDUCED;
    msi_slot_publish(r->pool, r->slot, MSI_STREAM_REDUCE, MSI_SLOT_REDUCED);
    r->user->changed(r->unit);
    return MS_OK;
}

/* Layout nccl: commit a closed gradient to the communicator. A replica's chunk is summed in place
 * of this rank's, and then gathered. */
static ms_status enqueue_pieces(const msi_reduction *r)
{
    const msi_pieces p = pieces_of(r);
    const msi_chunk own = msi_plan_chunk(r->total, r->rank, r->world);
    char *chunk = element(r, r->rank, p.each * r->rank);

    MS_TRY(msi_stream_dep_after(r->pool->ctx, MSI_DEP_WRITTEN, MSI_STREAM_REDUCE, r->written));
    MS_TRY(move_pieces(r, &p));
    if (!r->replicated) {
        return MS_OK;
    }
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
              sum(r, own.first, 0, own.numel, chunk, r->dtype, false));
    MS_TRY(msi_device_comm_all_gather(r->pool->devices, MSI_STREAM_REDUCE, chunk,
                                      element(r, r->rank, 0), p.each, r->dtype));
    return msi_slot_pool_complete(r->pool, r->progress, r->seq);
}

static ms_status take_all(const msi_reduction *r, void *out, bool add)
{
    for (int32_t i = 0; i < r->n_own; i++) {
        const msi_extent *e = &r->own[i];

        MS_TRY(take_sums(r, r->rank, e->in_full, e->numel,
                         (char *)out + e->in_grad * ms_dtype_size(r->sum_dtype), add));
    }
    return MS_OK;
}

/* The whole sums are in this rank's part. */
static ms_status copy_gathered(msi_reduction *r)
{
    void *out;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &out, &add));
    MS_TRY(await_prepared(r, add));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, take_all(r, out, add));
    return MS_OK;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static ms_status take_chunk(const msi_reduction *r, int32_t q, const msi_extent *e, void *out,
                            bool add)
{
    const msi_chunk c = msi_plan_chunk(r->total, q, r->world);
    const int64_t end = smaller(c.first + c.numel, e->in_full + e->numel);
    const int64_t first = c.first > e->in_full ? c.first : e->in_full;
    const int64_t in_grad = e->in_grad + first - e->in_full;

    return take_sums(r, q, first, end - first, (char *)out + in_grad * ms_dtype_size(r->sum_dtype),
                     add);
}

static ms_status take_chunks(const msi_reduction *r, void *out, bool add)
{
    for (int32_t q = 0; q < r->world; q++) {
        for (int32_t i = 0; i < r->n_own; i++) {
            MS_TRY(take_chunk(r, q, &r->own[i], out, add));
        }
    }
    return MS_OK;
}

static ms_status copy_chunks(msi_reduction *r)
{
    void *out;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &out, &add));
    MS_TRY(await_prepared(r, add));
    MS_TRY(msi_slot_await(r->pool, r->slot, MSI_DEP_CHUNKED, MSI_STREAM_REDUCE, MSI_SLOT_REDUCED,
                          r->slot->generation));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, take_chunks(r, out, add));
    return MS_OK;
}

/* -- its task ---------------------------------------------------------------------------------- */

static bool all_are_ready(const msi_task *task)
{
    const msi_reduction *r = (const msi_reduction *)task;
    const msi_slot_event what = r->phase == MSI_GRAD_REDUCED ? MSI_SLOT_REDUCED : MSI_SLOT_FILLED;
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

    if (r->replicated && moves_pieces(r)) {
        MS_TRY(copy_gathered(r));
    } else if (r->replicated && r->world > 1) {
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

static void drop_task(msi_task *task)
{
    msi_reduction *r = (msi_reduction *)task;

    if (r->slot != NULL) {
        atomic_store(&msi_slot_words_of(r->slot, r->rank)->dropped, r->slot->generation);
        release(r);
        msi_reduction_join(r);
    }
    r->phase = MSI_GRAD_NONE;
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
    r->progress->peers_committed = true;
    MS_TRY(msi_comm_publish(r->pool->comm, &r->fp, &r->seq));
    msi_comm_count(r->pool->comm, r->fp.kind);
    r->slot->seq = r->seq;
    r->task.order = MSI_TASK_REDUCE;
    r->task.possible = all_are_ready;
    r->task.step = reduce;
    r->task.drop = drop_task;
    msi_progress_add(r->progress, &r->task);
    r->phase = MSI_GRAD_READY;
    atomic_store_explicit(&own->schedule_hash, msi_comm_schedule_hash(r->pool->comm),
                          memory_order_relaxed);
    if (moves_pieces(r)) {
        MS_TRY(enqueue_pieces(r));
    }
    msi_slot_publish(r->pool, r->slot, MSI_STREAM_COMPUTE, MSI_SLOT_FILLED);
    r->user->changed(r->unit);
    return msi_progress_run(r->progress);
}

/* A rank that dropped the chunk this rank needs, or -1. */
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
