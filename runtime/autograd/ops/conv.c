/* Convolutions over one to three spatial dimensions, and transposed ones, one operator each. Saves
 * x and w; bias is added by the kernel, and its gradient is a sum.
 *
 * A transposed convolution is the gradient of a convolution, called its base here, with respect to
 * the base's input: x is the base's dy, and y its dx. So its forward is the kernel conv_grad, and
 * its own gradients are those of x, the kernel conv, and of w, conv_grad again. */
#include "meta.h"
#include "operand.h"

enum { X, W, BIAS };

typedef struct conv_attrs {
    int32_t ndim; /* spatial dimensions */
    int64_t groups;
    int64_t stride[3], front[3], back[3], dilation[3];
} conv_attrs;

static ms_status check_channels(const msi_meta *m, int32_t ndim, int64_t groups, bool transposed)
{
    const msi_view *x = m->in[X], *w = m->in[W], *bias = m->in[BIAS];
    const char *op = m->op->name;
    const char from = transposed ? 'O' : 'C', to = transposed ? 'C' : 'O';

    if (x->ndim != ndim + 2 || w->ndim != ndim + 2) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: x has shape %s and w %s, expected %d dimensions each",
                       op, msi_shape_text(x->ndim, x->shape), msi_shape_text(w->ndim, w->shape),
                       (int)ndim + 2);
    }
    const int64_t first = w->shape[0], second = groups * w->shape[1];
    const int64_t out = transposed ? second : first;

    if (groups < 1 || first % groups != 0 || x->shape[1] != (transposed ? first : second)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: x has shape %s and w %s, expected x (N, C, ...) and w (%c, %c / "
                       "groups, ...), %c a multiple of groups = %lld",
                       op, msi_shape_text(x->ndim, x->shape), msi_shape_text(w->ndim, w->shape), to,
                       from, to, (long long)groups);
    }
    if (bias != NULL && (bias->ndim != 1 || bias->shape[0] != out)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: bias has shape %s, expected (%lld) for w %s", op,
                       msi_shape_text(bias->ndim, bias->shape), (long long)out,
                       msi_shape_text(w->ndim, w->shape));
    }
    MS_TRY(msi_same_dtype(op, "x", x, "w", w));
    MS_TRY(bias == NULL ? MS_OK : msi_same_dtype(op, "x", x, "bias", bias));
    MS_TRY(msi_check_kernel(op, MSI_K_conv, x->dtype));
    return transposed ? msi_check_kernel(op, MSI_K_conv_grad, x->dtype) : MS_OK;
}

static ms_status conv_meta(const msi_meta *m)
{
    const conv_attrs *attrs = m->attrs;
    const msi_view *x = m->in[X], *w = m->in[W];
    int64_t shape[MS_MAX_DIMS] = {0};

    MS_TRY(check_channels(m, attrs->ndim, attrs->groups, false));
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

/* Sizes for the kernel. `in` and `out` have the shapes of the convolution's x and y. */
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

/* -- transposed -------------------------------------------------------------------------------- */

static ms_status transpose_meta(const msi_meta *m)
{
    const conv_attrs *attrs = m->attrs;
    const msi_view *x = m->in[X], *w = m->in[W];
    int64_t shape[MS_MAX_DIMS] = {0};

    MS_TRY(check_channels(m, attrs->ndim, attrs->groups, true));
    shape[0] = x->shape[0];
    shape[1] = attrs->groups * w->shape[1];
    for (int32_t d = 0; d < attrs->ndim; d++) {
        const int64_t filter = attrs->dilation[d] * (w->shape[d + 2] - 1) + 1;

        shape[d + 2] =
            (x->shape[d + 2] - 1) * attrs->stride[d] + filter - attrs->front[d] - attrs->back[d];
        if (x->shape[d + 2] < 1 || w->shape[d + 2] < 1 || shape[d + 2] < 1) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "%s: x %s and w %s give %lld positions of spatial dimension %d, "
                           "expected 1 or more of each",
                           m->op->name, msi_shape_text(x->ndim, x->shape),
                           msi_shape_text(w->ndim, w->shape), (long long)shape[d + 2], (int)d + 1);
        }
    }
    return msi_result(m->out, x->dtype, x->ndim, shape);
}

/* y = the bias of each channel, or 0. */
static ms_status fill_bias(msi_view *y, const msi_view *bias)
{
    const int64_t shape[MS_MAX_DIMS] = {1, y->shape[1], 1, 1, 1};
    msi_view line, wide;

    if (bias == NULL) {
        return msi_fill(y, 0);
    }
    msi_view_reshape(bias, y->ndim, shape, &line);
    msi_view_expand(&line, y->ndim, y->shape, &wide);
    return msi_copy(y, &wide, false);
}

static ms_status transpose_forward(msi_op_call *c)
{
    msi_view x = {0}, w = {0}, sums = {0}, *out = &c->out[0]->v;
    const int32_t dtype = msi_stat_dtype(out->dtype); /* narrow results are rounded once */
    msi_conv_args args = {.dx_accumulate = true};
    ms_status status;
    void *data;

    MS_TRY_GOTO(msi_contiguous(&x, c->ctx, &c->in[X]->v), out);
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    args.dy = data;
    MS_TRY_GOTO(msi_contiguous(&w, c->ctx, &c->in[W]->v), out);
    MS_TRY_GOTO(msi_view_data(&w, &data), out);
    args.w = data;
    if (dtype == out->dtype) {
        sums = *out;
        msi_storage_retain(sums.storage);
    } else {
        MS_TRY_GOTO(msi_internal(&sums, c->ctx, dtype, out->ndim, out->shape), out);
    }
    MS_TRY_GOTO(fill_bias(&sums, c->in[BIAS] != NULL ? &c->in[BIAS]->v : NULL), out);
    args.dx = msi_view_ptr(&sums);
    set_sizes(&args, c->attrs, &sums, &w, &x);
    MS_TRY_GOTO(dispatch(c->op->name, c->ctx, &args, x.dtype, true), out);
    if (dtype != out->dtype) {
        MS_TRY_GOTO(msi_copy(out, &sums, false), out);
    }
    msi_save(c, X, &x);
    msi_save(c, W, &w);
out:
    msi_storage_release(sums.storage);
    msi_storage_release(w.storage);
    msi_storage_release(x.storage);
    return status;
}

