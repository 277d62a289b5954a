/* Views: other shapes and strides over the same memory. Gradients are the reverse views. Only those
 * of narrow and select (zeros around) and expand (a sum) need memory. */
#include "meta.h"
#include "operand.h"

/* -- reshape ----------------------------------------------------------------------------------- */

typedef struct reshape_attrs {
    int32_t ndim;
    int64_t shape[MS_MAX_DIMS];
} reshape_attrs;

/* Replace a size of -1 by the rest, and compare the counts. */
static ms_status infer_shape(const msi_view *x, const reshape_attrs *attrs, int64_t *shape)
{
    const int64_t numel = msi_view_numel(x);
    int64_t known = 1;
    int32_t open = -1;
    bool fits = true;

    for (int32_t d = 0; d < attrs->ndim; d++) {
        shape[d] = attrs->shape[d];
        if (shape[d] == -1 && open < 0) {
            open = d;
        } else {
            fits &= shape[d] >= 0 && !__builtin_mul_overflow(known, shape[d], &known);
        }
    }
    if (fits && open >= 0) {
        fits = known > 0 && numel % known == 0;
        shape[open] = fits ? numel / known : -1;
    } else {
        fits &= known == numel;
    }
    if (!fits) {
        return MS_FAIL(MS_VALUE_ERROR, "reshape: %s has %lld elements, which shape %s does not fit",
                       msi_shape_text(x->ndim, x->shape), (long long)numel,
                       msi_shape_text(attrs->ndim, attrs->shape));
    }
    return msi_check_sizes(attrs->ndim, shape);
}

static ms_status reshape_meta(const msi_meta *m)
{
    const reshape_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    int64_t shape[MS_MAX_DIMS];

    MS_TRY(infer_shape(x, attrs, shape));
    if (msi_view_reshape(x, attrs->ndim, shape, m->out)) {
        return MS_OK;
    }
    return msi_result(m->out, x->dtype, attrs->ndim, shape);
}

/* A copy, if strides allow no view. */
static ms_status reshape_forward(msi_op_call *c)
{
    const msi_view *x = &c->in[0]->v;
    msi_view v = c->out[0]->v;

    msi_view_set_contiguous(&v, x->dtype, x->ndim, x->shape);
    return msi_copy(&v, x, false);
}

static ms_status reshape_backward(msi_bwd *b)
{
    const msi_view *x = msi_bwd_operand(b, 0), *g = msi_bwd_grad(b, 0);
    msi_view plain, v;

    if (!msi_view_reshape(g, x->ndim, x->shape, &v)) {
        MS_TRY(msi_bwd_contiguous(b, g, &plain));
        msi_view_reshape(&plain, x->ndim, x->shape, &v);
    }
    return msi_bwd_pass(b, 0, &v);
}

const msi_op msi_op_reshape = {.name = "reshape",
                               .meta = reshape_meta,
                               .forward = reshape_forward,
                               .backward = reshape_backward,
                               .attrs_size = sizeof(reshape_attrs)};

static ms_status check_ndim(const char *op, int32_t ndim)
{
    if (ndim < 0 || ndim > MS_MAX_DIMS) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: a tensor has 0 to %d dimensions, got %d", op,
                       MS_MAX_DIMS, (int)ndim);
    }
    return MS_OK;
}

/* Run an operator whose attributes are a shape. */
static ms_status run_shaped(const msi_op *op, ms_tensor **out, ms_tensor *x, int32_t ndim,
                            const int64_t *shape)
{
    reshape_attrs attrs = {.ndim = ndim};

    *out = NULL;
    MS_TRY(check_ndim(op->name, ndim));
    for (int32_t d = 0; d < ndim; d++) {
        attrs.shape[d] = shape[d];
    }
    return msi_op_run(op, &attrs, &x, 1, out, 1);
}

ms_status ms_op_reshape(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape)
{
    return run_shaped(&msi_op_reshape, out, x, ndim, shape);
}

/* -- expand ------------------------------------------------------------------------------------ */

/* The shape with -1 replaced. */
static ms_status expanded_shape(const msi_view *x, const reshape_attrs *attrs, int64_t *shape)
{
    const int32_t shift = attrs->ndim - x->ndim;
    bool fits = shift >= 0;

    for (int32_t d = 0; fits && d < attrs->ndim; d++) {
        const int64_t own = d >= shift ? x->shape[d - shift] : 1;

        shape[d] = attrs->shape[d] == -1 && d >= shift ? own : attrs->shape[d];
        fits = shape[d] >= 0 && (own == 1 || own == shape[d]);
    }
    if (!fits) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "expand: shape %s does not expand to %s: a size of 1 becomes any, others "
                       "stay, and new dimensions come first",
                       msi_shape_text(x->ndim, x->shape),
                       msi_shape_text(attrs->ndim, attrs->shape));
    }
    return msi_check_sizes(attrs->ndim, shape);
}

