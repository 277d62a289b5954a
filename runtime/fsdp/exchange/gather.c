#include "gather.h"

#include "backend.h"

/* -- slots ------------------------------------------------------------------------------------- */

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

/* Stream GATHER waits for the writes of the master, which have been enqueued. */
static ms_status await_master(msi_gather *g)
{
    const int64_t version = g->user->version(g->unit);

    if (g->written_version != version) {
        g->written = msi_stream_dep_mark(g->ctx, MSI_STREAM_COMPUTE);
        g->written_version = version;
    }
    return msi_stream_dep_after(g->ctx, MSI_DEP_STEPPED, MSI_STREAM_GATHER, g->written);
}

static ms_status await_own(msi_gather *g)
{
    return msi_stream_dep_after(g->ctx, MSI_DEP_USED, MSI_STREAM_GATHER, g->slot->used);
}

/* After all ranks have released this rank's part (or the shared part). */
static ms_status fill(msi_gather *g, bool staged)
{
    const int32_t rank = ms_comm_rank(g->pool->comm);
    void *part = msi_slot_part(g->slot, rank);

    MS_TRY(msi_slot_await(g->pool, g->slot, MSI_DEP_RELEASED, MSI_STREAM_GATHER, MSI_SLOT_RELEASED,
                          g->slot->generation - 1));
    MS_TRY_ON(g->ctx, MSI_STREAM_GATHER, g->user->fill(g->unit, part, staged));
    if (MSI_UNLIKELY(msi_slot_hosts(g->pool) > 1)) {
        g->user->share(g->unit, part);
    }
    atomic_store_explicit(&msi_slot_words_of(g->slot, rank)->schedule_hash, g->schedule_hash,
                          memory_order_relaxed);
    msi_slot_publish(g->pool, g->slot, MSI_STREAM_GATHER, MSI_SLOT_FILLED);
    g->user->filled(g->unit);
    return MS_OK;
}

/* Stream COMPUTE waits for GATHER. */
static void join(msi_gather *g)
{
    if (!g->joined) {
        msi_stream_dep_join(g->ctx, MSI_DEP_GATHERED, MSI_STREAM_COMPUTE,
                            msi_stream_dep_mark(g->ctx, MSI_STREAM_GATHER));
        g->joined = true;
    }
}

/* This rank will enqueue no more reads or writes of it. */
static void leave(msi_gather *g, bool unfilled)
{
    if (unfilled) {
        msi_slot_drop(g->pool, g->slot);
    }
    join(g); /* also if unread: the slot and the master may be written from now on */
    g->slot->used = msi_stream_dep_mark(g->ctx, MSI_STREAM_COMPUTE);
    g->slot->holder = NULL;
}

typedef ms_status (*step_fn)(msi_task *task, bool *finished);
typedef void (*drop_fn)(msi_task *task);

/* Commit the use, with a free slot. */
static ms_status commit(msi_gather *g)
{
    msi_slot *slot = g->home != NULL ? g->home : msi_slot_oldest(g->pool, is_free);

    if (slot == NULL) {
        MS_TRY(msi_slot_grow(g->pool, &slot));
    }
    MS_ASSERT(is_free(slot));
    g->fp.slot = slot->number;
    g->fp.generation = slot->generation + 1;
    MS_TRY(msi_progress_publish(g->progress, g->pool->comm, &g->fp, &g->seq));
    g->schedule_hash = msi_comm_schedule_hash(g->pool->comm);
    msi_slot_take(g->pool, slot, g);
    g->slot = slot;
    g->joined = false;
    return MS_OK;
}

/* `step` and `drop`: the layout's. */
static ms_status begin(msi_gather *g, step_fn step, drop_fn drop)
{
    MS_TRY(commit(g));
    g->task.order = MSI_TASK_FILL;
    g->task.possible = may_fill;
    g->task.step = step;
    g->task.drop = drop;
    msi_progress_add(g->progress, &g->task);
    return MS_OK;
}

/* Remove the task. Returns true if it was unfilled. */
static bool take_off(msi_gather *g)
{
    const bool unfilled = g->task.listed;

    msi_progress_remove(g->progress, &g->task);
    return unfilled;
}

