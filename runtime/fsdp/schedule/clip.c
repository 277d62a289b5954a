/* Clipping by the total gradient norm, with the same bits for every strategy, policy and world
 * size.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of the blocks it holds whole, and the raw elements of those a shard boundary cuts; every rank
 * then folds all blocks, parameter after parameter in the model's order. Of plain parameters every
 * rank sends all blocks: where they differ (nobody reduced their gradients) their mean over ranks
 * counts, so that all ranks clip by one norm.
 *
 * What is sent the host has to read: it waits once, for its message. Where nothing is sent, norm
 * and factor are made by kernels and stay where they are until somebody reads. */
#include "norm.h"
#include "schedule.h"

#include <stdlib.h>
#include <string.h>

/* What one rank sends: block results first, then fragments, each padded to 8 bytes. */
typedef struct message {
    double *blocks;
    char *fragments;
} message;

/* What one rank knows: its message, and the blocks of what nobody has to send. */
typedef struct knowledge {
    message sent;
    double *kept;
} knowledge;

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

static int64_t kept_blocks(const ms_fsdp_tree *tree, const msi_place *at)
{
    const ms_tensor *grad = at->tensor->grad;

    return is_sent(tree, at) || grad == NULL ? 0 : msi_norm_n_blocks(msi_view_numel(&grad->v));
}

/* Bytes of rank's block results and fragments. */
static ms_status measure(const ms_fsdp_tree *tree, const msi_order *o, int32_t rank,
                         int64_t *blocks, int64_t *fragments)
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

/* The next n blocks at `*to` are those of the gradient, or 0. */
static ms_status write_blocks(const ms_tensor *grad, int64_t n, bool largest, double **to)
{
    double *out = *to;

    *to += n;
    return grad != NULL ? msi_norm_blocks(&grad->v, largest, out) : MS_OK;
}

static ms_status write_param(const ms_fsdp_unit *u, const msi_unit_param *p, bool largest,
                             message *m)
{
    int64_t end = p->piece.start + p->piece.numel;

    for (int64_t at = p->piece.start; at < end;) {
        stretch s = next_stretch(at, end, p->numel);

        if (s.whole) { /* and all whole blocks after it, in one call */
            int64_t stop = end == p->numel ? end : end / MSI_NORM_BLOCK * MSI_NORM_BLOCK;

            if (p->tensor->grad != NULL) {
                msi_view v = grad_view(u, p, at, stop - at);

                MS_TRY(msi_norm_blocks(&v, largest, m->blocks));
            }
            m->blocks += msi_norm_n_blocks(stop - at);
            at = stop;
            continue;
        }
        if (p->tensor->grad != NULL) {
            msi_view v = grad_view(u, p, s.first, s.n);

            MS_TRY(msi_mem_copy(u->ctx, m->fragments, msi_view_ptr(&v),
                                s.n * ms_dtype_size(u->orig_dtype)));
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

                msi_kernels()->fn[MSI_K_norm][u->orig_dtype](&args); /* on the host */
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

static ms_status fold_all(ms_fsdp_tree *tree, const msi_order *o, bool largest, message *messages,
                          const double *kept, double *total)
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
        } else {
            const int64_t n = kept_blocks(tree, at);

            *total = msi_norm_fold(*total, kept, n, largest);
            kept += n;
        }
    }
    return MS_OK;
}

/* The call first: a rank that clips alone differs by that, not by what its gradients are. */
static ms_status tell(const ms_fsdp_tree *tree, const msi_order *o, const msi_note *note)
{
    msi_tree_note(tree, note);
    for (int32_t i = 0; i < o->n; i++) {
        if (o->places[i].unit != NULL) {
            MS_TRY(msi_unit_note_gradient(o->places[i].unit, o->places[i].index));
        }
    }
    return MS_OK;
}

