/* Sum and mean over a set of dimensions. The gradient is an expanded view, without copies. */
#include "meta.h"
#include "operand.h"

typedef struct reduce_attrs {
    uint32_t dims;
    bool keepdim, mean;
} reduce_attrs;

/* Shape of x with reduced dimensions kept as 1. */
static void kept_shape(const msi_view *x, uint32_t dims, int64_t *shape)
{
    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = dims == 0 || (dims >> d & 1) ? 1 : x->shape[d];
    }
}

/* Elements of x per element of the result. */
static double reduced_numel(const msi_view *x, uint32_t dims)
{
    double n = 1;

    for (int32_t d = 0; d < x->ndim; d++) {
        n *= dims == 0 || (dims >> d & 1) ? (double)x->shape[d] : 1;
    }
    return n;
}

/* Sum dtype of integers and bool (which counts true). */
static int32_t sum_dtype(int32_t dtype)
{
    return ms_dtype_is_floating(dtype) ? dtype : MS_DTYPE_I64;
}

static ms_status reduce_meta(const msi_meta *m)
{
    const reduce_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    int64_t kept[MS_MAX_DIMS], shape[MS_MAX_DIMS];
    int32_t ndim = 0;

    if ((uint64_t)attrs->dims >> x->ndim != 0) {
        return MS_FAIL(MS_INDEX_ERROR, "%s: dimension %d is outside of shape %s", m->op->name,
                       31 - __builtin_clz(attrs->dims), msi_shape_text(x->ndim, x->shape));
    }
    if (attrs->mean && !ms_dtype_is_floating(x->dtype)) {
        return MS_FAIL(MS_TYPE_ERROR,
                       "mean: the tensor is %s, expected a floating dtype; t:to('f32') has a mean",
                       ms_dtype_name(x->dtype));
    }
    kept_shape(x, attrs->dims, kept);
    for (int32_t d = 0; d < x->ndim; d++) {
        if (attrs->keepdim || (attrs->dims != 0 && !(attrs->dims >> d & 1))) {
            shape[ndim++] = kept[d];
        }
    }
    MS_TRY(msi_result(m->out, sum_dtype(x->dtype), ndim, shape));
    return msi_meta_kernel(m, MSI_K_sum, x->dtype);
}

static ms_status reduce_forward(msi_op_call *c)
{
    const reduce_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    int64_t kept[MS_MAX_DIMS];
    msi_view out = c->out[0]->v;

    kept_shape(x, attrs->dims, kept);
    msi_view_set_contiguous(&out, out.dtype, x->ndim, kept);
    return msi_sum_to(c->op->name, &out, x, attrs->mean ? 1 / reduced_numel(x, attrs->dims) : 1,
                      false);
}

/* `v`, shaped like the result, with reduced dimensions of size 1. */
static msi_view with_kept_dims(const msi_view *v, const reduce_attrs *attrs, const msi_view *x)
{
    msi_view k = {.storage = v->storage, .offset = v->offset, .dtype = v->dtype, .ndim = x->ndim};
    int32_t from = 0;

    for (int32_t d = 0; d < x->ndim; d++) {
        bool reduced = attrs->dims == 0 || (attrs->dims >> d & 1);

        k.shape[d] = reduced ? 1 : x->shape[d];
        k.stride[d] = reduced ? 0 : v->stride[from];
        from += attrs->keepdim || !reduced;
    }
    return k;
}

static ms_status reduce_backward(msi_bwd *b)
{
    const reduce_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *x = msi_bwd_operand(b, 0), *g = msi_bwd_grad(b, 0);
    msi_view scaled = *g, expanded;

    if (attrs->mean) {
        const double scalars[2] = {1 / reduced_numel(x, attrs->dims), -0.0};

        MS_TRY(msi_bwd_temp(b, g->dtype, g->ndim, g->shape, &scaled));
        MS_TRY(msi_ew("mean", MSI_K_affine, &scaled, &g, 1, scalars, false));
    }
    const msi_view kept = with_kept_dims(&scaled, attrs, x);

    msi_view_expand(&kept, x->ndim, x->shape, &expanded);
    return msi_bwd_pass(b, 0, &expanded);
}

const msi_op msi_op_sum = {.name = "sum",
                           .meta = reduce_meta,
                           .forward = reduce_forward,
                           .backward = reduce_backward,
                           .attrs_size = sizeof(reduce_attrs)};

ms_status ms_op_sum(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim)
{
    const reduce_attrs attrs = {dims, keepdim, false};

    *out = NULL;
    return msi_op_run(&msi_op_sum, &attrs, &x, 1, out, 1);
}

const msi_op msi_op_mean = {.name = "mean",
                            .meta = reduce_meta,
                            .forward = reduce_forward,
                            .backward = reduce_backward,
                            .attrs_size = sizeof(reduce_attrs)};

ms_status ms_op_mean(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim)
{
    const reduce_attrs attrs = {dims, keepdim, true};

    *out = NULL;
    return msi_op_run(&msi_op_mean, &attrs, &x, 1, out, 1);
}
