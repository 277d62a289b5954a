/* Layer norm over the last dimension (arXiv:1607.06450): y = (x - mean) rstd w + bias. Saves x and
 * two numbers per row. */
#include "meta.h"
#include "operand.h"

#include <math.h>

enum { X, W, BIAS };
enum { SAVED_X, SAVED_W, SAVED_MEAN, SAVED_RSTD };

typedef struct norm_attrs {
    double eps;
} norm_attrs;

static ms_status check_affine(const msi_view *x, const msi_view *p, const char *name)
{
    if (p == NULL) {
        return MS_OK;
    }
    if (p->ndim != 1 || p->shape[0] != x->shape[x->ndim - 1]) {
        return MS_FAIL(MS_VALUE_ERROR, "layer_norm: %s has shape %s, expected (%lld) for x %s",
                       name, msi_shape_text(p->ndim, p->shape), (long long)x->shape[x->ndim - 1],
                       msi_shape_text(x->ndim, x->shape));
    }
    return msi_same_dtype("layer_norm", "x", x, name, p);
}

static ms_status layer_norm_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X];

    if (x->ndim < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "layer_norm: x has shape (), expected (..., C)");
    }
    MS_TRY(check_affine(x, m->in[W], "w"));
    MS_TRY(check_affine(x, m->in[BIAS], "bias"));
    MS_TRY(msi_meta_like(m));
    return msi_check_kernel("layer_norm", MSI_K_layer_norm, x->dtype);
}

/* Contiguous view of an optional operand, released by the caller; NULL data if omitted. */
static ms_status affine_data(const msi_op_call *c, int32_t i, msi_view *v, const void **data)
{
    void *p = NULL;

    if (c->in[i] != NULL) {
        MS_TRY(msi_contiguous(v, c->ctx, &c->in[i]->v));
        MS_TRY(msi_view_data(v, &p));
    }
    *data = p;
    return MS_OK;
}

static ms_status layer_norm_forward(msi_op_call *c)
{
    const msi_view *in = &c->in[X]->v;
    msi_layer_norm_args args = {.eps = ((const norm_attrs *)c->attrs)->eps};
    msi_view x = {0}, w = {0}, bias = {0}, mean = {0}, rstd = {0};
    ms_status status;
    void *data;

    args.rows = msi_leading(in, in->ndim - 1);
    args.cols = in->shape[in->ndim - 1];
    const int32_t stat = msi_stat_dtype(in->dtype);

    MS_TRY_GOTO(msi_contiguous(&x, c->ctx, in), out);
    MS_TRY_GOTO(msi_view_data(&x, &data), out);
    MS_TRY_GOTO(affine_data(c, W, &w, &args.w), out);
    MS_TRY_GOTO(affine_data(c, BIAS, &bias, &args.b), out);
    MS_TRY_GOTO(msi_internal(&mean, c->ctx, stat, 1, &args.rows), out);
    MS_TRY_GOTO(msi_internal(&rstd, c->ctx, stat, 1, &args.rows), out);
    args.x = data;
    args.y = msi_view_ptr(&c->out[0]->v);
    args.mean = msi_view_ptr(&mean);
    args.rstd = msi_view_ptr(&rstd);
    MS_TRY_GOTO(msi_dispatch("layer_norm", MSI_K_layer_norm, in->dtype, &args), out);
    msi_save(c, SAVED_X, &x);
    msi_save(c, SAVED_MEAN, &mean);
    msi_save(c, SAVED_RSTD, &rstd);
    if (w.storage != NULL) {
        msi_save(c, SAVED_W, &w);
    }
out:
    msi_storage_release(rstd.storage);
    msi_storage_release(mean.storage);
    msi_storage_release(bias.storage);
    msi_storage_release(w.storage);
    msi_storage_release(x.storage);
    return status;
}

/* Open the destinations of dw and dbias in one dtype, as the kernel requires. */
static ms_status open_affine(msi_bwd *b, int32_t dtype, const msi_target *dx, msi_target *dw,
                             msi_target *db, int32_t *dw_dtype)
{
    MS_TRY(msi_target_open(dw, b, W, dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    MS_TRY(msi_target_open(db, b, BIAS, dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    if (msi_target_shares(dx, dw)) {
        MS_TRY(msi_target_stage(dw, b, dtype));
    }
    *dw_dtype = dw->data != NULL ? dw->view.dtype : db->data != NULL ? db->view.dtype : dtype;
    if (msi_target_shares(dx, db) || msi_target_shares(dw, db) ||
        (db->data != NULL && db->view.dtype != *dw_dtype)) {
        MS_TRY(msi_target_stage(db, b, *dw_dtype));
    }
    return MS_OK;
}

static ms_status layer_norm_backward(msi_bwd *b)
{
    const msi_view *x, *w, *mean, *rstd;
    msi_layer_norm_grad_args args = {0};
    msi_target dx, dw, db;
    msi_view dy, work;
    void *data;

    MS_TRY(msi_bwd_saved(b, SAVED_X, &x));
    MS_TRY(msi_bwd_saved(b, SAVED_MEAN, &mean));
    MS_TRY(msi_bwd_saved(b, SAVED_RSTD, &rstd));
    if (msi_bwd_operand(b, W) != NULL) {
        MS_TRY(msi_bwd_saved(b, SAVED_W, &w));
        MS_TRY(msi_view_data(w, &data));
        args.w = data;
    }
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    args.rows = msi_leading(x, x->ndim - 1);
    args.cols = x->shape[x->ndim - 1];
    args.dy = msi_view_ptr(&dy);
    args.x = msi_view_ptr(x);
    args.mean = msi_view_ptr(mean);
    args.rstd = msi_view_ptr(rstd);
    MS_TRY(msi_target_open(&dx, b, X, x->dtype, MSI_CAN_ADD));
    MS_TRY(open_affine(b, x->dtype, &dx, &dw, &db, &args.dw_dtype));
    args.dx = dx.data;
    args.dw = dw.data;
    args.db = db.data;
    args.dx_accumulate = dx.add;
    args.dw_accumulate = dw.add;
    args.db_accumulate = db.add;
    const int64_t n_work =
        msi_work_bytes(msi_bwd_context(b), MSI_K_layer_norm_grad, x->dtype, &args);

    if (n_work > 0) {
        MS_TRY(msi_bwd_temp(b, MS_DTYPE_U8, 1, &n_work, &work));
        args.work = msi_view_ptr(&work);
    }
    MS_TRY(msi_dispatch("layer_norm", MSI_K_layer_norm_grad, x->dtype, &args));
    MS_TRY(msi_target_close(&dx));
    MS_TRY(msi_target_close(&dw));
    return msi_target_close(&db);
}

const msi_op msi_op_layer_norm = {.name = "layer_norm",
                                  .meta = layer_norm_meta,
                                  .forward = layer_norm_forward,
                                  .backward = layer_norm_backward,
                                  .attrs_size = sizeof(norm_attrs),
                                  .n_saved = 4};

ms_status ms_op_layer_norm(ms_tensor **out, ms_tensor *x, ms_tensor *w, ms_tensor *bias, double eps)
{
    ms_tensor *const in[3] = {x, w, bias};
    const norm_attrs attrs = {.eps = eps};

    *out = NULL;
    if (!(eps >= 0) || isinf(eps)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "layer_norm: eps is %g, expected a finite number of 0 or more", eps);
    }
    return msi_op_run(&msi_op_layer_norm, &attrs, in, 3, out, 1);
}
