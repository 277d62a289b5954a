/* x^p for a number p. The gradient g p x^(p - 1) is one kernel, so that p selects the method once;
 * it is 0 for p = 0, even at x = 0. */
#include "meta.h"
#include "operand.h"

#include <math.h>

typedef struct pow_attrs {
    double p;
} pow_attrs;

static ms_status pow_meta(const msi_meta *m)
{
    MS_TRY(msi_meta_like(m));
    return msi_meta_kernel(m, MSI_K_pow, m->in[0]->dtype);
}

static ms_status pow_forward(msi_op_call *c)
{
    const pow_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    const double scalars[2] = {attrs->p, 0};

    MS_TRY(msi_ew("pow", MSI_K_pow, &c->out[0]->v, &x, 1, scalars, false));
    msi_save(c, 0, x);
    return MS_OK;
}

static ms_status pow_backward(msi_bwd *b)
{
    const pow_attrs *attrs = msi_bwd_attrs(b);
    const double scalars[2] = {attrs->p, 0};
    const msi_view *x;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &x));
    const msi_view *in[2] = {msi_bwd_grad(b, 0), x};

    MS_TRY(msi_target_open(&t, b, 0, x->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew("pow_grad", MSI_K_pow_grad, &t.view, in, 2, scalars, t.add));
    return msi_target_close(&t);
}

const msi_op msi_op_pow = {.name = "pow",
                           .meta = pow_meta,
                           .forward = pow_forward,
                           .backward = pow_backward,
                           .attrs_size = sizeof(pow_attrs),
                           .n_saved = 1};

ms_status ms_op_pow(ms_tensor **out, ms_tensor *x, double p)
{
    const pow_attrs attrs = {p};

    *out = NULL;
    if (!isfinite(p)) {
        return MS_FAIL(MS_VALUE_ERROR, "pow: the exponent is %g, expected a finite number", p);
    }
    return msi_op_run(&msi_op_pow, &attrs, &x, 1, out, 1);
}
