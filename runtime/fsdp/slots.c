/* Parameter slots: publish, wait, release. See [Note: slot protocol] in fsdp.h. */
#include "fsdp.h"

#include <stdlib.h>
#include <string.h>

/* -- planning ---------------------------------------------------------------------------------- */

/* Does the unit read its parameters from a slot? (Else from the master, or a resident copy.) */
static bool uses_slot(const ms_fsdp_unit *u)
{
    return u->is_sharded && !u->gather_aliases;
}

static int64_t param_bytes(const ms_fsdp_unit *u)
{
    return uses_slot(u) ? u->shard_numel * u->world * ms_dtype_size(u->param_dtype) : 0;
}

static bool keeps_params(const ms_fsdp_unit *u)
{
    return u->is_root || u->options.strategy == MS_FSDP_SHARD_GRAD_OP;
}

static int compare_bytes(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

ms_status msi_ring_plan(ms_fsdp_tree *tree, int64_t (*bytes)(const ms_fsdp_unit *u),
                        bool (*keeps)(const ms_fsdp_unit *u), bool *own, int64_t *ring_bytes,
                        int32_t *n_ringed)
{
    int64_t *sizes = malloc(sizeof(*sizes) * (size_t)(tree->n_units + 1));
    int32_t n = 0;

    if (sizes == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to plan %d units", (int)tree->n_units);
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        own[i] = bytes(tree->units[i]) > 0 && keeps(tree->units[i]);
        if (bytes(tree->units[i]) > 0 && !own[i]) {
            sizes[n++] = bytes(tree->units[i]);
        }
    }
    qsort(sizes, (size_t)n, sizeof(*sizes), compare_bytes);
    int64_t median = n > 0 ? sizes[n / 2] : 0;

    free(sizes);
    *ring_bytes = 0;
    *n_ringed = 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        int64_t size = bytes(tree->units[i]);

        if (size == 0 || own[i]) {
            continue;
        }
        if (size > 2 * median) {
            own[i] = true;
            continue;
        }
        *ring_bytes = size > *ring_bytes ? size : *ring_bytes;
        (*n_ringed)++;
    }
    return MS_OK;
}

/* Append a slot whose memory is `nbytes` at `offset` of a segment, its words at `words`. */
static ms_status add_slot(ms_fsdp_tree *tree, msi_segment *segment, int64_t words, int64_t offset,
                          int64_t nbytes, bool ring, msi_slot **out)
{
    msi_slot **list = realloc(tree->slots, sizeof(*list) * (size_t)(tree->n_slots + 1));
    msi_slot *slot = calloc(1, sizeof(*slot));

    if (list != NULL) {
        tree->slots = list;
    }
    if (list == NULL || slot == NULL) {
        free(slot);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for slot %d", (int)tree->n_slots);
    }
    slot->words = (msi_slot_word *)(void *)(segment->rw + words);
    slot->rw = segment->rw + offset;
    slot->ro = segment->ro + offset;
    slot->nbytes = nbytes;
    slot->ring = ring;
    tree->slots[tree->n_slots++] = slot;
    *out = slot;
    return MS_OK;
}

static ms_status add_segment(ms_fsdp_tree *tree, int64_t nbytes, msi_segment **out)
{
    msi_segment *list = realloc(tree->segments, sizeof(*list) * (size_t)(tree->n_segments + 1));

    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for segment %d", (int)tree->n_segments);
    }
    tree->segments = list;
    MS_TRY(msi_segment_new(&list[tree->n_segments], tree->comm, nbytes));
    msi_count_external(tree->ctx, nbytes, MS_MEM_ARENA);
    *out = &list[tree->n_segments++];
    return MS_OK;
}