/* Bytes of the longest message of any rank, and of this rank's kept blocks. */
static ms_status measure_all(const ms_fsdp_tree *tree, const msi_order *o, int64_t *room,
                             int64_t *kept)
{
    int64_t blocks, fragments;

    *room = *kept = 0;
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY(measure(tree, o, q, &blocks, &fragments));
        *room = blocks + fragments > *room ? blocks + fragments : *room;
    }
    for (int32_t i = 0; i < o->n; i++) {
        *kept += kept_blocks(tree, &o->places[i]) * (int64_t)sizeof(double);
    }
    return MS_OK;
}

static ms_status write_all(const ms_fsdp_tree *tree, const msi_order *o, bool largest,
                           knowledge own)
{
    for (int32_t i = 0; i < o->n; i++) {
        const msi_place *at = &o->places[i];
        const ms_tensor *grad = at->tensor->grad;

        if (is_cut(at)) {
            MS_TRY(write_param(at->unit, &at->unit->params[at->index], largest, &own.sent));
        } else if (is_sent(tree, at)) {
            MS_TRY(write_blocks(grad, plain_blocks(at), largest, &own.sent.blocks));
        } else {
            MS_TRY(write_blocks(grad, kept_blocks(tree, at), largest, &own.kept));
        }
    }
    return MS_OK;
}

/* This rank's message, `room` bytes, then its kept blocks, made by kernels at `to`. */
static ms_status make_message(const ms_fsdp_tree *tree, const msi_order *o, bool largest,
                              int64_t room, int64_t kept, char *to)
{
    int64_t blocks, fragments;

    MS_TRY(measure(tree, o, tree->rank, &blocks, &fragments));
    const knowledge own = {{(double *)(void *)to, to + blocks}, (double *)(void *)(to + room)};

    MS_TRY(msi_mem_set(tree->ctx, to, 0, room + kept));
    return write_all(tree, o, largest, own);
}

/* The same in memory of the host. */
static ms_status know(const ms_fsdp_tree *tree, const msi_order *o, bool largest, int64_t room,
                      int64_t kept, char *to)
{
    msi_mem_block *made;
    ms_status status;

    if (tree->ctx->device == NULL) {
        return make_message(tree, o, largest, room, kept, to);
    }
    MS_TRY(msi_alloc(tree->ctx, room + kept, MS_MEM_SCRATCH, &made));
    MS_TRY_GOTO(make_message(tree, o, largest, room, kept, made->data), done);
    MS_TRY_GOTO(msi_mem_copy(tree->ctx, to, made->data, room + kept), done);
    status = msi_settle(tree->ctx);
done:
    msi_release(made);
    return status;
}

/* Everybody's message, of `room` bytes each, into `all`. */
static ms_status exchange(ms_fsdp_tree *tree, const msi_order *o, const msi_note *note,
                          const char *mine, int64_t room, char *all, message *messages)
{
    int64_t blocks, fragments;

    MS_TRY(tell(tree, o, note));
    MS_TRY(msi_tree_gather(tree, "clip_grad_norm_", mine, room, all));
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* what it stands for */
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY(measure(tree, o, q, &blocks, &fragments));
        messages[q] = (message){(double *)(void *)(all + q * room), all + q * room + blocks};
    }
    return MS_OK;
}

/* From what all ranks say. */
static ms_status norm_of_all(ms_fsdp_tree *tree, const msi_order *o, bool largest,
                             const msi_note *note, double *total)
{
    int64_t room, kept;
    msi_mem_block *mine = NULL, *all = NULL, *of_ranks = NULL;
    ms_status status;

    MS_TRY(measure_all(tree, o, &room, &kept));
    MS_TRY(msi_host_alloc(tree->ctx, room * tree->world, MS_MEM_SCRATCH, &all));
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, room + kept, MS_MEM_SCRATCH, &mine), done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, (int64_t)sizeof(message) * tree->world, MS_MEM_SCRATCH,
                               &of_ranks),
                done);
    message *messages = of_ranks->data;
    char *own = mine->data;

    MS_TRY_GOTO(know(tree, o, largest, room, kept, own), done);
    MS_TRY_GOTO(exchange(tree, o, note, own, room, all->data, messages), done);
    status = fold_all(tree, o, largest, messages, (const double *)(void *)(own + room), total);
    *total = msi_plain_nan(msi_norm_finish(*total, largest));
