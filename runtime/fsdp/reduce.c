/* Reduction of units' gradients over ranks, in their slots: [Note: gradient tree] in levels.c. */
#include "fsdp.h"

#include <string.h>

/* -- the reduced gradient ---------------------------------------------------------------------- */

/* A parameter's place in the reduced gradient: this rank's elements, or (NO_SHARD) all. */
static msi_view reduced_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;
    msi_view v = {.storage = p->place};

    if (u->is_sharded) {
        msi_view_set_contiguous(&v, u->orig_dtype, 1, &p->piece.numel);
    } else {
        msi_view_set_contiguous(&v, u->orig_dtype, param->ndim, param->shape);
    }
    return v;
}

void msi_unit_gradient_like(void *unit, int32_t index, msi_view *like)
{
    const ms_fsdp_unit *u = unit;

    *like = reduced_view(u, &u->params[index]);
}

/* [Note: gradients inside a backward] How far reductions are while it runs follows timing. So what
 * takes or scales all gradients is refused there, and who reads one of a parameter waits until what
 * was announced of it by then is reduced: its own, the same on all ranks. Accumulate hooks run when
 * all is settled, in every tree, for parameters that any rank's backward has reached, on all ranks
 * in one order. */
ms_status msi_unit_check_gradient(void *unit, const char *what)
{
    const ms_fsdp_unit *u = unit;

    if (u->expecting && !u->tree->settled) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "%s during backward, when the gradients of unit '%s' are not all reduced; "
                       "call it after backward, or in an accumulate hook",
                       what, u->name);
    }
    return MS_OK;
}

ms_status msi_unit_await_gradient(void *unit)
{
    ms_fsdp_unit *u = unit;

    return u->grad_phase == MSI_GRAD_READY || u->grad_phase == MSI_GRAD_REDUCED
               ? msi_reduction_wait(u)
               : MS_OK;
}

static bool shows_reduced(const msi_unit_param *p)
{
    return p->tensor != NULL && p->tensor->grad != NULL && p->tensor->grad->v.storage == p->place;
}

void msi_unit_gradient_trim(ms_fsdp_unit *u)
{
    if (u->grad == NULL || u->grad_phase != MSI_GRAD_NONE) {
        return;
    }
    for (int32_t i = u->n_params - 1; i >= 0; i--) { /* dropped in order, the last shows longest */
        if (shows_reduced(&u->params[i])) {
            return;
        }
    }
    msi_unit_gradient_free(u);
}

void msi_unit_gradient_free(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_storage_release(u->params[i].place);
        u->params[i].place = NULL;
    }
    msi_storage_release(u->grad);
    u->grad = NULL;
}

void msi_unit_gradient_dropped(void *unit, int32_t index)
{
    ms_fsdp_unit *u = unit;

    u->params[index].reduced = false;
    msi_unit_gradient_trim(u);
}

bool msi_unit_has_gradient(void *unit, int32_t index)
{
    return ((const ms_fsdp_unit *)unit)->params[index].reduced;
}

static void *piece_data(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    return (char *)u->grad->data + p->piece.offset_in_shard * ms_dtype_size(u->orig_dtype);
}

/* A gradient that was dropped while others of its unit were not, and that a script still holds,
 * keeps its values: elsewhere, as its place is used again. */
static ms_status move_dropped(ms_fsdp_unit *u, msi_unit_param *p)
{
    msi_storage *apart;

    MS_TRY(msi_storage_new(&apart, u->ctx, p->place->nbytes, MS_MEM_GRADIENT));
    memcpy(apart->data, p->place->data, (size_t)p->place->nbytes);
    msi_storage_release(p->place->base);
    p->place->data = apart->data;
    p->place->base = apart;
    msi_storage_release(p->place);
    p->place = NULL;
    return MS_OK;
}

static ms_status make_place(ms_fsdp_unit *u, msi_unit_param *p)
{
    if (p->place != NULL && p->place->refcount > 1 && !shows_reduced(p) && p->shown == NULL) {
        MS_TRY(move_dropped(u, p));
    }
    if (p->place == NULL) {
        MS_TRY(msi_storage_wrap(&p->place, u->ctx, MS_STORAGE_BORROWED, piece_data(u, p),
                                p->piece.numel * ms_dtype_size(u->orig_dtype)));
        p->place->base = msi_storage_retain(u->grad);
    }
    return MS_OK;
}

