/* softmax(q k^T scale + mask) v in tiles (arXiv:2205.14135), without the (T, S) scores. Saves the
 * operands, the result and two statistics per query.
 *
 * One rule serves all forms. The packed one uses q, k and v as strided views of the (B, T, 3 C)
 * projection, and writes their gradients likewise. Masks and dropout are operands and attributes of
 * scaled_dot_product_attention alone. */
#include "meta.h"
#include "operand.h"

#include <math.h>

enum { Q, K, V, MASK, PACKED = 0 };
enum { SAVED_Q, SAVED_K, SAVED_V, SAVED_OUT, SAVED_STATS, SAVED_MASK };

typedef struct attention_attrs {
    double scale;
    int32_t heads; /* packed only */
    bool causal;
    double dropout_p;
    msi_draw draw;
} attention_attrs;

/* -- views as the kernel reads them: (B, H, T, D) with unit stride in D ------------------------ */

static void strides_of(const msi_view *v, int64_t *stride)
{
    for (int32_t i = 0; i < 3; i++) {
        stride[i] = v->stride[i];
    }
}

/* `v`, or a copy with unit stride within a head. The caller owns a reference. */
static ms_status with_unit_stride(msi_view *out, ms_context *ctx, const msi_view *v)
{
    if (v->stride[v->ndim - 1] == 1 || v->shape[v->ndim - 1] <= 1) {
        *out = *v;
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    return msi_view_like(out, ctx, v, v->dtype, MS_MEM_ACTIVATION, true);
}

/* Part `part` (width C = H D) of (B, T, n C), unit stride in C, as (B, H, T, D). */
static msi_view head_view(const msi_view *v, int64_t width, int32_t heads, int32_t part)
{
    msi_view h = {
        .storage = v->storage, .offset = v->offset + part * width, .dtype = v->dtype, .ndim = 4};
    const int64_t depth = width / heads;

    h.shape[0] = v->shape[0];
    h.shape[1] = heads;
    h.shape[2] = v->shape[1];
    h.shape[3] = depth;
    h.stride[0] = v->stride[0];
    h.stride[1] = depth;
    h.stride[2] = v->stride[1];
    h.stride[3] = 1;
    return h;
}

static ms_status set_operands(msi_attention_args *args, const msi_view *q, const msi_view *k,
                              const msi_view *v)
{
    void *data[3];

    MS_TRY(msi_view_data(q, &data[Q]));
    MS_TRY(msi_view_data(k, &data[K]));
    MS_TRY(msi_view_data(v, &data[V]));
    args->batch = q->shape[0];
    args->heads = q->shape[1];
    args->q_len = q->shape[2];
    args->kv_heads = k->shape[1];
    args->kv_len = k->shape[2];
    args->head_dim = q->shape[3];
    args->q = data[Q];
    args->k = data[K];
    args->v = data[V];
    strides_of(q, args->q_stride);
    strides_of(k, args->k_stride);
    strides_of(v, args->v_stride);
    return MS_OK;
}

/* NaN: the default. */
static double scale_of(const attention_attrs *attrs, int64_t depth)
{
    return isnan(attrs->scale) ? 1.0 / sqrt((double)depth) : attrs->scale;
}

static msi_attention_args args_of(const attention_attrs *attrs, ms_context *ctx, int64_t depth)
{
    return (msi_attention_args){.scale = scale_of(attrs, depth),
                                .causal = attrs->causal,
                                .dropout_p = attrs->dropout_p,
                                .seed = attrs->draw.seed,
                                .site = attrs->draw.site,
                                .call = attrs->draw.call,
                                .sample_base = attrs->draw.sample_base,
                                .ctx = ctx};
}

/* -- masks ------------------------------------------------------------------------------------- */

/* Strides of a mask in (B, H, T, S): 0 where its size is 1 or it has no such dimension. */
static void mask_strides(const msi_view *mask, int64_t stride[4])
{
    for (int32_t i = 0; i < 4; i++) {
        const int32_t d = i - (4 - mask->ndim);

        stride[i] = d < 0 || mask->shape[d] == 1 ? 0 : mask->stride[d];
    }
}

/* The mask as the kernel reads it: bools, or the compute dtype; steps of 0 or 1 in S. The caller
 * owns a reference. */
static ms_status readable_mask(msi_view *out, ms_context *ctx, const msi_view *mask, int32_t dtype)
{
    const int32_t last = mask->ndim - 1;
    const bool is_bool = mask->dtype == MS_DTYPE_BOOL;

    if ((is_bool || mask->dtype == dtype) &&
        (last < 0 || mask->shape[last] == 1 || mask->stride[last] == 1)) {
        *out = *mask;
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    return msi_view_like(out, ctx, mask, is_bool ? MS_DTYPE_BOOL : dtype, MS_MEM_ACTIVATION, true);
}

static ms_status set_mask(msi_attention_args *args, const msi_view *mask)
{
    void *data;

    MS_TRY(msi_view_data(mask, &data));
    args->mask = data;
    args->mask_is_bool = mask->dtype == MS_DTYPE_BOOL;
    mask_strides(mask, args->mask_stride);
    return MS_OK;
}

/* Run a kernel with the scratch it asks for. */
static ms_status dispatch(const char *op, msi_attention_args *args, int32_t dtype, bool gradient)
{
    ms_status products = MS_OK;
    msi_mem_block *work;

    args->status = msi_device_status(args->ctx, &products);
    args->op = op;
    MS_TRY(msi_gemm_operands(args->ctx, dtype, &args->tile_dtype));
    MS_TRY(msi_alloc(args->ctx, msi_attention_work_bytes(args, dtype, gradient), MS_MEM_SCRATCH,
                     &work));
    args->work = work->data;
    ms_status status =
        msi_dispatch(op, gradient ? MSI_K_attention_grad : MSI_K_attention, dtype, args);

    msi_release(work);
    return status != MS_OK ? status : products;
}

/* -- the rule ---------------------------------------------------------------------------------- */

/* Per query: all largest scores, then all 1 / sum. */
static void set_statistics(msi_attention_args *args, const msi_view *stats)
{
    const int64_t n = args->batch * args->heads * args->q_len;

    args->max = msi_view_ptr(stats);
    args->rsum = (char *)args->max + n * ms_dtype_size(stats->dtype);
}

/* `out` is a view (B, H, T, D). Saves the statistics. */
static ms_status attend(msi_op_call *c, const msi_view *q, const msi_view *k, const msi_view *v,
                        const msi_view *mask, const msi_view *out)
{
    msi_attention_args args = args_of(c->attrs, c->ctx, q->shape[3]);
    const int64_t shape[4] = {2, q->shape[0], q->shape[1], q->shape[2]};
    msi_view stats;

    MS_TRY(set_operands(&args, q, k, v));
    if (mask != NULL) {
        MS_TRY(set_mask(&args, mask));
    }
    MS_TRY(msi_internal(&stats, c->ctx, msi_stat_dtype(q->dtype), 4, shape));
    args.out = msi_view_ptr(out);
    strides_of(out, args.o_stride);
    set_statistics(&args, &stats);
    ms_status status = dispatch(c->op->name, &args, q->dtype, false);

    if (status == MS_OK) {
        msi_save(c, SAVED_STATS, &stats);
    }
    msi_storage_release(stats.storage);
    return status;
}

/* Write gradients to dq, dk and dv, views as the kernel needs; all are written. `dmask` may be
 * NULL.
 */
static ms_status differentiate(msi_bwd *b, const msi_view *q, const msi_view *k, const msi_view *v,
                               const msi_view *mask, const msi_view *out, const msi_view *dout,
                               const msi_view *grad, const msi_view *dmask)
{
    msi_attention_args args = args_of(msi_bwd_attrs(b), msi_bwd_context(b), q->shape[3]);
    const msi_view *stats;

    MS_TRY(msi_bwd_saved(b, SAVED_STATS, &stats));
    MS_TRY(set_operands(&args, q, k, v));
    if (mask != NULL) {
        MS_TRY(set_mask(&args, mask));
    }
    if (dmask != NULL) {
        args.dmask = msi_view_ptr(dmask);
        args.dmask_numel = msi_view_numel(dmask);
        mask_strides(dmask, args.dmask_stride);
    }
    args.o = msi_view_ptr(out);
    args.dout = msi_view_ptr(dout);
    set_statistics(&args, stats);
    args.dq = msi_view_ptr(&grad[Q]);
    args.dk = msi_view_ptr(&grad[K]);
    args.dv = msi_view_ptr(&grad[V]);
    strides_of(out, args.o_stride);
    strides_of(dout, args.do_stride);
    strides_of(&grad[Q], args.dq_stride);
    strides_of(&grad[K], args.dk_stride);
    strides_of(&grad[V], args.dv_stride);
    return dispatch("attention", &args, q->dtype, true);
}

/* -- separate q, k, v -------------------------------------------------------------------------- */

/* Is (B, H, T, D) a transposed (B, T, H, D) in memory? */
static bool is_transposed(const msi_view *v)
{
    return v->stride[1] < v->stride[2];
}

/* Give a result or gradient the memory order of its operand, so that transposing it back copies
 * nothing. */
static void follow(msi_view *out, const msi_view *operand)
{
    if (is_transposed(operand)) {
        out->stride[1] = out->shape[3];
        out->stride[2] = out->shape[1] * out->shape[3];
    }
}

static ms_status attention_meta(const msi_meta *m)
{
    const msi_view *q = m->in[Q], *k = m->in[K], *v = m->in[V];

    if (q->ndim != 4 || k->ndim != 4 || !msi_view_same_shape(k, v) || q->shape[0] != k->shape[0] ||
        q->shape[1] != k->shape[1] || q->shape[3] != k->shape[3]) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "attention: shapes are q %s, k %s, v %s, expected (B, H, T, D) and twice "
                       "(B, H, S, D)",
                       msi_shape_text(q->ndim, q->shape), msi_shape_text(k->ndim, k->shape),
                       msi_shape_text(v->ndim, v->shape));
    }
    MS_TRY(msi_same_dtype("attention", "q", q, "k", k));
    MS_TRY(msi_same_dtype("attention", "q", q, "v", v));
    MS_TRY(msi_meta_like(m));
    follow(m->out, q);
    return msi_check_kernel("attention", MSI_K_attention, q->dtype);
}