done:
    msi_release(of_ranks);
    msi_release(mine);
    msi_release(all);
    return status;
}

/* From what this rank has. `total` may be NULL. */
static ms_status norm_of_own(ms_fsdp_tree *tree, const msi_order *o, double max_norm,
                             const msi_note *note, msi_norm *norm, double *total)
{
    for (int32_t i = 0; i < o->n; i++) {
        const ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_norm_add(norm, &grad->v));
        }
    }
    MS_TRY(msi_norm_fold_blocks(norm, max_norm));
    if (total != NULL) {
        MS_TRY(msi_norm_read(norm, total));
    }
    return tell(tree, o, note);
}

static bool any_is_sent(const ms_fsdp_tree *tree, const msi_order *o)
{
    bool any = false;

    for (int32_t i = 0; i < o->n; i++) {
        any |= is_sent(tree, &o->places[i]);
    }
    return any;
}

/* `norm` is the caller's to release, whatever comes of it. The notes are made when nothing can fail
 * any more that would not fail everywhere. */
static ms_status total_norm(ms_fsdp_tree *tree, const msi_order *o, double max_norm, bool largest,
                            const msi_note *note, msi_norm *norm, double *total)
{
    int64_t n_blocks = 0;
    double value;

    for (int32_t i = 0; i < o->n; i++) {
        n_blocks += kept_blocks(tree, &o->places[i]);
    }
    MS_TRY(msi_norm_open(norm, tree->ctx, n_blocks, largest));
    if (!any_is_sent(tree, o)) {
        return norm_of_own(tree, o, max_norm, note, norm, total);
    }
    MS_TRY(norm_of_all(tree, o, largest, note, &value));
    if (total != NULL) {
        *total = value;
    }
    return msi_norm_set(norm, max_norm, value);
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

static ms_status clip_by(const msi_norm *norm, const msi_order *o)
{
    for (int32_t i = 0; i < o->n; i++) {
        ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_norm_clip(norm, &grad->v));
        }
    }
    for (int32_t i = 0; i < o->n; i++) {
        if (o->places[i].unit != NULL) {
            msi_unit_told_gradient(o->places[i].unit, o->places[i].index);
        }
    }
    return MS_OK;
}

static ms_status clip(ms_fsdp_tree *tree, const msi_order *o, double max_norm, double norm_type,
                      bool largest, double *total)
{
    const double order_hash = tree->world > 1 ? msi_note_hash(msi_order_hash(o->places, o->n)) : 0;
    const msi_note note = {{.text = "clip_grad_norm_"},
                           {.text = "max_norm norm_type order#"},
                           {max_norm, norm_type, order_hash},
                           .n_numbers = 3};
    msi_norm norm = {0};
    ms_status status = total_norm(tree, o, max_norm, largest, &note, &norm, total);

    if (status == MS_OK) {
        status = clip_by(&norm, o);
    }
    msi_norm_release(&norm);
    return status;
}

ms_status ms_fsdp_tree_clip_grad_norm(ms_fsdp_tree *tree, ms_tensor *const *params,
                                      int32_t n_params, double max_norm, double norm_type,
                                      double *total)
{
    bool largest;
    msi_order o;

    MS_TRY(msi_clip_check(max_norm, norm_type, &largest));
    MS_TRY(ms_fsdp_tree_init(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_gradient(tree->units[i], "clip_grad_norm_"));
    }
    MS_TRY(check_reduced(tree));
    MS_TRY(msi_order_new(tree, params, n_params, &o));
    ms_status status = clip(tree, &o, max_norm, norm_type, largest, total);

    msi_release(o.block);
    return status;
}
