/* Collectives into existing tensors: by the rows, not recorded. */
#include "collective.h"

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

ms_status msi_check_pair(const char *op, const ms_tensor *out, const ms_tensor *in)
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

static ms_status check_apart(const char *what, const ms_tensor *out, const ms_tensor *in)
{
    return msi_view_shares(&out->v, &in->v)
               ? MS_FAIL(MS_RUNTIME_ERROR, "%s: 'in' and 'out' overlap; clone 'in' first", what)
               : MS_OK;
}

/* Of an operand and a result, with both in use. */
static ms_status check_both(const msi_collective *attrs, const ms_tensor *out, const ms_tensor *in)
{
    const char *op = attrs->row->op.name;
    const bool gathers = attrs->row->shape == MSI_SHAPE_WHOLE;
    const ms_tensor *whole = gathers ? out : in, *part = gathers ? in : out;

    MS_TRY(msi_check_pair(op, out, in));
    if (attrs->row->shape == MSI_SHAPE_ROWS) {
        return check_apart(op, out, in);
    }
    MS_TRY(check_numel(op, gathers ? "out" : "in", whole,
                       msi_view_numel(&part->v) * ms_comm_size(attrs->comm)));
    return attrs->row->root == MSI_ROOT_NONE ? check_overlap(attrs->comm, op, whole, part)
                                             : check_apart(op, out, in);
}

ms_status msi_collective_into(const msi_collective *attrs, ms_tensor *out, ms_tensor *in)
{
    const msi_collective_row *row = attrs->row;
    const bool is_root = row->root == MSI_ROOT_NONE || msi_collective_is_root(attrs);
    bool writes = true;

    if (row->in_place) {
        in = out;
        MS_TRY(check_operand(row->op.name, "t", out));
    } else if (is_root) {
        MS_TRY(check_both(attrs, out, in));
    } else {
        writes = row->root == MSI_ROOT_GIVES;
        out = in = writes ? out : in;
        MS_TRY(check_operand(row->op.name, writes ? "out" : "in", out));
    }
    MS_TRY(msi_check_collective(attrs, out->v.dtype));
    if (writes && (!out->v.storage->meta || !in->v.storage->meta)) {
        MS_TRY(msi_tensor_check_write(out, row->op.name));
    }
    msi_op_host(out->ctx, "a collective runs");
    return msi_op_run_into(out->ctx, &row->op, attrs, &in, 1, &out, 1);
}
