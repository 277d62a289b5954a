/* softmax and log-softmax over the last dimension; gradients need only the result: dx = y (dy -
 * sum(y dy)), and dx = dy - exp(y) sum(dy). */
#include "meta.h"
#include "operand.h"

typedef struct over_rows {
    int32_t kernel, gradient;
} over_rows;

static ms_status rows_meta(const msi_meta *m)
{
    const over_rows *f = m->attrs;

    if (m->in[0]->ndim < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: x has shape (), expected (..., C)", m->op->name);
    }
    MS_TRY(msi_meta_like(m));
    return msi_check_kernel(m->op->name, f->kernel, m->in[0]->dtype);
}

static ms_status rows_forward(msi_op_call *c)
{
    const over_rows *f = c->attrs;
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

    MS_TRY_GOTO(msi_dispatch(c->op->name, f->kernel, in->dtype, &args), out);
    msi_save(c, 0, &c->out[0]->v);
out:
    msi_storage_release(x.storage);
    return status;
}

static ms_status rows_backward(msi_bwd *b)
{
    const over_rows *f = msi_bwd_attrs(b);
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

    MS_TRY(msi_dispatch(msi_bwd_name(b), f->gradient, y->dtype, &args));
    return msi_target_close(&t);
}

#define OVER_ROWS(name_)                                                                           \
    const msi_op msi_op_##name_ = {.name = #name_,                                                 \
                                   .meta = rows_meta,                                              \
                                   .forward = rows_forward,                                        \
                                   .backward = rows_backward,                                      \
                                   .attrs_size = sizeof(over_rows),                                \
                                   .n_saved = 1};                                                  \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *x)                                         \
    {                                                                                              \
        const over_rows attrs = {MSI_K_##name_, MSI_K_##name_##_grad};                             \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &attrs, &x, 1, out, 1);                                 \
    }
OVER_ROWS(log_softmax)
OVER_ROWS(softmax)
