/* log(1 + exp(beta x)) / beta, a smooth relu; x itself above the threshold. */
#include "meta.h"
#include "operand.h"
#include "table.h"

typedef struct softplus_attrs {
    double scalars[2]; /* beta, threshold */
} softplus_attrs;

static ms_status softplus_meta(const msi_meta *m)
{
    MS_TRY(msi_meta_like(m));
    return msi_meta_kernel(m, MSI_K_softplus, m->in[0]->dtype);
}

static ms_status softplus_forward(msi_op_call *c)
{
    const softplus_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;

    MS_TRY(msi_ew("softplus", MSI_K_softplus, &c->out[0]->v, &x, 1, attrs->scalars, false));
    msi_save(c, 0, x);
    return MS_OK;
}

static ms_status softplus_backward(msi_bwd *b)
{
    const softplus_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *x;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &x));
    const msi_view *in[2] = {msi_bwd_grad(b, 0), x};

    MS_TRY(msi_target_open(&t, b, 0, x->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew("softplus_grad", MSI_K_softplus_grad, &t.view, in, 2, attrs->scalars, t.add));
    return msi_target_close(&t);
}

const msi_op msi_op_softplus = {.name = "softplus",
                                .meta = softplus_meta,
                                .forward = softplus_forward,
                                .backward = softplus_backward,
                                .attrs_size = sizeof(softplus_attrs),
                                .n_saved = 1};

ms_status ms_op_softplus(ms_tensor **out, ms_tensor *x, double beta, double threshold)
{
    const softplus_attrs attrs = {{beta, threshold}};

    *out = NULL;
    return msi_op_run(&msi_op_softplus, &attrs, &x, 1, out, 1);
}