static ms_status attention_forward(msi_op_call *c)
{
    const bool is_masked = c->n_in > MASK && c->in[MASK] != NULL;
    msi_view operand[3] = {{0}}, mask = {0};
    ms_status status = MS_OK;

    for (int32_t i = 0; i < 3; i++) {
        MS_TRY_GOTO(with_unit_stride(&operand[i], c->ctx, &c->in[i]->v), out);
    }
    if (is_masked) {
        MS_TRY_GOTO(readable_mask(&mask, c->ctx, &c->in[MASK]->v, msi_stat_dtype(operand[Q].dtype)),
                    out);
        msi_save(c, SAVED_MASK, &mask);
    }
    MS_TRY_GOTO(
        attend(c, &operand[Q], &operand[K], &operand[V], is_masked ? &mask : NULL, &c->out[0]->v),
        out);
    for (int32_t i = 0; i < 3; i++) {
        msi_save(c, SAVED_Q + i, &operand[i]);
    }
    msi_save(c, SAVED_OUT, &c->out[0]->v);
out:
    msi_storage_release(mask.storage);
    for (int32_t i = 0; i < 3; i++) {
        msi_storage_release(operand[i].storage);
    }
    return status;
}

/* Memory for an operand's gradient. If it is a target's (t->data), the caller closes that, else it
 * passes the memory on. */
