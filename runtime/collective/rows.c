/* The collectives, a row each, and their public functions. */
#include "collective.h"

#include <string.h>

/* -- verbs ------------------------------------------------------------------------------------- */

static ms_status all_reduce(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    (void)in;
    return msi_comm_all_reduce(a->comm, out, a->reduce, a->forward);
}

static ms_status all_gather(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    return msi_comm_all_gather(a->comm, out, in, a->forward);
}

static ms_status reduce_scatter(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    return msi_comm_reduce_scatter(a->comm, out, in, a->reduce, a->forward);
}

static ms_status broadcast(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    (void)in;
    return msi_comm_broadcast(a->comm, out, a->root);
}

static ms_status scatter(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    return msi_comm_scatter(a->comm, out, in, a->root, a->forward);
}

static ms_status gather(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    return msi_comm_gather(a->comm, msi_collective_is_root(a) ? out : in, in, a->root, a->forward);
}

static ms_status reduce(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    (void)in;
    return msi_comm_reduce(a->comm, out, a->root, a->reduce, a->forward);
}

static ms_status all_to_all(const msi_collective *a, const msi_view *out, const msi_view *in)
{
    const msi_all_to_all *rows = (const msi_all_to_all *)a;
    int64_t row = 1;

    for (int32_t d = 1; d < in->ndim; d++) {
        row *= in->shape[d];
    }
    return msi_comm_all_to_all(a->comm, out, in, rows->unequal ? rows->out : NULL,
                               rows->unequal ? rows->in : NULL, row, a->forward);
}

/* -- rows -------------------------------------------------------------------------------------- */

#define ROW(name) (&msi_collectives[name])
#define OPERATOR(text, attrs)                                                                      \
    {                                                                                              \
        .name = text, .meta = msi_collective_meta, .forward = msi_collective_forward,              \
        .backward = msi_collective_backward, .attrs_size = sizeof(attrs)                           \
    }
#define REDUCES(text)                                                                              \
    .reduces = true,                                                                               \
    .extreme = {.name = text, .meta = msi_collective_meta, .forward = msi_collective_forward}

const msi_collective_row msi_collectives[] = {
    [MSI_ALL_REDUCE] = {.op = OPERATOR("all_reduce", msi_collective),
                        REDUCES("all_reduce"),
                        .in_place = true,
                        .dual = ROW(MSI_ALL_REDUCE),
                        .run = all_reduce},
    [MSI_ALL_GATHER] = {.op = OPERATOR("all_gather", msi_collective),
                        .shape = MSI_SHAPE_WHOLE,
                        .dual = ROW(MSI_REDUCE_SCATTER),
                        .run = all_gather},
    [MSI_REDUCE_SCATTER] = {.op = OPERATOR("reduce_scatter", msi_collective),
                            REDUCES("reduce_scatter"),
                            .shape = MSI_SHAPE_PART,
                            .dual = ROW(MSI_ALL_GATHER),
                            .run = reduce_scatter},
    [MSI_BROADCAST] = {.op = OPERATOR("broadcast", msi_collective),
                       .root = MSI_ROOT_GIVES,
                       .in_place = true,
                       .dual = ROW(MSI_ALL_REDUCE),
                       .run = broadcast},
    [MSI_SCATTER] = {.op = OPERATOR("scatter", msi_collective),
                     .shape = MSI_SHAPE_PART,
                     .root = MSI_ROOT_GIVES,
                     .dual = ROW(MSI_GATHER),
                     .run = scatter},
    [MSI_GATHER] = {.op = OPERATOR("gather", msi_collective),
                    .shape = MSI_SHAPE_WHOLE,
                    .root = MSI_ROOT_GETS,
                    .dual = ROW(MSI_SCATTER),
                    .run = gather},
    [MSI_REDUCE] = {.op = OPERATOR("reduce", msi_collective),
                    REDUCES("reduce"),
                    .root = MSI_ROOT_GETS,
                    .in_place = true,
                    .dual = ROW(MSI_BROADCAST),
                    .run = reduce},
    [MSI_ALL_TO_ALL] = {.op = OPERATOR("all_to_all", msi_all_to_all),
                        .shape = MSI_SHAPE_ROWS,
                        .dual = ROW(MSI_ALL_TO_ALL),
                        .run = all_to_all},
    [MSI_PERMUTE] = {.op = OPERATOR("permute_tensor", msi_all_to_all),
                     .shape = MSI_SHAPE_ROWS,
                     .dual = ROW(MSI_PERMUTE),
                     .run = all_to_all},
};

/* -- public functions -------------------------------------------------------------------------- */

static ms_status run(ms_tensor **out, int32_t row, ms_comm *comm, ms_tensor *x, int32_t root,
                     int32_t how)
{
    const msi_collective attrs = msi_collective_of(ROW(row), comm, root, how);

    return msi_collective_run(&attrs, x, out);
}

static ms_status run_into(int32_t row, ms_comm *comm, ms_tensor *out, ms_tensor *in, int32_t root,
                          int32_t how)
{
    const msi_collective attrs = {.row = ROW(row), .comm = comm, .root = root, .reduce = how};

    return msi_collective_into(&attrs, out, in);
}

ms_status ms_op_all_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t how)
{
    return run(out, MSI_ALL_REDUCE, comm, x, 0, how);
}

