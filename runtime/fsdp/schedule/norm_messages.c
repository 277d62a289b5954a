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
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

/* What this rank writes: its sharded message, which has block results, then fragments, each padded
 * to 8 bytes; the blocks of plain parameters, a message of their own; and blocks that it keeps. */
typedef struct message {
    double *blocks;
    char *fragments;
    double *plain, *kept;
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
    int64_t n_blocks, n_pieces; /* in all; fragments of all ranks */
} room_of;

/* Of one rank's sharded message. */
typedef struct extent {
    int64_t blocks, fragments; /* bytes */
    int64_t n_pieces;
} extent;

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

int64_t msi_norm_blocks_of(const ms_fsdp_tree *tree, const msi_listed_param *at)
{
    const ms_tensor *grad = at->tensor->grad;

    if (is_cut(at)) {
        return msi_norm_n_blocks(at->unit->params[at->index].numel);
    }
    if (msi_norm_is_sent(tree, at)) {
        return plain_blocks(at);
    }
    return grad != NULL ? msi_norm_n_blocks(msi_view_numel(&grad->v)) : 0;
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

/* Add what a rank of the shard group sends. */
static ms_status measure_param(const measured *m, int32_t rank, extent *e)
{
    const ms_fsdp_unit *u = m->at->unit;
    const int64_t numel = u->params[m->at->index].numel;
    ms_layout_piece piece;

    MS_TRY(ms_layout_piece_get(u->layout, rank, m->at->index, &piece));
    for (int64_t first = piece.start, end = piece.start + piece.numel; first < end;) {
        const stretch s = stretch_at(first, end, numel);
        const int64_t stop = s.whole ? whole_until(end, numel) : first + s.n;

        if (s.whole) {
            e->blocks += m->times * msi_norm_n_blocks(stop - first) * (int64_t)sizeof(double);
        } else {
            e->fragments += m->times * padded(u, s.n);
            e->n_pieces += m->times;
        }
        first = stop;
    }
    return MS_OK;
}

static ms_status measure(const room_of *room, int32_t rank, extent *e)
{
    *e = (extent){0};
    for (int32_t i = 0; i < room->n_cut; i++) {
        MS_TRY(measure_param(&room->cut[i], rank, e));
    }
    return MS_OK;
}

/* -- this rank's messages ---------------------------------------------------------------------- */

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
                           message own)
{
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const ms_tensor *grad = at->tensor->grad;

        if (is_cut(at)) {
            MS_TRY(write_param(at->unit, &at->unit->params[at->index], order, &own));
        } else if (msi_norm_is_sent(tree, at)) {
            MS_TRY(write_blocks(grad, plain_blocks(at), order, &own.plain));
        } else {
            MS_TRY(write_blocks(grad, msi_norm_blocks_of(tree, at), order, &own.kept));
        }
    }
    return MS_OK;
}

/* Compute this rank's messages by kernels: the sharded one, and at `rest` the plain one, then the
 * kept blocks. */
static ms_status make_messages(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                               const room_of *room, char *sharded, char *rest)
{
    extent e;

    MS_TRY(measure(room, tree->shard_rank, &e));
    MS_TRY(msi_mem_set(tree->ctx, sharded, 0, room->sharded));
    MS_TRY(msi_mem_set(tree->ctx, rest, 0, room->plain + room->kept));
    return write_all(tree, o, order,
                     (message){(double *)(void *)sharded, sharded + e.blocks,
                               (double *)(void *)rest, (double *)(void *)(rest + room->plain)});
}

/* The same into host memory, one behind another. Waits for the device. */
static ms_status make_on_host(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                              const room_of *room, char *to)
{
    const int64_t nbytes = room->sharded + room->plain + room->kept;
    msi_mem_block *made;
    ms_status status;

    if (tree->ctx->device == NULL) {
        return make_messages(tree, o, order, room, to, to + room->sharded);
    }
    MS_TRY(msi_alloc(tree->ctx, nbytes, MS_MEM_SCRATCH, &made));
    char *at = made->data;

    MS_TRY_GOTO(make_messages(tree, o, order, room, at, at + room->sharded), done);
    MS_TRY_GOTO(msi_mem_copy(tree->ctx, to, at, nbytes), done);
    status = msi_settle_stream(tree->ctx);
done:
    msi_release(made);
    return status;
}

/* -- all ranks' messages ----------------------------------------------------------------------- */