/* False if another rank filled the slot with another unit; the wait then compares. */
static bool all_filled_or_dropped(void *user)
{
    const msi_gather *g = user;

    for (int32_t q = 0; q < g->pool->plan.world; q++) {
        if (!msi_slot_has(g->slot, q, MSI_SLOT_FILLED, g->schedule_hash) &&
            !msi_slot_has_dropped(g->slot, q, MSI_SLOT_FILLED)) {
            return false;
        }
    }
    return true;
}

/* GATHER waits until all ranks have filled the slot. */
static ms_status await_all(msi_gather *g)
{
    MS_TRY(msi_progress_wait(g->progress, g->pool->comm, g->seq, all_filled_or_dropped, g));
    const int32_t q = msi_slot_dropped_by(g->slot, g->pool->plan.world, MSI_SLOT_FILLED);

    return q >= 0 ? msi_comm_dropped(g->pool->comm, g->seq, q)
                  : msi_slot_await(g->pool, g->slot, MSI_DEP_FILLED, MSI_STREAM_GATHER,
                                   MSI_SLOT_FILLED, g->slot->generation);
}

/* -- shared: all read the slot ----------------------------------------------------------------- */

static ms_status fill_slot(msi_task *task, bool *finished)
{
    msi_gather *g = (msi_gather *)task;

    MS_TRY(await_master(g));
    MS_TRY(await_own(g));
    MS_TRY(fill(g, false));
    *finished = true;
    return MS_OK;
}

static void release_slot(msi_gather *g, bool unfilled)
{
    leave(g, unfilled);
    msi_slot_publish(g->pool, g->slot, MSI_STREAM_COMPUTE, MSI_SLOT_RELEASED);
    g->slot = NULL;
}

static void drop_slot(msi_task *task)
{
    release_slot((msi_gather *)task, true);
}

static ms_status shared_begin(msi_gather *g)
{
    return begin(g, fill_slot, drop_slot);
}

static ms_status shared_ready(msi_gather *g, bool stale, void **full)
{
    (void)stale;
    MS_TRY(await_all(g));
    join(g);
    *full = g->slot->ro;
    return MS_OK;
}

static void shared_end(msi_gather *g)
{
    if (g->slot != NULL) {
        release_slot(g, take_off(g));
    }
}

const msi_gather_ops msi_gather_shared = {true, slot_available, shared_begin, shared_ready,
                                          shared_end};

/* -- pull: each rank copies all stages into private memory ------------------------------------- */

/* This rank's reads of its stage were on stream GATHER, so they are in order. */
static ms_status fill_stage(msi_task *task, bool *finished)
{
    msi_gather *g = (msi_gather *)task;

    MS_TRY(await_master(g));
    MS_TRY(fill(g, true));
    *finished = true;
    return MS_OK;
}

static void release_stages(msi_gather *g)
{
    msi_slot_publish(g->pool, g->slot, MSI_STREAM_GATHER, MSI_SLOT_RELEASED);
}

/* If they were copied, they are already released. */
static void leave_stages(msi_gather *g, bool unfilled)
{
    const bool copied = g->joined;

    leave(g, unfilled);
    if (!copied) {
        release_stages(g);
    }
    g->slot = NULL;
}

static void drop_stage(msi_task *task)
{
    leave_stages((msi_gather *)task, true);
}

static ms_status pull_begin(msi_gather *g)
{
    return begin(g, fill_stage, drop_stage);
}

/* Start with this rank's stage, so that ranks read in different orders. */
static ms_status copy_stages(msi_gather *g)
{
    const int32_t rank = ms_comm_rank(g->pool->comm), world = g->pool->plan.world;

    for (int32_t i = 0; i < world; i++) {
        const int32_t q = (rank + i) % world;

        MS_TRY(g->user->pull(g->unit, q, msi_slot_part(g->slot, q), g->slot->own));
    }
    return MS_OK;
}

static ms_status pull_ready(msi_gather *g, bool stale, void **full)
{
    (void)stale;
    MS_TRY(await_all(g));
    MS_TRY(await_own(g));
    MS_TRY_ON(g->ctx, MSI_STREAM_GATHER, copy_stages(g));
    join(g);
    release_stages(g);
    *full = g->slot->own;
    return MS_OK;
}

static void pull_end(msi_gather *g)
{
    if (g->slot != NULL) {
        leave_stages(g, take_off(g));
    }
}

const msi_gather_ops msi_gather_pull = {true, slot_available, pull_begin, pull_ready, pull_end};

