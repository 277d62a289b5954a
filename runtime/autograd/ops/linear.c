/* y = x w^T + bias, and gelu(y). x (..., in) is read as a matrix (M, in).
 *
 * Both share one rule: with the pre-activation h = x w^T + bias and its gradient dh,
 *   dx = dh w,  dw = dh^T x,  dbias = sum of dh over M.
 * linear_gelu saves h instead of its result; dh reuses h's memory. */
#include "meta.h"
#include "operand.h"

enum { X, W, BIAS };                /* operands */
enum { SAVED_X, SAVED_W, SAVED_H }; /* saved; h by linear_gelu only */

typedef struct linear_attrs {
    int64_t pitch; /* elements from a row of the result to the next; 0: no gaps */
} linear_attrs;

typedef struct gelu_attrs {
    bool approximate;
} gelu_attrs;

static ms_status check_bias(const char *op, const msi_view *x, const msi_view *w,
                            const msi_view *bias)
{
    if (bias == NULL) {
        return MS_OK;
    }
    if (bias->ndim != 1 || bias->shape[0] != w->shape[0]) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: bias has shape %s, expected (%lld) for w %s", op,
                       msi_shape_text(bias->ndim, bias->shape), (long long)w->shape[0],
                       msi_shape_text(w->ndim, w->shape));
    }
    return msi_same_dtype(op, "x", x, "bias", bias);
}

static ms_status product_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X], *w = m->in[W];
    const char *op = m->op->name;
    int64_t shape[MS_MAX_DIMS];

    if (w->ndim != 2 || x->ndim < 1 || x->shape[x->ndim - 1] != w->shape[1]) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: x has shape %s and w %s, expected x (..., in) and w (out, in)", op,
                       msi_shape_text(x->ndim, x->shape), msi_shape_text(w->ndim, w->shape));
    }
    MS_TRY(msi_same_dtype_of_product(op, x, w));
    MS_TRY(msi_check_product(op, x->dtype));
    MS_TRY(check_bias(op, x, w, m->in[BIAS]));
    for (int32_t i = 0; i < x->ndim - 1; i++) {
        shape[i] = x->shape[i];
    }
    shape[x->ndim - 1] = w->shape[0];
    return msi_result(m->out, x->dtype, x->ndim, shape);
}

static ms_status linear_meta(const msi_meta *m)
{
    int64_t stride = ((const linear_attrs *)m->attrs)->pitch;

    MS_TRY(product_meta(m));
    for (int32_t i = m->out->ndim - 2; stride > 0 && i >= 0; i--) {
        m->out->stride[i] = stride;
        stride *= m->out->shape[i];
    }
    return MS_OK;
}

