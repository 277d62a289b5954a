#include "slot.h"
#include "array.h"

#include "backend.h"

#include <stdlib.h>

/* -- memory ------------------------------------------------------------------------------------ */

/* Memory of several slots. */
typedef struct memory {
    const msi_segment *words;
    const msi_segment
        *owned;     /* (n_parts), one rank's parts each; NULL: all parts follow the words */
    int64_t offset; /* of the parts, after the words */
} memory;

/* Its device must know the host memory that words are in. */
static bool pins(const msi_slot_pool *pool, const msi_segment *s)
{
    const msi_device *d = pool->ctx->device;

    return d != NULL && d->ops->pin != NULL && s->device == NULL && s->nbytes > 0;
}

static void free_segment(msi_slot_pool *pool, msi_segment *s)
{
    if (pins(pool, s)) {
        pool->ctx->device->ops->unpin(pool->ctx->device, s->rw);
    }
    msi_segment_free(s);
}

static void free_segments(msi_slot_pool *pool, int32_t kept)
{
    while (pool->n_segments > kept) {
        free_segment(pool, &pool->segments[--pool->n_segments]);
    }
}

static ms_status add_host_segment(msi_slot_pool *pool, int64_t nbytes)
{
    msi_segment *s = &pool->segments[pool->n_segments];

    MS_TRY(msi_segment_new(s, pool->comm, nbytes));
    pool->n_segments++;
    return pins(pool, s) ? msi_device_pin(pool->ctx->device, s->rw, s->nbytes) : MS_OK;
}

static ms_status add_owned_segments(msi_slot_pool *pool, int32_t n_owned, int64_t nbytes)
{
    for (int32_t q = 0; q < n_owned; q++) {
        const int32_t owner = n_owned > 1 ? q : MSI_OWNER_ALL;

        MS_TRY(msi_segment_new_on(&pool->segments[pool->n_segments], pool->comm, pool->ctx->device,
                                  owner, nbytes));
        pool->n_segments++;
    }
    return MS_OK;
}

/* @param nbytes  of words and parts, which start at `offset`
 * @param planned  bytes counted, for all ranks; a fake group maps less */
static ms_status add_memory(msi_slot_pool *pool, int64_t offset, int64_t nbytes, int64_t planned,
                            memory *m)
{
    const int32_t n_owned = pool->ctx->device != NULL ? pool->mapped.n_parts : 0;
    const int32_t before = pool->n_segments;
    msi_segment *list = realloc(pool->segments, sizeof(*list) * (size_t)(before + 1 + n_owned));
    ms_status status;

    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for segment %d", (int)before);
    }
    pool->segments = list;
    MS_TRY_GOTO(add_host_segment(pool, n_owned > 0 ? offset : nbytes), failed);
    if (n_owned > 0) {
        MS_TRY_GOTO(add_owned_segments(pool, n_owned, (nbytes - offset) / n_owned), failed);
    }
    *m = (memory){
        .words = &list[before], .owned = n_owned > 0 ? &list[before + 1] : NULL, .offset = offset};
    msi_count_external(pool->ctx, planned, MS_MEM_ARENA);
    pool->nbytes += planned;
    return MS_OK;
failed:
    free_segments(pool, before);
    return status;
}

/* -- slots ------------------------------------------------------------------------------------- */

/* Offsets of one slot: its words, and its parts as if they followed. */
typedef struct place {
    int64_t words, word_bytes, parts, part_bytes, own_bytes;
} place;

static int64_t in_owned(const memory *m, const place *p, int32_t n_parts)
{
    return (p->parts - m->offset) / n_parts;
}

static char *part_at(const memory *m, const place *p, int32_t n_parts, int32_t q)
{
    if (m->owned == NULL) {
        return m->words->rw + p->parts + q * p->part_bytes;
    }
    const msi_segment *s = &m->owned[q];

    return (s->rw != NULL ? s->rw : s->ro) + in_owned(m, p, n_parts);
}

static char *first_to_read(const memory *m, const place *p, int32_t n_parts)
{
    return m->owned == NULL ? m->words->ro + p->parts : m->owned->ro + in_owned(m, p, n_parts);
}

