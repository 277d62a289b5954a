/* Clipping by the total gradient norm, with the same bits for every strategy and world size.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of the blocks it holds whole, and the raw elements of those a shard boundary cuts; every rank
 * then folds all blocks in index order. */
#include "fsdp.h"
#include "norm.h"

#include <stdlib.h>
#include <string.h>

/* What one rank sends: block results first, then fragments, each padded to 8 bytes. */
typedef struct message {
    double *blocks;
    char *fragments;
} message;

/* A stretch of one parameter that lies in one block. */
typedef struct stretch {
    int64_t first, n; /* elements of the parameter */
    bool whole;       /* all of the block */
} stretch;

/* The stretch that begins at `first` in the piece [.., end) of a parameter of `numel` elements. */
static stretch next_stretch(int64_t first, int64_t end, int64_t numel)
{
    int64_t begin = first / MSI_NORM_BLOCK * MSI_NORM_BLOCK;
    int64_t stop = begin + MSI_NORM_BLOCK < numel ? begin + MSI_NORM_BLOCK : numel;
    int64_t last = stop < end ? stop : end;

    return (stretch){first, last - first, first == begin && last == stop};
}

static ms_status piece_of(const ms_fsdp_unit *u, int32_t rank, int32_t param,
                          ms_layout_piece *piece)
{
    MS_TRY(ms_layout_piece_get(u->layout, u->is_sharded ? rank : 0, param, piece));
    if (!piece->present) {
        piece->numel = 0;
    }
    return MS_OK;
}

/* Is the unit's norm gathered (else every rank computes all of it alone)? */
static bool is_cut(const ms_fsdp_unit *u)
{
    return u->is_sharded && u->world > 1;
}

static int64_t padded(const ms_fsdp_unit *u, int64_t n)
{
    return msi_round_up(n * ms_dtype_size(u->orig_dtype), 8);
}

/* Bytes of rank's block results and fragments. */
static ms_status measure(const ms_fsdp_tree *tree, int32_t rank, int64_t *blocks,
                         int64_t *fragments)
{
    *blocks = *fragments = 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        for (int32_t p = 0; is_cut(u) && p < u->n_params; p++) {
            ms_layout_piece piece;

            MS_TRY(piece_of(u, rank, p, &piece));
            for (int64_t at = piece.start, end = piece.start + piece.numel; at < end;) {
                stretch s = next_stretch(at, end, u->params[p].numel);

                *blocks += s.whole ? (int64_t)sizeof(double) : 0;
                *fragments += s.whole ? 0 : padded(u, s.n);
                at += s.n;
            }
        }
    }
    return MS_OK;
}

/* View of elements [first, first + n) of this rank's gradient of a parameter. */
static msi_view grad_view(const ms_fsdp_unit *u, const msi_unit_param *p, int64_t first, int64_t n)
{
    msi_view v = p->tensor->grad->v;

    v.offset += first - p->piece.start;
    msi_view_set_contiguous(&v, u->orig_dtype, 1, &n);
    return v;
}

static ms_status write_param(const ms_fsdp_unit *u, const msi_unit_param *p, bool largest,
                             message *m)
{
    int64_t end = p->piece.start + p->piece.numel;

    for (int64_t at = p->piece.start; at < end;) {
        stretch s = next_stretch(at, end, p->numel);

        if (s.whole) { /* and all whole blocks after it, in one call */
            int64_t stop = end == p->numel ? end : end / MSI_NORM_BLOCK * MSI_NORM_BLOCK;
            int64_t n_blocks = msi_norm_n_blocks(stop - at);

            if (p->tensor->grad != NULL) {
                msi_view v = grad_view(u, p, at, stop - at);

                MS_TRY(msi_norm_blocks(&v, largest, m->blocks));
            } else {
                memset(m->blocks, 0, (size_t)n_blocks * sizeof(double));
            }
            m->blocks += n_blocks;
            at = stop;
            continue;
        }
        memset(m->fragments, 0, (size_t)padded(u, s.n));
        if (p->tensor->grad != NULL) {
            msi_view v = grad_view(u, p, s.first, s.n);

            memcpy(m->fragments, msi_view_ptr(&v), (size_t)(s.n * ms_dtype_size(u->orig_dtype)));
        }
        m->fragments += padded(u, s.n);
        at += s.n;
    }
    return MS_OK;
}

