/* (..., M, K) x (..., K, N) -> (..., M, N). Leading dimensions broadcast. A vector is a row on the
 * left, a column on the right; the result lacks that dimension. da = dy b^T, db = a^T dy, summed
 * over broadcast dimensions.
 *
 * It runs as one batch of matrices. If b is one matrix or vector, the leading dimensions of a are
 * rows of one product, which also sums db. */
#include "meta.h"
#include "operand.h"

#include <stdio.h>

enum { A, B };

static ms_status misfit(const msi_view *a, const msi_view *b, const char *why)
{
    return MS_FAIL(MS_VALUE_ERROR,
                   "matmul: shapes are %s and %s, expected (..., m, k) and (..., k, n): %s",
                   msi_shape_text(a->ndim, a->shape), msi_shape_text(b->ndim, b->shape), why);
}

/* A vector as a matrix; matrices unchanged. */
static msi_view as_matrix(const msi_view *v, int32_t side)
{
    msi_view m = *v;

    if (v->ndim == 1) {
        m.ndim = 2;
        m.shape[side == A ? 1 : 0] = v->shape[0];
        m.stride[side == A ? 1 : 0] = v->stride[0];
        m.shape[side == A ? 0 : 1] = 1;
        m.stride[side == A ? 0 : 1] = 1;
    }
    return m;
}

/* The leading dimensions alone. */
static msi_view leading(const msi_view *v)
{
    msi_view lead = *v;

    lead.ndim = (int8_t)(v->ndim - 2);
    return lead;
}

/* The product's shape, with the dimensions vectors lack. */
static ms_status product_shape(const msi_view *a, const msi_view *b, int32_t *ndim, int64_t *shape)
{
    const msi_view a_lead = leading(a), b_lead = leading(b);

    MS_TRY(msi_broadcast(&a_lead, &b_lead, ndim, shape));
    shape[(*ndim)++] = a->shape[a->ndim - 2];
    shape[(*ndim)++] = b->shape[b->ndim - 1];
    return MS_OK;
}

/* True for matrices with equal leading dimensions, which need no preparation. */
static bool is_plain(const msi_view *a, const msi_view *b)
{
    bool plain = a->ndim == b->ndim && a->ndim >= 2;

    for (int32_t d = 0; plain && d < a->ndim - 2; d++) {
        plain = a->shape[d] == b->shape[d];
    }
    return plain;
}

/* Vectors, and batches that broadcast. */
static ms_status broadcast_shape(const msi_view *a, const msi_view *b, int32_t *ndim,
                                 int64_t *shape)
{
    const msi_view am = as_matrix(a, A), bm = as_matrix(b, B);
    char why[96];

    if (a->ndim < 1 || b->ndim < 1) {
        return misfit(a, b, "a number has no dimension to sum over; multiply by it");
    }
    if (am.shape[am.ndim - 1] != bm.shape[bm.ndim - 2]) {
        snprintf(why, sizeof(why), "k is %lld and %lld", (long long)am.shape[am.ndim - 1],
                 (long long)bm.shape[bm.ndim - 2]);
        return misfit(a, b, why);
    }
    if (product_shape(&am, &bm, ndim, shape) != MS_OK) {
        return misfit(a, b, "leading dimensions do not broadcast");
    }
    if (a->ndim == 1) {
        shape[*ndim - 2] = shape[*ndim - 1];
        (*ndim)--;
    }
    *ndim -= b->ndim == 1;
    return MS_OK;
}

static ms_status matmul_meta(const msi_meta *m)
{
    const msi_view *a = m->in[A], *b = m->in[B];
    int64_t shape[MS_MAX_DIMS + 2];
    int32_t ndim = a->ndim;

    if (MSI_LIKELY(is_plain(a, b) && a->shape[ndim - 1] == b->shape[ndim - 2])) {
        for (int32_t d = 0; d < ndim - 1; d++) {
            shape[d] = a->shape[d];
        }
        shape[ndim - 1] = b->shape[ndim - 1];
    } else {
        MS_TRY(broadcast_shape(a, b, &ndim, shape));
    }
    MS_TRY(msi_same_dtype_of_product("matmul", a, b));
    MS_TRY(msi_check_product("matmul", a->dtype));
    return msi_result(m->out, a->dtype, ndim, shape);
}