/* -- nccl: the devices' communicator gathers in place ------------------------------------------ */

/* Copy the shards in a row to their positions. */
static ms_status place_shards(msi_gather *g, int64_t shard_bytes)
{
    for (int32_t q = 0; q < g->pool->plan.world; q++) {
        MS_TRY(
            g->user->pull(g->unit, q, g->slot->own + g->staged_at + q * shard_bytes, g->slot->own));
    }
    return MS_OK;
}

/* In program order, so that all ranks' communicators make the same calls. In a fake group other
 * ranks' extents stay as they are. */
static ms_status gather_between_devices(msi_gather *g)
{
    msi_device_comm *devices = g->pool->devices;
    const int64_t shard_bytes = g->shard_numel * ms_dtype_size(g->fp.dtype);
    const bool staged = g->staged_at > 0 && devices != NULL;
    char *shards = g->slot->own + g->staged_at;
    char *own = devices != NULL ? shards + devices->rank * shard_bytes : NULL;

    MS_TRY(await_master(g));
    MS_TRY(await_own(g));
    MS_TRY_ON(g->ctx, MSI_STREAM_GATHER,
              g->user->fill(g->unit, staged ? own : g->slot->own, staged));
    if (devices == NULL) {
        return MS_OK;
    }
    MS_TRY(msi_device_comm_all_gather(devices, MSI_STREAM_GATHER, own, shards, g->shard_numel,
                                      g->fp.dtype));
    /* what follows is behind it only once it is complete */
    MS_TRY(msi_slot_pool_complete(g->pool, g->progress, g->seq));
    if (staged) {
        MS_TRY_ON(g->ctx, MSI_STREAM_GATHER, place_shards(g, shard_bytes));
    }
    return MS_OK;
}

static void nccl_end(msi_gather *g)
{
    if (g->slot != NULL) {
        leave(g, false);
        g->slot = NULL;
    }
}

static ms_status nccl_begin(msi_gather *g)
{
    MS_TRY(commit(g));
    const ms_status status = gather_between_devices(g);

    if (status != MS_OK) { /* the unit stays sharded, and its slot is free for the next use */
        nccl_end(g);
        return status;
    }
    msi_slot_publish(g->pool, g->slot, MSI_STREAM_GATHER, MSI_SLOT_FILLED);
    g->user->filled(g->unit);
    return MS_OK;
}

/* Peers may be ahead: their words can have later hashes. The wait compares schedules. */
static bool all_filled(void *user)
{
    const msi_gather *g = user;

    for (int32_t q = 0; q < g->pool->plan.world; q++) {
        if (atomic_load(&msi_slot_words_of(g->slot, q)->filled) < g->slot->generation) {
            return false;
        }
    }
    return true;
}

static ms_status nccl_ready(msi_gather *g, bool stale, void **full)
{
    (void)stale;
    MS_TRY(msi_progress_wait(g->progress, g->pool->comm, g->seq, all_filled, g));
    join(g);
    *full = g->slot->own;
    return MS_OK;
}

const msi_gather_ops msi_gather_nccl = {true, slot_available, nccl_begin, nccl_ready, nccl_end};

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
    return stale ? g->user->fill(g->unit, g->data, false) : MS_OK;
}

static ms_status resident_ready(msi_gather *g, bool stale, void **full)
{
    const int64_t version = g->user->version(g->unit);
    msi_mem_block *block;

    if (g->block != NULL) { /* since it was filled the unit may have used its master */
        *full = g->block->data;
        stale = stale || g->copied_version != version;
        g->copied_version = version;
        return stale ? g->user->fill(g->unit, g->block->data, false) : MS_OK;
    }

    MS_TRY(msi_alloc(g->ctx, g->nbytes, MS_MEM_PARAMETER, &block));
    ms_status status = g->user->fill(g->unit, block->data, false);

    if (status != MS_OK) {
        msi_release(block);
        return status;
    }
    g->block = block;
    g->copied_version = version;
    *full = block->data;
    return MS_OK;
}

const msi_gather_ops msi_gather_alias = {false, always_available, nothing_begins, alias_ready,
                                         nothing_ends};
const msi_gather_ops msi_gather_resident = {false, always_available, nothing_begins, resident_ready,
                                            nothing_ends};

void msi_gather_dispose(msi_gather *g)
{
    msi_release(g->block);
    g->block = NULL;
    g->data = NULL;
}
