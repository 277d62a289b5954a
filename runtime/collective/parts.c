/* Collectives with a root, or with a part for each rank: scatter, gather, reduce, all_to_all. The
 * gradient of each is another one of them, or a broadcast. */
#include "collective.h"

#include "autograd.h"
#include "gradients.h"
#include "ops/operand.h"

#include <string.h>

/* Shape of x with another first size. */
static ms_status resized(const msi_meta *m, int64_t first)
{
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS] = {1};

    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = x->shape[d];
    }
    shape[0] = first;
    return msi_result(m->out, x->dtype, x->ndim > 0 ? x->ndim : 1, shape);
}

static bool is_root(const msi_collective *attrs)
{
    return ms_comm_rank(attrs->comm) == attrs->root;
}

/* -- scatter ----------------------------------------------------------------------------------- */

static ms_status scatter_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const int64_t size = ms_comm_size(attrs->comm);
    const msi_view *x = m->in[0];

    MS_TRY(msi_check_root(attrs->comm, "scatter", attrs->root));
    if (x->ndim == 0 || x->shape[0] % size != 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "scatter: x has shape %s, expected a first size that %d divides",
                       msi_shape_text(x->ndim, x->shape), (int)size);
    }
    return resized(m, x->shape[0] / size);
}

static ms_status scatter_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    msi_view whole;

    MS_TRY(msi_contiguous(&whole, c->ctx, &c->in[0]->v));
    ms_status status =
        msi_comm_scatter(attrs->comm, &c->out[0]->v, &whole, attrs->root, attrs->forward);

    msi_storage_release(whole.storage);
    return status;
}

static ms_status scatter_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_collective how = {.root = attrs->root};
    msi_view whole;

    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &whole));
    MS_TRY(msi_run_in_backward(b, &msi_op_dist_gather, &how, g, &whole));
    return msi_bwd_pass(b, 0, &whole);
}

const msi_op msi_op_dist_scatter = {.name = "scatter",
                                    .meta = scatter_meta,
                                    .forward = scatter_forward,
                                    .backward = scatter_backward,
                                    .attrs_size = sizeof(msi_collective)};

ms_status ms_op_dist_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    const msi_collective attrs = msi_collective_of(comm, root);

    return msi_collective_run(&msi_op_dist_scatter, &attrs, x, out);
}

/* -- gather ------------------------------------------------------------------------------------ */

static ms_status gather_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const int64_t size = ms_comm_size(attrs->comm);
    const msi_view *x = m->in[0];
    const int64_t first = x->ndim > 0 ? x->shape[0] : 1;

    MS_TRY(msi_check_root(attrs->comm, "gather", attrs->root));
    if (first > MSI_MAX_NUMEL / size) {
        return MS_FAIL(MS_VALUE_ERROR, "gather: %lld entries of each of %d ranks are too many",
                       (long long)first, (int)size);
    }
    return resized(m, first * size);
}

/* A rank other than the root may give its operand as the result: then it is not written. */
static ms_status gather_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;
    const bool writes = c->out[0] != c->in[0];
    msi_view part;

    MS_TRY(msi_contiguous(&part, c->ctx, &c->in[0]->v));
    ms_status status = writes && !is_root(attrs) ? msi_fill(&c->out[0]->v, 0) : MS_OK;

    if (status == MS_OK) {
        status = msi_comm_gather(attrs->comm, is_root(attrs) ? &c->out[0]->v : &part, &part,
                                 attrs->root, attrs->forward);
    }
    msi_storage_release(part.storage);
    return status;
}

static ms_status gather_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_collective how = {.root = attrs->root};
    msi_view part;

    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &part));
    MS_TRY(msi_run_in_backward(b, &msi_op_dist_scatter, &how, g, &part));
    return msi_bwd_pass(b, 0, &part);
}

const msi_op msi_op_dist_gather = {.name = "gather",
                                   .meta = gather_meta,
                                   .forward = gather_forward,
                                   .backward = gather_backward,
                                   .attrs_size = sizeof(msi_collective)};

ms_status ms_op_dist_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    const msi_collective attrs = msi_collective_of(comm, root);

    return msi_collective_run(&msi_op_dist_gather, &attrs, x, out);
}

/* -- reduce ------------------------------------------------------------------------------------ */

static ms_status reduce_meta(const msi_meta *m)
{
    const msi_collective *attrs = m->attrs;
    const msi_view *x = m->in[0];

    MS_TRY(msi_check_root(attrs->comm, "reduce", attrs->to));
    MS_TRY(msi_check_reduction("reduce", x->dtype, attrs->reduce));
    return msi_result(m->out, x->dtype, x->ndim, x->shape);
}

/* A rank other than the root may give its operand as the result: then it is not written. */
static ms_status reduce_forward(msi_op_call *c)
{
    const msi_collective *attrs = c->attrs;

    if (c->in[0] != c->out[0]) {
        MS_TRY(msi_copy(&c->out[0]->v, &c->in[0]->v, false));
    }
    MS_TRY(msi_comm_reduce(attrs->comm, &c->out[0]->v, attrs->to, attrs->reduce, attrs->forward));
    return c->in[0] != c->out[0] && ms_comm_rank(attrs->comm) != attrs->to
               ? msi_fill(&c->out[0]->v, 0)
               : MS_OK;
}

/* The gradient of the root on every rank. */
static ms_status reduce_backward(msi_bwd *b)
{
    const msi_collective *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0);
    msi_collective how = {.root = attrs->to};
    msi_view of_root;

    MS_TRY(msi_bwd_temp(b, g->dtype, g->ndim, g->shape, &of_root));
    MS_TRY(msi_run_in_backward(b, &msi_op_broadcast, &how, g, &of_root));
    return msi_bwd_reduce_pass(
        b, 0, &of_root, attrs->reduce == MS_REDUCE_AVG ? 1.0 / ms_comm_size(attrs->comm) : 1);
}