/* `v` as a matrix for the gemm, copied if needed. The caller owns a reference. */
static ms_status as_matrix(msi_view *out, ms_context *ctx, const msi_view *v)
{
    const int64_t shape[2] = {msi_leading(v, v->ndim - 1), v->shape[v->ndim - 1]};
    msi_view copy;

    if (msi_view_reshape(v, 2, shape, out) && msi_is_matrix(out)) {
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    MS_TRY(msi_view_like(&copy, ctx, v, v->dtype, MS_MEM_ACTIVATION, true));
    msi_view_reshape(&copy, 2, shape, out);
    return MS_OK;
}

/* h = x w^T + bias, or with y (not NULL) also y = gelu_tanh(h), by the product itself; then h may
 * be NULL. Saves x and w as read. */
static ms_status multiply(msi_op_call *c, const msi_view *h, const msi_view *y)
{
    msi_view x, w, bias = {.storage = NULL};
    msi_matrix a, b;
    msi_gemm_args args = {.batch = 1};
    ms_status status;

    MS_TRY(as_matrix(&x, c->ctx, &c->in[X]->v));
    MS_TRY_GOTO(as_matrix(&w, c->ctx, &c->in[W]->v), no_w);
    MS_TRY_GOTO(msi_matrix_of(&x, &a), out);
    MS_TRY_GOTO(msi_matrix_of(&w, &b), out);
    if (c->in[BIAS] != NULL) {
        void *data;

        MS_TRY_GOTO(msi_contiguous(&bias, c->ctx, &c->in[BIAS]->v), out);
        MS_TRY_GOTO(msi_view_data(&bias, &data), out);
        args.bias = data;
    }
    args.m = x.shape[0];
    args.n = w.shape[0];
    args.k = x.shape[1];
    args.a = a.data;
    args.a_row = a.row;
    args.a_col = a.col;
    args.b = b.data;
    args.b_row = b.col; /* w^T */
    args.b_col = b.row;
    args.c = msi_view_ptr(y != NULL ? y : h);
    args.gelu = y != NULL;
    args.before = y != NULL && h != NULL ? msi_view_ptr(h) : NULL;
    args.c_row = h != NULL && h->ndim > 1 ? h->stride[h->ndim - 2] : args.n;
    args.dtype = args.c_dtype = x.dtype;
    args.op = c->op->name;
    MS_TRY_GOTO(msi_gemm(c->ctx, &args), out);
    msi_save(c, SAVED_X, &x);
    msi_save(c, SAVED_W, &w);
out:
    msi_storage_release(bias.storage);
    msi_storage_release(w.storage);
no_w:
    msi_storage_release(x.storage);
    return status;
}

static ms_status linear_forward(msi_op_call *c)
{
    return multiply(c, &c->out[0]->v, NULL);
}

/* dw = dh^T x and dbias. A product that can also adds up dh while it reads it. */
static ms_status weight_and_bias(msi_bwd *b, const msi_view *dh, const msi_matrix *md)
{
    const int32_t can = MSI_CAN_ADD | MSI_CAN_WIDEN;
    const msi_view *x;
    msi_target dw, dbias;
    bool summed = false;

    MS_TRY(msi_target_open(&dw, b, W, dh->dtype, can));
    MS_TRY(msi_target_open(&dbias, b, BIAS, dh->dtype, can));
    if (dw.data != NULL) {
        msi_matrix mx;

        MS_TRY(msi_bwd_saved(b, SAVED_X, &x));
        MS_TRY(msi_matrix_of(x, &mx));
        msi_gemm_args args = {.m = dh->shape[1],
                              .n = x->shape[1],
                              .k = dh->shape[0],
                              .a = md->data,
                              .a_row = md->col, /* dh^T */
                              .a_col = md->row,
                              .b = mx.data,
                              .b_row = mx.row,
                              .b_col = mx.col,
                              .batch = 1,
                              .dtype = dh->dtype};

        summed = dbias.data != NULL && !dbias.add && dbias.view.dtype == dw.view.dtype &&
                 args.m > 0 && args.n > 0 && msi_gemm_fuses(msi_bwd_context(b));
        args.a_sum = summed ? dbias.data : NULL;
        MS_TRY(msi_bwd_gemm_to(b, &dw, &args));
        MS_TRY(msi_target_close(&dw));
    }
    if (dbias.data != NULL && !summed) {
        MS_TRY(msi_sum_to("linear", &dbias.view, dh, 1.0, dbias.add));
    }
    return msi_target_close(&dbias);
}

/* Gradients of x, w and bias from that of the pre-activation, contiguous (M, out). */
static ms_status differentiate(msi_bwd *b, const msi_view *dh)
{
    const msi_view *w;
    msi_matrix mw, md;

    MS_TRY(msi_matrix_of(dh, &md));
    if (msi_bwd_needs(b, X)) {
        MS_TRY(msi_bwd_saved(b, SAVED_W, &w));
        MS_TRY(msi_matrix_of(w, &mw));
        msi_gemm_args args = {.m = dh->shape[0],
                              .n = w->shape[1],
                              .k = dh->shape[1],
                              .a = md.data,
                              .a_row = md.row,
                              .a_col = md.col,
                              .b = mw.data,
                              .b_row = mw.row,
                              .b_col = mw.col,
                              .batch = 1,
                              .dtype = dh->dtype};

        MS_TRY(msi_bwd_gemm(b, X, &args));
    }
    return weight_and_bias(b, dh, &md);
}

static ms_status linear_backward(msi_bwd *b)
{
    const msi_view *g = msi_bwd_grad(b, 0);
    const int64_t shape[2] = {msi_leading(g, g->ndim - 1), g->shape[g->ndim - 1]};
    const linear_attrs *attrs = msi_bwd_attrs(b);
    msi_view dy, dh;

    if (attrs->pitch > 0 && msi_view_reshape(g, 2, shape, &dh) && msi_is_matrix(&dh)) {
        return differentiate(b, &dh);
    }
    MS_TRY(msi_bwd_contiguous(b, g, &dy));
    msi_view_reshape(&dy, 2, shape, &dh);
    return differentiate(b, &dh);
}

const msi_op msi_op_linear = {.name = "linear",
                              .meta = linear_meta,
                              .forward = linear_forward,
                              .backward = linear_backward,
                              .attrs_size = sizeof(linear_attrs),
                              .n_saved = 2};

static ms_status run_linear(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias,
                            int64_t pitch)
{
    ms_tensor *const in[3] = {x, w, bias};
    const linear_attrs attrs = {.pitch = pitch};

    *out = NULL;
    return msi_op_run(&msi_op_linear, &attrs, in, 3, out, 1);
}

ms_status ms_op_linear(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias)
{
    return run_linear(out, x, w, bias, 0);
}

ms_status ms_op_linear_padded(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias)
{
    enum { WHOLE = 16 /* bytes */, LINE = 64 /* elements */ };
    const int64_t n = w->v.ndim == 2 ? w->v.shape[0] : 0;
    const bool pads = n * ms_dtype_size(w->v.dtype) % WHOLE != 0 && msi_gemm_fuses(x->ctx);

    return run_linear(out, x, w, bias, pads ? (n + LINE - 1) / LINE * LINE : 0);
}

/* -- with gelu --------------------------------------------------------------------------------- */

static ms_status linear_gelu_forward(msi_op_call *c)
{
    const gelu_attrs *attrs = c->attrs;
    const msi_view *y = &c->out[0]->v;
    const bool fuses = attrs->approximate && msi_gemm_fuses(c->ctx);
    msi_view h;
    ms_status status;

    if (fuses && c->node == NULL) {
        return multiply(c, NULL, y);
    }
    if (c->node == NULL) { /* h is not needed: it becomes y */
        h = *y;
        msi_storage_retain(h.storage);
    } else {
        MS_TRY(msi_internal(&h, c->ctx, y->dtype, y->ndim, y->shape));
    }
    const msi_view *in = &h;

    MS_TRY_GOTO(multiply(c, &h, fuses ? y : NULL), out);
    if (!fuses) {
        MS_TRY_GOTO(msi_ew("linear_gelu", attrs->approximate ? MSI_K_gelu_tanh : MSI_K_gelu, y, &in,
                           1, NULL, false),
                    out);
    }
    msi_save(c, SAVED_H, &h);
out:
    msi_storage_release(h.storage);
    return status;
}

static ms_status linear_gelu_backward(msi_bwd *b)
{
    const gelu_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *h;
    msi_view dy = *msi_bwd_grad(b, 0), dh, flat;

    MS_TRY(msi_bwd_saved(b, SAVED_H, &h));
    if (msi_bwd_saved_exclusive(b, SAVED_H)) {
        dh = *h;
    } else {
        MS_TRY(msi_bwd_temp(b, h->dtype, h->ndim, h->shape, &dh));
    }
    const msi_view *in[2] = {&dy, h};

    MS_TRY(msi_ew("linear_gelu", attrs->approximate ? MSI_K_gelu_tanh_grad : MSI_K_gelu_grad, &dh,
                  in, 2, NULL, false));
    const int64_t shape[2] = {msi_leading(&dh, dh.ndim - 1), dh.shape[dh.ndim - 1]};

    msi_view_reshape(&dh, 2, shape, &flat);
    return differentiate(b, &flat);
}

const msi_op msi_op_linear_gelu = {.name = "linear_gelu",
                                   .meta = product_meta,
                                   .forward = linear_gelu_forward,
                                   .backward = linear_gelu_backward,
                                   .attrs_size = sizeof(gelu_attrs),
                                   .n_saved = 3};

ms_status ms_op_linear_gelu(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias,
                            bool approximate)
{
    ms_tensor *const in[3] = {x, w, bias};
    const gelu_attrs attrs = {.approximate = approximate};

    *out = NULL;
    return msi_op_run(&msi_op_linear_gelu, &attrs, in, 3, out, 1);
}
