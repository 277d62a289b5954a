/* Positions in sorted order. Gathering at them gives the sorted elements, and their gradient. */
#include "meta.h"
#include "operand.h"

typedef struct argsort_attrs {
    int32_t dim;
    bool descending;
    int64_t take;
} argsort_attrs;

static ms_status argsort_meta(const msi_meta *m)
{
    const argsort_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS];

    if (attrs->dim < 0 || attrs->dim >= x->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "argsort: dimension %d is outside of shape %s",
                       (int)attrs->dim, msi_shape_text(x->ndim, x->shape));
    }
    if (attrs->take < -1 || attrs->take > x->shape[attrs->dim]) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "argsort: %lld elements of a dimension of size %lld, "
                       "expected at most its size",
                       (long long)attrs->take, (long long)x->shape[attrs->dim]);
    }
    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = d == attrs->dim && attrs->take >= 0 ? attrs->take : x->shape[d];
    }
    MS_TRY(msi_result(m->out, MS_DTYPE_I64, x->ndim, shape));
    return msi_meta_kernel(m, MSI_K_argsort, x->dtype);
}

static ms_status argsort_forward(msi_op_call *c)
{
    const argsort_attrs *attrs = c->attrs;
    const int32_t dim = attrs->dim;
    const msi_view *x = &c->in[0]->v, *out = &c->out[0]->v;
    msi_view lines[2] = {*out, *x}, work;
    const msi_view *const each[2] = {&lines[0], &lines[1]};
    msi_argsort_args args = {.n = x->shape[dim],
                             .take = out->shape[dim],
                             .in_step = x->stride[dim],
                             .out_step = out->stride[dim],
                             .descending = attrs->descending};
    const int64_t bytes = 32 * args.n;
    void *in, *data;

    MS_TRY(msi_view_data(x, &in)); /* error if absent */
    if (msi_view_numel(out) == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_data(out, &data));
    MS_TRY(msi_internal(&work, c->ctx, MS_DTYPE_U8, 1, &bytes));
    lines[1].shape[dim] = 1;
    msi_loop_make(&args.lines, x->ndim, lines[1].shape, each, 2);
    args.in = in;
    args.out = data;
    args.work = msi_view_ptr(&work);
    const ms_status status = msi_dispatch("argsort", MSI_K_argsort, x->dtype, &args);

    msi_storage_release(work.storage);
    return status;
}

const msi_op msi_op_argsort = {.name = "argsort",
                               .meta = argsort_meta,
                               .forward = argsort_forward,
                               .attrs_size = sizeof(argsort_attrs)};

ms_status ms_op_argsort(ms_tensor **out, ms_tensor *x, int32_t dim, bool descending, int64_t take)
{
    const argsort_attrs attrs = {dim, descending, take};

    *out = NULL;
    return msi_op_run(&msi_op_argsort, &attrs, &x, 1, out, 1);
}