static ms_status open_gradient(msi_target *t, msi_bwd *b, int32_t i, const msi_view *operand,
                               msi_view *grad)
{
    t->data = NULL;
    if (!is_transposed(operand)) {
        MS_TRY(msi_target_open(t, b, i, operand->dtype, 0));
    }
    if (t->data != NULL) {
        *grad = t->view;
        return MS_OK;
    }
    MS_TRY(msi_bwd_temp(b, operand->dtype, 4, operand->shape, grad)); /* the kernel writes all */
    follow(grad, operand);
    return MS_OK;
}

static ms_status backward_of(msi_bwd *b, bool is_masked)
{
    const msi_view *operand[3], *mask = NULL, *out;
    msi_view dout = *msi_bwd_grad(b, 0), grad[3];
    msi_target t[3], dmask = {0};

    for (int32_t i = 0; i < 3; i++) {
        MS_TRY(msi_bwd_saved(b, SAVED_Q + i, &operand[i]));
    }
    MS_TRY(msi_bwd_saved(b, SAVED_OUT, &out));
    if (dout.stride[3] != 1) {
        MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dout));
    }
    for (int32_t i = 0; i < 3; i++) {
        MS_TRY(open_gradient(&t[i], b, i, operand[i], &grad[i]));
    }
    if (is_masked) {
        MS_TRY(msi_bwd_saved(b, SAVED_MASK, &mask));
        MS_TRY(msi_target_open(&dmask, b, MASK, mask->dtype, 0));
    }
    MS_TRY(differentiate(b, operand[Q], operand[K], operand[V], mask, out, &dout, grad,
                         dmask.data != NULL ? &dmask.view : NULL));
    MS_TRY(msi_target_close(&dmask));
    for (int32_t i = 0; i < 3; i++) {
        MS_TRY(t[i].data != NULL ? msi_target_close(&t[i]) : msi_bwd_pass(b, i, &grad[i]));
    }
    return MS_OK;
}

