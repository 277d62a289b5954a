/* The norm of sharded gradients, from messages of all ranks.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of its whole blocks, and the raw elements (fragments) of blocks that a shard boundary cuts, to
 * the ranks of its shard group. Every rank then folds all blocks, parameter by parameter in the
 * model's order. For plain parameters every rank sends all blocks to all ranks of the tree,
 * replicas among them. If they differ (nobody reduced their gradients) the mean over ranks counts,
 * so that all ranks clip by one norm. */
#include "norm_messages.h"

#include "array.h"

#include <stdlib.h>
#include <string.h>

/* One rank's message: block results, then fragments, each padded to 8 bytes. `plain` are the blocks
 * of plain parameters, a message of their own. Entry r of an array of messages has the sharded
 * parts of rank r of the shard group, and the plain ones of rank r of the tree. */
typedef struct message {
    double *blocks;
    char *fragments;
    double *plain;
} message;

/* Cut parameters whose pieces are equal on every rank, measured once. */
typedef struct measured {
    const msi_listed_param *at;
    int64_t times;
} measured;

/* Bytes of a rank's two messages, and of the blocks it keeps to itself. */
typedef struct room_of {
    measured *cut; /* (n_cut) */
    int32_t n_cut;
    int64_t sharded, plain, kept;
} room_of;

/* A range of one parameter inside one block. */
typedef struct stretch {
    int64_t first, n; /* elements of the parameter */
    bool whole;       /* the whole block */
} stretch;

/* -- positions --------------------------------------------------------------------------------- */

/* The stretch at `first` in the piece [.., end) of a parameter of `numel` elements. */
static stretch stretch_at(int64_t first, int64_t end, int64_t numel)
{
    int64_t begin = first / MSI_NORM_BLOCK * MSI_NORM_BLOCK;
    int64_t stop = begin + MSI_NORM_BLOCK < numel ? begin + MSI_NORM_BLOCK : numel;
    int64_t last = stop < end ? stop : end;

    return (stretch){first, last - first, first == begin && last == stop};
}

/* The end of the whole blocks of a piece that ends at `end`. */
static int64_t whole_until(int64_t end, int64_t numel)
{
    return end == numel ? end : end / MSI_NORM_BLOCK * MSI_NORM_BLOCK;
}

/* True if all ranks' parts make up the norm. Replicas are already equal. */
static bool is_cut(const msi_listed_param *at)
{
    return at->unit != NULL && at->unit->is_sharded && at->unit->shard_world > 1;
}

bool msi_norm_is_sent(const ms_fsdp_tree *tree, const msi_listed_param *at)
{
    return is_cut(at) || (at->unit == NULL && tree->world > 1);
}

/* Bytes of a fragment of n elements. */
static int64_t padded(const ms_fsdp_unit *u, int64_t n)
{
    return msi_round_up(n * ms_dtype_size(u->grad_dtype), 8);
}

static int64_t plain_blocks(const msi_listed_param *at)
{
    return msi_norm_n_blocks(msi_view_numel(&at->tensor->v));
}

int64_t msi_norm_kept_blocks(const ms_fsdp_tree *tree, const msi_listed_param *at)
{
    const ms_tensor *grad = at->tensor->grad;

    return msi_norm_is_sent(tree, at) || grad == NULL ? 0
                                                      : msi_norm_n_blocks(msi_view_numel(&grad->v));
}

static bool are_alike(const ms_fsdp_unit *a, const ms_fsdp_unit *b)
{
    return a->grad_dtype == b->grad_dtype && ms_layout_equal(a->layout, b->layout);
}

/* The list's cut parameters; units in a row that are alike count as one. Returns their number. */
static int32_t collect(const msi_param_list *o, measured *out)
{
    const ms_fsdp_unit *last = NULL;
    int32_t n = 0, first = 0, next = 0; /* the latest unit that was new, and its next parameter */

    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];

        if (!is_cut(at)) {
            continue;
        }
        if (at->unit != last) {
            first = n > first && are_alike(out[first].at->unit, at->unit) ? first : n;
            next = first;
            last = at->unit;
        }
        if (next < n && out[next].at->index == at->index) {
            out[next++].times++;
        } else {
            out[n++] = (measured){at, 1};
            next = n;
        }
    }
    return n;
}