ms_status ms_comm_all_reduce(ms_comm *comm, ms_tensor *t, int32_t how)
{
    return run_into(MSI_ALL_REDUCE, comm, t, t, 0, how);
}

ms_status ms_op_all_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x)
{
    return run(out, MSI_ALL_GATHER, comm, x, 0, MS_REDUCE_SUM);
}

ms_status ms_comm_all_gather(ms_comm *comm, ms_tensor *out, ms_tensor *in)
{
    return run_into(MSI_ALL_GATHER, comm, out, in, 0, MS_REDUCE_SUM);
}

ms_status ms_op_reduce_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t how)
{
    return run(out, MSI_REDUCE_SCATTER, comm, x, 0, how);
}

ms_status ms_comm_reduce_scatter(ms_comm *comm, ms_tensor *out, ms_tensor *in, int32_t how)
{
    return run_into(MSI_REDUCE_SCATTER, comm, out, in, 0, how);
}

ms_status ms_op_broadcast(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    return run(out, MSI_BROADCAST, comm, x, root, MS_REDUCE_SUM);
}

ms_status ms_comm_broadcast(ms_comm *comm, ms_tensor *t, int32_t root)
{
    return run_into(MSI_BROADCAST, comm, t, t, root, MS_REDUCE_SUM);
}

ms_status ms_op_dist_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    return run(out, MSI_SCATTER, comm, x, root, MS_REDUCE_SUM);
}

ms_status ms_comm_scatter(ms_comm *comm, ms_tensor *out, ms_tensor *in, int32_t root)
{
    return run_into(MSI_SCATTER, comm, out, in, root, MS_REDUCE_SUM);
}

ms_status ms_op_dist_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root)
{
    return run(out, MSI_GATHER, comm, x, root, MS_REDUCE_SUM);
}

ms_status ms_comm_gather(ms_comm *comm, ms_tensor *out, ms_tensor *in, int32_t root)
{
    return run_into(MSI_GATHER, comm, out, in, root, MS_REDUCE_SUM);
}

ms_status ms_op_dist_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root, int32_t how)
{
    return run(out, MSI_REDUCE, comm, x, root, how);
}

ms_status ms_comm_reduce(ms_comm *comm, ms_tensor *t, int32_t root, int32_t how)
{
    return run_into(MSI_REDUCE, comm, t, t, root, how);
}

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

/* Fill rows of an all_to_all of tensors with first sizes `n_out` and `n_in`; NULL: equal parts. */
static ms_status check_rows(msi_all_to_all *attrs, int64_t n_out, int64_t n_in,
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

ms_status ms_op_all_to_all(ms_tensor **out, ms_comm *comm, ms_tensor *x, const int64_t *out_rows,
                           const int64_t *in_rows)
{
    msi_all_to_all attrs = {.base = msi_collective_of(ROW(MSI_ALL_TO_ALL), comm, 0, MS_REDUCE_SUM)};

    if (x->v.ndim == 0) {
        return MS_FAIL(MS_VALUE_ERROR, "all_to_all: x has shape (), expected a first size");
    }
    MS_TRY(check_rows(&attrs, -1, x->v.shape[0], out_rows, in_rows));
    return msi_collective_run(&attrs.base, x, out);
}

ms_status ms_comm_all_to_all(ms_comm *comm, ms_tensor *out, ms_tensor *in, const int64_t *out_rows,
                             const int64_t *in_rows)
{
    msi_all_to_all attrs = {.base = {.row = ROW(MSI_ALL_TO_ALL), .comm = comm}};

    MS_TRY(msi_check_pair("all_to_all", out, in));
    if (out->v.ndim == 0 || out->v.ndim != in->v.ndim ||
        memcmp(out->v.shape + 1, in->v.shape + 1, sizeof(int64_t) * (size_t)(in->v.ndim - 1)) !=
            0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "all_to_all: shapes are %s in and %s out, expected equal ones but for the "
                       "first size",
                       msi_shape_text(in->v.ndim, in->v.shape),
                       msi_shape_text(out->v.ndim, out->v.shape));
    }
    MS_TRY(check_rows(&attrs, out->v.shape[0], in->v.shape[0], out_rows, in_rows));
    return msi_collective_into(&attrs.base, out, in);
}

ms_status ms_op_dist_permute(ms_tensor **out, ms_comm *comm, ms_tensor *x, const int64_t *to)
{
    msi_all_to_all attrs = {.base = msi_collective_of(ROW(MSI_PERMUTE), comm, 0, MS_REDUCE_SUM),
                            .unequal = true};
    const int32_t size = ms_comm_size(comm), rank = ms_comm_rank(comm);
    bool named[MS_MAX_RANKS] = {false};

    if (x->v.ndim == 0 || size > MS_MAX_RANKS) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "permute_tensor: x has shape %s, expected a first size, of at most %d ranks",
                       msi_shape_text(x->v.ndim, x->v.shape), MS_MAX_RANKS);
    }
    for (int32_t q = 0; q < size; q++) {
        if (to[q] < 0 || to[q] >= size || named[to[q]]) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "permute_tensor: rank %d sends to rank %d, expected ranks 0 to %d, each "
                           "once",
                           (int)q, (int)to[q], (int)size - 1);
        }
        named[to[q]] = true;
        attrs.out[q] = to[q] == rank ? x->v.shape[0] : 0;
    }
    attrs.in[to[rank]] = x->v.shape[0];
    return msi_collective_run(&attrs.base, x, out);
}
