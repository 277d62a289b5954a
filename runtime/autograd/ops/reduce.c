/* Reductions over a set of dimensions. The gradient of sum and mean is an expanded view, without
 * copies. */
#include "meta.h"
#include "operand.h"

typedef struct reduce_attrs {
    uint32_t dims;
    bool keepdim, mean, largest;
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

/* The result's shape, in `dtype`. */
static ms_status reduced_result(const msi_meta *m, int32_t dtype)
{
    const reduce_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    int64_t kept[MS_MAX_DIMS], shape[MS_MAX_DIMS];
    int32_t ndim = 0;

    if ((uint64_t)attrs->dims >> x->ndim != 0) {
        return MS_FAIL(MS_INDEX_ERROR, "%s: dimension %d is outside of shape %s", m->op->name,
                       31 - __builtin_clz(attrs->dims), msi_shape_text(x->ndim, x->shape));
    }
    kept_shape(x, attrs->dims, kept);
    for (int32_t d = 0; d < x->ndim; d++) {
        if (attrs->keepdim || (attrs->dims != 0 && !(attrs->dims >> d & 1))) {
            shape[ndim++] = kept[d];
        }
    }
    return msi_result(m->out, dtype, ndim, shape);
}

static ms_status reduce_meta(const msi_meta *m)
{
    const reduce_attrs *attrs = m->attrs;
    const int32_t dtype = m->in[0]->dtype;

    MS_TRY(reduced_result(m, sum_dtype(dtype)));
    if (attrs->mean && !ms_dtype_is_floating(dtype)) {
        return MS_FAIL(MS_TYPE_ERROR,
                       "mean: the tensor is %s, expected a floating dtype; t:to('f32') has a mean",
                       ms_dtype_name(dtype));
    }
    return msi_meta_kernel(m, MSI_K_sum, dtype);
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
    const reduce_attrs attrs = {dims, keepdim, false, false};

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
    const reduce_attrs attrs = {dims, keepdim, true, false};

    *out = NULL;
    return msi_op_run(&msi_op_mean, &attrs, &x, 1, out, 1);
}

/* -- reductions that are no sums --------------------------------------------------------------- */

/* The reduced or the other dimensions of a view. */
static void pick(msi_view *out, const msi_view *v, uint32_t dims, bool reduced)
{
    *out = (msi_view){.ndim = 0};
    for (int32_t d = 0; d < v->ndim; d++) {
        if ((dims == 0 || (dims >> d & 1)) == reduced) {
            out->shape[out->ndim] = v->shape[d];
            out->stride[out->ndim++] = v->stride[d];
        }
    }
}

/* Loops over x's dimensions; `out`, `y` and `g` (or NULL) have x's shape, or 1 for reduced sizes.
 */
static void make_loops(msi_reduction_args *args, uint32_t dims, const msi_view *out,
                       const msi_view *x, const msi_view *y, const msi_view *g)
{
    const msi_view *const views[4] = {out, x, y, g};
    msi_view kept[4], reduced[2];
    const msi_view *each[4] = {NULL}, *over[2] = {&reduced[0], &reduced[1]};

    for (int32_t k = 0; k < 4; k++) {
        if (views[k] != NULL) {
            pick(&kept[k], views[k], dims, false);
            each[k] = &kept[k];
        }
    }
    pick(&reduced[0], out, dims, true);
    pick(&reduced[1], x, dims, true);
    if (g == NULL) {
        over[0] = NULL;
    }
    msi_loop_make(&args->kept, kept[1].ndim, kept[1].shape, each, 4);
    msi_loop_make(&args->reduced, reduced[1].ndim, reduced[1].shape, over, 2);
}

static ms_status run_reduction(const msi_op_call *c, int32_t kernel, bool positions)
{
    const reduce_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    const msi_view out = with_kept_dims(&c->out[0]->v, attrs, x);
    msi_reduction_args args = {.largest = attrs->largest};
    void *in, *data;

    MS_TRY(msi_view_data(x, &in)); /* error if absent */
    if (msi_view_numel(&out) == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_data(&out, &data));
    make_loops(&args, attrs->dims, &out, x, NULL, NULL);
    args.in = in;
    args.out = positions ? NULL : data;
    args.index = positions ? data : NULL;
    return msi_dispatch(c->op->name, kernel, x->dtype, &args);
}

/* `kernel` writes x's gradient from the saved x and, if `y` is not NULL, the saved result. */
static ms_status reduction_backward(msi_bwd *b, int32_t kernel, const msi_view *x,
                                    const msi_view *y)
{
    const reduce_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *grad = msi_bwd_grad(b, 0);
    const msi_view g = with_kept_dims(grad, attrs, x);
    const msi_view value = with_kept_dims(y != NULL ? y : grad, attrs, x);
    msi_reduction_args args = {0};
    void *in, *y_data, *g_data;
    msi_target t;

    MS_TRY(msi_target_open(&t, b, 0, x->dtype, MSI_CAN_ADD));
    if (msi_view_numel(x) > 0) {
        MS_TRY(msi_view_data(x, &in));
        MS_TRY(msi_view_data(&value, &y_data));
        MS_TRY(msi_view_data(&g, &g_data));
        make_loops(&args, attrs->dims, &t.view, x, &value, &g);
        args.in = in;
        args.out = t.data;
        args.y = y_data;
        args.g = g_data;
        args.accumulate = t.add;
        MS_TRY(msi_dispatch(msi_bwd_name(b), kernel, x->dtype, &args));
    }
    return msi_target_close(&t);
}

enum { SAVED_X, SAVED_Y };

static ms_status extreme_result(const msi_meta *m, int32_t dtype)
{
    const reduce_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];

    MS_TRY(reduced_result(m, dtype));
    for (int32_t d = 0; d < x->ndim; d++) {
        if ((attrs->dims == 0 || (attrs->dims >> d & 1)) && x->shape[d] == 0) {
            return MS_FAIL(MS_INDEX_ERROR,
                           "%s: a reduced dimension of shape %s has size 0, expected 1 or more",
                           m->op->name, msi_shape_text(x->ndim, x->shape));
        }
    }
    return msi_meta_kernel(m, MSI_K_extreme, x->dtype);
}