/* Add bytes of the block results and fragments of a rank of the shard group. */
static ms_status measure_param(const measured *m, int32_t rank, int64_t *blocks, int64_t *fragments)
{
    const ms_fsdp_unit *u = m->at->unit;
    const int64_t numel = u->params[m->at->index].numel;
    ms_layout_piece piece;

    MS_TRY(ms_layout_piece_get(u->layout, rank, m->at->index, &piece));
    for (int64_t first = piece.start, end = piece.start + piece.numel; first < end;) {
        const stretch s = stretch_at(first, end, numel);
        const int64_t stop = s.whole ? whole_until(end, numel) : first + s.n;

        if (s.whole) {
            *blocks += m->times * msi_norm_n_blocks(stop - first) * (int64_t)sizeof(double);
        } else {
            *fragments += m->times * padded(u, s.n);
        }
        first = stop;
    }
    return MS_OK;
}

/* Bytes of the block results and fragments of a rank of the shard group. */
static ms_status measure(const room_of *room, int32_t rank, int64_t *blocks, int64_t *fragments)
{
    *blocks = *fragments = 0;
    for (int32_t i = 0; i < room->n_cut; i++) {
        MS_TRY(measure_param(&room->cut[i], rank, blocks, fragments));
    }
    return MS_OK;
}

/* -- this rank's messages ---------------------------------------------------------------------- */

/* One rank's contribution: its messages, and blocks that are not sent. */
typedef struct knowledge {
    message sent;
    double *kept;
} knowledge;

/* View of elements [first, first + n) of this rank's gradient of a parameter. */
static msi_view grad_view(const ms_fsdp_unit *u, const msi_unit_param *p, int64_t first, int64_t n)
{
    msi_view v = p->tensor->grad->v;

    v.offset += first - p->piece.start;
    msi_view_set_contiguous(&v, u->grad_dtype, 1, &n);
    return v;
}

/* Write the gradient's n blocks, or 0, at `*to`. */
static ms_status write_blocks(const ms_tensor *grad, int64_t n, double order, double **to)
{
    double *out = *to;

    *to += n;
    return grad != NULL ? msi_norm_blocks(&grad->v, order, out) : MS_OK;
}

static ms_status write_param(const ms_fsdp_unit *u, const msi_unit_param *p, double order,
                             message *m)
{
    int64_t end = p->piece.start + p->piece.numel;

    for (int64_t at = p->piece.start; at < end;) {
        stretch s = stretch_at(at, end, p->numel);

        if (s.whole) { /* with all following whole blocks */
            int64_t stop = whole_until(end, p->numel);

            if (p->tensor->grad != NULL) {
                msi_view v = grad_view(u, p, at, stop - at);

                MS_TRY(msi_norm_blocks(&v, order, m->blocks));
            }
            m->blocks += msi_norm_n_blocks(stop - at);
            at = stop;
            continue;
        }
        if (p->tensor->grad != NULL) {
            msi_view v = grad_view(u, p, s.first, s.n);

            MS_TRY(msi_mem_copy(u->ctx, m->fragments, msi_view_ptr(&v),
                                s.n * ms_dtype_size(u->grad_dtype)));
        }
        m->fragments += padded(u, s.n);
        at += s.n;
    }
    return MS_OK;
}

static ms_status write_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                           knowledge own)
{
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const ms_tensor *grad = at->tensor->grad;

        if (is_cut(at)) {
            MS_TRY(write_param(at->unit, &at->unit->params[at->index], order, &own.sent));
        } else if (msi_norm_is_sent(tree, at)) {
            MS_TRY(write_blocks(grad, plain_blocks(at), order, &own.sent.plain));
        } else {
            MS_TRY(write_blocks(grad, msi_norm_kept_blocks(tree, at), order, &own.kept));
        }
    }
    return MS_OK;
}

static int64_t total_room(const room_of *room)
{
    return room->sharded + room->plain + room->kept;
}

