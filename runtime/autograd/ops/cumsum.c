/* Running sums along one dimension. The gradient is the running sum of the incoming one from the
 * end. */
#include "meta.h"
#include "operand.h"

typedef struct cumsum_attrs {
    int32_t dim;
} cumsum_attrs;

static ms_status cumsum_meta(const msi_meta *m)
{
    const int32_t dim = ((const cumsum_attrs *)m->attrs)->dim;
    const msi_view *x = m->in[0];

    if (dim < 0 || dim >= x->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "cumsum: dimension %d is outside of shape %s", (int)dim,
                       msi_shape_text(x->ndim, x->shape));
    }
    MS_TRY(msi_result(m->out, ms_dtype_is_floating(x->dtype) ? x->dtype : MS_DTYPE_I64, x->ndim,
                      x->shape));
    return msi_meta_kernel(m, MSI_K_cumsum, x->dtype);
}

/* `out` (+)= running sums of `in`, of one shape; `backwards`: from the last element. */
static ms_status sum_along(const msi_view *out, const msi_view *in, int32_t dim, bool backwards,
                           bool accumulate)
{
    const int64_t n = in->shape[dim];
    const msi_view *const views[2] = {out, in};
    msi_view ends[2] = {*out, *in};
    msi_sum_args args = {.out_dtype = out->dtype, .scale = 1, .accumulate = accumulate};

    if (msi_view_numel(in) == 0) {
        return MS_OK;
    }
    args.reduced = (msi_loop){.ndim = 1, .shape = {n}};
    for (int32_t k = 0; k < 2; k++) {
        const int64_t step = views[k]->stride[dim];

        ends[k].offset += backwards ? (n - 1) * step : 0;
        args.reduced.stride[k][0] = backwards ? -step : step;
    }
    for (int32_t d = 0; d < in->ndim; d++) {
        if (d != dim) {
            args.kept.shape[args.kept.ndim] = in->shape[d];
            args.kept.stride[0][args.kept.ndim] = out->stride[d];
            args.kept.stride[1][args.kept.ndim++] = in->stride[d];
        }
    }
    args.out = msi_view_ptr(&ends[0]);
    args.in = msi_view_ptr(&ends[1]);
    return msi_dispatch("cumsum", MSI_K_cumsum, in->dtype, &args);
}

static ms_status cumsum_forward(msi_op_call *c)
{
    const cumsum_attrs *attrs = c->attrs;
    void *data;

    MS_TRY(msi_view_data(&c->in[0]->v, &data)); /* error if absent */
    return sum_along(&c->out[0]->v, &c->in[0]->v, attrs->dim, false, false);
}

static ms_status cumsum_backward(msi_bwd *b)
{
    const cumsum_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0);
    msi_target t;

    MS_TRY(msi_target_open(&t, b, 0, g->dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    MS_TRY(sum_along(&t.view, g, attrs->dim, true, t.add));
    return msi_target_close(&t);
}

const msi_op msi_op_cumsum = {.name = "cumsum",
                              .meta = cumsum_meta,
                              .forward = cumsum_forward,
                              .backward = cumsum_backward,
                              .attrs_size = sizeof(cumsum_attrs)};

ms_status ms_op_cumsum(ms_tensor **out, ms_tensor *x, int32_t dim)
{
    const cumsum_attrs attrs = {dim};

    *out = NULL;
    return msi_op_run(&msi_op_cumsum, &attrs, &x, 1, out, 1);
}