/* Stride of the leading dimensions merged into one of size `n`. False if they cannot be merged. */
static bool fold_leading(const msi_view *v, int64_t n, int64_t *stride)
{
    const msi_view lead = leading(v);
    msi_view folded;

    if (!msi_view_reshape(&lead, 1, &n, &folded)) {
        return false;
    }
    *stride = folded.stride[0];
    return true;
}

/* Merge the leading dimensions: (batch, rows, cols). False if strides forbid it. */
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

/* Merge them with rows: (1, leading x rows, cols). False if strides forbid it. */
static bool fold_rows(const msi_view *v, msi_view *out)
{
    const int64_t cols = v->shape[v->ndim - 1];
    const int64_t shape[3] = {1, msi_leading(v, v->ndim - 1), cols};

    return msi_view_reshape(v, 3, shape, out);
}

/* `v` as (batch, rows, cols) for the gemm, by fold() or fold_rows(). The caller owns a reference.
 */
static ms_status as_matrices(msi_view *out, ms_context *ctx, const msi_view *v,
                             bool (*matrices)(const msi_view *, msi_view *))
{
    msi_view copy;

    if (matrices(v, out) && msi_is_matrix(out)) {
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    MS_TRY(msi_view_like(&copy, ctx, v, v->dtype, MS_MEM_ACTIVATION, true));
    matrices(&copy, out);
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

/* How operands are multiplied: as matrices with common leading dimensions. */
typedef struct plan {
    const msi_view *in[2]; /* the operands, or `made` */
    msi_view made[2];      /* vectors as matrices, expanded leading dimensions */
    bool rows;             /* leading dimensions of a are rows */
} plan;

static ms_status expand_leading(plan *p)
{
    const msi_view m[2] = {p->made[A], p->made[B]};
    int64_t shape[MS_MAX_DIMS + 2];
    int32_t ndim;

    MS_TRY(product_shape(&m[A], &m[B], &ndim, shape));
    for (int32_t i = A; i <= B; i++) {
        shape[ndim - 2] = m[i].shape[m[i].ndim - 2];
        shape[ndim - 1] = m[i].shape[m[i].ndim - 1];
        msi_view_expand(&m[i], ndim, shape, &p->made[i]);
    }
    return MS_OK;
}

static ms_status make_plan(plan *p, const msi_view *a, const msi_view *b)
{
    p->rows = false;
    p->in[A] = a;
    p->in[B] = b;
    if (MSI_LIKELY(is_plain(a, b))) {
        return MS_OK;
    }
    p->made[A] = as_matrix(a, A);
    p->made[B] = as_matrix(b, B);
    p->in[A] = &p->made[A];
    p->in[B] = &p->made[B];
    p->rows = p->made[A].ndim > 2 && p->made[B].ndim == 2;
    return p->rows ? MS_OK : expand_leading(p);
}

static ms_status multiply(msi_op_call *c, const msi_view *a, const msi_view *b)
{
    msi_matrix ma, mb;

    MS_TRY(msi_matrix_of(a, &ma));
    MS_TRY(msi_matrix_of(b, &mb));
    msi_gemm_args args = product(ma, mb, a->shape[1], b->shape[2], a->shape[2]);

    args.c = msi_view_ptr(&c->out[0]->v);
    args.c_row = args.n;
    args.c_batch = args.m * args.n;
    args.batch = a->shape[0];
    args.dtype = args.c_dtype = a->dtype;
    args.op = c->op->name;
    return msi_gemm(c->ctx, &args);
}

static ms_status matmul_forward(msi_op_call *c)
{
    msi_view a, b;
    plan p;
    ms_status status;

    MS_TRY(make_plan(&p, &c->in[A]->v, &c->in[B]->v));
    MS_TRY(as_matrices(&a, c->ctx, p.in[A], p.rows ? fold_rows : fold));
    MS_TRY_GOTO(as_matrices(&b, c->ctx, p.in[B], fold), no_b);
    MS_TRY_GOTO(multiply(c, &a, &b), out);
    msi_save(c, A, &a);
    msi_save(c, B, &b);
out:
    msi_storage_release(b.storage);
no_b:
    msi_storage_release(a.storage);
    return status;
}

/* True if the operand was expanded: its gradient is computed in that shape and summed. */
static bool is_expanded(const plan *p, const msi_view *operand, int32_t i)
{
    return !p->rows && msi_view_numel(p->in[i]) != msi_view_numel(operand);
}

static ms_status expanded_gradient(msi_bwd *bwd, int32_t i, const plan *p, msi_gemm_args *args)
{
    const bool vector = msi_bwd_operand(bwd, i)->ndim == 1;
    const msi_view *in = p->in[i];
    msi_view whole;
    void *data;

    MS_TRY(msi_bwd_temp(bwd, in->dtype, in->ndim, in->shape, &whole));
    MS_TRY(msi_view_data(&whole, &data));
    args->c = data;
    args->c_row = args->n;
    args->c_batch = args->m * args->n;
    args->c_dtype = in->dtype;
    args->is_gradient = true;
    args->op = msi_bwd_name(bwd);
    MS_TRY(msi_gemm(msi_bwd_context(bwd), args));
    if (vector && i == B) { /* a column's last dimension is not the operand's */
        msi_view_set_contiguous(&whole, in->dtype, in->ndim - 1, in->shape);
    }
    return msi_bwd_reduce_pass(bwd, i, &whole, 1);
}

static ms_status contribute(msi_bwd *bwd, int32_t i, const plan *p, msi_gemm_args *args,
                            const msi_view *dy)
{
    args->batch = dy->shape[0];
    args->dtype = dy->dtype;
    return is_expanded(p, msi_bwd_operand(bwd, i), i) ? expanded_gradient(bwd, i, p, args)
                                                      : msi_bwd_gemm(bwd, i, args);
}

/* The incoming gradient as (batch, m, n), as the product's result was written. */
static ms_status incoming(msi_bwd *bwd, const plan *p, msi_view *dy)
{
    const msi_view *a = p->in[A], *b = p->in[B];
    const int64_t lead = msi_leading(a, a->ndim - 2), m = a->shape[a->ndim - 2];
    const int64_t shape[3] = {p->rows ? 1 : lead, p->rows ? lead * m : m, b->shape[b->ndim - 1]};

    MS_TRY(msi_bwd_contiguous(bwd, msi_bwd_grad(bwd, 0), dy));
    msi_view_set_contiguous(dy, dy->dtype, 3, shape);
    return MS_OK;
}

static ms_status matmul_backward(msi_bwd *bwd)
{
    const msi_view a = *msi_bwd_operand(bwd, A), b = *msi_bwd_operand(bwd, B), *saved;
    msi_view dy;
    msi_matrix md, other;
    plan p;

    MS_TRY(make_plan(&p, &a, &b));
    MS_TRY(incoming(bwd, &p, &dy));
    MS_TRY(msi_matrix_of(&dy, &md));
    if (msi_bwd_needs(bwd, A)) {
        MS_TRY(msi_bwd_saved(bwd, B, &saved));
        MS_TRY(msi_matrix_of(saved, &other));
        msi_gemm_args args =
            product(md, msi_transposed(other), dy.shape[1], saved->shape[1], dy.shape[2]);

        MS_TRY(contribute(bwd, A, &p, &args, &dy));
    }
    if (msi_bwd_needs(bwd, B)) {
        MS_TRY(msi_bwd_saved(bwd, A, &saved));
        MS_TRY(msi_matrix_of(saved, &other));
        msi_gemm_args args =
            product(msi_transposed(other), md, saved->shape[2], dy.shape[2], dy.shape[1]);

        MS_TRY(contribute(bwd, B, &p, &args, &dy));
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