/* Fold one parameter's blocks from all ranks' messages. */
static ms_status fold_param(const ms_fsdp_unit *u, int32_t index, bool largest, message *messages,
                            double *total)
{
    double cut[MSI_NORM_BLOCK]; /* elements of a cut block, in the unit's dtype */
    int64_t size = ms_dtype_size(u->orig_dtype), numel = u->params[index].numel;

    for (int32_t q = 0; q < u->world; q++) {
        ms_layout_piece piece;

        MS_TRY(piece_of(u, q, index, &piece));
        for (int64_t at = piece.start, end = piece.start + piece.numel; at < end;) {
            stretch s = next_stretch(at, end, numel);
            int64_t in_block = s.first % MSI_NORM_BLOCK;
            double result;

            at += s.n;
            if (s.whole) {
                *total = msi_norm_fold(*total, messages[q].blocks++, 1, largest);
                continue;
            }
            memcpy((char *)cut + in_block * size, messages[q].fragments, (size_t)(s.n * size));
            messages[q].fragments += padded(u, s.n);
            if (at % MSI_NORM_BLOCK == 0 || at == numel) { /* the block is complete */
                msi_norm_args args = {.n = in_block + s.n,
                                      .block = MSI_NORM_BLOCK,
                                      .x = cut,
                                      .out = &result,
                                      .largest = largest};

                MS_TRY(msi_dispatch("clip_grad_norm", MSI_K_norm, u->orig_dtype, &args));
                *total = msi_norm_fold(*total, &result, 1, largest);
            }
        }
    }
    return MS_OK;
}

static ms_status fold_all(ms_fsdp_tree *tree, bool largest, message *messages, double *total)
{
    *total = 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        for (int32_t p = 0; p < u->n_params; p++) {
            const ms_tensor *grad = u->params[p].tensor->grad;

            if (is_cut(u)) {
                MS_TRY(fold_param(u, p, largest, messages, total));
            } else if (grad != NULL) {
                MS_TRY(msi_norm_fold_view(total, &grad->v, largest));
            }
        }
    }
    return MS_OK;
}

static ms_status total_norm(ms_fsdp_tree *tree, bool largest, double *total)
{
    message *messages = calloc((size_t)tree->world, sizeof(*messages));
    int64_t blocks, fragments, room = 0;
    char *mine = NULL, *all = NULL;
    bool any = false;
    ms_status status = MS_OK;

    if (messages == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to clip over %d ranks", (int)tree->world);
    }
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY_GOTO(measure(tree, q, &blocks, &fragments), done);
        room = blocks + fragments > room ? blocks + fragments : room;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        any |= is_cut(tree->units[i]);
    }
    if (any) {
        MS_TRY_GOTO(msi_alloc(tree->ctx, room, MS_MEM_SCRATCH, (void **)&mine), done);
        MS_TRY_GOTO(msi_alloc(tree->ctx, room * tree->world, MS_MEM_SCRATCH, (void **)&all), done);
        MS_TRY_GOTO(measure(tree, tree->rank, &blocks, &fragments), done);
        message own = {(double *)(void *)mine, mine + blocks};

        memset(mine, 0, (size_t)room);
        for (int32_t i = 0; i < tree->n_units; i++) {
            const ms_fsdp_unit *u = tree->units[i];

            for (int32_t p = 0; is_cut(u) && p < u->n_params; p++) {
                MS_TRY_GOTO(write_param(u, &u->params[p], largest, &own), done);
            }
        }
        MS_TRY_GOTO(msi_comm_gather_bytes(tree->comm, "clip_grad_norm", mine, room, all), done);
        msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* what it stands for */
        for (int32_t q = 0; q < tree->world; q++) {
            MS_TRY_GOTO(measure(tree, q, &blocks, &fragments), done);
            messages[q] = (message){(double *)(void *)(all + q * room), all + q * room + blocks};
        }
    }
    MS_TRY_GOTO(fold_all(tree, largest, messages, total), done);
done:
    msi_release(tree->ctx, mine);
    msi_release(tree->ctx, all);
    free(messages);
    return status;
}

static ms_status check_reduced(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        if (msi_unit_has_levels(u)) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "clip_grad_norm: gradients of unit '%s' were accumulated inside no_sync "
                           "and are not reduced yet; run the last backward outside no_sync",
                           u->name);
        }
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_clip_grad_norm(ms_fsdp_tree *tree, double max_norm, double norm_type,
                                      double *total)
{
    bool largest;
    double folded;

    MS_TRY(msi_norm_type(norm_type, &largest));
    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(check_reduced(tree));
    MS_TRY(total_norm(tree, largest, &folded));
    *total = msi_plain_nan(msi_norm_finish(folded, largest));
    double coefficient = msi_clip_coefficient(max_norm, *total);

    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        for (int32_t p = 0; p < u->n_params; p++) {
            if (u->params[p].tensor->grad != NULL) {
                MS_TRY(msi_scale(&u->params[p].tensor->grad->v, coefficient));
            }
        }
    }
    return MS_OK;
}