/* All memory that the outcome needs. Once peers count on this rank nothing may be missing. */
static ms_status make_shown(ms_fsdp_unit *u)
{
    if (u->grad == NULL) {
        MS_TRY(msi_storage_new(&u->grad, u->ctx, u->shard_numel * ms_dtype_size(u->orig_dtype),
                               MS_MEM_GRADIENT));
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (p->piece.numel == 0) {
            continue;
        }
        MS_TRY(make_place(u, p));
        if (p->shown == NULL) {
            const msi_view v = reduced_view(u, p);

            MS_TRY(msi_tensor_new_internal(&p->shown, u->ctx, &v));
        }
    }
    return MS_OK;
}

static void drop_shown(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor_free(u->params[i].shown);
        u->params[i].shown = NULL;
    }
}

/* -- announce, or abandon ---------------------------------------------------------------------- */

ms_status msi_gradient_announce(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;
    msi_fingerprint fp = {.kind = u->is_sharded ? MSI_COLL_REDUCE_UNIT : MSI_COLL_REDUCE_FULL,
                          .dtype = (int16_t)u->slot_dtype,
                          .ndim = -1,
                          .count = msi_leaf_numel(u),
                          .slot = -1,
                          .model = u->tree->model,
                          .generation = u->grad_generation,
                          .name = u->label};

    msi_grad_word *own = &u->grad_slot->words[u->rank];

    MS_TRY(make_shown(u));
    MS_TRY(msi_unit_note_kept_gradients(u));
    for (int32_t i = 0; i < tree->grads.n_slots; i++) {
        fp.slot = tree->grads.slots[i] == u->grad_slot ? i : fp.slot;
    }
    tree->named = true;
    MS_TRY(msi_comm_publish(u->comm, &fp, &u->grad_seq));
    msi_comm_count(u->comm, fp.kind);
    u->grad_slot->seq = u->grad_seq;
    u->grad_phase = MSI_GRAD_READY;
    tree->reducing[tree->n_reducing++] = u;
    atomic_store_explicit(&own->said, msi_comm_said(u->comm), memory_order_relaxed);
    atomic_store(&own->ready, u->grad_generation);
    msi_comm_ring(u->comm);
    msi_unit_changed(u);
    return msi_queue_run(tree);
}

void msi_gradient_abandon(ms_fsdp_unit *u)
{
    msi_queue_drop_reduction(u);
    if (u->grad_slot != NULL) {
        msi_grad_word *own = &u->grad_slot->words[u->rank];

        atomic_store(&own->dropped, u->grad_generation);
        atomic_store(&own->read, u->grad_generation);
        u->grad_slot->holder = NULL;
        u->grad_slot = NULL;
        msi_comm_ring(u->comm);
    }
    u->grad_phase = MSI_GRAD_NONE;
    drop_shown(u);
}

/* -- reduction --------------------------------------------------------------------------------- */

bool msi_reduce_possible(ms_fsdp_unit *u)
{
    const bool reduced = u->grad_phase == MSI_GRAD_REDUCED;

    if (!reduced && u->grad_phase != MSI_GRAD_READY) {
        return false;
    }
    const msi_grad_word *own = &u->grad_slot->words[u->rank];
    const uint64_t said = atomic_load_explicit(&own->said, memory_order_relaxed);

    for (int32_t q = 0; q < u->world; q++) {
        const msi_grad_word *word = &u->grad_slot->words[q];

        if (atomic_load(reduced ? &word->reduced : &word->ready) < u->grad_generation ||
            atomic_load_explicit(&word->said, memory_order_relaxed) != said) {
            return false; /* not yet; or ranks differ, which a wait finds out */
        }
    }
    return true;
}

/* Did the backwards of any rank reach the parameter? One that none did has no gradient, in a unit
 * with others as in one of its own. (Whether it is frozen by now is no matter: what came for it
 * came before, and only timing tells how long before this reduction.) */
