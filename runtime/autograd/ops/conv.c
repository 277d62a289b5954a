/* Convolutions over one to three spatial dimensions, one operator. Saves x and w; bias is added by
 * the kernel, and its gradient is a sum. */
#include "meta.h"
#include "operand.h"

enum { X, W, BIAS };

typedef struct conv_attrs {
    int32_t ndim; /* spatial dimensions */
    int64_t groups;
    int64_t stride[3], front[3], back[3], dilation[3];
} conv_attrs;

static ms_status check_channels(const msi_meta *m, int32_t ndim, int64_t groups)
{
    const msi_view *x = m->in[X], *w = m->in[W], *bias = m->in[BIAS];
    const char *op = m->op->name;

    if (x->ndim != ndim + 2 || w->ndim != ndim + 2) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: x has shape %s and w %s, expected %d dimensions each",
                       op, msi_shape_text(x->ndim, x->shape), msi_shape_text(w->ndim, w->shape),
                       (int)ndim + 2);
    }
    if (groups < 1 || w->shape[0] % groups != 0 || x->shape[1] != groups * w->shape[1]) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: x has shape %s and w %s, expected x (N, C, ...) and w (O, C / groups, "
                       "...), O a multiple of groups = %lld",
                       op, msi_shape_text(x->ndim, x->shape), msi_shape_text(w->ndim, w->shape),
                       (long long)groups);
    }
    if (bias != NULL && (bias->ndim != 1 || bias->shape[0] != w->shape[0])) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: bias has shape %s, expected (%lld) for w %s", op,
                       msi_shape_text(bias->ndim, bias->shape), (long long)w->shape[0],
                       msi_shape_text(w->ndim, w->shape));
    }
    MS_TRY(msi_same_dtype(op, "x", x, "w", w));
    MS_TRY(bias == NULL ? MS_OK : msi_same_dtype(op, "x", x, "bias", bias));
    return msi_check_kernel(op, MSI_K_conv, x->dtype);
}

static ms_status conv_meta(const msi_meta *m)
{
    const conv_attrs *attrs = m->attrs;
    const msi_view *x = m->in[X], *w = m->in[W];
    int64_t shape[MS_MAX_DIMS] = {0};

    MS_TRY(check_channels(m, attrs->ndim, attrs->groups));
    shape[0] = x->shape[0];
    shape[1] = w->shape[0];
    for (int32_t d = 0; d < attrs->ndim; d++) {
        const int64_t size = x->shape[d + 2] + attrs->front[d] + attrs->back[d];
        const int64_t filter = attrs->dilation[d] * (w->shape[d + 2] - 1) + 1;

        if (w->shape[d + 2] < 1 || filter > size) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "%s: w %s covers %lld positions of spatial dimension %d, expected 1 to "
                           "%lld (x %s and its padding)",
                           m->op->name, msi_shape_text(w->ndim, w->shape), (long long)filter,
                           (int)d + 1, (long long)size, msi_shape_text(x->ndim, x->shape));
        }
        shape[d + 2] = (size - filter) / attrs->stride[d] + 1;
    }
    return msi_result(m->out, x->dtype, x->ndim, shape);
}

/* Sizes for the kernel. `in` and `out` have the shapes of x and y. */
static void set_sizes(msi_conv_args *args, const conv_attrs *attrs, const msi_view *in,
                      const msi_view *w, const msi_view *out)
{
    bool one_tap = true;

    args->batch = in->shape[0];
    args->groups = attrs->groups;
    args->in_channels = w->shape[1];
    args->out_channels = w->shape[0] / attrs->groups;
    for (int32_t i = 0; i < 3; i++) {
        const int32_t d = i - 3 + attrs->ndim;

        args->in[i] = args->out[i] = args->kernel[i] = args->stride[i] = args->dilation[i] = 1;
        if (d >= 0) {
            args->in[i] = in->shape[d + 2];
            args->out[i] = out->shape[d + 2];
            args->kernel[i] = w->shape[d + 2];
            args->stride[i] = attrs->stride[d];
            args->pad[i] = attrs->front[d];
            args->dilation[i] = attrs->dilation[d];
        }
        one_tap = one_tap && args->kernel[i] == 1 && args->in[i] == args->out[i] &&
                  args->pad[i] == 0 && args->stride[i] == 1;
    }
    if (one_tap) { /* positions in a row */
        args->in[2] = args->out[2] = args->in[0] * args->in[1] * args->in[2];
        args->in[0] = args->in[1] = args->out[0] = args->out[1] = 1;
    }
}

/* Run a kernel with the scratch it asks for. */
static ms_status dispatch(const char *op, ms_context *ctx, msi_conv_args *args, int32_t dtype,
                          bool gradient)
{
    ms_status products = MS_OK;
    msi_mem_block *work;

    args->ctx = ctx;
    args->op = op;
    args->status = msi_device_status(ctx, &products);
    args->tile_dtype = dtype;
    if (ms_dtype_is_narrow(dtype)) {
        MS_TRY(msi_gemm_operands(ctx, dtype, &args->tile_dtype));
        args->tile_dtype = args->out_channels == 1 ? MS_DTYPE_F32 : args->tile_dtype;
    }
    MS_TRY(msi_alloc(ctx, msi_conv_plan(args, dtype, gradient), MS_MEM_SCRATCH, &work));
    args->work = work->data;
    ms_status status = msi_dispatch(op, gradient ? MSI_K_conv_grad : MSI_K_conv, dtype, args);

    msi_release(work);
    return status != MS_OK ? status : products;
}

