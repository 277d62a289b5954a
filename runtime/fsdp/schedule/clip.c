/* Clipping by the total gradient norm, with the same bits for every strategy, policy and world
 * size.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of the blocks it holds whole, and the raw elements of those a shard boundary cuts; every rank
 * then folds all blocks, parameter after parameter in the model's order. Of plain parameters every
 * rank sends all blocks: where they differ (nobody reduced their gradients) their mean over ranks
 * counts, so that all ranks clip by one norm. */
#include "norm.h"
#include "schedule.h"

#include <stdlib.h>
#include <string.h>

/* What one rank sends: block results first, then fragments, each padded to 8 bytes. */
typedef struct message {
    double *blocks;
    char *fragments;
} message;

/* The model's parameters. */
typedef struct order {
    msi_place *places; /* (n) */
    int32_t n;
} order;

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

/* Is the parameter's norm put together from what all ranks send? Replicas are equal already. */
static bool is_cut(const msi_place *at)
{
    return at->unit != NULL && at->unit->is_sharded && at->unit->world > 1;
}

static bool is_sent(const ms_fsdp_tree *tree, const msi_place *at)
{
    return is_cut(at) || (at->unit == NULL && tree->world > 1);
}

static int64_t padded(const ms_fsdp_unit *u, int64_t n)
{
    return msi_round_up(n * ms_dtype_size(u->orig_dtype), 8);
}

static int64_t plain_blocks(const msi_place *at)
{
    return msi_norm_n_blocks(msi_view_numel(&at->tensor->v));
}

/* Bytes of rank's block results and fragments. */
static ms_status measure(const ms_fsdp_tree *tree, const order *o, int32_t rank, int64_t *blocks,
                         int64_t *fragments)
{
    *blocks = *fragments = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const msi_place *at = &o->places[i];
        const ms_fsdp_unit *u = at->unit;
        ms_layout_piece piece;

        if (!is_cut(at)) {
            *blocks += is_sent(tree, at) ? plain_blocks(at) * (int64_t)sizeof(double) : 0;
            continue;
        }
        MS_TRY(piece_of(u, rank, at->index, &piece));
        for (int64_t first = piece.start, end = piece.start + piece.numel; first < end;) {
            stretch s = next_stretch(first, end, u->params[at->index].numel);

            *blocks += s.whole ? (int64_t)sizeof(double) : 0;
            *fragments += s.whole ? 0 : padded(u, s.n);
            first += s.n;
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

static ms_status write_plain(const msi_place *at, bool largest, message *m)
{
    int64_t n = plain_blocks(at);
    double *out = m->blocks;

    m->blocks += n;
    if (at->tensor->grad == NULL) {
        memset(out, 0, (size_t)n * sizeof(*out));
        return MS_OK;
    }
    return msi_norm_blocks(&at->tensor->grad->v, largest, out);
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
                MS_TRY(msi_settle(u->ctx));
                *total = msi_norm_fold(*total, &result, 1, largest);
            }
        }
    }
    return MS_OK;
}

/* What counts for a block of which every rank has sent a result. */
static double agreed_block(const ms_fsdp_tree *tree, message *messages, bool largest)
{
    double first = *messages[0].blocks, total = 0;
    bool equal = true;

    for (int32_t q = 0; q < tree->world; q++) {
        double result = *messages[q].blocks++;

        equal = equal && memcmp(&result, &first, sizeof(first)) == 0;
        total = msi_norm_fold(total, &result, 1, largest);
    }
    return equal ? first : largest ? total : total / tree->world;
}

static ms_status fold_all(ms_fsdp_tree *tree, const order *o, bool largest, message *messages,
                          double *total)
{
    *total = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const msi_place *at = &o->places[i];

        if (is_cut(at)) {
            MS_TRY(fold_param(at->unit, at->index, largest, messages, total));
        } else if (is_sent(tree, at)) {
            for (int64_t n = plain_blocks(at); n > 0; n--) {
                double result = agreed_block(tree, messages, largest);

                *total = msi_norm_fold(*total, &result, 1, largest);
            }
        } else if (at->tensor->grad != NULL) {
            MS_TRY(msi_norm_fold_view(total, &at->tensor->grad->v, largest));
        }
    }
    return MS_OK;
}

/* The call first: a rank that clips alone differs by that, not by what its gradients are. */
static ms_status tell(const ms_fsdp_tree *tree, const order *o, const msi_note *note)
{
    msi_tree_note(tree, note);
    for (int32_t i = 0; i < o->n; i++) {
        if (o->places[i].unit != NULL) {
            MS_TRY(msi_unit_note_gradient(o->places[i].unit, o->places[i].index));
        }
    }
    return MS_OK;
}

