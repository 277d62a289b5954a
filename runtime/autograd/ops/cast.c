/* Copies: to another dtype, and to contiguous memory. */
#include "meta.h"
#include "operand.h"

typedef struct cast_attrs {
    int32_t dtype;
} cast_attrs;

/* msi_bwd_pass() casts to the operand's dtype. */
static ms_status copy_backward(msi_bwd *b)
{
    return msi_bwd_pass(b, 0, msi_bwd_grad(b, 0));
}

static ms_status cast_meta(const msi_meta *m)
{
    const cast_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];

    if (attrs->dtype == x->dtype) {
        msi_result_view(m->out, x);
        return MS_OK;
    }
    return msi_result(m->out, attrs->dtype, x->ndim, x->shape);
}

static ms_status cast_forward(msi_op_call *c)
{
    return msi_copy_of("cast", &c->out[0]->v, &c->in[0]->v, false);
}

const msi_op msi_op_cast = {.name = "cast",
                            .meta = cast_meta,
                            .forward = cast_forward,
                            .backward = copy_backward,
                            .attrs_size = sizeof(cast_attrs)};

ms_status ms_op_cast(ms_tensor **out, ms_tensor *x, int32_t dtype)
{
    const cast_attrs attrs = {dtype};

    *out = NULL;
    if (ms_dtype_size(dtype) == 0) {
        return MS_FAIL(MS_VALUE_ERROR, "cast: dtype %d is none, expected 0 to %d", (int)dtype,
                       MS_DTYPE_COUNT - 1);
    }
    return msi_op_run(&msi_op_cast, &attrs, &x, 1, out, 1);
}

static ms_status clone_forward(msi_op_call *c)
{
    return msi_copy_of("clone", &c->out[0]->v, &c->in[0]->v, false);
}

const msi_op msi_op_clone = {
    .name = "clone", .meta = msi_meta_like, .forward = clone_forward, .backward = copy_backward};

ms_status ms_op_clone(ms_tensor **out, ms_tensor *x)
{
    *out = NULL;
    return msi_op_run(&msi_op_clone, NULL, &x, 1, out, 1);
}