static ms_status expand_meta(const msi_meta *m)
{
    const reshape_attrs *attrs = m->attrs;
    int64_t shape[MS_MAX_DIMS];

    MS_TRY(expanded_shape(m->in[0], attrs, shape));
    msi_view_expand(m->in[0], attrs->ndim, shape, m->out);
    return MS_OK;
}

static ms_status expand_backward(msi_bwd *b)
{
    return msi_bwd_reduce_pass(b, 0, msi_bwd_grad(b, 0), 1);
}

const msi_op msi_op_expand = {.name = "expand",
                              .meta = expand_meta,
                              .backward = expand_backward,
                              .attrs_size = sizeof(reshape_attrs)};

ms_status ms_op_expand(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape)
{
    return run_shaped(&msi_op_expand, out, x, ndim, shape);
}

/* -- permute ----------------------------------------------------------------------------------- */

typedef struct permute_attrs {
    int32_t ndim;
    int32_t perm[MS_MAX_DIMS];
} permute_attrs;

static ms_status permute_meta(const msi_meta *m)
{
    const permute_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];
    msi_view v = *x;
    uint32_t seen = 0;

    if (attrs->ndim != x->ndim) {
        return MS_FAIL(MS_VALUE_ERROR, "permute: got %d dimensions for shape %s, expected %d",
                       (int)attrs->ndim, msi_shape_text(x->ndim, x->shape), (int)x->ndim);
    }
    for (int32_t d = 0; d < x->ndim; d++) {
        const int32_t from = attrs->perm[d];

        if (from < 0 || from >= x->ndim) {
            return MS_FAIL(MS_INDEX_ERROR, "permute: dimension %d is outside [0, %d)", (int)from,
                           (int)x->ndim);
        }
        if (seen >> from & 1) {
            return MS_FAIL(MS_VALUE_ERROR, "permute: a dimension comes twice");
        }
        seen |= 1u << from;
        v.shape[d] = x->shape[from];
        v.stride[d] = x->stride[from];
    }
    msi_result_view(m->out, &v);
    return MS_OK;
}

static ms_status permute_backward(msi_bwd *b)
{
    const permute_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0);
    msi_view v = *g;

    for (int32_t d = 0; d < attrs->ndim; d++) {
        v.shape[attrs->perm[d]] = g->shape[d];
        v.stride[attrs->perm[d]] = g->stride[d];
    }
    return msi_bwd_pass(b, 0, &v);
}

const msi_op msi_op_permute = {.name = "permute",
                               .meta = permute_meta,
                               .backward = permute_backward,
                               .attrs_size = sizeof(permute_attrs)};

ms_status ms_op_permute(ms_tensor **out, ms_tensor *x, int32_t ndim, const int32_t *perm)
{
    permute_attrs attrs = {.ndim = ndim};

    *out = NULL;
    MS_TRY(check_ndim("permute", ndim));
    for (int32_t d = 0; d < ndim; d++) {
        attrs.perm[d] = perm[d];
    }
    return msi_op_run(&msi_op_permute, &attrs, &x, 1, out, 1);
}

/* -- narrow ------------------------------------------------------------------------------------ */

typedef struct narrow_attrs {
    int32_t dim;
    int64_t start, length;
} narrow_attrs;

static msi_view narrowed(const msi_view *v, const narrow_attrs *attrs)
{
    msi_view n = *v;

    n.offset += attrs->start * v->stride[attrs->dim];
    n.shape[attrs->dim] = attrs->length;
    return n;
}

static ms_status narrow_meta(const msi_meta *m)
{
    const narrow_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];

    if (attrs->dim < 0 || attrs->dim >= x->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "narrow: dimension %d is outside of shape %s",
                       (int)attrs->dim, msi_shape_text(x->ndim, x->shape));
    }
    if (attrs->start < 0 || attrs->length < 0 ||
        attrs->start > x->shape[attrs->dim] - attrs->length) {
        return MS_FAIL(MS_INDEX_ERROR,
                       "narrow: %lld entries from %lld along dimension %d are outside of shape %s",
                       (long long)attrs->length, (long long)attrs->start, (int)attrs->dim,
                       msi_shape_text(x->ndim, x->shape));
    }
    const msi_view v = narrowed(x, attrs);

    msi_result_view(m->out, &v);
    return MS_OK;
}

/* Whole destination of the operand's gradient, zeroed before the first contribution. */
static ms_status zeroed_dest(msi_bwd *b, msi_view *dst, bool *add)
{
    MS_TRY(msi_bwd_dest(b, 0, dst, add));
    return *add ? MS_OK : msi_fill(dst, 0);
}

static ms_status narrow_backward(msi_bwd *b)
{
    const narrow_attrs *attrs = msi_bwd_attrs(b);
    msi_view dst;
    bool add;

    MS_TRY(zeroed_dest(b, &dst, &add));
    const msi_view part = narrowed(&dst, attrs);

    return msi_copy(&part, msi_bwd_grad(b, 0), add);
}