/* Exchange everybody's message. `*all` (world, room) is the caller's to release. */
static ms_status exchange(ms_fsdp_tree *tree, const order *o, bool largest, const msi_note *note,
                          message *messages, char **all)
{
    int64_t blocks, fragments, room = 0;
    char *mine = NULL;
    ms_status status;

    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY(measure(tree, o, q, &blocks, &fragments));
        room = blocks + fragments > room ? blocks + fragments : room;
    }
    MS_TRY(msi_host_alloc(tree->ctx, room * tree->world, MS_MEM_SCRATCH, (void **)all));
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, room, MS_MEM_SCRATCH, (void **)&mine), done);
    MS_TRY_GOTO(msi_settle(tree->ctx), done);
    MS_TRY_GOTO(measure(tree, o, tree->rank, &blocks, &fragments), done);
    message own = {(double *)(void *)mine, mine + blocks};

    memset(mine, 0, (size_t)room);
    for (int32_t i = 0; i < o->n; i++) {
        const msi_place *at = &o->places[i];

        if (is_cut(at)) {
            MS_TRY_GOTO(write_param(at->unit, &at->unit->params[at->index], largest, &own), done);
        } else if (is_sent(tree, at)) {
            MS_TRY_GOTO(write_plain(at, largest, &own), done);
        }
    }
    MS_TRY_GOTO(tell(tree, o, note), done);
    MS_TRY_GOTO(msi_tree_gather(tree, "clip_grad_norm_", mine, room, *all), done);
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* what it stands for */
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY_GOTO(measure(tree, o, q, &blocks, &fragments), done);
        messages[q] = (message){(double *)(void *)(*all + q * room), *all + q * room + blocks};
    }
done:
    msi_release(tree->ctx, mine);
    return status;
}

/* The notes are made when nothing can fail any more that would not fail everywhere. */
static ms_status total_norm(ms_fsdp_tree *tree, const order *o, bool largest, const msi_note *note,
                            double *total)
{
    message *messages;
    char *all = NULL;
    bool any = false;
    ms_status status = MS_OK;

    MS_TRY(msi_host_alloc(tree->ctx, (int64_t)sizeof(*messages) * tree->world, MS_MEM_SCRATCH,
                          (void **)&messages));
    memset(messages, 0, sizeof(*messages) * (size_t)tree->world);
    for (int32_t i = 0; i < o->n; i++) {
        any |= is_sent(tree, &o->places[i]);
    }
    if (any) {
        MS_TRY_GOTO(exchange(tree, o, largest, note, messages, &all), done);
    }
    MS_TRY_GOTO(fold_all(tree, o, largest, messages, total), done);
    if (!any) {
        status = tell(tree, o, note);
    }
done:
    msi_release(tree->ctx, all);
    msi_release(tree->ctx, messages);
    return status;
}

static ms_status check_reduced(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        if (msi_accumulator_holds(&u->sums)) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "clip_grad_norm: gradients of unit '%s' were accumulated inside no_sync "
                           "and are not reduced yet; run the last backward outside no_sync",
                           u->name);
        }
    }
    return MS_OK;
}

static ms_status clip(ms_fsdp_tree *tree, const order *o, double max_norm, double norm_type,
                      bool largest, double *total)
{
    double folded;

    const double order_hash = tree->world > 1 ? msi_note_hash(msi_order_hash(o->places, o->n)) : 0;
    const msi_note note = {{.text = "clip_grad_norm_"},
                           {.text = "max_norm norm_type order#"},
                           {max_norm, norm_type, order_hash},
                           .n_numbers = 3};

    MS_TRY(total_norm(tree, o, largest, &note, &folded));
    *total = msi_plain_nan(msi_norm_finish(folded, largest));
    double coefficient = msi_clip_coefficient(max_norm, *total);

    for (int32_t i = 0; i < o->n; i++) {
        ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_scale(&grad->v, coefficient));
        }
    }
    for (int32_t i = 0; i < o->n; i++) {
        if (o->places[i].unit != NULL) {
            msi_unit_told_gradient(o->places[i].unit, o->places[i].index);
        }
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_clip_grad_norm(ms_fsdp_tree *tree, ms_tensor *const *params,
                                      int32_t n_params, double max_norm, double norm_type,
                                      double *total)
{
    bool largest;
    order o;

    MS_TRY(msi_clip_check(max_norm, norm_type, &largest));
    MS_TRY(ms_fsdp_tree_init(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_gradient(tree->units[i], "clip_grad_norm_"));
    }
    MS_TRY(check_reduced(tree));
    MS_TRY(msi_order_new(tree, params, n_params, &o.places, &o.n));
    ms_status status = clip(tree, &o, max_norm, norm_type, largest, total);

    msi_release(tree->ctx, o.places);
    return status;
}