static ms_status attention_backward(msi_bwd *b)
{
    return backward_of(b, false);
}

const msi_op msi_op_attention = {.name = "attention",
                                 .meta = attention_meta,
                                 .forward = attention_forward,
                                 .backward = attention_backward,
                                 .attrs_size = sizeof(attention_attrs),
                                 .n_saved = 5};

static ms_status masked_meta(const msi_meta *m)
{
    const char *op = "scaled_dot_product_attention";
    const msi_view *q = m->in[Q], *k = m->in[K], *v = m->in[V], *mask = m->in[MASK];

    if (q->ndim != 4 || k->ndim != 4 || !msi_view_same_shape(k, v) || q->shape[0] != k->shape[0] ||
        q->shape[3] != k->shape[3] ||
        (q->shape[1] != k->shape[1] && (k->shape[1] == 0 || q->shape[1] % k->shape[1] != 0))) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: shapes are q %s, k %s, v %s, expected (B, H, T, D) and twice "
                       "(B, H, S, D), with as many heads or a divisor of them in k and v",
                       op, msi_shape_text(q->ndim, q->shape), msi_shape_text(k->ndim, k->shape),
                       msi_shape_text(v->ndim, v->shape));
    }
    MS_TRY(msi_same_dtype(op, "q", q, "k", k));
    MS_TRY(msi_same_dtype(op, "q", q, "v", v));
    MS_TRY(msi_meta_like(m));
    follow(m->out, q);
    MS_TRY(msi_check_kernel(op, MSI_K_attention, q->dtype));
    if (mask == NULL) {
        return MS_OK;
    }
    if (mask->dtype != MS_DTYPE_BOOL && mask->dtype != MS_DTYPE_F32 && mask->dtype != q->dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: the mask is %s, expected bool, f32 or q's %s", op,
                       ms_dtype_name(mask->dtype), ms_dtype_name(q->dtype));
    }
    const int64_t shape[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
    bool fits = mask->ndim <= 4;

    for (int32_t d = 0; fits && d < mask->ndim; d++) {
        fits = mask->shape[d] == 1 || mask->shape[d] == shape[4 - mask->ndim + d];
    }
    if (!fits) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: the mask has shape %s, expected one that broadcasts to %s", op,
                       msi_shape_text(mask->ndim, mask->shape), msi_shape_text(4, shape));
    }
    return MS_OK;
}

static ms_status masked_backward(msi_bwd *b)
{
    return backward_of(b, msi_bwd_operand(b, MASK) != NULL);
}

const msi_op msi_op_scaled_dot_product_attention = {.name = "scaled_dot_product_attention",
                                                    .meta = masked_meta,
                                                    .forward = attention_forward,
                                                    .backward = masked_backward,
                                                    .attrs_size = sizeof(attention_attrs),
                                                    .n_saved = 6,
                                                    .draw = 1 + offsetof(attention_attrs, draw)};

/* Scores of f32 and narrower dtypes are multiplied in f32. */
static ms_status check_scale(const char *op, double scale, int32_t dtype)
{
    if (!isfinite(dtype == MS_DTYPE_F64 ? scale : (double)(float)scale)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: scale is %g, expected a finite number%s", op, scale,
                       isfinite(scale) ? " of f32" : "");
    }
    return MS_OK;
}

ms_status ms_op_attention(ms_tensor **out, ms_tensor *q, ms_tensor *k, ms_tensor *v, bool causal,
                          double scale)
{
    ms_tensor *const in[3] = {q, k, v};
    const attention_attrs attrs = {.scale = scale != 0 ? scale : NAN, .causal = causal};

    *out = NULL;
    MS_TRY(check_scale("attention", scale, q->v.dtype));
    return msi_op_run(&msi_op_attention, &attrs, in, 3, out, 1);
}

