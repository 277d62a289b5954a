/* Gradient slots: this rank's gradient of one unit at a time, readable by its peers. See
 * [Note: slot protocol] in fsdp.h. */
#include "fsdp.h"

#include <stdlib.h>

int32_t msi_node_dtype(const ms_fsdp_unit *u)
{
    return u->reduce_dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

int64_t msi_leaf_numel(const ms_fsdp_unit *u)
{
    return u->shard_numel * (u->is_sharded ? u->world : 1);
}

static int64_t gradient_bytes(const ms_fsdp_unit *u, bool wide)
{
    return msi_leaf_numel(u) * ms_dtype_size(wide ? msi_node_dtype(u) : u->reduce_dtype);
}

/* The gradient, and behind it a byte per parameter: has this rank contributed to it? */
static int64_t narrow_slot_bytes(const ms_fsdp_unit *u)
{
    return gradient_bytes(u, false) + u->n_params;
}

static int64_t wide_slot_bytes(const ms_fsdp_unit *u)
{
    return gradient_bytes(u, true) + u->n_params;
}

/* A root's gradient is open from the first op of backward to the last. */
static bool keeps_gradient(const ms_fsdp_unit *u)
{
    return u->is_root;
}

/* Append a slot; `home_of` NULL: to the ring. */
static ms_status add_grad_slot(ms_fsdp_tree *tree, msi_segment *segment, int64_t words,
                               int64_t offset, int64_t stride, ms_fsdp_unit *home_of)
{
    msi_grad_slot **list =
        realloc(tree->grads.slots, sizeof(*list) * (size_t)(tree->grads.n_slots + 1));
    msi_grad_slot *slot = calloc(1, sizeof(*slot));

    if (list != NULL) {
        tree->grads.slots = list;
    }
    if (list == NULL || slot == NULL) {
        free(slot);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for gradient slot %d",
                       (int)tree->grads.n_slots);
    }
    slot->words = (msi_grad_word *)(void *)(segment->rw + words);
    slot->base = segment->rw + offset;
    slot->stride = stride;
    slot->home_of = home_of;
    tree->grads.slots[tree->grads.n_slots++] = slot;
    if (home_of != NULL) {
        home_of->grad_home = slot;
    }
    return MS_OK;
}

static ms_status add_grad_segment(ms_fsdp_tree *tree, int64_t nbytes, msi_segment **out)
{
    msi_segment *list =
        realloc(tree->grads.segments, sizeof(*list) * (size_t)(tree->grads.n_segments + 1));

    if (list == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for gradient segment %d",
                       (int)tree->grads.n_segments);
    }
    tree->grads.segments = list;
    MS_TRY(msi_segment_new(&list[tree->grads.n_segments], tree->comm, nbytes));
    msi_count_external(tree->ctx, nbytes, MS_MEM_ARENA);
    *out = &list[tree->grads.n_segments++];
    return MS_OK;
}

/* The segment of a new room: words of all slots, then ring slots, then home slots. */
typedef struct room_plan {
    int64_t (*slot_bytes)(const ms_fsdp_unit *u);
    bool *own; /* (n_units) has a home slot */
    int32_t n_ring;
    int64_t ring_bytes; /* of one rank's gradient in a ring slot */
    int64_t offset;     /* of the first slot */
    int64_t nbytes;     /* 0: no unit needs any */
} room_plan;

/* The caller frees `p->own`, after an error too. */
static ms_status plan_room(ms_fsdp_tree *tree, bool wide, room_plan *p)
{
    int32_t n_ringed, n_home = 0;
    int64_t home_bytes = 0;

    *p = (room_plan){.slot_bytes = wide ? wide_slot_bytes : narrow_slot_bytes,
                     .own = calloc((size_t)tree->n_units + 1, sizeof(*p->own))};
    if (p->own == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to plan %d units", (int)tree->n_units);
    }
    MS_TRY(msi_ring_plan(tree, p->slot_bytes, keeps_gradient, p->own, &p->ring_bytes, &n_ringed));
    p->n_ring = n_ringed < MSI_GRAD_RING ? n_ringed : MSI_GRAD_RING;
    p->ring_bytes = msi_round_up(p->ring_bytes, MSI_PAGE);
    for (int32_t i = 0; i < tree->n_units; i++) {
        n_home += p->own[i];
        home_bytes += p->own[i] ? msi_round_up(p->slot_bytes(tree->units[i]), MSI_PAGE) : 0;
    }
    if (p->n_ring + n_home > 0) {
        p->offset = msi_round_up(
            (int64_t)sizeof(msi_grad_word) * tree->world * (p->n_ring + n_home), MSI_PAGE);
        p->nbytes = p->offset + (p->ring_bytes * p->n_ring + home_bytes) * tree->world;
    }
    return MS_OK;
}

ms_status msi_gradients_new(ms_fsdp_tree *tree)
{
    const int64_t words = (int64_t)sizeof(msi_grad_word) * tree->world;
    int64_t at_words = 0;
    msi_segment *segment;
    ms_status status;
    room_plan p;

    MS_TRY_GOTO(plan_room(tree, tree->wide, &p), done);
    tree->grads.ring_bytes = p.ring_bytes;
    if (p.nbytes == 0) {
        goto done;
    }
    MS_TRY_GOTO(add_grad_segment(tree, p.nbytes, &segment), done);
    for (int32_t i = 0; i < p.n_ring; i++) {
        MS_TRY_GOTO(add_grad_slot(tree, segment, at_words, p.offset, p.ring_bytes, NULL), done);
        at_words += words;
        p.offset += p.ring_bytes * tree->world;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        int64_t nbytes = msi_round_up(p.slot_bytes(tree->units[i]), MSI_PAGE);

        if (p.own[i]) {
            MS_TRY_GOTO(add_grad_slot(tree, segment, at_words, p.offset, nbytes, tree->units[i]),
                        done);
            at_words += words;
            p.offset += nbytes * tree->world;
        }
    }
done:
    free(p.own);
    return status;
}