ms_status msi_slots_new(ms_fsdp_tree *tree)
{
    bool *own = calloc((size_t)tree->n_units + 1, sizeof(*own));
    int32_t n_ringed, n_ring, n_home = 0;
    int64_t home_bytes = 0;
    msi_segment *segment;
    ms_status status;

    if (own == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to plan %d units", (int)tree->n_units);
    }
    MS_TRY_GOTO(msi_ring_plan(tree, param_bytes, keeps_params, own, &tree->ring_bytes, &n_ringed),
                done);
    n_ring =
        tree->options.n_slots > 0 ? tree->options.n_slots
        : tree->options.backward_prefetch != MS_FSDP_PREFETCH_NONE || tree->options.forward_prefetch
            ? 3
            : 2;
    n_ring = n_ringed < n_ring ? n_ringed : n_ring;
    tree->ring_bytes = msi_round_up(tree->ring_bytes, MSI_PAGE);
    for (int32_t i = 0; i < tree->n_units; i++) {
        n_home += own[i];
        home_bytes += own[i] ? msi_round_up(param_bytes(tree->units[i]), MSI_PAGE) : 0;
    }
    if (n_ring + n_home == 0) {
        goto done;
    }
    int64_t words = (int64_t)sizeof(msi_slot_word) * tree->world;
    int64_t offset = msi_round_up(words * (n_ring + n_home), MSI_PAGE);
    int64_t at_words = 0;

    MS_TRY_GOTO(add_segment(tree, offset + tree->ring_bytes * n_ring + home_bytes, &segment), done);
    for (int32_t i = 0; i < n_ring; i++) {
        msi_slot *slot;

        MS_TRY_GOTO(add_slot(tree, segment, at_words, offset, tree->ring_bytes, true, &slot), done);
        at_words += words;
        offset += tree->ring_bytes;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        int64_t nbytes = msi_round_up(param_bytes(tree->units[i]), MSI_PAGE);

        if (own[i]) {
            MS_TRY_GOTO(
                add_slot(tree, segment, at_words, offset, nbytes, false, &tree->units[i]->home),
                done);
            at_words += words;
            offset += nbytes;
        }
    }
done:
    free(own);
    return status;
}

void msi_slots_free(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_slots; i++) {
        free(tree->slots[i]);
    }
    for (int32_t i = 0; i < tree->n_segments; i++) {
        msi_count_external(tree->ctx, -tree->segments[i].nbytes, MS_MEM_ARENA);
        msi_segment_free(&tree->segments[i]);
    }
    free(tree->slots);
    free(tree->segments);
    tree->slots = NULL;
    tree->segments = NULL;
    tree->n_slots = tree->n_segments = 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        tree->units[i]->home = NULL;
    }
}

/* -- taking a slot ----------------------------------------------------------------------------- */

/* The free slot of the ring that was taken longest ago. Not the one that became free first: what a
 * unit's slot becomes free by, in the middle of a backward or at its end, may differ between ranks
 * whose graphs do. What they take is compared, so they take it in one order. */
static msi_slot *oldest_free(const ms_fsdp_tree *tree)
{
    msi_slot *best = NULL;

    for (int32_t i = 0; i < tree->n_slots; i++) {
        msi_slot *s = tree->slots[i];

        if (s->ring && s->holder == NULL && (best == NULL || s->taken_at < best->taken_at)) {
            best = s;
        }
    }
    return best;
}

bool msi_slot_available(const ms_fsdp_unit *u)
{
    return !uses_slot(u) ||
           (u->home != NULL ? u->home->holder == NULL : oldest_free(u->tree) != NULL);
}

/* More units are unsharded at once than the ring was made for (deep nesting): it grows by a slot,
 * on all ranks at the same point of the program. */
static ms_status grow_ring(ms_fsdp_tree *tree, msi_slot **slot)
{
    int64_t offset = msi_round_up((int64_t)sizeof(msi_slot_word) * tree->world, MSI_PAGE);
    msi_segment *segment;

    MS_TRY(add_segment(tree, offset + tree->ring_bytes, &segment));
    return add_slot(tree, segment, 0, offset, tree->ring_bytes, true, slot);
}

static int32_t slot_number(const ms_fsdp_tree *tree, const msi_slot *slot)
{
    int32_t i = 0;

    while (tree->slots[i] != slot) {
        i++;
    }
    return i;
}

/* -- publish ----------------------------------------------------------------------------------- */

static ms_status cast_run(void *out, int32_t dtype, const void *in, int32_t in_dtype, int64_t n)
{
    msi_ew_args args = {.out = out, .in = {in}, .in_dtype = in_dtype};

    args.loop.ndim = 1;
    args.loop.shape[0] = n;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    return n > 0 ? msi_dispatch("unshard", MSI_K_copy, dtype, &args) : MS_OK;
}

/* `full` has the master's values of now. Whoever wrote them, a script through a handle too: a
 * backward over older ones must not run. (The flag `outdated` knows of optimizers and loads only;
 * it decides the order of slots, so it must not follow what one rank alone may do.) */