const msi_op msi_op_narrow = {.name = "narrow",
                              .meta = narrow_meta,
                              .backward = narrow_backward,
                              .attrs_size = sizeof(narrow_attrs)};

ms_status ms_op_narrow(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t start, int64_t length)
{
    const narrow_attrs attrs = {dim, start, length};

    *out = NULL;
    return msi_op_run(&msi_op_narrow, &attrs, &x, 1, out, 1);
}

/* -- select ------------------------------------------------------------------------------------ */

typedef struct select_attrs {
    int32_t dim;
    int64_t index;
} select_attrs;

static msi_view selected(const msi_view *v, const select_attrs *attrs)
{
    msi_view s = {.storage = v->storage, .dtype = v->dtype};

    s.offset = v->offset + attrs->index * v->stride[attrs->dim];
    for (int32_t d = 0; d < v->ndim; d++) {
        if (d != attrs->dim) {
            s.shape[s.ndim] = v->shape[d];
            s.stride[s.ndim++] = v->stride[d];
        }
    }
    return s;
}

static ms_status select_meta(const msi_meta *m)
{
    const select_attrs *attrs = m->attrs;
    const msi_view *x = m->in[0];

    if (attrs->dim < 0 || attrs->dim >= x->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "select: dimension %d is outside of shape %s",
                       (int)attrs->dim, msi_shape_text(x->ndim, x->shape));
    }
    if (attrs->index < 0 || attrs->index >= x->shape[attrs->dim]) {
        return MS_FAIL(MS_INDEX_ERROR, "select: entry %lld of dimension %d is outside of shape %s",
                       (long long)attrs->index, (int)attrs->dim, msi_shape_text(x->ndim, x->shape));
    }
    const msi_view v = selected(x, attrs);

    msi_result_view(m->out, &v);
    return MS_OK;
}

static ms_status select_backward(msi_bwd *b)
{
    const select_attrs *attrs = msi_bwd_attrs(b);
    msi_view dst;
    bool add;

    MS_TRY(zeroed_dest(b, &dst, &add));
    const msi_view part = selected(&dst, attrs);

    return msi_copy(&part, msi_bwd_grad(b, 0), add);
}

const msi_op msi_op_select = {.name = "select",
                              .meta = select_meta,
                              .backward = select_backward,
                              .attrs_size = sizeof(select_attrs)};

ms_status ms_op_select(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t index)
{
    const select_attrs attrs = {dim, index};

    *out = NULL;
    return msi_op_run(&msi_op_select, &attrs, &x, 1, out, 1);
}

/* -- flip: a copy, as no tensor has negative strides ------------------------------------------- */

typedef struct flip_attrs {
    uint32_t dims;
} flip_attrs;

static ms_status flip_meta(const msi_meta *m)
{
    const uint32_t dims = ((const flip_attrs *)m->attrs)->dims;
    const msi_view *x = m->in[0];

    if ((uint64_t)dims >> x->ndim != 0) {
        return MS_FAIL(MS_INDEX_ERROR, "flip: dimension %d is outside of shape %s",
                       31 - __builtin_clz(dims), msi_shape_text(x->ndim, x->shape));
    }
    return msi_meta_like(m);
}

/* `v` reversed; only kernels accept such strides. */
static msi_view flipped(const msi_view *v, uint32_t dims)
{
    msi_view f = *v;

    for (int32_t d = 0; d < v->ndim; d++) {
        if ((dims >> d & 1) && v->shape[d] > 0) {
            f.offset += (v->shape[d] - 1) * v->stride[d];
            f.stride[d] = -v->stride[d];
        }
    }
    return f;
}

static ms_status flip_forward(msi_op_call *c)
{
    const msi_view x = flipped(&c->in[0]->v, ((const flip_attrs *)c->attrs)->dims), *in = &x;

    return msi_ew("flip", MSI_K_copy, &c->out[0]->v, &in, 1, NULL, false);
}

static ms_status flip_backward(msi_bwd *b)
{
    const flip_attrs *attrs = msi_bwd_attrs(b);
    const msi_view g = flipped(msi_bwd_grad(b, 0), attrs->dims);
    msi_view dst;
    bool add;

    MS_TRY(msi_bwd_dest(b, 0, &dst, &add));
    return msi_copy(&dst, &g, add);
}

const msi_op msi_op_flip = {.name = "flip",
                            .meta = flip_meta,
                            .forward = flip_forward,
                            .backward = flip_backward,
                            .attrs_size = sizeof(flip_attrs)};

ms_status ms_op_flip(ms_tensor **out, ms_tensor *x, uint32_t dims)
{
    const flip_attrs attrs = {dims};

    *out = NULL;
    return msi_op_run(&msi_op_flip, &attrs, &x, 1, out, 1);
}
