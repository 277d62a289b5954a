/* Copies: to another dtype, and to contiguous memory. */
#include "operand.h"

typedef struct cast_attrs {
    int32_t dtype;
} cast_attrs;

/* The gradient goes back in the operand's dtype: msi_bwd_pass() casts. */
static ms_status copy_backward(msi_bwd *b)
{
    return msi_bwd_pass(b, 0, msi_bwd_grad(b, 0));
}

static ms_status cast_forward(msi_op_call *c)
{
    const cast_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;

    if (attrs->dtype == x->dtype) {
        return msi_out_view(c, 0, x);
    }
    MS_TRY(msi_out(c, 0, attrs->dtype, x->ndim, x->shape));
    return msi_ew("cast", MSI_K_copy, &c->out[0]->v, &x, 1, NULL, false);
}

static const msi_op cast_op = {.name = "cast",
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
    return msi_op_run(&cast_op, &attrs, &x, 1, out, 1);
}

static ms_status clone_forward(msi_op_call *c)
{
    const msi_view *x = &c->in[0]->v;

    MS_TRY(msi_out(c, 0, x->dtype, x->ndim, x->shape));
    return msi_ew("clone", MSI_K_copy, &c->out[0]->v, &x, 1, NULL, false);
}

static const msi_op clone_op = {
    .name = "clone", .forward = clone_forward, .backward = copy_backward};

ms_status ms_op_clone(ms_tensor **out, ms_tensor *x)
{
    *out = NULL;
    return msi_op_run(&clone_op, NULL, &x, 1, out, 1);
}
