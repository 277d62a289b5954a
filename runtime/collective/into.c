/* Collectives into existing tensors: by the rows, not recorded. */
#include "collective.h"

#include <string.h>

static ms_status check_operand(const char *op, const char *name, const ms_tensor *t)
{
    if (t == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: no tensor given for '%s'", op, name);
    }
    if (!msi_view_contiguous(&t->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' has shape %s with gaps, expected contiguous", op,
                       name, msi_shape_text(t->v.ndim, t->v.shape));
    }
    return MS_OK;
}

static ms_status check_numel(const char *op, const char *name, const ms_tensor *t, int64_t numel)
{
    return msi_view_numel(&t->v) == numel
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: '%s' has %lld elements, expected %lld", op, name,
                         (long long)msi_view_numel(&t->v), (long long)numel);
}

static ms_status check_pair(const char *op, const ms_tensor *out, const ms_tensor *in)
{
    MS_TRY(check_operand(op, "out", out));
    MS_TRY(check_operand(op, "in", in));
    if (out->v.dtype != in->v.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: dtypes are %s and %s, expected one", op,
                       ms_dtype_name(out->v.dtype), ms_dtype_name(in->v.dtype));
    }
    return MS_OK;
}

/* Chunks are written and read alternately, so operand and result may overlap only where the operand
 * is this rank's part of the result, or the reverse. */
static ms_status check_overlap(const ms_comm *c, const char *what, const ms_tensor *whole,
                               const ms_tensor *part)
{
    const char *place = msi_view_address(&whole->v);
    const int64_t nbytes = msi_view_numel(&part->v) * ms_dtype_size(part->v.dtype);

    if (msi_view_shares(&whole->v, &part->v) &&
        msi_view_address(&part->v) != (void *)(place + ms_comm_rank(c) * nbytes)) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: 'in' and 'out' overlap elsewhere than in this rank's part; clone 'in' "
                       "first",
                       what);
    }
    return MS_OK;
}

static ms_status run(const msi_op *op, const msi_collective *attrs, ms_tensor *out, ms_tensor *in)
{
    if (!out->v.storage->meta || !in->v.storage->meta) {
        MS_TRY(msi_tensor_check_write(out, op->name));
    }
    return msi_op_run_into(out->ctx, op, attrs, &in, 1, &out, 1);
}

ms_status ms_comm_all_gather(ms_comm *c, ms_tensor *out, ms_tensor *in)
{
    const msi_collective attrs = {.comm = c};

    MS_TRY(check_pair("all_gather", out, in));
    MS_TRY(check_numel("all_gather", "out", out, msi_view_numel(&in->v) * ms_comm_size(c)));
    MS_TRY(check_overlap(c, "all_gather", out, in));
    return run(&msi_op_all_gather, &attrs, out, in);
}

ms_status ms_comm_reduce_scatter(ms_comm *c, ms_tensor *out, ms_tensor *in, int32_t reduce)
{
    const msi_collective attrs = {.comm = c, .reduce = reduce};

    MS_TRY(check_pair("reduce_scatter", out, in));
    MS_TRY(check_numel("reduce_scatter", "in", in, msi_view_numel(&out->v) * ms_comm_size(c)));
    MS_TRY(check_overlap(c, "reduce_scatter", in, out));
    MS_TRY(msi_check_reduction("reduce_scatter", out->v.dtype, reduce));
    return run(&msi_op_reduce_scatter, &attrs, out, in);
}

ms_status ms_comm_all_reduce(ms_comm *c, ms_tensor *t, int32_t reduce)
{
    const msi_collective attrs = {.comm = c, .reduce = reduce};

    MS_TRY(check_operand("all_reduce", "t", t));
    MS_TRY(msi_check_reduction("all_reduce", t->v.dtype, reduce));
    return run(&msi_op_all_reduce, &attrs, t, t);
}

ms_status ms_comm_broadcast(ms_comm *c, ms_tensor *t, int32_t root)
{
    const msi_collective attrs = {.comm = c, .root = root};

    MS_TRY(check_operand("broadcast", "t", t));
    MS_TRY(msi_check_root(c, "broadcast", root));
    return run(&msi_op_broadcast, &attrs, t, t);
}

static ms_status check_apart(const char *what, const ms_tensor *out, const ms_tensor *in)
{
    return msi_view_shares(&out->v, &in->v)
               ? MS_FAIL(MS_RUNTIME_ERROR, "%s: 'in' and 'out' overlap; clone 'in' first", what)
               : MS_OK;
}

ms_status ms_comm_scatter(ms_comm *c, ms_tensor *out, ms_tensor *in, int32_t root)
{
    const msi_collective attrs = {.comm = c, .root = root};

    MS_TRY(msi_check_root(c, "scatter", root));
    if (ms_comm_rank(c) != root) {
        MS_TRY(check_operand("scatter", "out", out));
        return run(&msi_op_dist_scatter, &attrs, out, out);
    }
    MS_TRY(check_pair("scatter", out, in));
    MS_TRY(check_numel("scatter", "in", in, msi_view_numel(&out->v) * ms_comm_size(c)));
    MS_TRY(check_apart("scatter", out, in));
    return run(&msi_op_dist_scatter, &attrs, out, in);
}

ms_status ms_comm_gather(ms_comm *c, ms_tensor *out, ms_tensor *in, int32_t root)
{
    const msi_collective attrs = {.comm = c, .root = root};

    MS_TRY(msi_check_root(c, "gather", root));
    if (ms_comm_rank(c) != root) {
        MS_TRY(check_operand("gather", "in", in));
        return msi_op_run_into(in->ctx, &msi_op_dist_gather, &attrs, &in, 1, &in, 1);
    }
    MS_TRY(check_pair("gather", out, in));
    MS_TRY(check_numel("gather", "out", out, msi_view_numel(&in->v) * ms_comm_size(c)));
    MS_TRY(check_apart("gather", out, in));
    return run(&msi_op_dist_gather, &attrs, out, in);
}

ms_status ms_comm_reduce(ms_comm *c, ms_tensor *t, int32_t root, int32_t reduce)
{
    const msi_collective attrs = {.comm = c, .reduce = reduce, .to = root};

    MS_TRY(check_operand("reduce", "t", t));
    MS_TRY(msi_check_root(c, "reduce", root));
    MS_TRY(msi_check_reduction("reduce", t->v.dtype, reduce));
    return run(&msi_op_dist_reduce, &attrs, t, t);
}

ms_status ms_comm_all_to_all(ms_comm *c, ms_tensor *out, ms_tensor *in, const int64_t *out_rows,
                             const int64_t *in_rows)
{
    msi_all_to_all attrs = {.base = {.comm = c}};

    MS_TRY(check_pair("all_to_all", out, in));
    if (out->v.ndim == 0 || out->v.ndim != in->v.ndim ||
        memcmp(out->v.shape + 1, in->v.shape + 1, sizeof(int64_t) * (size_t)(in->v.ndim - 1)) !=
            0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "all_to_all: shapes are %s in and %s out, expected equal ones but for the "
                       "first size",
                       msi_shape_text(in->v.ndim, in->v.shape),
                       msi_shape_text(out->v.ndim, out->v.shape));
    }
    MS_TRY(msi_check_rows(&attrs, out->v.shape[0], in->v.shape[0], out_rows, in_rows));
    MS_TRY(check_apart("all_to_all", out, in));
    return run(&msi_op_all_to_all, &attrs.base, out, in);
}
