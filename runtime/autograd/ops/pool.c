/* Pooling over one to three spatial dimensions. max_pool saves which tap of the window each result
 * came from; averages save nothing. */
#include "meta.h"
#include "operand.h"

typedef struct pool_attrs {
    int32_t ndim;
    bool ceil, count_pad, adaptive;
    double divisor;
    int64_t kernel[3], stride[3], pad[3], dilation[3]; /* adaptive: kernel is the result's size */
} pool_attrs;

/* A window begins in the input or in the padding in front of it, also where sizes are rounded up.
 */
static int64_t out_size(const pool_attrs *attrs, int32_t d, int64_t in)
{
    if (attrs->adaptive) {
        return attrs->kernel[d];
    }
    const int64_t stride = attrs->stride[d], pad = attrs->pad[d];
    const int64_t last = in + 2 * pad - attrs->dilation[d] * (attrs->kernel[d] - 1) - 1;

    if (last < 0) {
        return 0;
    }
    const int64_t n = (last + (attrs->ceil ? stride - 1 : 0)) / stride + 1;

    return attrs->ceil && (n - 1) * stride >= in + pad ? n - 1 : n;
}

static ms_status pool_meta(const msi_meta *m)
{
    const pool_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    const char *op = m->op->name;
    int64_t shape[MS_MAX_DIMS];

    if (x->ndim != attrs->ndim + 2) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: x has shape %s, expected %d dimensions (N, C, ...)", op,
                       msi_shape_text(x->ndim, x->shape), (int)attrs->ndim + 2);
    }
    shape[0] = x->shape[0];
    shape[1] = x->shape[1];
    for (int32_t d = 0; d < attrs->ndim; d++) {
        shape[d + 2] = out_size(attrs, d, x->shape[d + 2]);
        if (shape[d + 2] < 1 || x->shape[d + 2] < 1) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "%s: spatial dimension %d of x %s has no window of %lld elements", op,
                           (int)d + 1, msi_shape_text(x->ndim, x->shape),
                           (long long)(attrs->dilation[d] * (attrs->kernel[d] - 1) + 1));
        }
    }
    MS_TRY(msi_result(m->out, x->dtype, x->ndim, shape));
    return msi_check_kernel(op, MSI_K_avg_pool, x->dtype);
}

/* Sizes for the kernel, from the shapes of x and y. */
static void set_sizes(msi_pool_args *args, const pool_attrs *attrs, const msi_view *in,
                      const msi_view *out)
{
    args->planes = in->shape[0] * in->shape[1];
    args->count_pad = attrs->count_pad;
    args->adaptive = attrs->adaptive;
    args->divisor = attrs->divisor;
    for (int32_t i = 0; i < 3; i++) {
        const int32_t d = i - 3 + attrs->ndim;

        args->in[i] = d < 0 ? 1 : in->shape[d + 2];
        args->out[i] = d < 0 ? 1 : out->shape[d + 2];
        args->kernel[i] = d < 0 ? 1 : attrs->kernel[d];
        args->stride[i] = d < 0 ? 1 : attrs->stride[d];
        args->pad[i] = d < 0 ? 0 : attrs->pad[d];
        args->dilation[i] = d < 0 ? 1 : attrs->dilation[d];
    }
}

static ms_status forward(msi_op_call *c, bool largest)
{
    const msi_view *in = &c->in[0]->v, *out = &c->out[0]->v;
    msi_pool_args args = {.y = msi_view_ptr(out)};
    msi_view x = {0}, taps = {0};
    ms_status status;
    void *data;

    set_sizes(&args, c->attrs, in, out);
    MS_TRY_GOTO(msi_contiguous(&x, c->ctx, in), out);
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    args.x = data;
    if (largest) {
        MS_TRY_GOTO(msi_internal(&taps, c->ctx, MS_DTYPE_I32, out->ndim, out->shape), out);
        args.taps = msi_view_ptr(&taps);
        msi_save(c, 0, &taps);
    }
    MS_TRY_GOTO(
        msi_dispatch(c->op->name, largest ? MSI_K_max_pool : MSI_K_avg_pool, in->dtype, &args),
        out);
out:
    msi_storage_release(taps.storage);
    msi_storage_release(x.storage);
    return status;
}

static ms_status max_forward(msi_op_call *c)
{
    return forward(c, true);
}

static ms_status avg_forward(msi_op_call *c)
{
    return forward(c, false);
}