/* Compute this rank's messages, then its kept blocks, by kernels, at `to`. */
static ms_status make_messages(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                               const room_of *room, char *to)
{
    int64_t blocks, fragments;

    MS_TRY(measure(room, tree->shard_rank, &blocks, &fragments));
    char *plain = to + room->sharded;
    const knowledge own = {{(double *)(void *)to, to + blocks, (double *)(void *)plain},
                           (double *)(void *)(plain + room->plain)};

    MS_TRY(msi_mem_set(tree->ctx, to, 0, total_room(room)));
    return write_all(tree, o, order, own);
}

/* Write this rank's sharded message, its plain one, then the blocks that are not sent, to host
 * memory at `to`. Waits for the device. */
static ms_status make_on_host(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                              const room_of *room, char *to)
{
    msi_mem_block *made;
    ms_status status;

    if (tree->ctx->device == NULL) {
        return make_messages(tree, o, order, room, to);
    }
    MS_TRY(msi_alloc(tree->ctx, total_room(room), MS_MEM_SCRATCH, &made));
    MS_TRY_GOTO(make_messages(tree, o, order, room, made->data), done);
    MS_TRY_GOTO(msi_mem_copy(tree->ctx, to, made->data, total_room(room)), done);
    status = msi_settle_stream(tree->ctx);
done:
    msi_release(made);
    return status;
}

/* -- the total --------------------------------------------------------------------------------- */

/* Fold one parameter's blocks from the messages of its shard group's ranks. */
static ms_status fold_param(const ms_fsdp_unit *u, int32_t index, double order, message *messages,
                            double *total)
{
    double cut[MSI_NORM_BLOCK]; /* elements of a cut block, in the gradients' dtype */
    int64_t size = ms_dtype_size(u->grad_dtype), numel = u->params[index].numel;

    for (int32_t q = 0; q < u->shard_world; q++) {
        ms_layout_piece piece;

        MS_TRY(ms_layout_piece_get(u->layout, q, index, &piece));
        for (int64_t at = piece.start, end = piece.start + piece.numel; at < end;) {
            stretch s = stretch_at(at, end, numel);
            int64_t in_block = s.first % MSI_NORM_BLOCK;
            double result;

            at += s.n;
            if (s.whole) {
                *total = msi_norm_fold(*total, messages[q].blocks++, 1, order);
                continue;
            }
            memcpy((char *)cut + in_block * size, messages[q].fragments, (size_t)(s.n * size));
            messages[q].fragments += padded(u, s.n);
            if (at % MSI_NORM_BLOCK == 0 || at == numel) { /* the block is complete */
                msi_norm_args args = {.n = in_block + s.n,
                                      .block = MSI_NORM_BLOCK,
                                      .x = cut,
                                      .out = &result,
                                      .order = order};

                MS_TRY(msi_dispatch_host("norm", MSI_K_norm, u->grad_dtype, &args));
                *total = msi_norm_fold(*total, &result, 1, order);
            }
        }
    }
    return MS_OK;
}

/* The value of a block for which every rank sent a result. */
static double agreed_block(const ms_fsdp_tree *tree, message *messages, double order)
{
    double first = *messages[0].plain, total = 0;
    bool equal = true;

    for (int32_t q = 0; q < tree->world; q++) {
        double result = *messages[q].plain++;

        equal = equal && memcmp(&result, &first, sizeof(first)) == 0;
        total = msi_norm_fold(total, &result, 1, order);
    }
    return equal ? first : order == HUGE_VAL ? total : total / tree->world;
}

/* Fold one parameter's blocks. */
static ms_status fold_listed(const ms_fsdp_tree *tree, const msi_listed_param *at, double order,
                             message *messages, const double **kept, double *total)
{
    if (is_cut(at)) {
        return fold_param(at->unit, at->index, order, messages, total);
    }
    if (msi_norm_is_sent(tree, at)) {
        for (int64_t n = plain_blocks(at); n > 0; n--) {
            double result = agreed_block(tree, messages, order);

            *total = msi_norm_fold(*total, &result, 1, order);
        }
    } else {
        const int64_t n = msi_norm_kept_blocks(tree, at);

        *total = msi_norm_fold(*total, *kept, n, order);
        *kept += n;
    }
    return MS_OK;
}

