/* Gradients summed on several hosts: by the ranks of each host, then over hosts. */
#include "reduction_ops.h"

/* Places in a part. */
static msi_roots roots_of(const msi_reduction *r)
{
    const int64_t numel = r->replicated ? msi_plan_chunk_size(r->total, r->world) : r->shard;

    return msi_plan_roots(r->root_at, numel, r->hosts->n, r->node_dtype);
}

/* Roots from host h, or for it, in this rank's part. */
static char *received_from(const msi_reduction *r, int32_t h)
{
    const msi_roots p = roots_of(r);

    return msi_slot_part(r->slot, r->rank) + p.received + h * p.each;
}

static char *sent_to(const msi_reduction *r, int32_t h)
{
    const msi_roots p = roots_of(r);

    return msi_slot_part(r->slot, r->rank) + p.sent + h * p.each;
}

/* The rank of host h in this one's place. */
static int32_t partner(const msi_reduction *r, int32_t h)
{
    return h * r->hosts->per_host + r->rank % r->hosts->per_host;
}

/* What rank q sums. `*one` is room for one extent. */
static ms_status extents_of(const msi_reduction *r, int32_t q, msi_extent *one,
                            const msi_extent **extents, int32_t *n)
{
    const msi_chunk chunk = msi_plan_chunk(r->total, q, r->world);

    if (!r->replicated) {
        return r->user->extents(r->unit, r->pool->shard_of[q], extents, n);
    }
    *one = (msi_extent){.param = -1, .numel = chunk.numel, .in_full = chunk.first};
    *extents = one;
    *n = 1;
    return MS_OK;
}

/* This host's root of each element that rank q sums. */
static ms_status sum_for(const msi_reduction *r, int32_t q, char *roots)
{
    const msi_extent *extents;
    msi_extent one;
    int32_t n;

    MS_TRY(extents_of(r, q, &one, &extents, &n));
    for (int32_t i = 0; i < n; i++) {
        const msi_extent *e = &extents[i];
        msi_tree_source src[r->world];
        const int32_t n_src = msi_reduction_parts(r, e->in_full, src);

        MS_TRY(msi_reduction_node(r, src, n_src, e->numel,
                                  roots + e->in_shard * ms_dtype_size(r->node_dtype)));
    }
    return MS_OK;
}

static ms_status send_roots(msi_reduction *r)
{
    const int64_t nbytes = roots_of(r).each;

    MS_TRY(msi_reduction_await_gradients(r));
    for (int32_t i = 1; i <= r->hosts->n; i++) { /* hosts send in different orders */
        const int32_t h = (r->hosts->own + i) % r->hosts->n, q = partner(r, h);
        char *roots = h == r->hosts->own ? received_from(r, h) : sent_to(r, h);

        MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, sum_for(r, q, roots));
        if (h != r->hosts->own) {
            msi_comm_share_with(r->pool->comm, q, received_from(r, r->hosts->own), roots, nbytes);
        }
    }
    return MS_OK;
}

/* Sources of element `at` of what this rank sums. */
static int32_t list_roots(const msi_reduction *r, int64_t at, msi_tree_source *src)
{
    for (int32_t h = 0; h < r->hosts->n; h++) {
        src[h] = (msi_tree_source){received_from(r, h) + at * ms_dtype_size(r->node_dtype),
                                   r->node_dtype};
    }
    return r->hosts->n;
}

static int32_t roots_of_extent(const msi_reduction *r, const msi_extent *e, msi_tree_source *src)
{
    return list_roots(r, e->in_shard, src);
}

static ms_status sum_own(msi_reduction *r)
{
    return msi_reduction_sum_own(r, roots_of_extent, r->factor);
}

/* Replicas: the chunk is summed where it was read, and sent to every host. */
static ms_status sum_chunk(msi_reduction *r)
{
    const msi_chunk own = msi_plan_chunk(r->total, r->rank, r->world);
    char *chunk = msi_reduction_element(r, r->rank, own.first);
    msi_tree_source src[r->hosts->n];
    const int32_t n_src = list_roots(r, 0, src);

    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
              msi_reduction_sum(r, src, n_src, own.numel, chunk, r->dtype, r->factor, false));
    msi_comm_share(r->pool->comm, chunk, own.numel * ms_dtype_size(r->dtype));
    return MS_OK;
}

const msi_reduction_ops msi_reduce_roots = {NULL, send_roots, NULL, sum_own};
const msi_reduction_ops msi_reduce_chunks_of_roots = {NULL, send_roots, sum_chunk,
                                                      msi_reduction_copy_chunks};
