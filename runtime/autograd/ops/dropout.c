/* Dropout with a mask that is a function of (seed, site, call, global sample, element): backward
 * recomputes it, and it does not depend on which rank has which samples. */
#include "meta.h"
#include "operand.h"

typedef struct dropout_attrs {
    double p;
    msi_draw draw;
} dropout_attrs;

/* `out` (+)= the mask applied to contiguous `in`. */
static ms_status apply(const dropout_attrs *attrs, const msi_view *in, void *out, bool accumulate)
{
    const int64_t samples = in->ndim > 0 ? in->shape[0] : 1;
    msi_dropout_args args = {.samples = samples,
                             .per_sample = 1,
                             .out = out,
                             .p = attrs->p,
                             .seed = attrs->draw.seed,
                             .site = attrs->draw.site,
                             .call = attrs->draw.call,
                             .sample_base = attrs->draw.sample_base,
                             .accumulate = accumulate};
    void *data;

    for (int32_t i = 1; i < in->ndim; i++) {
        args.per_sample *= in->shape[i];
    }
    MS_TRY(msi_view_data(in, &data));
    args.x = data;
    return msi_dispatch("dropout", MSI_K_dropout, in->dtype, &args);
}

static ms_status dropout_meta(const msi_meta *m)
{
    const dropout_attrs *attrs = m->attrs;

    if (attrs->p == 0) {
        msi_result_view(m->out, m->in[0]);
        return MS_OK;
    }
    MS_TRY(msi_meta_like(m));
    return attrs->p == 1 ? MS_OK : msi_check_kernel("dropout", MSI_K_dropout, m->in[0]->dtype);
}

static ms_status dropout_forward(msi_op_call *c)
{
    const dropout_attrs *attrs = c->attrs;
    msi_view x;

    if (attrs->p == 1) {
        return msi_fill(&c->out[0]->v, 0);
    }
    MS_TRY(msi_contiguous(&x, c->ctx, &c->in[0]->v));
    ms_status status = apply(attrs, &x, msi_view_ptr(&c->out[0]->v), false);

    msi_storage_release(x.storage);
    return status;
}

static ms_status dropout_backward(msi_bwd *b)
{
    const dropout_attrs *attrs = msi_bwd_attrs(b);
    msi_view dy;
    msi_target t;

    if (attrs->p == 0) {
        return msi_bwd_pass(b, 0, msi_bwd_grad(b, 0));
    }
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(msi_target_open(&t, b, 0, dy.dtype, MSI_CAN_ADD));
    if (attrs->p < 1) {
        MS_TRY(apply(attrs, &dy, t.data, t.add));
    } else if (!t.add) {
        MS_TRY(msi_fill(&t.view, 0));
    }
    return msi_target_close(&t);
}

const msi_op msi_op_dropout = {.name = "dropout",
                               .meta = dropout_meta,
                               .forward = dropout_forward,
                               .backward = dropout_backward,
                               .attrs_size = sizeof(dropout_attrs),
                               .draw = 1 + offsetof(dropout_attrs, draw)};

ms_status ms_op_dropout(ms_tensor **out, ms_tensor *x, double p, uint64_t site, int64_t call)
{
    *out = NULL;
    if (!(p >= 0 && p <= 1)) {
        return MS_FAIL(MS_VALUE_ERROR, "dropout: probability is %g, expected 0 to 1", p);
    }
    if (call < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "dropout: call is %lld, expected 0 or more",
                       (long long)call);
    }
    const dropout_attrs attrs = {.p = p, .draw = msi_draw_of(&x->v, x->ctx, site, call, p > 0)};

    return msi_op_run(&msi_op_dropout, &attrs, &x, 1, out, 1);
}
