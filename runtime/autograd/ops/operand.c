#include "operand.h"

#include <string.h>

/* Normalise the strides of a contiguous view, which may differ for sizes of 1 and empty views. */
static void plain_strides(msi_view *out, const msi_view *v)
{
    *out = *v;
    msi_view_set_contiguous(out, v->dtype, v->ndim, v->shape);
}

ms_status msi_contiguous(msi_view *out, ms_context *ctx, const msi_view *v)
{
    if (msi_view_contiguous(v)) {
        plain_strides(out, v);
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    return msi_view_like(out, ctx, v, v->dtype, MS_MEM_ACTIVATION, true);
}

ms_status msi_bwd_contiguous(msi_bwd *b, const msi_view *v, msi_view *out)
{
    if (msi_view_contiguous(v)) {
        plain_strides(out, v);
        return MS_OK;
    }
    MS_TRY(msi_bwd_temp(b, v->dtype, v->ndim, v->shape, out));
    return msi_copy(out, v, false);
}

ms_status msi_internal(msi_view *out, ms_context *ctx, int32_t dtype, int32_t ndim,
                       const int64_t *shape)
{
    MS_TRY(msi_view_make(out, dtype, ndim, shape));
    out->offset = 0;
    return msi_storage_new(&out->storage, ctx, msi_view_numel(out) * ms_dtype_size(dtype),
                           MS_MEM_ACTIVATION);
}

int32_t msi_stat_dtype(int32_t dtype)
{
    return dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

int64_t msi_leading(const msi_view *v, int32_t n)
{
    int64_t product = 1;

    for (int32_t i = 0; i < n; i++) {
        product *= v->shape[i];
    }
    return product;
}

/* -- matrices ---------------------------------------------------------------------------------- */

/* Strides of the last two dimensions. Sizes of 1 (or 0) leave a stride free: it is set so that one
 * stride is 1 and the other a whole line. */
static bool strides_of(const msi_view *v, int64_t *row, int64_t *col)
{
    int64_t rows = v->shape[v->ndim - 2], cols = v->shape[v->ndim - 1];
    int64_t r = v->stride[v->ndim - 2], c = v->stride[v->ndim - 1];

    if ((c == 1 || cols <= 1) && (r >= cols || rows <= 1)) {
        *row = rows > 1 ? r : (cols > 1 ? cols : 1);
        *col = 1;
        return true;
    }
    if ((r == 1 || rows <= 1) && (c >= rows || cols <= 1)) {
        *row = 1;
        *col = cols > 1 ? c : (rows > 1 ? rows : 1);
        return true;
    }
    return false;
}

bool msi_is_matrix(const msi_view *v)
{
    int64_t row, col;

    return strides_of(v, &row, &col);
}

ms_status msi_matrix_of(const msi_view *v, msi_matrix *m)
{
    void *data;

    MS_ASSERT(strides_of(v, &m->row, &m->col));
    m->batch = v->ndim == 3 ? v->stride[0] : 0;
    MS_TRY(msi_view_data(v, &data));
    m->data = data;
    return MS_OK;
}

msi_matrix msi_transposed(msi_matrix m)
{
    return (msi_matrix){.data = m.data, .row = m.col, .col = m.row, .batch = m.batch};
}

/* -- destinations ------------------------------------------------------------------------------ */

ms_status msi_target_open(msi_target *t, msi_bwd *b, int32_t i, int32_t dtype, int32_t can)
{
    t->data = NULL;
    t->add = t->staged = false;
    t->passes = NULL;
    if (!msi_bwd_needs(b, i)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_dest(b, i, &t->dest, &t->dest_add));
    const bool widens =
        ms_dtype_is_narrow(dtype) && t->dest.dtype == MS_DTYPE_F32 && (can & MSI_CAN_WIDEN);

    if ((t->dest.dtype != dtype && !widens) || (t->dest_add && !(can & MSI_CAN_ADD))) {
        return msi_target_stage(t, b, dtype);
    }
    t->view = t->dest;
    t->add = t->dest_add;
    return msi_view_data(&t->view, &t->data);
}

ms_status msi_target_open_over(msi_target *t, msi_bwd *b, int32_t i, int32_t which)
{
    const msi_view *saved;

    MS_TRY(msi_bwd_saved(b, which, &saved));
    if (!msi_bwd_overwrites(b, i, which)) {
        return msi_target_open(t, b, i, saved->dtype, MSI_CAN_ADD);
    }
    *t = (msi_target){.view = *saved, .passes = b, .operand = i};
    return msi_view_data(&t->view, &t->data);
}

ms_status msi_target_stage(msi_target *t, msi_bwd *b, int32_t dtype)
{
    t->staged = true;
    t->add = false;
    MS_TRY(msi_bwd_temp(b, dtype, t->dest.ndim, t->dest.shape, &t->view));
    return msi_view_data(&t->view, &t->data);
}

bool msi_target_shares(const msi_target *a, const msi_target *b)
{
    return a->data != NULL && b->data != NULL && a->dest.storage == b->dest.storage &&
           a->dest.offset == b->dest.offset;
}

ms_status msi_target_close(msi_target *t)
{
    if (t->passes != NULL) {
        return msi_bwd_pass(t->passes, t->operand, &t->view);
    }
    return t->staged ? msi_copy(&t->dest, &t->view, t->dest_add) : MS_OK;
}

ms_status msi_bwd_reduce_pass(msi_bwd *b, int32_t i, const msi_view *v, double scale)
{
    const char *op = msi_bwd_name(b);
    msi_target t;

    if (!msi_bwd_needs(b, i)) {
        return MS_OK;
    }
    if (!msi_view_same_shape(v, msi_bwd_operand(b, i))) {
        MS_TRY(msi_target_open(&t, b, i, v->dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
        MS_TRY(msi_sum_to(op, &t.view, v, scale, t.add));
        return msi_target_close(&t);
    }
    if (scale == 1) {
        return msi_bwd_pass(b, i, v);
    }
    const double scalars[2] = {scale, -0.0}; /* adding -0 keeps the sign of zeros */

    MS_TRY(msi_target_open(&t, b, i, v->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew(op, MSI_K_affine, &t.view, &v, 1, scalars, t.add));
    return msi_target_close(&t);
}

ms_status msi_bwd_elementwise(msi_bwd *b, int32_t i, const char *op, int32_t kernel,
                              const msi_view *const *in, int32_t n_in)
{
    const msi_view *g = msi_bwd_grad(b, 0);

    if (!msi_bwd_needs(b, i)) {
        return MS_OK;
    }
    if (!msi_view_same_shape(g, msi_bwd_operand(b, i))) {
        msi_view whole;

        MS_TRY(msi_bwd_temp(b, g->dtype, g->ndim, g->shape, &whole));
        MS_TRY(msi_ew(op, kernel, &whole, in, n_in, NULL, false));
        return msi_bwd_reduce_pass(b, i, &whole, 1);
    }
    msi_target t;

    MS_TRY(msi_target_open(&t, b, i, g->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew(op, kernel, &t.view, in, n_in, NULL, t.add));
    return msi_target_close(&t);
}

ms_status msi_bwd_gemm_to(msi_bwd *b, const msi_target *t, msi_gemm_args *args)
{
    args->c = t->data;
    args->c_row = args->n;
    args->c_batch = args->m * args->n;
    args->c_dtype = t->view.dtype;
    args->accumulate = t->add;
    args->is_gradient = true;
    args->op = msi_bwd_name(b);
    return msi_gemm(msi_bwd_context(b), args);
}

ms_status msi_bwd_gemm(msi_bwd *b, int32_t i, msi_gemm_args *args)
{
    msi_target t;

    MS_TRY(msi_target_open(&t, b, i, args->dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    if (t.data == NULL) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_gemm_to(b, &t, args));
    return msi_target_close(&t);
}
