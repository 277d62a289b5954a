/* Mean or sum of (x - y)^2. Gradients use x and y; the squares exist only during forward. */
#include "meta.h"
#include "operand.h"

enum { X, Y, DLOSS };

typedef struct mse_attrs {
    int32_t reduction;
} mse_attrs;

static ms_status mse_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X], *y = m->in[Y];
    const mse_attrs *attrs = m->attrs;

    MS_TRY(msi_same_dtype("mse_loss", "x", x, "y", y));
    if (!ms_dtype_is_floating(x->dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "mse_loss: the tensors are %s, expected a floating dtype",
                       ms_dtype_name(x->dtype));
    }
    if (!msi_view_same_shape(x, y)) {
        return MS_FAIL(MS_VALUE_ERROR, "mse_loss: x has shape %s and y %s, expected one shape",
                       msi_shape_text(x->ndim, x->shape), msi_shape_text(y->ndim, y->shape));
    }
    if (attrs->reduction != MS_REDUCTION_MEAN && attrs->reduction != MS_REDUCTION_SUM) {
        return MS_FAIL(MS_VALUE_ERROR, "mse_loss: reduction is %d, expected %d (mean) or %d (sum)",
                       (int)attrs->reduction, MS_REDUCTION_MEAN, MS_REDUCTION_SUM);
    }
    return msi_result(m->out, msi_stat_dtype(x->dtype), 0, NULL);
}

/* Weight of one element in the loss. */
static double weight(const mse_attrs *attrs, const msi_view *x)
{
    return attrs->reduction == MS_REDUCTION_MEAN ? 1 / (double)msi_view_numel(x) : 1;
}

/* (x - y)^2 in the loss dtype: squares of narrow numbers need more digits. */
static ms_status square(const msi_op_call *c, const msi_view *squares)
{
    const msi_view *in[2] = {&c->in[X]->v, &c->in[Y]->v};
    msi_view wide = {0};

    if (squares->dtype == in[X]->dtype) {
        return msi_ew("mse_loss", MSI_K_mse, squares, in, 2, NULL, false);
    }
    MS_TRY(msi_view_like(&wide, c->ctx, in[Y], squares->dtype, MS_MEM_ACTIVATION, true));
    ms_status status = msi_copy(squares, in[X], false);

    in[X] = squares;
    in[Y] = &wide;
    if (status == MS_OK) {
        status = msi_ew("mse_loss", MSI_K_mse, squares, in, 2, NULL, false);
    }
    msi_storage_release(wide.storage);
    return status;
}

static ms_status mse_forward(msi_op_call *c)
{
    const msi_view *x = &c->in[X]->v;
    const int64_t ones[MS_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    msi_view squares, total;

    MS_TRY(msi_internal(&squares, c->ctx, c->out[0]->v.dtype, x->ndim, x->shape));
    ms_status status = square(c, &squares);

    if (status == MS_OK) {
        total = c->out[0]->v;
        msi_view_set_contiguous(&total, total.dtype, x->ndim, ones);
        status = msi_sum_to("mse_loss", &total, &squares, weight(c->attrs, x), false);
    }
    msi_storage_release(squares.storage);
    msi_save(c, X, x);
    msi_save(c, Y, &c->in[Y]->v);
    return status;
}

/* dx = 2 weight g (x - y), dy = -dx. */
static ms_status mse_backward(msi_bwd *b)
{
    const mse_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *in[3] = {[DLOSS] = msi_bwd_grad(b, 0)};

    MS_TRY(msi_bwd_saved(b, X, &in[X]));
    MS_TRY(msi_bwd_saved(b, Y, &in[Y]));
    for (int32_t i = X; i <= Y; i++) {
        const double scale = 2 * weight(attrs, in[X]);
        const double scalars[2] = {i == X ? scale : -scale, 0};
        msi_target t;

        if (!msi_bwd_needs(b, i)) {
            continue;
        }
        MS_TRY(msi_target_open(&t, b, i, in[X]->dtype, MSI_CAN_ADD));
        MS_TRY(msi_ew("mse_loss", MSI_K_mse_grad, &t.view, in, 3, scalars, t.add));
        MS_TRY(msi_target_close(&t));
    }
    return MS_OK;
}

const msi_op msi_op_mse_loss = {.name = "mse_loss",
                                .meta = mse_meta,
                                .forward = mse_forward,
                                .backward = mse_backward,
                                .attrs_size = sizeof(mse_attrs),
                                .n_saved = 2};

ms_status ms_op_mse_loss(ms_tensor **out, ms_tensor *x, ms_tensor *y, int32_t reduction)
{
    ms_tensor *const in[2] = {x, y};
    const mse_attrs attrs = {reduction};

    *out = NULL;
    return msi_op_run(&msi_op_mse_loss, &attrs, in, 2, out, 1);
}
