/* The norm of sharded gradients, from messages of all ranks.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of its whole blocks, and the raw elements (fragments) of blocks that a shard boundary cuts, to
 * the ranks of its shard group. Every rank then folds all blocks, parameter by parameter in the
 * model's order. For plain parameters every rank sends all blocks to all ranks of the tree,
 * replicas among them. If they differ (nobody reduced their gradients) the mean over ranks counts,
 * so that all ranks clip by one norm. */
#include "norm_places.h"

#include "array.h"

/* What this rank writes: its sharded message, which has block results, then fragments, each padded
 * to 8 bytes; the blocks of plain parameters, a message of their own; and blocks that it keeps. */
typedef struct message {
    double *blocks;
    char *fragments;
    double *plain, *kept;
} message;

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
static int32_t collect(const msi_param_list *o, msi_norm_measured *out)
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
            out[n++] = (msi_norm_measured){at, 1};
            next = n;
        }
    }
    return n;
}

/* Add what a rank of the shard group sends. */
static ms_status measure_param(const msi_norm_measured *m, int32_t rank, extent *e)
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

static ms_status measure(const msi_norm_sizes *sizes, int32_t rank, extent *e)
{
    *e = (extent){0};
    for (int32_t i = 0; i < sizes->n_cut; i++) {
        MS_TRY(measure_param(&sizes->cut[i], rank, e));
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

ms_status msi_norm_write(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                         const msi_norm_sizes *sizes, char *sharded, char *rest)
{
    extent e;

    MS_TRY(measure(sizes, tree->shard_rank, &e));
    MS_TRY(msi_mem_set(tree->ctx, sharded, 0, sizes->sharded));
    MS_TRY(msi_mem_set(tree->ctx, rest, 0, sizes->plain + sizes->kept));
    return write_all(tree, o, order,
                     (message){(double *)(void *)sharded, sharded + e.blocks,
                               (double *)(void *)rest, (double *)(void *)(rest + sizes->plain)});
}

/* -- all ranks' messages ----------------------------------------------------------------------- */

/* Where the list has come in the messages of a rank. */
typedef struct cursor {
    int64_t block;    /* in f64, from 1 */
    int64_t fragment; /* in bytes */
} cursor;

static int64_t place_at(int64_t offset)
{
    return offset / (int64_t)sizeof(double) + 1;
}

static ms_status list_cut(msi_norm_places *p, const ms_fsdp_unit *u, int32_t index, cursor *at)
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

static ms_status list_all(msi_norm_places *p, const ms_fsdp_tree *tree, const msi_param_list *o,
                          const msi_norm_sizes *sizes, cursor *at)
{
    int64_t plain = place_at(p->plain), kept = place_at(p->kept);

    for (int32_t q = 0; q < tree->shard_world; q++) {
        extent e;

        MS_TRY(measure(sizes, q, &e));
        at[q] = (cursor){place_at(q * sizes->sharded), q * sizes->sharded + e.blocks};
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

ms_status msi_norm_places_new(msi_norm_places *p, const ms_fsdp_tree *tree, const msi_param_list *o,
                              const msi_norm_sizes *sizes)
{
    /* a block that is cut has two pieces at least */
    const int64_t n_cut = sizes->n_pieces / 2;
    const int64_t words =
        sizes->n_blocks + n_cut + 1 + 2 * sizes->n_pieces + n_cut + 2 * (int64_t)tree->shard_world;

    p->plain = sizes->sharded * tree->shard_world;
    p->kept = p->plain + sizes->plain * tree->world;
    p->cut = p->kept + sizes->kept;
    p->nbytes = p->cut + n_cut * (int64_t)sizeof(double);
    MS_TRY(msi_host_alloc(tree->ctx, words * (int64_t)sizeof(int64_t), MS_MEM_SCRATCH, &p->block));
    p->of_block = p->block->data;
    p->first = p->of_block + sizes->n_blocks;
    p->pieces = (msi_norm_piece *)(void *)(p->first + n_cut + 1);
    p->dtype = (int64_t *)(void *)(p->pieces + sizes->n_pieces);
    return ms_comm_is_fake(tree->comm)
               ? MS_OK
               : list_all(p, tree, o, sizes, (cursor *)(void *)(p->dtype + n_cut));
}

ms_status msi_norm_measure(const ms_fsdp_tree *tree, const msi_param_list *o, msi_norm_sizes *sizes)
{
    MS_TRY(msi_new_array(&sizes->cut, o->n, "parameters to measure"));
    sizes->n_cut = collect(o, sizes->cut);
    for (int32_t q = 0; q < tree->shard_world; q++) {
        extent e;

        MS_TRY(measure(sizes, q, &e));
        sizes->sharded =
            e.blocks + e.fragments > sizes->sharded ? e.blocks + e.fragments : sizes->sharded;
        sizes->n_pieces += e.n_pieces;
    }
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const int64_t n = msi_norm_blocks_of(tree, at);

        sizes->n_blocks += n;
        if (!is_cut(at)) {
            *(msi_norm_is_sent(tree, at) ? &sizes->plain : &sizes->kept) +=
                n * (int64_t)sizeof(double);
        }
    }
    return MS_OK;
}
