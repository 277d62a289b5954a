/* Gradients moved by the devices' communicator when they are closed: each rank gets the pieces of
 * its shard or chunk from all ranks. */
#include "reduction_ops.h"

/* Hybrid shards are fewer than ranks. */
static bool sums_in_order(const msi_reduction *r)
{
    return r->pool->sums_in_order || r->n_shards != r->world;
}

static msi_pieces pieces_of(const msi_reduction *r)
{
    return msi_plan_pieces(r->replicated ? r->total : r->full, r->shard, r->n_shards, r->packs,
                           r->replicated, r->world, r->dtype);
}

/* The piece of this rank's gradient for rank q. */
static char *piece_for(const msi_reduction *r, const msi_pieces *p, int32_t q)
{
    const int32_t shard = r->replicated ? q : r->pool->shard_of[q];

    return r->slot->own + p->packed + shard * p->each * ms_dtype_size(r->dtype);
}

/* Rank q's piece for this rank. */
static char *piece_from(const msi_reduction *r, const msi_pieces *p, int32_t q)
{
    return q == r->rank ? piece_for(r, p, q)
                        : r->slot->own + p->staging + q * p->each * ms_dtype_size(r->dtype);
}

static ms_status exchange_pieces(const msi_reduction *r, const msi_pieces *p)
{
    msi_device_part parts[r->world];

    for (int32_t q = 0; q < r->world; q++) {
        parts[q] = (msi_device_part){.send = piece_for(r, p, q),
                                     .recv = piece_from(r, p, q),
                                     .n_send = p->each,
                                     .n_recv = p->each};
    }
    return msi_device_comm_exchange(r->pool->devices, MSI_STREAM_REDUCE, parts, r->dtype);
}

/* Move pieces to their ranks. */
static ms_status move_pieces(const msi_reduction *r, const msi_pieces *p)
{
    if (r->packs) {
        MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
                  r->user->pack(r->unit, r->slot->own, r->slot->own + p->packed));
    }
    if (sums_in_order(r)) {
        MS_TRY(exchange_pieces(r, p));
    } else {
        MS_TRY(msi_device_comm_reduce_scatter(r->pool->devices, MSI_STREAM_REDUCE,
                                              r->slot->own + p->packed, r->slot->own + p->staging,
                                              p->each, r->dtype));
    }
    return msi_slot_pool_complete(r->pool, r->progress, r->seq);
}

/* Sources of the sum of this rank's piece from element `in_piece` on. */
static int32_t list_pieces(const msi_reduction *r, int64_t in_piece, msi_tree_source *src)
{
    const msi_pieces p = pieces_of(r);
    const int64_t offset = in_piece * ms_dtype_size(r->dtype);

    if (!sums_in_order(r)) {
        src[0] = (msi_tree_source){r->slot->own + p.staging + offset, r->dtype};
        return 1;
    }
    for (int32_t q = 0; q < r->world; q++) {
        src[q] = (msi_tree_source){piece_from(r, &p, q) + offset, r->dtype};
    }
    return r->world;
}

static int32_t pieces_of_extent(const msi_reduction *r, const msi_extent *e, msi_tree_source *src)
{
    return list_pieces(r, e->in_shard, src);
}

static ms_status sum_own(msi_reduction *r)
{
    return msi_reduction_sum_own(r, pieces_of_extent, r->factor);
}

static ms_status send(msi_reduction *r)
{
    const msi_pieces p = pieces_of(r);

    MS_TRY(msi_stream_dep_after(r->pool->ctx, MSI_DEP_WRITTEN, MSI_STREAM_REDUCE, r->written));
    return move_pieces(r, &p);
}

/* -- replicas ---------------------------------------------------------------------------------- */

/* The chunk is summed in place of this rank's, and gathered. */
static ms_status send_and_gather(msi_reduction *r)
{
    const msi_pieces p = pieces_of(r);
    const msi_chunk own = msi_plan_chunk(r->total, r->rank, r->world);
    char *chunk = piece_for(r, &p, r->rank);
    msi_tree_source src[r->world];

    MS_TRY(send(r));
    const int32_t n_src = list_pieces(r, 0, src);

    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
              msi_reduction_sum(r, src, n_src, own.numel, chunk, r->dtype, r->factor, false));
    MS_TRY(msi_device_comm_all_gather(r->pool->devices, MSI_STREAM_REDUCE, chunk, r->slot->own,
                                      p.each, r->dtype));
    return msi_slot_pool_complete(r->pool, r->progress, r->seq);
}

static ms_status take_all(const msi_reduction *r, void *grad, bool add)
{
    for (int32_t i = 0; i < r->n_own; i++) {
        const msi_extent *e = &r->own[i];

        MS_TRY(msi_reduction_take(r, r->rank, e->in_full, e->numel, msi_reduction_out(r, grad, e),
                                  add));
    }
    return MS_OK;
}

/* The whole sums are in this rank's part. */
static ms_status copy_gathered(msi_reduction *r)
{
    void *grad;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &grad, &add));
    MS_TRY(msi_reduction_await_prepared(r, add));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, take_all(r, grad, add));
    return MS_OK;
}

const msi_reduction_ops msi_reduce_pieces = {send, NULL, NULL, sum_own};
const msi_reduction_ops msi_reduce_gathered = {send_and_gather, NULL, NULL, copy_gathered};
