/* -x[i, target of i] per row. Saves the targets; the gradient is that of one element per row. */
#include "meta.h"
#include "operand.h"

enum { X, TARGETS };

typedef struct nll_attrs {
    int64_t ignore_index;
} nll_attrs;

static ms_status nll_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X], *targets = m->in[TARGETS];
    msi_view rows = *x;

    rows.ndim--;
    if (x->ndim < 1 || !msi_view_same_shape(&rows, targets)) {
        return MS_FAIL(
            MS_VALUE_ERROR, "nll_loss: x has shape %s and targets %s, expected (..., C) and (...)",
            msi_shape_text(x->ndim, x->shape), msi_shape_text(targets->ndim, targets->shape));
    }
    if (targets->dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "nll_loss: targets are %s, expected i64",
                       ms_dtype_name(targets->dtype));
    }
    MS_TRY(msi_result(m->out, x->dtype, rows.ndim, rows.shape));
    return msi_check_kernel("nll_loss", MSI_K_nll_loss, x->dtype);
}

static ms_status nll_forward(msi_op_call *c)
{
    const msi_view *in = &c->in[X]->v;
    msi_nll_args args = {.ignore_index = ((const nll_attrs *)c->attrs)->ignore_index,
                         .rows = msi_leading(in, in->ndim - 1),
                         .cols = in->shape[in->ndim - 1],
                         .out = msi_view_ptr(&c->out[0]->v)};
    msi_view x = {0}, targets = {0};
    msi_fault fault = {0};
    ms_status status;
    void *data, *target_data;

    MS_TRY_GOTO(msi_contiguous(&x, c->ctx, in), out);
    MS_TRY_GOTO(msi_contiguous(&targets, c->ctx, &c->in[TARGETS]->v), out);
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    MS_TRY_GOTO(msi_view_data(&targets, &target_data), out);
    args.x = data;
    args.targets = target_data;
    args.fault = msi_device_fault(c->ctx, &fault);
    MS_TRY_GOTO(msi_dispatch("nll_loss", MSI_K_nll_loss, x.dtype, &args), out);
    MS_TRY_GOTO(msi_fault_report(&fault), out);
    msi_save(c, 0, &targets);
out:
    msi_storage_release(targets.storage);
    msi_storage_release(x.storage);
    return status;
}

static ms_status nll_backward(msi_bwd *b)
{
    const msi_view *x = msi_bwd_operand(b, X), *targets;
    msi_nll_args args = {.ignore_index = ((const nll_attrs *)msi_bwd_attrs(b))->ignore_index,
                         .rows = msi_leading(x, x->ndim - 1),
                         .cols = x->shape[x->ndim - 1]};
    msi_target t;
    msi_view dy;

    MS_TRY(msi_bwd_saved(b, 0, &targets));
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(msi_target_open(&t, b, X, x->dtype, MSI_CAN_ADD));
    args.targets = msi_view_ptr(targets);
    args.dy = msi_view_ptr(&dy);
    args.out = t.data;
    args.accumulate = t.add;
    MS_TRY(msi_dispatch("nll_loss", MSI_K_nll_loss_grad, x->dtype, &args));
    return msi_target_close(&t);
}

const msi_op msi_op_nll_loss = {.name = "nll_loss",
                                .meta = nll_meta,
                                .forward = nll_forward,
                                .backward = nll_backward,
                                .attrs_size = sizeof(nll_attrs),
                                .n_saved = 1};

ms_status ms_op_nll_loss(ms_tensor **out, ms_tensor *x, ms_tensor *targets, int64_t ignore_index)
{
    ms_tensor *const in[2] = {x, targets};
    const nll_attrs attrs = {ignore_index};

    *out = NULL;
    return msi_op_run(&msi_op_nll_loss, &attrs, in, 2, out, 1);
}