static bool is_used(const ms_fsdp_unit *u, int32_t index)
{
    for (int32_t q = 0; q < u->world; q++) {
        if (atomic_load_explicit(&u->grad_slot->words[q].whole, memory_order_relaxed) != 0 ||
            msi_grad_slot_used(u, q)[index]) {
            return true;
        }
    }
    return false;
}

/* What a parameter's gradient is before the new one adds to it: itself where it lies here already,
 * a copy of one that was set from outside, -0 for none: x + -0 is x, whatever x. */
static ms_status prepare_piece(ms_fsdp_unit *u, int32_t index)
{
    msi_unit_param *p = &u->params[index];
    msi_view v = reduced_view(u, p);

    if (p->tensor->grad == NULL) {
        return msi_fill(&v, -0.0);
    }
    if (shows_reduced(p) || !is_used(u, index)) {
        return MS_OK;
    }
    MS_TRY(msi_copy(&v, &p->tensor->grad->v, false));
    ms_tensor_free(p->tensor->grad);
    p->tensor->grad = NULL; /* shown again with the new sum */
    return MS_OK;
}

/* What the reduced shard is before the new one adds to it, if `*add`: when a piece has a gradient
 * already. */
static ms_status prepare_shard(ms_fsdp_unit *u, bool *add)
{
    bool stored = false;

    *add = false;
    for (int32_t i = 0; i < u->n_params; i++) {
        *add |= u->params[i].piece.numel > 0 && u->params[i].tensor->grad != NULL;
        stored |= shows_reduced(&u->params[i]);
    }
    if (*add && !stored) { /* padding, too, is added to */
        memset(u->grad->data, 0, (size_t)u->grad->nbytes);
    }
    for (int32_t i = 0; *add && i < u->n_params; i++) {
        if (u->params[i].piece.numel > 0) {
            MS_TRY(prepare_piece(u, i));
        }
    }
    return MS_OK;
}

static void show_gradients(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (p->place != NULL) {
            p->place->version++;
        }
        if (is_used(u, i)) {
            p->reduced = p->arrived = true;
            if (p->tensor->grad == NULL) {
                p->tensor->grad = p->shown;
                p->shown = NULL;
            }
        }
        msi_unit_told_gradient(u, i);
    }
    drop_shown(u);
}

static double factor_of(const ms_fsdp_unit *u)
{
    return u->tree->factor != 0 ? u->tree->factor : 1.0 / u->world;
}

/* The tree over ranks for elements [first, first + n) of the flat. */
static ms_status reduce_range(ms_fsdp_unit *u, int64_t first, int64_t n, void *out, int32_t dtype,
                              bool add)
{
    msi_tree_args args = {.n = n,
                          .n_src = u->world,
                          .out = out,
                          .round_dtype = u->reduce_dtype,
                          .factor = factor_of(u),
                          .accumulate = add};

    for (int32_t q = 0; q < u->world; q++) {
        args.src[q] = msi_grad_slot_data(u, q) + first * ms_dtype_size(u->slot_dtype);
        args.src_dtype[q] = u->slot_dtype;
    }
    return n > 0 ? msi_dispatch("reduce", MSI_K_tree, dtype, &args) : MS_OK;
}

static void release_grad_slot(ms_fsdp_unit *u)
{
    show_gradients(u);
    atomic_store(&u->grad_slot->words[u->rank].read, u->grad_generation);
    msi_comm_ring(u->comm);
    u->grad_slot->holder = NULL;
    u->grad_slot = NULL;
    u->grad_phase = MSI_GRAD_NONE;
    msi_unit_changed(u);
}

/* Is the reduced gradient kept in another type than the tree computes in? The tree computes in that
 * of its result, so its result stays in this rank's slot then, where no peer reads these elements,
 * and is converted at the end, as levels.c sums in the type of the slot. */
static bool converts(const ms_fsdp_unit *u)
{
    return (u->orig_dtype == MS_DTYPE_F64) != (u->slot_dtype == MS_DTYPE_F64);
}

/* Rank q's chunk of an all-reduced gradient. */
static void chunk_of(const ms_fsdp_unit *u, int32_t q, int64_t *first, int64_t *n)
{
    int64_t chunk = msi_round_up((u->total + u->world - 1) / u->world, 16);

    *first = chunk * q < u->total ? chunk * q : u->total;
    *n = *first + chunk < u->total ? chunk : u->total - *first;
}

