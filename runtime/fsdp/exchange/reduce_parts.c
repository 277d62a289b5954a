/* Gradients summed in slots, which all ranks read. With hybrid sharding several ranks read the same
 * elements of all parts, so none writes into its part. A fake group has one part, which counts for
 * every rank. */
#include "reduction_ops.h"

static int32_t n_parts(const msi_reduction *r)
{
    return r->pool->mapped.n_parts > 0 ? r->pool->mapped.n_parts : 1;
}

static double factor_of(const msi_reduction *r)
{
    return r->pool->mapped.world == r->world ? r->factor : r->factor * r->world;
}

int32_t msi_reduction_parts(const msi_reduction *r, int64_t first, msi_tree_source *src)
{
    for (int32_t q = 0; q < n_parts(r); q++) {
        src[q] = (msi_tree_source){msi_reduction_element(r, q, first), r->dtype};
    }
    return n_parts(r);
}

static int32_t parts_of(const msi_reduction *r, const msi_extent *e, msi_tree_source *src)
{
    return msi_reduction_parts(r, e->in_full, src);
}

static ms_status sum_own(msi_reduction *r)
{
    return msi_reduction_sum_own(r, parts_of, factor_of(r));
}

/* -- replicas ---------------------------------------------------------------------------------- */

static ms_status sum_chunk(msi_reduction *r)
{
    const msi_chunk own = msi_plan_chunk(r->total, r->rank, r->world);
    msi_tree_source src[r->world];
    const int32_t n_src = msi_reduction_parts(r, own.first, src);

    MS_TRY(msi_reduction_await_gradients(r));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE,
              msi_reduction_sum(r, src, n_src, own.numel,
                                msi_reduction_element(r, r->rank, own.first), r->dtype,
                                factor_of(r), false));
    return MS_OK;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements of rank q's chunk in an extent. */
static ms_status take_chunk(const msi_reduction *r, int32_t q, const msi_extent *e, void *grad,
                            bool add)
{
    const msi_chunk c = msi_plan_chunk(r->total, q, r->world);
    const int64_t end = smaller(c.first + c.numel, e->in_full + e->numel);
    const int64_t first = c.first > e->in_full ? c.first : e->in_full;

    return msi_reduction_take(
        r, q, first, end - first,
        msi_reduction_out(r, grad, e) + (first - e->in_full) * ms_dtype_size(r->sum_dtype), add);
}

static ms_status take_chunks(const msi_reduction *r, void *grad, bool add)
{
    for (int32_t q = 0; q < r->world; q++) {
        for (int32_t i = 0; i < r->n_own; i++) {
            MS_TRY(take_chunk(r, q, &r->own[i], grad, add));
        }
    }
    return MS_OK;
}

ms_status msi_reduction_copy_chunks(msi_reduction *r)
{
    void *grad;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &grad, &add));
    MS_TRY(msi_reduction_await_prepared(r, add));
    MS_TRY(msi_slot_await(r->pool, r->slot, MSI_DEP_CHUNKED, MSI_STREAM_REDUCE, MSI_SLOT_REDUCED,
                          r->slot->generation));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, take_chunks(r, grad, add));
    return MS_OK;
}

const msi_reduction_ops msi_reduce_parts = {NULL, NULL, NULL, sum_own};
const msi_reduction_ops msi_reduce_chunks = {NULL, NULL, sum_chunk, msi_reduction_copy_chunks};