/* [Note: places] The fold reads one piece of memory: every rank's sharded message, every rank's
 * plain one, this rank's kept blocks, then results of the blocks that are cut, which a kernel
 * computes from their fragments. Its list has the place of each block's result, parameter by
 * parameter. */
typedef struct places {
    int64_t n_blocks, n_cut, n_pieces;
    int64_t *of_block;                /* (n_blocks) in f64, from 1 */
    int64_t *first;                   /* (n_cut + 1) of the pieces of each cut block */
    msi_norm_piece *pieces;           /* (n_pieces) */
    int64_t *dtype;                   /* (n_cut) of the gradients */
    int64_t plain, kept, cut, nbytes; /* offsets and size of the memory */
    msi_mem_block *block;             /* host memory of the arrays */
} places;

/* Where the list has come in the messages of a rank. */
typedef struct cursor {
    int64_t block;    /* in f64, from 1 */
    int64_t fragment; /* in bytes */
} cursor;

static int64_t place_at(int64_t offset)
{
    return offset / (int64_t)sizeof(double) + 1;
}

static ms_status list_cut(places *p, const ms_fsdp_unit *u, int32_t index, cursor *at)
{
    const int64_t size = ms_dtype_size(u->grad_dtype), numel = u->params[index].numel;

    for (int32_t q = 0; q < u->shard_world; q++) {
        ms_layout_piece piece;

        MS_TRY(ms_layout_piece_get(u->layout, q, index, &piece));
        for (int64_t first = piece.start, end = piece.start + piece.numel; first < end;) {
            const stretch s = stretch_at(first, end, numel);

            first += s.n;
            if (s.whole) {
                p->of_block[p->n_blocks++] = at[q].block++;
                continue;
            }
            p->pieces[p->n_pieces++] = (msi_norm_piece){at[q].fragment / size, s.n};
            at[q].fragment += padded(u, s.n);
            if (first % MSI_NORM_BLOCK == 0 || first == numel) { /* the block is complete */
                p->of_block[p->n_blocks++] = place_at(p->cut) + p->n_cut;
                p->dtype[p->n_cut++] = u->grad_dtype;
                p->first[p->n_cut] = p->n_pieces;
            }
        }
    }
    return MS_OK;
}

static ms_status list_all(places *p, const ms_fsdp_tree *tree, const msi_param_list *o,
                          const room_of *room, cursor *at)
{
    int64_t plain = place_at(p->plain), kept = place_at(p->kept);

    for (int32_t q = 0; q < tree->shard_world; q++) {
        extent e;

        MS_TRY(measure(room, q, &e));
        at[q] = (cursor){place_at(q * room->sharded), q * room->sharded + e.blocks};
    }
    p->first[0] = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *listed = &o->places[i];

        if (is_cut(listed)) {
            MS_TRY(list_cut(p, listed->unit, listed->index, at));
            continue;
        }
        int64_t *next = msi_norm_is_sent(tree, listed) ? &plain : &kept;

        for (int64_t n = msi_norm_blocks_of(tree, listed); n > 0; n--) {
            p->of_block[p->n_blocks++] = (*next)++;
        }
    }
    return MS_OK;
}

/* The caller releases p->block, in any case. In a fake group the arrays are not filled. */
static ms_status places_new(places *p, const ms_fsdp_tree *tree, const msi_param_list *o,
                            const room_of *room)
{
    /* a block that is cut has two pieces at least */
    const int64_t n_cut = room->n_pieces / 2;
    const int64_t words =
        room->n_blocks + n_cut + 1 + 2 * room->n_pieces + n_cut + 2 * (int64_t)tree->shard_world;

    p->plain = room->sharded * tree->shard_world;
    p->kept = p->plain + room->plain * tree->world;
    p->cut = p->kept + room->kept;
    p->nbytes = p->cut + n_cut * (int64_t)sizeof(double);
    MS_TRY(msi_host_alloc(tree->ctx, words * (int64_t)sizeof(int64_t), MS_MEM_SCRATCH, &p->block));
    p->of_block = p->block->data;
    p->first = p->of_block + room->n_blocks;
    p->pieces = (msi_norm_piece *)(void *)(p->first + n_cut + 1);
    p->dtype = (int64_t *)(void *)(p->pieces + room->n_pieces);
    return ms_comm_is_fake(tree->comm)
               ? MS_OK
               : list_all(p, tree, o, room, (cursor *)(void *)(p->dtype + n_cut));
}

