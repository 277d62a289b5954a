/* Collectives as operators, and their gradients, which are collectives too. The engine walks a
 * graph in reverse program order, so ranks of one program call them in the same order. */
#include "collective.h"

#include "gradients.h"
#include "ops/operand.h"

/* -- checks ------------------------------------------------------------------------------------ */

ms_status msi_check_reduction(const char *op, int32_t dtype, int32_t reduce)
{
    if (reduce < MS_REDUCE_SUM || reduce > MS_REDUCE_MIN) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: reduction is %d, expected 0 to %d", op, (int)reduce,
                       MS_REDUCE_MIN);
    }
    const bool whole = dtype == MS_DTYPE_I64 || dtype == MS_DTYPE_I32;

    if (whole && reduce == MS_REDUCE_AVG) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: an average of %s is no %s; use sum", op,
                       ms_dtype_name(dtype), ms_dtype_name(dtype));
    }
    if (!whole && !ms_dtype_is_floating(dtype)) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR, "%s: no reduction of %s", op,
                       ms_dtype_name(dtype));
    }
    return MS_OK;
}

ms_status msi_check_root(const ms_comm *comm, const char *op, int32_t root)
{
    return root >= 0 && root < ms_comm_size(comm)
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: root is %d, expected 0 to %d", op, (int)root,
                         (int)ms_comm_size(comm) - 1);
}

static bool is_extreme(int32_t reduce)
{
    return reduce == MS_REDUCE_MAX || reduce == MS_REDUCE_MIN;
}

/* Copy the operand to the result, if they differ. */
static ms_status take_operand(const msi_op_call *c)
{
    return c->in[0] == c->out[0] ? MS_OK : msi_copy(&c->out[0]->v, &c->in[0]->v, false);
}

msi_collective msi_collective_of(ms_comm *comm, int32_t how)
{
    return (msi_collective){.comm = comm,
                            .serial = ms_comm_serial(comm),
                            .sequence = msi_comm_next(comm),
                            .reduce = how};
}

static ms_status nothing(void *user)
{
    (void)user;
    return MS_OK;
}

ms_status msi_collective_run(const msi_op *op, const msi_collective *attrs, ms_tensor *x,
                             ms_tensor **out)
{
    MS_TRY(msi_op_run(op, attrs, &x, 1, out, 1));
    if ((*out)->grad_fn == NULL) {
        return MS_OK;
    }
    void *use = msi_comm_use_in_graph(attrs->comm);
    const msi_pre_hook hook = {nothing, use, msi_comm_end_use, NULL};
    ms_status status = use != NULL ? msi_autograd_pre_hook(*out, hook)
                                   : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to record a collective");

    if (status != MS_OK) {
        if (use != NULL) {
            msi_comm_end_use(use);
        }
        ms_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

/* A graph may outlive its group. */
ms_status msi_run_in_backward(msi_bwd *b, const msi_op *op, msi_collective *attrs,
                              const msi_view *in, const msi_view *out)
{
    const msi_collective *forward = msi_bwd_attrs(b);
    ms_context *ctx = msi_bwd_context(b);
    ms_tensor *from, *to = NULL;

    attrs->comm = forward->comm;
    attrs->forward = forward->sequence;
    if (ms_comm_serial(attrs->comm) != forward->serial) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: its group was freed; keep it until backward has run",
                       msi_bwd_name(b));
    }
    MS_TRY(msi_tensor_new_internal(&from, ctx, in));
    ms_status status = msi_tensor_new_internal(&to, ctx, out);

    if (status == MS_OK) {
        status = msi_op_run_into(ctx, op, attrs, &from, 1, &to, 1);
    }
    ms_tensor_free(to);
    ms_tensor_free(from);
    return status;
}

static ms_status run_in_backward(msi_bwd *b, const msi_op *op, int32_t reduce, const msi_view *in,
                                 const msi_view *out)
{
    msi_collective attrs = {.reduce = reduce};

    return msi_run_in_backward(b, op, &attrs, in, out);
}

/* -- all_reduce -------------------------------------------------------------------------------- */

static ms_status all_reduce_meta(const msi_meta *m)
{
    const msi_view *x = m->in[0];

    MS_TRY(msi_check_reduction("all_reduce", x->dtype, ((const msi_collective *)m->attrs)->reduce));
    return msi_result(m->out, x->dtype, x->ndim, x->shape);
}

static ms_status all_reduce_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;

    MS_TRY(take_operand(c));
    return msi_comm_all_reduce(attrs->comm, &c->out[0]->v, attrs->reduce, attrs->forward);
}

/* The reduction of the incoming gradients. */
static ms_status reduce_gradient(msi_bwd *b, int32_t reduce, msi_view *out)
{
    const msi_view *g = msi_bwd_grad(b, 0);

    MS_TRY(msi_bwd_temp(b, g->dtype, g->ndim, g->shape, out));
    return run_in_backward(b, &msi_op_all_reduce, reduce, g, out);
}

static ms_status all_reduce_backward(msi_bwd *b)
{
    msi_view reduced;

    MS_TRY(reduce_gradient(b, ((const msi_collective *)msi_bwd_attrs(b))->reduce, &reduced));
    return msi_bwd_pass(b, 0, &reduced);
}

const msi_op msi_op_all_reduce = {.name = "all_reduce",
                                  .meta = all_reduce_meta,
                                  .forward = all_reduce_forward,
                                  .backward = all_reduce_backward,
                                  .attrs_size = sizeof(msi_collective)};
const msi_op msi_op_all_reduce_extreme = {
    .name = "all_reduce", .meta = all_reduce_meta, .forward = all_reduce_forward};