static ms_status backward(msi_bwd *b, bool largest)
{
    const msi_view *taps;
    msi_pool_args args = {0};
    msi_target dx;
    msi_view dy;

    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    if (largest) {
        MS_TRY(msi_bwd_saved(b, 0, &taps));
        args.taps = msi_view_ptr(taps);
    }
    /* Windows overlap: narrow gradients are summed in f32 and rounded once. */
    MS_TRY(msi_target_open(&dx, b, 0, msi_stat_dtype(dy.dtype), MSI_CAN_ADD));
    set_sizes(&args, msi_bwd_attrs(b), msi_bwd_operand(b, 0), &dy);
    args.dy = msi_view_ptr(&dy);
    args.dx = dx.data;
    args.accumulate = dx.add;
    MS_TRY(msi_dispatch(msi_bwd_name(b), largest ? MSI_K_max_pool_grad : MSI_K_avg_pool_grad,
                        dy.dtype, &args));
    return msi_target_close(&dx);
}

static ms_status max_backward(msi_bwd *b)
{
    return backward(b, true);
}

static ms_status avg_backward(msi_bwd *b)
{
    return backward(b, false);
}

#define POOL_OP(name_, kind)                                                                       \
    {                                                                                              \
        .name = name_, .meta = pool_meta, .forward = kind##_forward, .backward = kind##_backward,  \
        .attrs_size = sizeof(pool_attrs), .n_saved = 1                                             \
    }

/* By the number of spatial dimensions less 1. */
const msi_op msi_op_max_pool[3] = {POOL_OP("max_pool1d", max), POOL_OP("max_pool2d", max),
                                   POOL_OP("max_pool3d", max)};
const msi_op msi_op_avg_pool[3] = {POOL_OP("avg_pool1d", avg), POOL_OP("avg_pool2d", avg),
                                   POOL_OP("avg_pool3d", avg)};
const msi_op msi_op_adaptive_avg_pool[3] = {POOL_OP("adaptive_avg_pool1d", avg),
                                            POOL_OP("adaptive_avg_pool2d", avg),
                                            POOL_OP("adaptive_avg_pool3d", avg)};

static ms_status check_dims(const char *op, int32_t ndim)
{
    return ndim >= 1 && ndim <= 3
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: %d spatial dimensions, expected 1 to 3", op,
                         (int)ndim);
}

static ms_status set_window(pool_attrs *attrs, const char *op, const int64_t *kernel,
                            const int64_t *stride, const int64_t *padding, const int64_t *dilation)
{
    MS_TRY(check_dims(op, attrs->ndim));
    for (int32_t d = 0; d < attrs->ndim; d++) {
        const int64_t apart = dilation != NULL ? dilation[d] : 1;

        if (kernel[d] < 1 || stride[d] < 1 || apart < 1 || padding[d] < 0 ||
            padding[d] > (apart * (kernel[d] - 1) + 1) / 2) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "%s%dd: kernel_size is %lld, stride %lld, dilation %lld and padding "
                           "%lld, expected 1 or more, and padding 0 to half of the window",
                           op, (int)attrs->ndim, (long long)kernel[d], (long long)stride[d],
                           (long long)apart, (long long)padding[d]);
        }
        attrs->kernel[d] = kernel[d];
        attrs->stride[d] = stride[d];
        attrs->pad[d] = padding[d];
        attrs->dilation[d] = apart;
    }
    return MS_OK;
}

ms_status ms_op_max_pool(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *kernel,
                         const int64_t *stride, const int64_t *padding, const int64_t *dilation,
                         bool ceil_mode)
{
    pool_attrs attrs = {.ndim = ndim, .ceil = ceil_mode};

    *out = NULL;
    MS_TRY(set_window(&attrs, "max_pool", kernel, stride, padding, dilation));
    return msi_op_run(&msi_op_max_pool[ndim - 1], &attrs, &x, 1, out, 1);
}

ms_status ms_op_avg_pool(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *kernel,
                         const int64_t *stride, const int64_t *padding, bool ceil_mode,
                         bool count_include_pad, int64_t divisor)
{
    pool_attrs attrs = {.ndim = ndim,
                        .ceil = ceil_mode,
                        .count_pad = count_include_pad,
                        .divisor = (double)divisor};

    *out = NULL;
    MS_TRY(set_window(&attrs, "avg_pool", kernel, stride, padding, NULL));
    return msi_op_run(&msi_op_avg_pool[ndim - 1], &attrs, &x, 1, out, 1);
}

ms_status ms_op_adaptive_avg_pool(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *size)
{
    pool_attrs attrs = {.ndim = ndim, .adaptive = true};

    *out = NULL;
    MS_TRY(check_dims("adaptive_avg_pool", ndim));
    for (int32_t d = 0; d < ndim; d++) {
        if (size[d] < 1) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "adaptive_avg_pool%dd: output_size is %lld in spatial dimension %d, "
                           "expected 1 or more",
                           (int)ndim, (long long)size[d], (int)d + 1);
        }
        attrs.kernel[d] = size[d];
        attrs.dilation[d] = 1;
    }
    return msi_op_run(&msi_op_adaptive_avg_pool[ndim - 1], &attrs, &x, 1, out, 1);
}