static void follow_version(ms_fsdp_unit *u)
{
    if (u->followed_version != u->master->version) {
        u->full->version++;
        u->followed_version = u->master->version;
    }
}

bool msi_publish_possible(ms_fsdp_unit *u)
{
    for (int32_t q = 0; q < u->world; q++) {
        if (atomic_load(&u->slot->words[q].released) + 1 < u->generation) {
            return false;
        }
    }
    return true;
}

ms_status msi_publish_fill(ms_fsdp_unit *u)
{
    int64_t at = u->rank * u->shard_numel * ms_dtype_size(u->param_dtype);

    MS_TRY(
        cast_run(u->slot->rw + at, u->param_dtype, u->master->data, u->orig_dtype, u->shard_numel));
    follow_version(u);
    u->publish_queued = false;
    atomic_store_explicit(&u->slot->words[u->rank].said, u->said, memory_order_relaxed);
    atomic_store(&u->slot->words[u->rank].filled, u->generation);
    msi_comm_ring(u->comm);
    msi_unit_changed(u);
    return MS_OK;
}

/* A unit without slots reads the master itself or, in a lower precision, a private copy that is
 * made anew before its next use. */
static ms_status follow_master(ms_fsdp_unit *u)
{
    bool fresh = !u->gather_aliases && u->resident == NULL;

    if (u->followed_version == u->master->version && !fresh) {
        return MS_OK;
    }
    if (fresh) {
        MS_TRY(msi_alloc(u->ctx, u->shard_numel * ms_dtype_size(u->param_dtype), MS_MEM_PARAMETER,
                         &u->resident));
        u->followed_version = u->master->version - 1; /* until it holds them */
    }
    if (!u->gather_aliases) {
        MS_TRY(
            cast_run(u->resident, u->param_dtype, u->master->data, u->orig_dtype, u->shard_numel));
    }
    follow_version(u);
    return MS_OK;
}

ms_status msi_unit_publish(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;

    MS_ASSERT(u->state == MS_UNIT_SHARDED && tree != NULL);
    if (!uses_slot(u)) {
        u->outdated = false;
        u->state = MS_UNIT_PUBLISHED;
        msi_unit_changed(u);
        return MS_OK;
    }
    msi_slot *slot = u->home != NULL ? u->home : oldest_free(tree);

    if (slot == NULL) {
        MS_TRY(grow_ring(tree, &slot));
    }
    MS_ASSERT(slot->holder == NULL);
    const msi_fingerprint fp = {.kind = MSI_COLL_UNSHARD,
                                .dtype = (int16_t)u->param_dtype,
                                .ndim = -1,
                                .count = u->shard_numel * u->world,
                                .slot = slot_number(tree, slot),
                                .model = u->tree->model,
                                .generation = slot->generation + 1,
                                .name = u->label};

    tree->named = true;
    MS_TRY(msi_comm_publish(u->comm, &fp, &u->seq));
    u->said = msi_comm_said(u->comm);
    msi_comm_count(u->comm, fp.kind);
    slot->holder = u;
    slot->taken_at = ++tree->n_taken;
    u->slot = slot;
    u->generation = ++slot->generation;
    u->outdated = false;
    u->state = MS_UNIT_PUBLISHED;
    u->publish_queued = true;
    tree->publishing[tree->n_publishing++] = u;
    msi_unit_changed(u);
    return msi_queue_run(tree);
}

/* -- unshard and reshard ----------------------------------------------------------------------- */

/* Ranks that differ may have filled the slot with two units: not ready, so the wait compares. */
static bool has_filled(const ms_fsdp_unit *u, int32_t q)
{
    const msi_slot_word *word = &u->slot->words[q];

    return atomic_load(&word->filled) >= u->generation &&
           atomic_load_explicit(&word->said, memory_order_relaxed) == u->said;
}

/* What it has filled it had filled before it dropped anything later: `filled` is looked at last. */
static bool has_dropped(const ms_fsdp_unit *u, int32_t q)
{
    const msi_slot_word *word = &u->slot->words[q];

    return atomic_load(&word->dropped) >= u->generation &&
           atomic_load(&word->filled) < u->generation;
}

static bool all_filled_or_dropped(void *user)
{
    const ms_fsdp_unit *u = user;

    for (int32_t q = 0; q < u->world; q++) {
        if (!has_filled(u, q) && !has_dropped(u, q)) {
            return false;
        }
    }
    return true;
}