const msi_op msi_op_dist_reduce = {.name = "reduce",
                                   .meta = reduce_meta,
                                   .forward = reduce_forward,
                                   .backward = reduce_backward,
                                   .attrs_size = sizeof(msi_collective)};
const msi_op msi_op_dist_reduce_extreme = {
    .name = "reduce", .meta = reduce_meta, .forward = reduce_forward};

ms_status ms_op_dist_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root,
                            int32_t reduce)
{
    msi_collective attrs = msi_collective_of(comm, reduce);
    const bool extreme = reduce == MS_REDUCE_MAX || reduce == MS_REDUCE_MIN;

    attrs.to = root;
    return msi_collective_run(extreme ? &msi_op_dist_reduce_extreme : &msi_op_dist_reduce, &attrs,
                              x, out);
}

/* -- all_to_all -------------------------------------------------------------------------------- */

static ms_status check_sum(const char *name, const int64_t *rows, int32_t size, int64_t n)
{
    int64_t sum = 0;

    for (int32_t q = 0; q < size; q++) {
        if (rows[q] < 0 || rows[q] > MSI_MAX_NUMEL - sum) {
            return MS_FAIL(MS_VALUE_ERROR, "all_to_all: %s[%d] is %lld, expected 0 or more", name,
                           (int)q, (long long)rows[q]);
        }
        sum += rows[q];
    }
    return n < 0 || sum == n
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "all_to_all: %s sum to %lld, expected the first size %lld",
                         name, (long long)sum, (long long)n);
}

ms_status msi_check_rows(msi_all_to_all *attrs, int64_t n_out, int64_t n_in,
                         const int64_t *out_rows, const int64_t *in_rows)
{
    const int32_t size = ms_comm_size(attrs->base.comm);

    attrs->unequal = in_rows != NULL || out_rows != NULL;
    if (!attrs->unequal && (n_in % size != 0 || (n_out >= 0 && n_out != n_in))) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "all_to_all: first sizes are %lld in and %lld out, expected equal ones that "
                       "%d divides",
                       (long long)n_in, (long long)(n_out < 0 ? n_in : n_out), (int)size);
    }
    if (!attrs->unequal) {
        return MS_OK;
    }
    if (size > MS_MAX_RANKS || in_rows == NULL || out_rows == NULL) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "all_to_all: unequal parts need the rows of both sides, of "
                       "at most %d ranks",
                       MS_MAX_RANKS);
    }
    MS_TRY(check_sum("input_split_sizes", in_rows, size, n_in));
    MS_TRY(check_sum("output_split_sizes", out_rows, size, n_out));
    memcpy(attrs->in, in_rows, sizeof(*in_rows) * (size_t)size);
    memcpy(attrs->out, out_rows, sizeof(*out_rows) * (size_t)size);
    return MS_OK;
}

static ms_status all_to_all_meta(const msi_meta *m)
{
    const msi_all_to_all *attrs = m->attrs;
    int64_t first = 0;

    for (int32_t q = 0; attrs->unequal && q < ms_comm_size(attrs->base.comm); q++) {
        first += attrs->out[q];
    }
    return resized(m, attrs->unequal ? first : m->in[0]->shape[0]);
}

static ms_status all_to_all_forward(msi_op_call *c)
{
    const msi_all_to_all *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    int64_t row = 1;
    msi_view packed;

    for (int32_t d = 1; d < x->ndim; d++) {
        row *= x->shape[d];
    }
    MS_TRY(msi_contiguous(&packed, c->ctx, x));
    ms_status status = msi_comm_all_to_all(
        attrs->base.comm, &c->out[0]->v, &packed, attrs->unequal ? attrs->out : NULL,
        attrs->unequal ? attrs->in : NULL, row, attrs->base.forward);

    msi_storage_release(packed.storage);
    return status;
}

/* Every part back to where it came from. */
static ms_status all_to_all_backward(msi_bwd *b)
{
    const msi_all_to_all *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *x = msi_bwd_operand(b, 0);
    msi_all_to_all back = {.unequal = attrs->unequal};
    msi_view parts;

    memcpy(back.in, attrs->out, sizeof(back.in));
    memcpy(back.out, attrs->in, sizeof(back.out));
    MS_TRY(msi_bwd_temp(b, g->dtype, x->ndim, x->shape, &parts));
    MS_TRY(msi_run_in_backward(b, &msi_op_all_to_all, &back.base, g, &parts));
    return msi_bwd_pass(b, 0, &parts);
}

const msi_op msi_op_all_to_all = {.name = "all_to_all",
                                  .meta = all_to_all_meta,
                                  .forward = all_to_all_forward,
                                  .backward = all_to_all_backward,
                                  .attrs_size = sizeof(msi_all_to_all)};

ms_status ms_op_all_to_all(ms_tensor **out, ms_comm *comm, ms_tensor *x, const int64_t *out_rows,
                           const int64_t *in_rows)
{
    msi_all_to_all attrs = {.base = msi_collective_of(comm, 0)};

    if (x->v.ndim == 0) {
        return MS_FAIL(MS_VALUE_ERROR, "all_to_all: x has shape (), expected a first size");
    }
    MS_TRY(msi_check_rows(&attrs, -1, x->v.shape[0], out_rows, in_rows));
    return msi_collective_run(&msi_op_all_to_all, &attrs.base, x, out);
}