static ms_status add_slot(msi_slot_pool *pool, const memory *m, const place *p, msi_slot **out)
{
    const int32_t n_parts = pool->mapped.n_parts;
    msi_slot **list = realloc(pool->slots, sizeof(*list) * (size_t)(pool->n_slots + 1));
    msi_slot *slot = calloc(1, sizeof(*slot) + sizeof(slot->part[0]) * ((size_t)n_parts + 1));
    msi_mem_block *own = NULL;

    if (list != NULL) {
        pool->slots = list;
    }
    if (list == NULL || slot == NULL) {
        free(slot);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for slot %d", (int)pool->n_slots);
    }
    ms_status status =
        p->own_bytes > 0 ? msi_alloc(pool->ctx, p->own_bytes, MS_MEM_ARENA, &own) : MS_OK;

    if (status != MS_OK) {
        free(slot);
        return status;
    }
    slot->words = m->words->rw + p->words;
    slot->word_bytes = pool->mapped.world > 1 ? p->word_bytes : 0;
    for (int32_t q = 0; q < n_parts; q++) {
        slot->part[q] = part_at(m, p, n_parts, q);
    }
    slot->n_parts = n_parts > 1 ? n_parts : 1;
    slot->ro = n_parts > 0 ? first_to_read(m, p, n_parts) : NULL;
    slot->block = own;
    slot->own = own != NULL ? own->data : NULL;
    if (n_parts == 0) {
        slot->part[0] = slot->own;
    }
    slot->own_bytes = p->own_bytes;
    slot->used = msi_stream_dep_mark(pool->ctx, MSI_STREAM_COMPUTE); /* COMPUTE used `own` */
    slot->number = pool->n_slots;
    pool->slots[pool->n_slots++] = slot;
    *out = slot;
    return MS_OK;
}

static place place_in_ring(const msi_slots_plan *p, int64_t offset, int32_t i)
{
    return (place){p->word_bytes * p->world * i, p->word_bytes,
                   offset + p->ring_bytes * p->n_parts * i, p->ring_bytes, p->own_bytes};
}

static place place_of_home(const msi_slot_wish *wish)
{
    return (place){wish->at_words, wish->word_bytes, wish->offset,
                   msi_round_up(wish->nbytes, MSI_PAGE), msi_round_up(wish->own_bytes, MSI_PAGE)};
}

static ms_status add_planned(msi_slot_pool *pool, const msi_slot_wish *wishes, int32_t n,
                             msi_slot **homes)
{
    const msi_slots_plan *p = &pool->mapped;
    msi_slot *slot;
    memory m;

    MS_TRY(add_memory(pool, p->offset, p->nbytes, pool->plan.nbytes, &m));
    for (int32_t i = 0; i < p->n_ring; i++) {
        const place at = place_in_ring(p, p->offset, i);

        MS_TRY(add_slot(pool, &m, &at, &slot));
        slot->ring = true;
    }
    for (int32_t i = 0; i < n; i++) {
        if (wishes[i].owns) {
            const place at = place_of_home(&wishes[i]);

            MS_TRY(add_slot(pool, &m, &at, &homes[i]));
        }
    }
    return MS_OK;
}

ms_status msi_slot_pool_new(msi_slot_pool *pool, ms_context *ctx, ms_comm *comm,
                            const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n,
                            msi_slot **homes)
{
    *pool = (msi_slot_pool){.ctx = ctx, .comm = comm, .plan = *plan, .mapped = *plan};
    for (int32_t i = 0; i < n; i++) {
        homes[i] = NULL;
    }
    if (plan->nbytes == 0) {
        return MS_OK;
    }
    if (ms_comm_is_fake(comm)) {
        pool->mapped = msi_slots_plan_of_one(plan, wishes, n);
    }
    ms_status status = add_planned(pool, wishes, n, homes);

    if (status != MS_OK) {
        msi_slot_pool_free(pool);
    }
    return status;
}

