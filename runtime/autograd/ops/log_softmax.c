/* log_softmax over the last dimension; the gradient needs the result alone:
 * dx = dy - exp(y) sum(dy). */
#include "meta.h"
#include "operand.h"
#include "table.h"

static ms_status log_softmax_meta(const msi_meta *m)
{
    if (m->in[0]->ndim < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "log_softmax: x has shape (), expected (..., C)");
    }
    MS_TRY(msi_meta_like(m));
    return msi_check_kernel("log_softmax", MSI_K_log_softmax, m->in[0]->dtype);
}

static ms_status log_softmax_forward(msi_op_call *c)
{
    const msi_view *in = &c->in[0]->v;
    msi_view x;
    void *data;
    ms_status status;

    MS_TRY(msi_contiguous(&x, c->ctx, in));
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    const msi_softmax_args args = {.rows = msi_leading(in, in->ndim - 1),
                                   .cols = in->shape[in->ndim - 1],
                                   .x = data,
                                   .out = msi_view_ptr(&c->out[0]->v)};

    MS_TRY_GOTO(msi_dispatch("log_softmax", MSI_K_log_softmax, in->dtype, &args), out);
    msi_save(c, 0, &c->out[0]->v);
out:
    msi_storage_release(x.storage);
    return status;
}

static ms_status log_softmax_backward(msi_bwd *b)
{
    const msi_view *y;
    msi_view dy;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &y));
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(msi_target_open(&t, b, 0, y->dtype, MSI_CAN_ADD));
    const msi_softmax_args args = {.rows = msi_leading(y, y->ndim - 1),
                                   .cols = y->shape[y->ndim - 1],
                                   .y = msi_view_ptr(y),
                                   .dy = msi_view_ptr(&dy),
                                   .out = t.data,
                                   .accumulate = t.add};

    MS_TRY(msi_dispatch("log_softmax", MSI_K_log_softmax_grad, y->dtype, &args));
    return msi_target_close(&t);
}

const msi_op msi_op_log_softmax = {.name = "log_softmax",
                                   .meta = log_softmax_meta,
                                   .forward = log_softmax_forward,
                                   .backward = log_softmax_backward,
                                   .n_saved = 1};

ms_status ms_op_log_softmax(ms_tensor **out, ms_tensor *x)
{
    *out = NULL;
    return msi_op_run(&msi_op_log_softmax, NULL, &x, 1, out, 1);
}
