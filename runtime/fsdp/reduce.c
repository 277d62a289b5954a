/* Reduction of units' gradients over ranks, in their slots: [Note: gradient tree] in levels.c. */
#include "fsdp.h"

#include <stddef.h>
#include <string.h>

ms_status msi_gradient_announce(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;
    msi_fingerprint fp = {.kind = u->is_sharded ? MSI_COLL_REDUCE_UNIT : MSI_COLL_REDUCE_FULL,
                          .dtype = u->slot_dtype,
                          .count = msi_leaf_numel(u),
                          .slot = -1,
                          .root = -1,
                          .generation = u->grad_generation};

    for (int32_t i = 0; i < tree->n_grad_slots; i++) {
        fp.slot = tree->grad_slots[i] == u->grad_slot ? i : fp.slot;
    }
    strncpy(fp.unit, u->name, sizeof(fp.unit) - 1);
    MS_TRY(msi_comm_publish(u->comm, &fp, &u->grad_seq));
    msi_comm_count(u->comm, fp.kind);
    u->grad_slot->seq = u->grad_seq;
    u->grad_phase = MSI_GRAD_READY;
    tree->reducing[tree->n_reducing++] = u;
    atomic_store(&u->grad_slot->words[u->rank].ready, u->grad_generation);
    msi_comm_ring(u->comm);
    msi_unit_changed(u);
    return msi_queue_run(tree);
}

static bool all_at_least(const ms_fsdp_unit *u, size_t word)
{
    for (int32_t q = 0; q < u->world; q++) {
        const char *words = (const char *)&u->grad_slot->words[q];

        if (atomic_load((const _Atomic uint64_t *)(const void *)(words + word)) <
            u->grad_generation) {
            return false;
        }
    }
    return true;
}

bool msi_reduce_possible(ms_fsdp_unit *u)
{
    return u->grad_phase == MSI_GRAD_READY     ? all_at_least(u, offsetof(msi_grad_word, ready))
           : u->grad_phase == MSI_GRAD_REDUCED ? all_at_least(u, offsetof(msi_grad_word, reduced))
                                               : false;
}

/* A parameter's place in the reduced gradient: this rank's elements, or (NO_SHARD) all. */
static msi_view reduced_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;
    msi_view v = {.storage = u->grad, .offset = p->piece.offset_in_shard};

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

/* What a parameter's gradient is before the new one adds to it: itself where it lies here already,
 * a copy of one that was set from outside, zeros for none. */
static ms_status prepare_piece(ms_fsdp_unit *u, msi_unit_param *p)
{
    msi_view v = reduced_view(u, p);

    if (p->tensor->grad == NULL) {
        return msi_fill(&v, 0);
    }
    if (p->tensor->grad->v.storage == u->grad || !p->tensor->requires_grad) {
        return MS_OK; /* nothing comes for a frozen one */
    }
    MS_TRY(msi_copy(&v, &p->tensor->grad->v, false));
    ms_tensor_free(p->tensor->grad);
    p->tensor->grad = NULL; /* shown again with the new sum */
    return MS_OK;
}

/* Make room for the reduced shard; `*add` when a piece has a gradient to add to already. */
static ms_status prepare_shard(ms_fsdp_unit *u, bool *add)
{
    *add = false;
    if (u->grad == NULL) {
        MS_TRY(msi_storage_new(&u->grad, u->ctx, u->shard_numel * ms_dtype_size(u->orig_dtype),
                               MS_MEM_GRADIENT));
        memset(u->grad->data, 0, (size_t)u->grad->nbytes); /* padding, too, is added to */
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        *add |= u->params[i].piece.numel > 0 && u->params[i].tensor->grad != NULL;
    }
    for (int32_t i = 0; *add && i < u->n_params; i++) {
        if (u->params[i].piece.numel > 0) {
            MS_TRY(prepare_piece(u, &u->params[i]));
        }
    }
    return MS_OK;
}

static ms_status show_gradients(ms_fsdp_unit *u)
{
    u->grad->version++;
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_view v;

        if (p->piece.numel == 0 || !p->tensor->requires_grad || p->tensor->grad != NULL) {
            continue;
        }
        v = reduced_view(u, p);
        MS_TRY(msi_tensor_new_internal(&p->tensor->grad, u->ctx, &v));
    }
    return MS_OK;
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

static ms_status release_grad_slot(ms_fsdp_unit *u)
{
    atomic_store(&u->grad_slot->words[u->rank].read, u->grad_generation);
    msi_comm_ring(u->comm);
    u->grad_slot->holder = NULL;
    u->grad_slot = NULL;
    u->grad_phase = MSI_GRAD_NONE;
    MS_TRY(show_gradients(u));
    msi_unit_changed(u);
    return MS_OK;
}

/* Rank q's chunk of an all-reduced gradient. */
static void chunk_of(const ms_fsdp_unit *u, int32_t q, int64_t *first, int64_t *n)
{
    int64_t chunk = msi_round_up((u->total + u->world - 1) / u->world, 16);

    *first = chunk * q < u->total ? chunk * q : u->total;
    *n = *first + chunk < u->total ? chunk : u->total - *first;
}

static ms_status copy_chunks(ms_fsdp_unit *u, bool add)
{
    for (int32_t q = 0; q < u->world; q++) {
        msi_ew_args args = {.in_dtype = u->slot_dtype, .accumulate = add};
        int64_t first, n;

        chunk_of(u, q, &first, &n);
        args.out = (char *)u->grad->data + first * ms_dtype_size(u->orig_dtype);
        args.in[0] = msi_grad_slot_data(u, q) + first * ms_dtype_size(u->slot_dtype);
        args.loop.ndim = 1;
        args.loop.shape[0] = n;
        args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
        if (n > 0) {
            MS_TRY(msi_dispatch("reduce", MSI_K_copy, u->orig_dtype, &args));
        }
    }
    return MS_OK;
}

ms_status msi_reduce_step(ms_fsdp_unit *u, bool *finished)
{
    bool add;

    *finished = true;
    if (u->is_sharded || u->world == 1) {
        MS_TRY(prepare_shard(u, &add));
        MS_TRY(reduce_range(u, u->is_sharded ? u->rank * u->shard_numel : 0, u->shard_numel,
                            u->grad->data, u->orig_dtype, add));
        return release_grad_slot(u);
    }
    if (u->grad_phase == MSI_GRAD_REDUCED) {
        MS_TRY(prepare_shard(u, &add));
        MS_TRY(copy_chunks(u, add));
        return release_grad_slot(u);
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

static bool is_reduced(void *user)
{
    return ((const ms_fsdp_unit *)user)->grad_phase == MSI_GRAD_NONE;
}

ms_status msi_gradients_finish(ms_fsdp_tree *tree)
{
    while (tree->n_reducing > 0) {
        ms_fsdp_unit *u = tree->reducing[0];

        MS_TRY(msi_queue_wait(tree, u->grad_seq, is_reduced, u));
    }
    return MS_OK;
}