static ms_status wait_filled(ms_fsdp_unit *u)
{
    MS_TRY(msi_queue_wait(u->tree, u->seq, all_filled_or_dropped, u));
    for (int32_t q = 0; q < u->world; q++) {
        if (has_dropped(u, q)) {
            return msi_comm_dropped(u->comm, u->seq, q);
        }
    }
    return MS_OK;
}

/* Kept in a slot with other values than this rank's shard has now? */
static bool differs(const ms_fsdp_unit *u)
{
    return u->state == MS_UNIT_UNSHARDED && uses_slot(u) &&
           u->followed_version != u->master->version;
}

/* [Note: writes into shards] What an optimizer or a load writes all ranks know of. What a script
 * writes through handles is the rank's own: of an element that one rank holds the others hold none.
 * So ranks ask each other where they would use what they have kept, at the start of a root forward;
 * nothing else waits for peers there, so it is asked only when something is kept. In the middle of
 * a forward or backward, where handles show no shards, a rank says that it gathers anew. */
ms_status msi_units_renew(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, int32_t n)
{
    bool *own = tree->written, *all = own + n;
    const ms_fsdp_unit *kept = NULL;
    msi_label label;

    for (int32_t i = 0; i < n; i++) {
        if (units[i]->state == MS_UNIT_UNSHARDED && units[i]->outdated) {
            msi_unit_reshard(units[i]);
        }
        own[i] = differs(units[i]);
        if (kept == NULL && units[i]->state == MS_UNIT_UNSHARDED && uses_slot(units[i])) {
            kept = units[i];
        }
    }
    if (kept == NULL) {
        return MS_OK;
    }
    msi_label_about(&label, "next use of unit", kept->name);
    tree->named = true;
    MS_TRY(msi_comm_gather_named(tree->comm, &label, tree->model, own, n, all));
    for (int32_t i = 0; i < n * tree->world; i++) {
        if (all[i]) {
            msi_unit_reshard(units[i % n]);
        }
    }
    return MS_OK;
}

static void reshard_stale(ms_fsdp_unit *u)
{
    if (differs(u) && !u->outdated) {
        msi_note note = {.n_numbers = 0};

        msi_label_about(&note.label, "values written to unit", u->name);
        msi_unit_note(u, &note);
    }
    if (differs(u) || u->outdated) {
        msi_unit_reshard(u);
    }
}

ms_status msi_unit_unshard(ms_fsdp_unit *u)
{
    reshard_stale(u);
    if (!uses_slot(u)) {
        MS_TRY(follow_master(u));
    }
    if (u->state == MS_UNIT_UNSHARDED) {
        msi_unit_show_use(u);
        return MS_OK;
    }
    if (u->state == MS_UNIT_SHARDED) {
        MS_TRY(msi_unit_publish(u));
    }
    if (uses_slot(u)) {
        MS_TRY(wait_filled(u));
        u->full->data = u->slot->ro;
    } else {
        u->full->data = u->gather_aliases ? u->master->data : u->resident;
    }
    u->full->nbytes =
        u->shard_numel * (u->is_sharded ? u->world : 1) * ms_dtype_size(u->param_dtype);
    u->state = MS_UNIT_UNSHARDED;
    msi_unit_show_use(u);
    msi_unit_changed(u);
    return MS_OK;
}

/* The slot is this rank's no more. */
static void release_slot(ms_fsdp_unit *u)
{
    if (u->publish_queued) {
        msi_queue_drop_publish(u);
        atomic_store(&u->slot->words[u->rank].dropped, u->generation);
    }
    atomic_store(&u->slot->words[u->rank].released, u->generation);
    u->slot->holder = NULL;
    u->slot = NULL;
    msi_comm_ring(u->comm);
}

void msi_unit_reshard(ms_fsdp_unit *u)
{
    if (u->state == MS_UNIT_SHARDED) {
        return;
    }
    u->full->data = NULL;
    if (uses_slot(u)) {
        release_slot(u);
    }
    u->state = MS_UNIT_SHARDED;
    u->held = false;
    msi_unit_show(u);
    msi_unit_changed(u);
}

void msi_unit_written(ms_fsdp_unit *u)
{
    u->outdated = true;
    if (u->master != NULL && u->master->version != u->followed_version) {
        u->full->version++; /* at once, as a unit that is kept may be read without another use */
    }
    if (u->state == MS_UNIT_PUBLISHED) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
}