/* Fold all blocks of `messages` (the tree's W), consuming them, and `kept`. */
static ms_status fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                          message *messages, const double *kept, double *total)
{
    *total = 0;
    for (int32_t i = 0; i < o->n; i++) {
        double one = 0; /* order 0 counts tensors, not blocks */

        MS_TRY(fold_listed(tree, &o->places[i], order, messages, &kept, order == 0 ? &one : total));
        *total = order == 0 ? *total + (one != 0) : *total;
    }
    return MS_OK;
}

/* -- exchange ---------------------------------------------------------------------------------- */

/* Maximum size of any rank's messages, and size of this rank's kept blocks. The caller frees
 * `room->cut`, in any case. */
static ms_status measure_all(const ms_fsdp_tree *tree, const msi_param_list *o, room_of *room)
{
    int64_t blocks, fragments;

    MS_TRY(msi_new_array(&room->cut, o->n, "parameters to measure"));
    room->n_cut = collect(o, room->cut);
    for (int32_t q = 0; q < tree->shard_world; q++) {
        MS_TRY(measure(room, q, &blocks, &fragments));
        room->sharded = blocks + fragments > room->sharded ? blocks + fragments : room->sharded;
    }
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];

        room->kept += msi_norm_kept_blocks(tree, at) * (int64_t)sizeof(double);
        if (!is_cut(at) && msi_norm_is_sent(tree, at)) {
            room->plain += plain_blocks(at) * (int64_t)sizeof(double);
        }
    }
    return MS_OK;
}

/* Gather the messages at `mine` into `all`: the sharded ones of the shard group, then the plain
 * ones of all ranks. */
static ms_status exchange(ms_fsdp_tree *tree, const char *mine, const room_of *room, char *all,
                          message *messages)
{
    char *plain = all + room->sharded * tree->shard_world;
    int64_t blocks, fragments;

    if (room->sharded > 0) {
        MS_TRY(
            msi_tree_gather_over(tree, tree->shards, "clip_grad_norm_", mine, room->sharded, all));
    }
    if (room->plain > 0) {
        MS_TRY(msi_tree_gather(tree, "clip_grad_norm_", mine + room->sharded, room->plain, plain));
    }
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    for (int32_t q = 0; q < tree->world; q++) {
        messages[q].plain = (double *)(void *)(plain + q * room->plain);
        if (q < tree->shard_world) {
            char *sharded = all + q * room->sharded;

            MS_TRY(measure(room, q, &blocks, &fragments));
            messages[q].blocks = (double *)(void *)sharded;
            messages[q].fragments = sharded + blocks;
        }
    }
    return MS_OK;
}

/* The exchange of a group whose other ranks have no messages. */
static void plan(const ms_fsdp_tree *tree, const room_of *room)
{
    if (room->sharded > 0) {
        msi_comm_plan(tree->shards, MSI_COLL_ALL_GATHER, room->sharded);
    }
    if (room->plain > 0) {
        msi_comm_plan(tree->comm, MSI_COLL_ALL_GATHER, room->plain);
    }
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE);
}

ms_status msi_norm_of_ranks(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            double *total)
{
    room_of room = {0};
    msi_mem_block *mine = NULL, *all = NULL, *of_ranks = NULL;
    ms_status status;

    MS_TRY_GOTO(measure_all(tree, o, &room), done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx,
                               room.sharded * tree->shard_world + room.plain * tree->world,
                               MS_MEM_SCRATCH, &all),
                done);
    MS_TRY_GOTO(
        msi_host_alloc(tree->ctx, room.sharded + room.plain + room.kept, MS_MEM_SCRATCH, &mine),
        done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, (int64_t)sizeof(message) * tree->world, MS_MEM_SCRATCH,
                               &of_ranks),
                done);
    message *messages = of_ranks->data;
    char *own = mine->data;
    const char *kept = own + room.sharded + room.plain;

    MS_TRY_GOTO(make_on_host(tree, o, order, &room, own), done);
    if (ms_comm_is_fake(tree->comm)) {
        plan(tree, &room);
        *total = 0;
        goto done;
    }
    MS_TRY_GOTO(exchange(tree, own, &room, all->data, messages), done);
    status = fold_all(tree, o, order, messages, (const double *)(const void *)kept, total);
    *total = msi_plain_nan(msi_norm_finish(*total, order));
done:
    msi_release(of_ranks);
    msi_release(mine);
    msi_release(all);
    free(room.cut);
    return status;
}