static void room_free(ms_context *ctx, msi_grad_room *room)
{
    for (int32_t i = 0; i < room->n_slots; i++) {
        free(room->slots[i]);
    }
    for (int32_t i = 0; i < room->n_segments; i++) {
        msi_count_external(ctx, -room->segments[i].nbytes, MS_MEM_ARENA);
        msi_segment_free(&room->segments[i]);
    }
    free(room->slots);
    free(room->segments);
    *room = (msi_grad_room){.slots = NULL};
}

void msi_gradients_free(ms_fsdp_tree *tree)
{
    room_free(tree->ctx, &tree->grads);
    for (int32_t i = 0; i < tree->n_units; i++) {
        tree->units[i]->grad_home = NULL;
    }
}

/* Are slots too small for inner nodes of the micro-batch tree? */
static bool is_narrow(const ms_fsdp_tree *tree)
{
    bool narrow = false;

    for (int32_t i = 0; i < tree->n_units; i++) {
        narrow |= tree->units[i]->reduce_dtype != msi_node_dtype(tree->units[i]);
    }
    return narrow && !tree->wide;
}

ms_status msi_gradients_bytes(ms_fsdp_tree *tree, bool wide, int64_t *nbytes)
{
    *nbytes = 0;
    if (wide && is_narrow(tree)) {
        room_plan p;
        ms_status status = plan_room(tree, true, &p);

        *nbytes = p.nbytes;
        free(p.own);
        return status;
    }
    for (int32_t i = 0; i < tree->grads.n_segments; i++) {
        *nbytes += tree->grads.segments[i].nbytes;
    }
    return MS_OK;
}

ms_status msi_gradients_widen(ms_fsdp_tree *tree)
{
    if (!is_narrow(tree)) {
        tree->wide = true;
        return MS_OK;
    }
    MS_ASSERT(tree->n_reducing == 0);
    msi_grad_room before = tree->grads;

    tree->grads = (msi_grad_room){.slots = NULL};
    tree->wide = true;
    tree->named = true;
    ms_status status = msi_gradients_new(tree);

    if (status == MS_OK) {
        room_free(tree->ctx, &before); /* peers keep their own maps of the old words */
        return MS_OK;
    }
    msi_gradients_free(tree);
    tree->wide = false;
    tree->grads = before;
    for (int32_t i = 0; i < before.n_slots; i++) {
        if (before.slots[i]->home_of != NULL) {
            before.slots[i]->home_of->grad_home = before.slots[i];
        }
    }
    msi_tree_give_up(tree, "no_sync");
    return status;
}

static bool all_read(void *user)
{
    const msi_grad_slot *s = user;
    int32_t world = s->holder->world;

    for (int32_t q = 0; q < world; q++) {
        if (atomic_load(&s->words[q].read) + 1 < s->generation) {
            return false;
        }
    }
    return true;
}

/* Take the unit's slot, or the ring's least recently taken one that no backward writes now. Its
 * earlier gradient is reduced first if need be, and all peers must have read it. */
ms_status msi_grad_slot_take(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;
    msi_grad_slot *slot = u->grad_home;

    for (int32_t i = 0; slot == NULL && i < tree->grads.n_slots; i++) {
        msi_grad_slot *s = tree->grads.slots[i];
        bool writing = s->holder != NULL && s->holder->grad_phase == MSI_GRAD_WRITING;

        if (s->home_of == NULL && !writing) {
            slot = s;
            for (int32_t j = i + 1; j < tree->grads.n_slots; j++) {
                msi_grad_slot *other = tree->grads.slots[j];

                if (other->home_of == NULL && other->taken_at < slot->taken_at &&
                    !(other->holder != NULL && other->holder->grad_phase == MSI_GRAD_WRITING)) {
                    slot = other;
                }
            }
        }
    }
    if (slot == NULL) { /* more gradients are open at once than the ring was made for */
        int64_t offset = msi_round_up((int64_t)sizeof(msi_grad_word) * tree->world, MSI_PAGE);
        msi_segment *segment;

        MS_TRY(add_grad_segment(tree, offset + tree->grads.ring_bytes * tree->world, &segment));
        MS_TRY(add_grad_slot(tree, segment, 0, offset, tree->grads.ring_bytes, NULL));
        slot = tree->grads.slots[tree->grads.n_slots - 1];
    }
    if (slot->holder != NULL) {
        MS_TRY(msi_reduction_wait(slot->holder));
    }
    slot->holder = u;
    slot->taken_at = ++tree->grad_taken;
    slot->generation++;
    u->grad_slot = slot;
    u->grad_generation = slot->generation;
    return slot->generation > 1 ? msi_queue_wait(tree, slot->seq, all_read, slot) : MS_OK;
}

char *msi_grad_slot_data(const ms_fsdp_unit *u, int32_t rank)
{
    return u->grad_slot->base + rank * u->grad_slot->stride;
}

bool *msi_grad_slot_used(const ms_fsdp_unit *u, int32_t rank)
{
    return (bool *)msi_grad_slot_data(u, rank) + gradient_bytes(u, u->tree->wide);
}