ms_status ms_op_scaled_dot_product_attention(ms_tensor **out, ms_tensor *q, ms_tensor *k,
                                             ms_tensor *v, ms_tensor *mask, bool causal,
                                             double scale, double dropout_p, uint64_t site,
                                             int64_t call)
{
    const char *op = "scaled_dot_product_attention";
    ms_tensor *const in[4] = {q, k, v, mask};
    const attention_attrs attrs = {.scale = scale,
                                   .causal = causal,
                                   .dropout_p = dropout_p,
                                   .draw = msi_draw_of(&q->v, q->ctx, site, call, dropout_p > 0)};

    *out = NULL;
    if (!(dropout_p >= 0 && dropout_p <= 1)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: dropout probability is %g, expected 0 to 1", op,
                       dropout_p);
    }
    if (call < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: call is %lld, expected 0 or more", op, (long long)call);
    }
    if (!isnan(scale)) {
        MS_TRY(check_scale(op, scale, q->v.dtype));
    }
    return msi_op_run(&msi_op_scaled_dot_product_attention, &attrs, in, 4, out, 1);
}

/* -- packed ------------------------------------------------------------------------------------ */

static ms_status packed_meta(const msi_meta *m)
{
    const attention_attrs *attrs = m->attrs;
    const msi_view *in = m->in[PACKED];

    if (in->ndim != 3 || attrs->heads < 1 || in->shape[2] % (3 * (int64_t)attrs->heads) != 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "attention_packed: qkv has shape %s and heads is %d, expected (B, T, 3 C) "
                       "with C a multiple of heads",
                       msi_shape_text(in->ndim, in->shape), (int)attrs->heads);
    }
    const int64_t shape[3] = {in->shape[0], in->shape[1], in->shape[2] / 3};

    MS_TRY(msi_result(m->out, in->dtype, 3, shape));
    return msi_check_kernel("attention_packed", MSI_K_attention, in->dtype);
}

static ms_status packed_forward(msi_op_call *c)
{
    const attention_attrs *attrs = c->attrs;
    const int64_t width = c->out[0]->v.shape[2];
    msi_view qkv;

    MS_TRY(with_unit_stride(&qkv, c->ctx, &c->in[PACKED]->v));
    const msi_view q = head_view(&qkv, width, attrs->heads, Q),
                   k = head_view(&qkv, width, attrs->heads, K),
                   v = head_view(&qkv, width, attrs->heads, V),
                   out = head_view(&c->out[0]->v, width, attrs->heads, 0);
    ms_status status = attend(c, &q, &k, &v, NULL, &out);

    if (status == MS_OK) {
        msi_save(c, PACKED, &qkv);
        msi_save(c, SAVED_OUT, &c->out[0]->v);
    }
    msi_storage_release(qkv.storage);
    return status;
}

static ms_status packed_backward(msi_bwd *b)
{
    const attention_attrs *attrs = msi_bwd_attrs(b);
    const int32_t heads = attrs->heads;
    const msi_view *qkv, *out;
    msi_view dout;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, PACKED, &qkv));
    MS_TRY(msi_bwd_saved(b, SAVED_OUT, &out));
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dout));
    MS_TRY(msi_target_open(&t, b, PACKED, qkv->dtype, 0));
    const int64_t width = out->shape[2];
    const msi_view q = head_view(qkv, width, heads, Q), k = head_view(qkv, width, heads, K),
                   v = head_view(qkv, width, heads, V), o = head_view(out, width, heads, 0),
                   d = head_view(&dout, width, heads, 0),
                   grad[3] = {head_view(&t.view, width, heads, Q),
                              head_view(&t.view, width, heads, K),
                              head_view(&t.view, width, heads, V)};

    MS_TRY(differentiate(b, &q, &k, &v, NULL, &o, &d, grad, NULL));
    return msi_target_close(&t);
}

const msi_op msi_op_attention_packed = {.name = "attention_packed",
                                        .meta = packed_meta,
                                        .forward = packed_forward,
                                        .backward = packed_backward,
                                        .attrs_size = sizeof(attention_attrs),
                                        .n_saved = 5};

ms_status ms_op_attention_packed(ms_tensor **out, ms_tensor *qkv, int32_t heads, bool causal,
                                 double scale)
{
    const attention_attrs attrs = {
        .scale = scale != 0 ? scale : NAN, .heads = heads, .causal = causal};

    *out = NULL;
    MS_TRY(check_scale("attention_packed", scale, qkv->v.dtype));
    return msi_op_run(&msi_op_attention_packed, &attrs, &qkv, 1, out, 1);
}