static ms_status conv_forward(msi_op_call *c)
{
    msi_view x = {0}, w = {0}, bias = {0};
    msi_conv_args args = {.y = msi_view_ptr(&c->out[0]->v)};
    ms_status status;
    void *data;

    MS_TRY_GOTO(msi_contiguous(&x, c->ctx, &c->in[X]->v), out);
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    args.x = data;
    MS_TRY_GOTO(msi_contiguous(&w, c->ctx, &c->in[W]->v), out);
    MS_TRY_GOTO(msi_view_data(&w, &data), out);
    args.w = data;
    if (c->in[BIAS] != NULL) {
        MS_TRY_GOTO(msi_contiguous(&bias, c->ctx, &c->in[BIAS]->v), out);
        MS_TRY_GOTO(msi_view_data(&bias, &data), out);
        args.bias = data;
    }
    set_sizes(&args, c->attrs, &x, &w, &c->out[0]->v);
    MS_TRY_GOTO(dispatch(c->op->name, c->ctx, &args, x.dtype, false), out);
    msi_save(c, X, &x);
    msi_save(c, W, &w);
out:
    msi_storage_release(bias.storage);
    msi_storage_release(w.storage);
    msi_storage_release(x.storage);
    return status;
}

/* The bias's gradient: dy (N, O, ...) summed over all but O. */
static ms_status bias_gradient(msi_bwd *b, const msi_view *dy)
{
    int64_t shape[3] = {dy->shape[0], dy->shape[1], 1};
    const int64_t channels[3] = {1, dy->shape[1], 1};
    msi_view rows, to;
    msi_target t;

    if (!msi_bwd_needs(b, BIAS)) {
        return MS_OK;
    }
    MS_TRY(msi_target_open(&t, b, BIAS, dy->dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    for (int32_t d = 2; d < dy->ndim; d++) {
        shape[2] *= dy->shape[d];
    }
    to = t.view;
    msi_view_set_contiguous(&to, t.view.dtype, 3, channels);
    msi_view_reshape(dy, 3, shape, &rows);
    MS_TRY(msi_sum_to(msi_bwd_name(b), &to, &rows, 1, t.add));
    return msi_target_close(&t);
}

static ms_status conv_backward(msi_bwd *b)
{
    const conv_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *x, *w;
    msi_conv_args args = {0};
    msi_target dx, dw;
    msi_view dy;

    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(bias_gradient(b, &dy));
    if (!msi_bwd_needs(b, X) && !msi_bwd_needs(b, W)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_saved(b, X, &x));
    MS_TRY(msi_bwd_saved(b, W, &w));
    const int32_t sums = msi_stat_dtype(dy.dtype); /* narrow results are rounded once */

    MS_TRY(msi_target_open(&dx, b, X, sums, MSI_CAN_ADD));
    MS_TRY(msi_target_open(&dw, b, W, sums, MSI_CAN_ADD));
    if (msi_target_shares(&dx, &dw)) {
        MS_TRY(msi_target_stage(&dw, b, sums));
    }
    args.x = msi_view_ptr(x);
    args.w = msi_view_ptr(w);
    args.dy = msi_view_ptr(&dy);
    args.dx = dx.data;
    args.dw = dw.data;
    args.dx_accumulate = dx.add;
    args.dw_accumulate = dw.add;
    set_sizes(&args, attrs, x, w, &dy);
    MS_TRY(dispatch(msi_bwd_name(b), msi_bwd_context(b), &args, dy.dtype, true));
    MS_TRY(msi_target_close(&dx));
    return msi_target_close(&dw);
}

#define CONV_OP(name_)                                                                             \
    {                                                                                              \
        .name = name_, .meta = conv_meta, .forward = conv_forward, .backward = conv_backward,      \
        .attrs_size = sizeof(conv_attrs), .n_saved = 2                                             \
    }

/* By the number of spatial dimensions less 1. */
const msi_op msi_op_conv[3] = {CONV_OP("conv1d"), CONV_OP("conv2d"), CONV_OP("conv3d")};

ms_status ms_op_conv(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias, int32_t ndim,
                     const int64_t *stride, const int64_t *padding, const int64_t *dilation,
                     int64_t groups)
{
    ms_tensor *const in[3] = {x, w, bias};
    conv_attrs attrs = {.ndim = ndim, .groups = groups};

    *out = NULL;
    if (ndim < 1 || ndim > 3) {
        return MS_FAIL(MS_VALUE_ERROR, "conv: %d spatial dimensions, expected 1 to 3", (int)ndim);
    }
    for (int32_t d = 0; d < ndim; d++) {
        attrs.stride[d] = stride[d];
        attrs.front[d] = padding[2 * d];
        attrs.back[d] = padding[2 * d + 1];
        attrs.dilation[d] = dilation[d];
        if (stride[d] < 1 || dilation[d] < 1 || attrs.front[d] < 0 || attrs.back[d] < 0) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "conv%dd: stride is %lld, dilation %lld and padding %lld and %lld, "
                           "expected 1 or more, and padding 0 or more",
                           (int)ndim, (long long)stride[d], (long long)dilation[d],
                           (long long)attrs.front[d], (long long)attrs.back[d]);
        }
    }
    return msi_op_run(&msi_op_conv[ndim - 1], &attrs, in, 3, out, 1);
}