ms_status ms_op_all_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce)
{
    const msi_collective attrs = msi_collective_of(comm, reduce);
    const msi_op *op = is_extreme(reduce) ? &msi_op_all_reduce_extreme : &msi_op_all_reduce;

    return msi_collective_run(op, &attrs, x, out);
}

/* -- all_gather -------------------------------------------------------------------------------- */

static ms_status all_gather_meta(const msi_meta *m)
{
    const int64_t size = ms_comm_size(((const msi_collective *)m->attrs)->comm);
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS] = {1};

    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = x->shape[d];
    }
    if (shape[0] > MSI_MAX_NUMEL / size) {
        return MS_FAIL(MS_VALUE_ERROR, "all_gather: %lld entries of each of %d ranks are too many",
                       (long long)shape[0], (int)size);
    }
    shape[0] *= size;
    return msi_result(m->out, x->dtype, x->ndim > 0 ? x->ndim : 1, shape);
}

static ms_status all_gather_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v, *out = &c->out[0]->v;
    msi_view part = *x;

    if (!msi_view_contiguous(x)) { /* copied to its part of the result */
        msi_view_set_contiguous(&part, x->dtype, x->ndim, x->shape);
        part.storage = out->storage;
        part.offset = out->offset + ms_comm_rank(attrs->comm) * msi_view_numel(x);
        MS_TRY(msi_copy(&part, x, false));
    }
    return msi_comm_all_gather(attrs->comm, out, &part, attrs->forward);
}

static ms_status all_gather_backward(msi_bwd *b)
{
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_view part;

    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &part));
    MS_TRY(run_in_backward(b, &msi_op_reduce_scatter, MS_REDUCE_SUM, g, &part));
    return msi_bwd_pass(b, 0, &part);
}

const msi_op msi_op_all_gather = {.name = "all_gather",
                                  .meta = all_gather_meta,
                                  .forward = all_gather_forward,
                                  .backward = all_gather_backward,
                                  .attrs_size = sizeof(msi_collective)};

ms_status ms_op_all_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x)
{
    const msi_collective attrs = msi_collective_of(comm, 0);

    return msi_collective_run(&msi_op_all_gather, &attrs, x, out);
}

/* -- reduce_scatter ---------------------------------------------------------------------------- */

static ms_status reduce_scatter_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const int64_t size = ms_comm_size(attrs->comm);
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS];

    MS_TRY(msi_check_reduction("reduce_scatter", x->dtype, attrs->reduce));
    if (x->ndim == 0 || x->shape[0] % size != 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "reduce_scatter: x has shape %s, expected a first size that %d divides",
                       msi_shape_text(x->ndim, x->shape), (int)size);
    }
    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = x->shape[d];
    }
    shape[0] /= size;
    return msi_result(m->out, x->dtype, x->ndim, shape);
}

static ms_status reduce_scatter_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    msi_view whole;

    MS_TRY(msi_contiguous(&whole, c->ctx, &c->in[0]->v));
    ms_status status =
        msi_comm_reduce_scatter(attrs->comm, &c->out[0]->v, &whole, attrs->reduce, attrs->forward);

    msi_storage_release(whole.storage);
    return status;
}

static ms_status reduce_scatter_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_view whole;

    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &whole));
    MS_TRY(run_in_backward(b, &msi_op_all_gather, 0, g, &whole));
    return msi_bwd_reduce_pass(
        b, 0, &whole, attrs->reduce == MS_REDUCE_AVG ? 1.0 / ms_comm_size(attrs->comm) : 1);
}

const msi_op msi_op_reduce_scatter = {.name = "reduce_scatter",
                                      .meta = reduce_scatter_meta,
                                      .forward = reduce_scatter_forward,
                                      .backward = reduce_scatter_backward,
                                      .attrs_size = sizeof(msi_collective)};
const msi_op msi_op_reduce_scatter_extreme = {
    .name = "reduce_scatter", .meta = reduce_scatter_meta, .forward = reduce_scatter_forward};

ms_status ms_op_reduce_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce)
{
    const msi_collective attrs = msi_collective_of(comm, reduce);
    const msi_op *op = is_extreme(reduce) ? &msi_op_reduce_scatter_extreme : &msi_op_reduce_scatter;

    return msi_collective_run(op, &attrs, x, out);
}

/* -- broadcast --------------------------------------------------------------------------------- */

static ms_status broadcast_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const msi_view *x = m->in[0];

    MS_TRY(msi_check_root(attrs->comm, "broadcast", attrs->root));
    return msi_result(m->out, x->dtype, x->ndim, x->shape);
}

static ms_status broadcast_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;

    if (ms_comm_rank(attrs->comm) == attrs->root || ms_comm_is_fake(attrs->comm)) {
        MS_TRY(take_operand(c));
    }
    return msi_comm_broadcast(attrs->comm, &c->out[0]->v, attrs->root);
}

static ms_status broadcast_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    msi_view sum;

    MS_TRY(reduce_gradient(b, MS_REDUCE_SUM, &sum));
    if (ms_comm_rank(attrs->comm) != attrs->root) {
        MS_TRY(msi_fill(&sum, 0));
    }
    return msi_bwd_pass(b, 0, &sum);
}

const msi_op msi_op_broadcast = {.name = "broadcast",
                                 .meta = broadcast_meta,
                                 .forward = broadcast_forward,
                                 .backward = broadcast_backward,
                                 .attrs_size = sizeof(msi_collective)};

ms_status ms_op_broadcast(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    const msi_collective attrs = msi_collective_of(comm, root);

    return msi_collective_run(&msi_op_broadcast, &attrs, x, out);
}
