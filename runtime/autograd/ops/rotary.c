/* Rotary positions (arXiv:2104.09864): turn the pairs of elements i and i + D / 2 of each row. The
 * gradient of x is the incoming one turned back. Those of the cosines and sines are the incoming
 * one turned back by x, since a turn is a product of complex numbers. */
#include "meta.h"
#include "operand.h"

enum { X, COS, SIN };
enum { SAVED_COS, SAVED_SIN, SAVED_X };

static ms_status check_table(const msi_view *x, const char *name, const msi_view *table)
{
    const int32_t lead = x->ndim - table->ndim;
    bool fits = lead >= 0 && table->ndim > 0;

    for (int32_t d = 0; fits && d < table->ndim - 1; d++) {
        fits = table->shape[d] == 1 || table->shape[d] == x->shape[lead + d];
    }
    if (!fits || table->shape[table->ndim - 1] * 2 != x->shape[x->ndim - 1]) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "rotary: %s has shape %s, expected one that broadcasts to that of x, %s, "
                       "with half of its last size",
                       name, msi_shape_text(table->ndim, table->shape),
                       msi_shape_text(x->ndim, x->shape));
    }
    return msi_same_dtype("rotary", "x", x, name, table);
}

static ms_status rotary_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X];

    if (x->ndim < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "rotary: x has shape (), expected (..., D)");
    }
    MS_TRY(check_table(x, "cos", m->in[COS]));
    MS_TRY(check_table(x, "sin", m->in[SIN]));
    MS_TRY(msi_meta_like(m));
    return msi_check_kernel("rotary", MSI_K_rotary, x->dtype);
}

/* A view whose rows are dense. The caller owns a reference to `out->storage`. */
static ms_status dense_rows(msi_view *out, ms_context *ctx, const msi_view *v)
{
    if (v->stride[v->ndim - 1] != 1) {
        return msi_contiguous(out, ctx, v);
    }
    *out = *v;
    msi_storage_retain(out->storage);
    return MS_OK;
}

/* out (+)= x turned; x and out have dense rows of one shape. */
static ms_status turn(const msi_view *out, const msi_view *x, const msi_view *cos,
                      const msi_view *sin, bool inverse, bool accumulate)
{
    const int32_t last = x->ndim - 1;
    const msi_view *const views[4] = {out, x, cos, sin};
    msi_view rows[4];
    const msi_view *each[4];
    msi_rotary_args args = {
        .half = x->shape[last] / 2, .inverse = inverse, .accumulate = accumulate};
    void *data[4];

    if (msi_view_numel(x) == 0) {
        return MS_OK;
    }
    for (int32_t k = 0; k < 4; k++) {
        MS_TRY(msi_view_data(views[k], &data[k]));
        rows[k] = *views[k];
        rows[k].ndim--;
        if (k >= 2) {
            msi_view table = rows[k];

            msi_view_expand(&table, last, x->shape, &rows[k]);
        }
        each[k] = &rows[k];
    }
    msi_loop_make(&args.rows, last, x->shape, each, 4);
    args.out = data[0];
    args.x = data[1];
    args.cos = data[2];
    args.sin = data[3];
    return msi_dispatch("rotary", MSI_K_rotary, x->dtype, &args);
}

static ms_status rotary_forward(msi_op_call *c)
{
    msi_view in[3] = {{0}};
    ms_status status = MS_OK;

    for (int32_t i = X; i <= SIN; i++) {
        MS_TRY_GOTO(dense_rows(&in[i], c->ctx, &c->in[i]->v), out);
    }
    MS_TRY_GOTO(turn(&c->out[0]->v, &in[X], &in[COS], &in[SIN], false, false), out);
    msi_save(c, SAVED_COS, &in[COS]);
    msi_save(c, SAVED_SIN, &in[SIN]);
    if (msi_call_needs(c, COS) || msi_call_needs(c, SIN)) {
        msi_save(c, SAVED_X, &in[X]);
    }
out:
    for (int32_t i = X; i <= SIN; i++) {
        msi_storage_release(in[i].storage);
    }
    return status;
}

/* The halves of the rows of v. */
static void halves(const msi_view *v, msi_view half[2])
{
    const int32_t last = v->ndim - 1;

    for (int32_t i = 0; i < 2; i++) {
        half[i] = *v;
        half[i].shape[last] /= 2;
        half[i].offset += i * half[i].shape[last];
    }
}

static ms_status rotary_backward(msi_bwd *b)
{
    const msi_view *cos, *sin, *x;
    msi_view g = *msi_bwd_grad(b, 0), by_x[2], grad[2], whole;
    msi_target t;

    if (g.stride[g.ndim - 1] != 1) {
        MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &g));
    }
    if (msi_bwd_needs(b, X)) {
        MS_TRY(msi_bwd_saved(b, SAVED_COS, &cos));
        MS_TRY(msi_bwd_saved(b, SAVED_SIN, &sin));
        MS_TRY(msi_target_open(&t, b, X, g.dtype, MSI_CAN_ADD));
        MS_TRY(turn(&t.view, &g, cos, sin, true, t.add));
        MS_TRY(msi_target_close(&t));
    }
    if (!msi_bwd_needs(b, COS) && !msi_bwd_needs(b, SIN)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_saved(b, SAVED_X, &x));
    halves(x, by_x);
    MS_TRY(msi_bwd_temp(b, g.dtype, g.ndim, g.shape, &whole));
    MS_TRY(turn(&whole, &g, &by_x[0], &by_x[1], true, false));
    halves(&whole, grad);
    MS_TRY(msi_bwd_reduce_pass(b, COS, &grad[0], 1));
    return msi_bwd_reduce_pass(b, SIN, &grad[1], 1);
}

const msi_op msi_op_rotary = {.name = "rotary",
                              .meta = rotary_meta,
                              .forward = rotary_forward,
                              .backward = rotary_backward,
                              .n_saved = 3};

ms_status ms_op_rotary(ms_tensor **out, ms_tensor *x, ms_tensor *cos, ms_tensor *sin)
{
    ms_tensor *const in[3] = {x, cos, sin};

    *out = NULL;
    return msi_op_run(&msi_op_rotary, NULL, in, 3, out, 1);
}