static ms_status extreme_meta(const msi_meta *m)
{
    return extreme_result(m, m->in[0]->dtype);
}

static ms_status extreme_forward(msi_op_call *c)
{
    MS_TRY(run_reduction(c, MSI_K_extreme, false));
    msi_save(c, SAVED_X, &c->in[0]->v);
    msi_save(c, SAVED_Y, &c->out[0]->v);
    return MS_OK;
}

static ms_status extreme_backward(msi_bwd *b)
{
    const msi_view *x, *y;

    MS_TRY(msi_bwd_saved(b, SAVED_X, &x));
    MS_TRY(msi_bwd_saved(b, SAVED_Y, &y));
    return reduction_backward(b, MSI_K_extreme_grad, x, y);
}

static ms_status position_meta(const msi_meta *m)
{
    const uint32_t dims = ((const reduce_attrs *)m->attrs)->dims;

    MS_TRY(extreme_result(m, MS_DTYPE_I64));
    if ((dims & (dims - 1)) != 0) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: several dimensions are given, expected one or all",
                       m->op->name);
    }
    return MS_OK;
}

static ms_status position_forward(msi_op_call *c)
{
    return run_reduction(c, MSI_K_extreme, true);
}

static ms_status prod_meta(const msi_meta *m)
{
    MS_TRY(reduced_result(m, sum_dtype(m->in[0]->dtype)));
    return msi_meta_kernel(m, MSI_K_prod, m->in[0]->dtype);
}

static ms_status prod_forward(msi_op_call *c)
{
    MS_TRY(run_reduction(c, MSI_K_prod, false));
    msi_save(c, SAVED_X, &c->in[0]->v);
    return MS_OK;
}

static ms_status prod_backward(msi_bwd *b)
{
    const msi_view *x;

    MS_TRY(msi_bwd_saved(b, SAVED_X, &x));
    return reduction_backward(b, MSI_K_prod_grad, x, NULL);
}

#define REDUCTION(name_, largest_, ...)                                                            \
    const msi_op msi_op_##name_ = {                                                                \
        .name = #name_, .attrs_size = sizeof(reduce_attrs), __VA_ARGS__};                          \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim)            \
    {                                                                                              \
        const reduce_attrs attrs = {dims, keepdim, false, largest_};                               \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &attrs, &x, 1, out, 1);                                 \
    }
#define EXTREME                                                                                    \
    .meta = extreme_meta, .forward = extreme_forward, .backward = extreme_backward, .n_saved = 2
#define POSITION .meta = position_meta, .forward = position_forward
REDUCTION(amax, true, EXTREME)
REDUCTION(amin, false, EXTREME)
REDUCTION(argmax, true, POSITION)
REDUCTION(argmin, false, POSITION)
REDUCTION(prod, false, .meta = prod_meta, .forward = prod_forward, .backward = prod_backward,
          .n_saved = 1)