/* n reduced elements out of rank q's slot, from element `first` of the flat. */
static ms_status take_reduced(const ms_fsdp_unit *u, int32_t q, int64_t first, int64_t n, void *out,
                              bool add)
{
    msi_ew_args args = {.in_dtype = u->slot_dtype, .out = out, .accumulate = add};

    args.in[0] = msi_grad_slot_data(u, q) + first * ms_dtype_size(u->slot_dtype);
    args.loop.ndim = 1;
    args.loop.shape[0] = n;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    return n > 0 ? msi_dispatch("reduce", MSI_K_copy, u->orig_dtype, &args) : MS_OK;
}

static ms_status copy_chunks(ms_fsdp_unit *u, bool add)
{
    for (int32_t q = 0; q < u->world; q++) {
        int64_t first, n;

        chunk_of(u, q, &first, &n);
        MS_TRY(take_reduced(u, q, first, n,
                            (char *)u->grad->data + first * ms_dtype_size(u->orig_dtype), add));
    }
    return MS_OK;
}

/* This rank's shard, or with one rank everything. */
static ms_status reduce_shard(ms_fsdp_unit *u, bool add)
{
    const int64_t first = u->is_sharded ? u->rank * u->shard_numel : 0, n = u->shard_numel;

    if (!converts(u)) {
        return reduce_range(u, first, n, u->grad->data, u->orig_dtype, add);
    }
    MS_TRY(reduce_range(u, first, n,
                        msi_grad_slot_data(u, u->rank) + first * ms_dtype_size(u->slot_dtype),
                        u->slot_dtype, false));
    return take_reduced(u, u->rank, first, n, u->grad->data, add);
}

ms_status msi_reduce_step(ms_fsdp_unit *u, bool *finished)
{
    bool add;

    *finished = true;
    if (u->is_sharded || u->world == 1) {
        MS_TRY(prepare_shard(u, &add));
        MS_TRY(reduce_shard(u, add));
        release_grad_slot(u);
        return MS_OK;
    }
    if (u->grad_phase == MSI_GRAD_REDUCED) {
        MS_TRY(prepare_shard(u, &add));
        MS_TRY(copy_chunks(u, add));
        release_grad_slot(u);
        return MS_OK;
    }
    int64_t first, n;

    chunk_of(u, u->rank, &first, &n);
    MS_TRY(reduce_range(u, first, n,
                        msi_grad_slot_data(u, u->rank) + first * ms_dtype_size(u->slot_dtype),
                        u->slot_dtype, false));
    u->grad_phase = MSI_GRAD_REDUCED;
    atomic_store(&u->grad_slot->words[u->rank].reduced, u->grad_generation);
    msi_comm_ring(u->comm);
    msi_unit_changed(u);
    *finished = false;
    return MS_OK;
}

/* A member whose chunk this rank needs and will not get, or -1. `reduced` is looked at last: what
 * was reduced was so before anything later was dropped. */
static int32_t chunk_dropped_by(const ms_fsdp_unit *u)
{
    for (int32_t q = 0; u->grad_phase == MSI_GRAD_REDUCED && q < u->world; q++) {
        const msi_grad_word *word = &u->grad_slot->words[q];

        if (atomic_load(&word->dropped) >= u->grad_generation &&
            atomic_load(&word->reduced) < u->grad_generation) {
            return q;
        }
    }
    return -1;
}

static bool is_reduced_or_dropped(void *user)
{
    const ms_fsdp_unit *u = user;

    return u->grad_phase == MSI_GRAD_NONE || chunk_dropped_by(u) >= 0;
}

ms_status msi_reduction_wait(ms_fsdp_unit *u)
{
    MS_TRY(msi_queue_wait(u->tree, u->grad_seq, is_reduced_or_dropped, u));
    return u->grad_phase == MSI_GRAD_NONE
               ? MS_OK
               : msi_comm_dropped(u->comm, u->grad_seq, chunk_dropped_by(u));
}

ms_status msi_gradients_finish(ms_fsdp_tree *tree)
{
    while (tree->n_reducing > 0) {
        MS_TRY(msi_reduction_wait(tree->reducing[0]));
    }
    return MS_OK;
}