void msi_slot_pool_free(msi_slot_pool *pool)
{
    if (pool->n_segments > 0) {
        msi_drain(pool->ctx); /* its users have run */
        msi_count_external(pool->ctx, -pool->nbytes, MS_MEM_ARENA);
    }
    for (int32_t i = 0; i < pool->n_slots; i++) {
        msi_release(pool->slots[i]->block);
        free(pool->slots[i]);
    }
    free_segments(pool, 0);
    free(pool->shard_of);
    free(pool->slots);
    free(pool->segments);
    *pool = (msi_slot_pool){.slots = NULL};
}

int32_t msi_slot_hosts(const msi_slot_pool *pool)
{
    return pool->plan.layout == MSI_SLOTS_NCCL ? 1 : msi_comm_hosts(pool->comm)->n;
}

ms_status msi_slot_pool_connect(msi_slot_pool *pool, int32_t shard_rank)
{
    const bool between_devices = pool->plan.layout == MSI_SLOTS_NCCL;

    if ((!between_devices && msi_slot_hosts(pool) == 1) || pool->plan.nbytes == 0 ||
        ms_comm_is_fake(pool->comm)) {
        return MS_OK;
    }
    MS_TRY(between_devices ? msi_comm_devices(pool->comm, &pool->devices) : MS_OK);
    pool->sums_in_order = msi_slots_sum_in_order();
    if (shard_rank < 0) {
        return MS_OK;
    }
    MS_TRY(msi_new_array(&pool->shard_of, pool->plan.world, "ranks' shards"));
    return msi_comm_gather_bytes(pool->comm, "the ranks' shards", &shard_rank, sizeof(shard_rank),
                                 pool->shard_of);
}

bool msi_slots_sum_in_order(void)
{
    static const char *const choices[] = {"0", "1"};

    return msi_switch_choice("MS_NCCL_DETERMINISTIC", choices, MSI_COUNT(choices), 1) == 1;
}

static bool is_complete(void *devices)
{
    return msi_device_comm_is_complete(devices);
}

ms_status msi_slot_pool_complete(const msi_slot_pool *pool, msi_progress *progress, uint64_t seq)
{
    if (!msi_device_comm_is_complete(pool->devices)) {
        MS_TRY(msi_progress_wait(progress, pool->comm, seq, is_complete, pool->devices));
    }
    return msi_device_comm_check(pool->devices);
}

