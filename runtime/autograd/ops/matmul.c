/* (..., M, K) x (..., K, N) -> (..., M, N), leading dimensions equal and folded into one batch.
 * da = dy b^T, db = a^T dy. */
#include "meta.h"
#include "operand.h"
#include "table.h"

#include <stdio.h>

enum { A, B };

static ms_status misfit(const msi_view *a, const msi_view *b)
{
    char why[96];

    if (a->ndim < 2 || b->ndim < 2) {
        snprintf(why, sizeof(why), "a vector is reshaped to (1, k) or (k, 1) first");
    } else if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) {
        snprintf(why, sizeof(why), "k is %lld and %lld", (long long)a->shape[a->ndim - 1],
                 (long long)b->shape[b->ndim - 2]);
    } else {
        snprintf(why, sizeof(why), "leading dimensions are equal, as they do not broadcast");
    }
    return MS_FAIL(MS_VALUE_ERROR,
                   "matmul: shapes are %s and %s, expected (..., m, k) and (..., k, n): %s",
                   msi_shape_text(a->ndim, a->shape), msi_shape_text(b->ndim, b->shape), why);
}

static ms_status matmul_meta(const msi_meta *m)
{
    const msi_view *a = m->in[A], *b = m->in[B];
    int64_t shape[MS_MAX_DIMS];
    bool fits =
        a->ndim == b->ndim && a->ndim >= 2 && a->shape[a->ndim - 1] == b->shape[b->ndim - 2];

    for (int32_t i = 0; fits && i < a->ndim - 2; i++) {
        fits = a->shape[i] == b->shape[i];
    }
    if (!fits) {
        return misfit(a, b);
    }
    MS_TRY(msi_same_dtype("matmul", "a", a, "b", b));
    MS_TRY(msi_check_product("matmul", a->dtype));
    for (int32_t i = 0; i < a->ndim - 1; i++) {
        shape[i] = a->shape[i];
    }
    shape[a->ndim - 1] = b->shape[a->ndim - 1];
    return msi_result(m->out, a->dtype, a->ndim, shape);
}

/* The stride of the leading dimensions seen as one of `n`. False when there is none. */
static bool fold_leading(const msi_view *v, int64_t n, int64_t *stride)
{
    msi_view lead = *v, folded;

    lead.ndim = (int8_t)(v->ndim - 2);
    if (!msi_view_reshape(&lead, 1, &n, &folded)) {
        return false;
    }
    *stride = folded.stride[0];
    return true;
}

/* Fold the leading dimensions into one: (batch, rows, cols). False when the strides forbid it. */
static bool fold(const msi_view *v, msi_view *out)
{
    const int32_t rows = v->ndim - 2, cols = v->ndim - 1;
    const int64_t batch = msi_leading(v, rows);
    int64_t stride = 1;

    if (rows > 0 && !fold_leading(v, batch, &stride)) {
        return false;
    }
    out->storage = v->storage;
    out->offset = v->offset;
    out->dtype = v->dtype;
    out->ndim = 3;
    out->shape[0] = batch;
    out->shape[1] = v->shape[rows];
    out->shape[2] = v->shape[cols];
    out->stride[0] = stride;
    out->stride[1] = v->stride[rows];
    out->stride[2] = v->stride[cols];
    return true;
}

/* `v` as (batch, rows, cols) the gemm can read. The caller holds a reference. */
static ms_status as_matrices(msi_view *out, ms_context *ctx, const msi_view *v)
{
    msi_view copy;

    if (fold(v, out) && msi_is_matrix(out)) {
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    MS_TRY(msi_view_like(&copy, ctx, v, v->dtype, MS_MEM_ACTIVATION, true));
    fold(&copy, out);
    return MS_OK;
}

static msi_gemm_args product(msi_matrix a, msi_matrix b, int64_t m, int64_t n, int64_t k)
{
    return (msi_gemm_args){.m = m,
                           .n = n,
                           .k = k,
                           .a = a.data,
                           .a_row = a.row,
                           .a_col = a.col,
                           .a_batch = a.batch,
                           .b = b.data,
                           .b_row = b.row,
                           .b_col = b.col,
                           .b_batch = b.batch};
}

static ms_status matmul_forward(msi_op_call *c)
{
    msi_view a, b;
    msi_matrix ma, mb;
    ms_status status;

    MS_TRY(as_matrices(&a, c->ctx, &c->in[A]->v));
    MS_TRY_GOTO(as_matrices(&b, c->ctx, &c->in[B]->v), no_b);
    MS_TRY_GOTO(msi_matrix_of(&a, &ma), out);
    MS_TRY_GOTO(msi_matrix_of(&b, &mb), out);
    msi_gemm_args args = product(ma, mb, a.shape[1], b.shape[2], a.shape[2]);

    args.c = msi_view_ptr(&c->out[0]->v);
    args.c_row = args.n;
    args.c_batch = args.m * args.n;
    args.batch = a.shape[0];
    args.dtype = args.c_dtype = a.dtype;
    args.op = c->op->name;
    MS_TRY_GOTO(msi_gemm(c->ctx, &args), out);
    msi_save(c, A, &a);
    msi_save(c, B, &b);
out:
    msi_storage_release(b.storage);
no_b:
    msi_storage_release(a.storage);
    return status;
}

static ms_status matmul_backward(msi_bwd *bwd)
{
    const msi_view *saved;
    msi_view whole, dy;
    msi_matrix md, other;

    MS_TRY(msi_bwd_contiguous(bwd, msi_bwd_grad(bwd, 0), &whole));
    fold(&whole, &dy);
    MS_TRY(msi_matrix_of(&dy, &md));
    if (msi_bwd_needs(bwd, A)) {
        MS_TRY(msi_bwd_saved(bwd, B, &saved));
        MS_TRY(msi_matrix_of(saved, &other));
        msi_gemm_args args =
            product(md, msi_transposed(other), dy.shape[1], saved->shape[1], dy.shape[2]);

        args.batch = dy.shape[0];
        args.dtype = dy.dtype;
        MS_TRY(msi_bwd_gemm(bwd, A, &args));
    }
    if (msi_bwd_needs(bwd, B)) {
        MS_TRY(msi_bwd_saved(bwd, A, &saved));
        MS_TRY(msi_matrix_of(saved, &other));
        msi_gemm_args args =
            product(msi_transposed(other), md, saved->shape[2], dy.shape[2], dy.shape[1]);

        args.batch = dy.shape[0];
        args.dtype = dy.dtype;
        MS_TRY(msi_bwd_gemm(bwd, B, &args));
    }
    return MS_OK;
}

const msi_op msi_op_matmul = {.name = "matmul",
                              .meta = matmul_meta,
                              .forward = matmul_forward,
                              .backward = matmul_backward,
                              .n_saved = 2};

ms_status ms_op_matmul(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    ms_tensor *const in[2] = {a, b};

    *out = NULL;
    return msi_op_run(&msi_op_matmul, NULL, in, 2, out, 1);
}