/* Compute the results of blocks that are cut in `memory`, by `run`, from the list at `first` and
 * `pieces`. */
static ms_status cut_norms(const places *p, const int64_t *first, const msi_norm_piece *pieces,
                           char *memory, double order,
                           ms_status (*run)(const char *op, int32_t kernel, int32_t dtype,
                                            const void *args))
{
    for (int64_t k = 0, end; k < p->n_cut; k = end) {
        for (end = k + 1; end < p->n_cut && p->dtype[end] == p->dtype[k];) {
            end++;
        }
        const msi_norm_cut_args args = {.n = end - k,
                                        .first = first + k,
                                        .pieces = pieces,
                                        .in = memory,
                                        .out = (double *)(void *)(memory + p->cut) + k,
                                        .order = order};

        MS_TRY(run("norm", MSI_K_norm_cut, (int32_t)p->dtype[k], &args));
    }
    return MS_OK;
}

/* Maximum size of any rank's messages, and size of this rank's kept blocks. The caller frees
 * `room->cut`, in any case. */
static ms_status measure_all(const ms_fsdp_tree *tree, const msi_param_list *o, room_of *room)
{
    MS_TRY(msi_new_array(&room->cut, o->n, "parameters to measure"));
    room->n_cut = collect(o, room->cut);
    for (int32_t q = 0; q < tree->shard_world; q++) {
        extent e;

        MS_TRY(measure(room, q, &e));
        room->sharded =
            e.blocks + e.fragments > room->sharded ? e.blocks + e.fragments : room->sharded;
        room->n_pieces += e.n_pieces;
    }
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const int64_t n = msi_norm_blocks_of(tree, at);

        room->n_blocks += n;
        if (!is_cut(at)) {
            *(msi_norm_is_sent(tree, at) ? &room->plain : &room->kept) +=
                n * (int64_t)sizeof(double);
        }
    }
    return MS_OK;
}

/* -- by the host ------------------------------------------------------------------------------- */

/* Put the value of each plain block, for which every rank sent a result, into the first message. */
static void agree_on_plain(const ms_fsdp_tree *tree, const room_of *room, double order,
                           double *messages)
{
    const int64_t n = room->plain / (int64_t)sizeof(double);

    for (int64_t b = 0; b < n; b++) {
        double total = 0;
        bool equal = true;

        for (int32_t q = 0; q < tree->world; q++) {
            const double *result = &messages[q * n + b];

            equal = equal && memcmp(result, &messages[b], sizeof(*result)) == 0;
            total = msi_norm_fold(total, result, 1, order);
        }
        if (!equal) {
            messages[b] = order == HUGE_VAL ? total : total / tree->world;
        }
    }
}

static double fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, const places *p,
                       const double *memory, double order)
{
    const int64_t *place = p->of_block;
    double total = 0;

    for (int32_t i = 0; i < o->n; i++) {
        double folded = order == 0 ? 0 : total; /* order 0 counts tensors, not blocks */

        for (int64_t n = msi_norm_blocks_of(tree, &o->places[i]); n > 0; n--) {
            folded = msi_norm_fold(folded, &memory[*place++ - 1], 1, order);
        }
        total = order == 0 ? total + (folded != 0) : folded;
    }
    return total;
}

/* Gather the messages at `mine`: the sharded ones of the shard group, then the plain ones of all
 * ranks. */
static ms_status exchange(ms_fsdp_tree *tree, const char *mine, const room_of *room,
                          const places *p, char *memory)
{
    if (room->sharded > 0) {
        MS_TRY(msi_tree_gather_over(tree, tree->shards, "clip_grad_norm_", mine, room->sharded,
                                    memory));
    }
    if (room->plain > 0) {
        MS_TRY(msi_tree_gather(tree, "clip_grad_norm_", mine + room->sharded, room->plain,
                               memory + p->plain));
    }
    memcpy(memory + p->kept, mine + room->sharded + room->plain, (size_t)room->kept);
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    return MS_OK;
}

/* The exchange of a fake group, whose other ranks have no messages. Its memory is a real rank's. */
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