int64_t msi_slot_pool_bytes(const msi_slot_pool *pool)
{
    int64_t nbytes = pool->nbytes;

    for (int32_t i = 0; i < pool->n_slots; i++) {
        nbytes += pool->slots[i]->own_bytes;
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
    int64_t offset;
    const int64_t planned = msi_slots_plan_one(&pool->plan, &offset);
    const int64_t nbytes = msi_slots_plan_one(&pool->mapped, &offset);
    memory m;

    MS_TRY(add_memory(pool, offset, nbytes, planned, &m));
    const place at = place_in_ring(&pool->mapped, offset, 0);

    MS_TRY(add_slot(pool, &m, &at, slot));
    (*slot)->ring = true;
    return MS_OK;
}

void msi_slot_take(msi_slot_pool *pool, msi_slot *slot, void *holder)
{
    slot->holder = holder;
    slot->taken_at = ++pool->n_taken;
    slot->generation++;
}

/* -- words ------------------------------------------------------------------------------------- */

static _Atomic uint64_t *word_of(const msi_slot *slot, int32_t q, msi_slot_event what)
{
    msi_slot_word *w = msi_slot_words_of(slot, q);

    return what == MSI_SLOT_FILLED    ? &w->filled
           : what == MSI_SLOT_ROOTED  ? &w->rooted
           : what == MSI_SLOT_REDUCED ? &w->reduced
                                      : &w->released;
}

static _Atomic uint64_t *twin_of(const msi_slot *slot, int32_t q, msi_slot_event what)
{
    msi_slot_word *w = msi_slot_words_of(slot, q);

    return what == MSI_SLOT_FILLED || what == MSI_SLOT_ROOTED /* on no device */
               ? &w->has_filled
               : what == MSI_SLOT_REDUCED ? &w->has_reduced : &w->has_released;
}

/* What readers look at once they see that it is filled. */
static void share_facts(const msi_slot_pool *pool, const msi_slot *slot, msi_slot_word *w)
{
    const int64_t flags = slot->word_bytes - MSI_SLOT_WORDS;

    msi_comm_share_words(pool->comm, (const void *)&w->schedule_hash, 2 * sizeof(uint64_t));
    if (flags > 0) {
        msi_comm_share(pool->comm, w + 1, flags);
    }
}

void msi_slot_drop(const msi_slot_pool *pool, msi_slot *slot)
{
    _Atomic uint64_t *dropped = &msi_slot_words_of(slot, ms_comm_rank(pool->comm))->dropped;

    atomic_store(dropped, slot->generation);
    msi_comm_share_words(pool->comm, (const void *)dropped, sizeof(*dropped));
}

void msi_slot_publish(const msi_slot_pool *pool, msi_slot *slot, int32_t stream,
                      msi_slot_event what)
{
    const int32_t rank = ms_comm_rank(pool->comm);

    if (pool->plan.layout != MSI_SLOTS_NCCL) {
        msi_stream_dep_post(pool->ctx, stream, twin_of(slot, rank, what), slot->generation);
    }
    atomic_store(word_of(slot, rank, what), slot->generation);
    if (MSI_UNLIKELY(msi_comm_hosts(pool->comm)->n > 1)) {
        if (what == MSI_SLOT_FILLED) {
            share_facts(pool, slot, msi_slot_words_of(slot, rank));
        }
        msi_comm_share_words(pool->comm, (const void *)word_of(slot, rank, what), sizeof(uint64_t));
    }
    msi_comm_ring(pool->comm);
}

static ms_status await_peers(const msi_slot_pool *pool, const msi_slot *slot, msi_stream_dep order,
                             int32_t stream, msi_slot_event what, uint64_t generation)
{
    const int32_t rank = ms_comm_rank(pool->comm);
    _Atomic uint64_t *words[pool->plan.world];
    int32_t n = 0;

    for (int32_t q = 0; q < pool->plan.world; q++) {
        if (q != rank) {
            words[n++] = twin_of(slot, q, what);
        }
    }
    return msi_stream_dep_await(pool->ctx, order, stream, words, n, generation);
}

ms_status msi_slot_await(const msi_slot_pool *pool, const msi_slot *slot, msi_stream_dep order,
                         int32_t stream, msi_slot_event what, uint64_t generation)
{
    return MSI_LIKELY(pool->ctx->device == NULL) || generation == 0 || slot->word_bytes == 0 ||
                   pool->plan.layout == MSI_SLOTS_NCCL
               ? MS_OK
               : await_peers(pool, slot, order, stream, what, generation);
}

bool msi_slot_is_read(const msi_slot *slot, int32_t world)
{
    for (int32_t q = 0; q < world; q++) {
        if (atomic_load(word_of(slot, q, MSI_SLOT_RELEASED)) + 1 < slot->generation) {
            return false;
        }
    }
    return true;
}

bool msi_slot_has(const msi_slot *slot, int32_t q, msi_slot_event what, uint64_t schedule_hash)
{
    return atomic_load(word_of(slot, q, what)) >= slot->generation &&
           atomic_load_explicit(&msi_slot_words_of(slot, q)->schedule_hash, memory_order_relaxed) ==
               schedule_hash;
}

/* Read the event word last: a rank that did it did so before it dropped a later one. */
bool msi_slot_has_dropped(const msi_slot *slot, int32_t q, msi_slot_event what)
{
    return atomic_load(&msi_slot_words_of(slot, q)->dropped) >= slot->generation &&
           atomic_load(word_of(slot, q, what)) < slot->generation;
}

int32_t msi_slot_dropped_by(const msi_slot *slot, int32_t world, msi_slot_event what)
{
    for (int32_t q = 0; q < world; q++) {
        if (msi_slot_has_dropped(slot, q, what)) {
            return q;
        }
    }
    return -1;
}
