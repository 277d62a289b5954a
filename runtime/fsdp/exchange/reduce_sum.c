/* Sums of gradients, whatever moves them. */
#include "reduction_ops.h"

ms_status msi_reduction_await_gradients(const msi_reduction *r)
{
    MS_TRY(msi_stream_dep_after(r->pool->ctx, MSI_DEP_WRITTEN, MSI_STREAM_REDUCE, r->written));
    return msi_slot_await(r->pool, r->slot, MSI_DEP_READY, MSI_STREAM_REDUCE, MSI_SLOT_FILLED,
                          r->slot->generation);
}

ms_status msi_reduction_await_prepared(const msi_reduction *r, bool add)
{
    const ms_context *ctx = r->pool->ctx;

    return add ? msi_stream_dep_after(ctx, MSI_DEP_PREPARED, MSI_STREAM_REDUCE,
                                      msi_stream_dep_mark(ctx, MSI_STREAM_COMPUTE))
               : MS_OK;
}

ms_status msi_reduction_sum(const msi_reduction *r, const msi_tree_source *src, int32_t n_src,
                            int64_t n, void *out, int32_t dtype, double factor, bool add)
{
    const msi_tree_args args = {.n = n,
                                .n_src = n_src,
                                .src = src,
                                .out = out,
                                .round_dtype = r->round_dtype,
                                .factor = factor,
                                .accumulate = add,
                                .mixed =
                                    (dtype == MS_DTYPE_F64) != (r->node_dtype == MS_DTYPE_F64)};

    return n > 0 ? msi_dispatch("reduce", MSI_K_tree, dtype, &args) : MS_OK;
}

ms_status msi_reduction_node(const msi_reduction *r, const msi_tree_source *src, int32_t n_src,
                             int64_t n, void *out)
{
    const msi_tree_args args = {
        .n = n, .n_src = n_src, .src = src, .out = out, .round_dtype = r->node_dtype, .factor = 1};

    return n > 0 ? msi_dispatch("reduce", MSI_K_tree, r->node_dtype, &args) : MS_OK;
}

static ms_status sum_extents(const msi_reduction *r, msi_reduction_sources sources, void *grad,
                             double factor, bool add)
{
    msi_tree_source src[r->world];

    for (int32_t i = 0; i < r->n_own; i++) {
        const msi_extent *e = &r->own[i];
        const int32_t n_src = sources(r, e, src);

        MS_TRY(msi_reduction_sum(r, src, n_src, e->numel, msi_reduction_out(r, grad, e),
                                 r->sum_dtype, factor, add));
    }
    return MS_OK;
}

ms_status msi_reduction_sum_own(msi_reduction *r, msi_reduction_sources sources, double factor)
{
    void *grad;
    bool add;

    MS_TRY(r->user->prepare(r->unit, &grad, &add));
    MS_TRY(msi_reduction_await_gradients(r));
    MS_TRY(msi_reduction_await_prepared(r, add));
    MS_TRY_ON(r->pool->ctx, MSI_STREAM_REDUCE, sum_extents(r, sources, grad, factor, add));
    return MS_OK;
}

ms_status msi_reduction_take(const msi_reduction *r, int32_t q, int64_t first, int64_t n, void *out,
                             bool add)
{
    msi_ew_args args = {.in = {msi_reduction_element(r, q, first)},
                        .in_dtype = r->dtype,
                        .out = out,
                        .accumulate = add};

    args.loop.ndim = 1;
    args.loop.shape[0] = n;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    return n > 0 ? msi_dispatch("reduce", MSI_K_copy, r->sum_dtype, &args) : MS_OK;
}