static ms_status fold_on_host(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                              const room_of *room, const char *mine, double *total)
{
    places p = {0};
    msi_mem_block *all = NULL;
    ms_status status;

    MS_TRY_GOTO(places_new(&p, tree, o, room), done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, p.nbytes, MS_MEM_SCRATCH, &all), done);
    if (ms_comm_is_fake(tree->comm)) {
        plan(tree, room);
        *total = 0;
        goto done;
    }
    char *memory = all->data;

    MS_TRY_GOTO(exchange(tree, mine, room, &p, memory), done);
    agree_on_plain(tree, room, order, (double *)(void *)(memory + p.plain));
    MS_TRY_GOTO(cut_norms(&p, p.first, p.pieces, memory, order, msi_dispatch_host), done);
    *total = fold_all(tree, o, &p, all->data, order);
    *total = msi_plain_nan(msi_norm_finish(*total, order));
done:
    msi_release(all);
    msi_release(p.block);
    return status;
}

ms_status msi_norm_of_ranks(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            double *total)
{
    room_of room = {0};
    msi_mem_block *mine = NULL;
    ms_status status;

    MS_TRY_GOTO(measure_all(tree, o, &room), done);
    MS_TRY_GOTO(
        msi_host_alloc(tree->ctx, room.sharded + room.plain + room.kept, MS_MEM_SCRATCH, &mine),
        done);
    MS_TRY_GOTO(make_on_host(tree, o, order, &room, mine->data), done);
    status = fold_on_host(tree, o, order, &room, mine->data, total);
done:
    msi_release(mine);
    free(room.cut);
    return status;
}

/* -- by the devices ---------------------------------------------------------------------------- */

bool msi_norm_on_devices(const ms_fsdp_tree *tree, const msi_param_list *o, double order)
{
    bool all = tree->layout == MSI_SLOTS_NCCL && tree->ctx->device != NULL && order != 0;

    for (int32_t i = 0; i < o->n && all; i++) {
        all = is_cut(&o->places[i]) || !msi_norm_is_sent(tree, &o->places[i]);
    }
    return all;
}

/* Copy the list to the device; the caller releases `*out`. */
static ms_status upload(ms_context *ctx, const places *p, msi_mem_block **out)
{
    const int64_t nbytes = (int64_t)((char *)p->dtype - (char *)p->of_block);

    MS_TRY(msi_alloc(ctx, nbytes, MS_MEM_SCRATCH, out));
    return msi_mem_copy(ctx, (*out)->data, p->of_block, nbytes);
}

static ms_status fold_on_device(const places *p, msi_norm *norm, double max_norm,
                                const int64_t *list, char *memory)
{
    const int64_t *first = list + (p->first - p->of_block);
    const void *pieces = list + ((int64_t *)(void *)p->pieces - p->of_block);
    const msi_gather_args args = {
        .loop = {.ndim = 1, .shape = {p->n_blocks}, .stride = {{1}, {1}, {0}}},
        .size = p->nbytes / (int64_t)sizeof(double),
        .step = 1,
        .index = list,
        .in = memory,
        .out = msi_norm_room(norm, p->n_blocks)};

    MS_TRY(cut_norms(p, first, pieces, memory, norm->order, msi_dispatch));
    MS_TRY(msi_dispatch("norm", MSI_K_gather, MS_DTYPE_F64, &args));
    return msi_norm_fold_blocks(norm, max_norm);
}

ms_status msi_norm_of_devices(ms_fsdp_tree *tree, const msi_param_list *o, double max_norm,
                              msi_norm *norm)
{
    ms_context *ctx = tree->ctx;
    room_of room = {0};
    places p = {0};
    msi_mem_block *all = NULL, *list = NULL;
    ms_status status;

    MS_TRY_GOTO(measure_all(tree, o, &room), done);
    MS_TRY_GOTO(places_new(&p, tree, o, &room), done);
    MS_TRY_GOTO(msi_alloc(ctx, p.nbytes, MS_MEM_SCRATCH, &all), done);
    MS_TRY_GOTO(upload(ctx, &p, &list), done);
    char *memory = all->data, *own = memory + tree->shard_rank * room.sharded;

    MS_TRY_GOTO(make_messages(tree, o, norm->order, &room, own, memory + p.kept), done);
    if (ms_comm_is_fake(tree->comm)) {
        plan(tree, &room);
        status = msi_norm_set(norm, max_norm, 0);
        goto done;
    }
    MS_TRY_GOTO(msi_tree_gather_devices(tree, "clip_grad_norm_", own, room.sharded, memory), done);
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    status = fold_on_device(&p, norm, max_norm, list->data, memory);
done:
    msi_release(list);
    msi_release(all);
    msi_release_later(ctx, p.block); /* the copy reads it */
    free(room.cut);
    return status;
}