/* x's gradient: the base's convolution of dy. */
static ms_status transpose_input_gradient(msi_bwd *b, const msi_view *dy, const msi_view *w)
{
    msi_conv_args args = {.x = msi_view_ptr(dy), .w = msi_view_ptr(w)};
    msi_target dx;

    MS_TRY(msi_target_open(&dx, b, X, dy->dtype, 0));
    args.y = dx.data;
    set_sizes(&args, msi_bwd_attrs(b), dy, w, &dx.view);
    MS_TRY(dispatch(msi_bwd_name(b), msi_bwd_context(b), &args, dy->dtype, false));
    return msi_target_close(&dx);
}

static ms_status transpose_filter_gradient(msi_bwd *b, const msi_view *dy, const msi_view *x,
                                           const msi_view *w)
{
    msi_conv_args args = {.x = msi_view_ptr(dy), .w = msi_view_ptr(w), .dy = msi_view_ptr(x)};
    msi_target dw;

    MS_TRY(msi_target_open(&dw, b, W, msi_stat_dtype(dy->dtype), MSI_CAN_ADD));
    args.dw = dw.data;
    args.dw_accumulate = dw.add;
    set_sizes(&args, msi_bwd_attrs(b), dy, w, x);
    MS_TRY(dispatch(msi_bwd_name(b), msi_bwd_context(b), &args, dy->dtype, true));
    return msi_target_close(&dw);
}

static ms_status transpose_backward(msi_bwd *b)
{
    const msi_view *x, *w;
    msi_view dy;

    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(bias_gradient(b, &dy));
    if (!msi_bwd_needs(b, X) && !msi_bwd_needs(b, W)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_saved(b, X, &x));
    MS_TRY(msi_bwd_saved(b, W, &w));
    if (msi_bwd_needs(b, X)) {
        MS_TRY(transpose_input_gradient(b, &dy, w));
    }
    return msi_bwd_needs(b, W) ? transpose_filter_gradient(b, &dy, x, w) : MS_OK;
}

/* -- operators --------------------------------------------------------------------------------- */

#define CONV_OP(name_, kind)                                                                       \
    {                                                                                              \
        .name = name_, .meta = kind##_meta, .forward = kind##_forward,                             \
        .backward = kind##_backward, .attrs_size = sizeof(conv_attrs), .n_saved = 2                \
    }

/* By the number of spatial dimensions less 1. */
const msi_op msi_op_conv[3] = {CONV_OP("conv1d", conv), CONV_OP("conv2d", conv),
                               CONV_OP("conv3d", conv)};
const msi_op msi_op_conv_transpose[3] = {CONV_OP("conv_transpose1d", transpose),
                                         CONV_OP("conv_transpose2d", transpose),
                                         CONV_OP("conv_transpose3d", transpose)};

static ms_status check_ndim(const char *op, int32_t ndim)
{
    return ndim >= 1 && ndim <= 3
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: %d spatial dimensions, expected 1 to 3", op,
                         (int)ndim);
}

ms_status ms_op_conv(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias, int32_t ndim,
                     const int64_t *stride, const int64_t *padding, const int64_t *dilation,
                     int64_t groups)
{
    ms_tensor *const in[3] = {x, w, bias};
    conv_attrs attrs = {.ndim = ndim, .groups = groups};

    *out = NULL;
    MS_TRY(check_ndim("conv", ndim));
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

ms_status ms_op_conv_transpose(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias,
                               int32_t ndim, const int64_t *stride, const int64_t *padding,
                               const int64_t *output_padding, const int64_t *dilation,
                               int64_t groups)
{
    ms_tensor *const in[3] = {x, w, bias};
    conv_attrs attrs = {.ndim = ndim, .groups = groups};

    *out = NULL;
    MS_TRY(check_ndim("conv_transpose", ndim));
    for (int32_t d = 0; d < ndim; d++) {
        const int64_t more = output_padding[d];

        attrs.stride[d] = stride[d];
        attrs.front[d] = padding[d];
        attrs.back[d] = padding[d] - more;
        attrs.dilation[d] = dilation[d];
        if (stride[d] < 1 || dilation[d] < 1 || padding[d] < 0) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "conv_transpose%dd: stride is %lld, dilation %lld and padding %lld, "
                           "expected 1 or more, and padding 0 or more",
                           (int)ndim, (long long)stride[d], (long long)dilation[d],
                           (long long)padding[d]);
        }
        if (more < 0 || (more >= stride[d] && more >= dilation[d])) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "conv_transpose%dd: output_padding is %lld, expected 0 or more, and "
                           "less than stride %lld or dilation %lld",
                           (int)ndim, (long long)more, (long long)stride[d],
                           (long long)dilation[d]);
        }
    }
    return msi_op_run(&msi_op_conv_transpose[ndim - 1], &attrs, in, 3, out, 1);
}
