/* Collectives as operators, and their gradients, which are collectives too. The engine walks a
 * graph in reverse program order, so ranks of one program call them in the same order. */
#include "autograd.h"
#include "collective.h"
#include "ops/operand.h"

#include <string.h>

/* -- checks ------------------------------------------------------------------------------------ */

static ms_status check_reduction(const char *op, int32_t dtype, int32_t reduce)
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

bool msi_collective_is_root(const msi_collective *attrs)
{
    return ms_comm_rank(attrs->comm) == attrs->root;
}

ms_status msi_check_collective(const msi_collective *attrs, int32_t dtype)
{
    const msi_collective_row *row = attrs->row;
    const int32_t size = ms_comm_size(attrs->comm);

    if (row->root != MSI_ROOT_NONE && (attrs->root < 0 || attrs->root >= size)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: root is %d, expected 0 to %d", row->op.name,
                       (int)attrs->root, (int)size - 1);
    }
    return row->reduces ? check_reduction(row->op.name, dtype, attrs->reduce) : MS_OK;
}

/* -- forward ----------------------------------------------------------------------------------- */

static ms_status first_size(const msi_collective *attrs, const msi_view *x, int64_t *first)
{
    const int64_t size = ms_comm_size(attrs->comm);
    const msi_all_to_all *rows = (const msi_all_to_all *)attrs;

    *first = x->ndim > 0 ? x->shape[0] : 1;
    if (attrs->row->shape == MSI_SHAPE_WHOLE) {
        if (*first > MSI_MAX_NUMEL / size) {
            return MS_FAIL(MS_VALUE_ERROR, "%s: %lld entries of each of %d ranks are too many",
                           attrs->row->op.name, (long long)*first, (int)size);
        }
        *first *= size;
    } else if (attrs->row->shape == MSI_SHAPE_PART) {
        if (x->ndim == 0 || *first % size != 0) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "%s: x has shape %s, expected a first size that %d divides",
                           attrs->row->op.name, msi_shape_text(x->ndim, x->shape), (int)size);
        }
        *first /= size;
    } else if (attrs->row->shape == MSI_SHAPE_ROWS && rows->unequal) {
        *first = 0;
        for (int32_t q = 0; q < size; q++) {
            *first += rows->out[q];
        }
    }
    return MS_OK;
}

ms_status msi_collective_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS] = {1};

    MS_TRY(msi_check_collective(attrs, x->dtype));
    if (attrs->row->shape == MSI_SHAPE_SAME) {
        return msi_result(m->out, x->dtype, x->ndim, x->shape);
    }
    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = x->shape[d];
    }
    MS_TRY(first_size(attrs, x, &shape[0]));
    return msi_result(m->out, x->dtype, x->ndim > 0 ? x->ndim : 1, shape);
}

static ms_status run_in_place(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    const msi_view *out = &c->out[0]->v;

    if (c->in[0] != c->out[0] && (attrs->row->root != MSI_ROOT_GIVES ||
                                  msi_collective_is_root(attrs) || ms_comm_is_fake(attrs->comm))) {
        MS_TRY(msi_copy(out, &c->in[0]->v, false));
    }
    return attrs->row->run(attrs, out, out);
}

/* A rank other than the root that gets may give its operand as the result: it is not written. */
ms_status msi_collective_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    const msi_view *out = &c->out[0]->v;
    msi_view packed = {0};
    ms_status status;

    if (attrs->row->in_place) {
        status = run_in_place(c);
    } else {
        MS_TRY(msi_contiguous(&packed, c->ctx, &c->in[0]->v));
        status = attrs->row->run(attrs, out, &packed);
        msi_storage_release(packed.storage);
    }
    if (status == MS_OK && attrs->row->root == MSI_ROOT_GETS && !msi_collective_is_root(attrs) &&
        c->in[0] != c->out[0]) {
        status = msi_fill(out, 0);
    }
    return status;
}

msi_collective msi_collective_of(const msi_collective_row *row, ms_comm *comm, int32_t root,
                                 int32_t reduce)
{
    return (msi_collective){.row = row,
                            .comm = comm,
                            .serial = ms_comm_serial(comm),
                            .sequence = msi_comm_next(comm),
                            .reduce = reduce,
                            .root = root};
}

static ms_status nothing(void *user)
{
    (void)user;
    return MS_OK;
}

ms_status msi_collective_run(const msi_collective *attrs, ms_tensor *x, ms_tensor **out)
{
    const msi_collective_row *row = attrs->row;
    const bool extreme =
        row->reduces && (attrs->reduce == MS_REDUCE_MAX || attrs->reduce == MS_REDUCE_MIN);

    msi_op_host(x->ctx, "a collective runs");
    MS_TRY(msi_op_run(extreme ? &row->extreme : &row->op, attrs, &x, 1, out, 1));
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

/* -- backward ---------------------------------------------------------------------------------- */

/* Run the collective of a gradient, observed as others. A graph may outlive its group. */
static ms_status run_in_backward(msi_bwd *b, msi_collective *attrs, const msi_view *in,
                                 const msi_view *out)
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
        status = msi_op_run_into(ctx, &attrs->row->op, attrs, &from, 1, &to, 1);
    }
    ms_tensor_free(to);
    ms_tensor_free(from);
    return status;
}

/* The dual of an average is an average if it reduces, else what the dual moved is divided by W. */
ms_status msi_collective_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    const msi_collective_row *row = attrs->row, *dual = row->dual;
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_all_to_all how = {.base = {.row = dual, .root = attrs->root, .reduce = MS_REDUCE_SUM}};
    msi_view moved;

    if (row->reduces && dual->reduces) {
        how.base.reduce = attrs->reduce;
    }
    if (row->shape == MSI_SHAPE_ROWS) { /* every part back to where it came from */
        const msi_all_to_all *rows = msi_bwd_attrs(b);

        how.unequal = rows->unequal;
        memcpy(how.in, rows->out, sizeof(how.in));
        memcpy(how.out, rows->in, sizeof(how.out));
    }
    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &moved));
    MS_TRY(run_in_backward(b, &how.base, g, &moved));
    if (row->root == MSI_ROOT_GIVES && dual->root == MSI_ROOT_NONE &&
        !msi_collective_is_root(attrs)) {
        MS_TRY(msi_fill(&moved, 0));
    }
    if (row->reduces && !dual->reduces && attrs->reduce == MS_REDUCE_AVG) {
        return msi_bwd_reduce_pass(b, 0, &moved, 1.0 / ms_comm_size(attrs->comm));
    }
    return msi_bwd_pass(b, 0, &moved);
}
