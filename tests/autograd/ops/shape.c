/* Reductions, views, copies and the mean squared error. */
#include "op_test.h"

/* -- sum and mean ------------------------------------------------------------------------------ */

/* i[0]: bits of the dimensions, i[1]: keepdim. */
static ms_status run_sum(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_sum(out, in[0], (uint32_t)c->i[0], c->i[1] != 0);
}

static ms_status run_mean(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_mean(out, in[0], (uint32_t)c->i[0], c->i[1] != 0);
}

static void sum_over(const op_case *c, const real *in, real *out, bool mean)
{
    const operand *x = &c->in[0];
    const uint32_t dims = c->i[0] != 0 ? (uint32_t)c->i[0] : ~0u;
    operand kept = {.ndim = x->ndim}; /* the result with kept dimensions */

    for (int32_t d = 0; d < x->ndim; d++) {
        kept.shape[d] = dims >> d & 1 ? 1 : x->shape[d];
    }
    const int64_t n_out = numel_of(&kept), n_in = numel_of(x);

    for (int64_t i = 0; i < n_out; i++) {
        out[i] = 0;
    }
    for (int64_t i = 0; i < n_in; i++) {
        out[broadcast_position(x, i, &kept)] += in[i];
    }
    for (int64_t i = 0; mean && i < n_out; i++) {
        out[i] /= (real)(n_in / n_out);
    }
}

static void oracle_sum(const op_case *c, const real *const *in, real *out)
{
    sum_over(c, in[0], out, false);
}

static void oracle_mean(const op_case *c, const real *const *in, real *out)
{
    sum_over(c, in[0], out, true);
}

/* -- views and copies -------------------------------------------------------------------------- */

static ms_status run_expand(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_expand(out, in[0], c->out.ndim, c->out.shape);
}

static void oracle_expand(const op_case *c, const real *const *in, real *out)
{
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        out[i] = in[0][broadcast_position(&c->out, i, &c->in[0])];
    }
}

/* i[0]: leave the first size to the operator. */
static ms_status run_reshape(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    int64_t shape[5];

    memcpy(shape, c->out.shape, sizeof(shape));
    shape[0] = c->i[0] ? -1 : shape[0];
    return ms_op_reshape(out, in[0], c->out.ndim, shape);
}

static void oracle_reshape(const op_case *c, const real *const *in, real *out)
{
    memcpy(out, in[0], sizeof(real) * (size_t)numel_of(&c->out));
}

static ms_status run_clone(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_clone(out, in[0]);
}

static void oracle_clone(const op_case *c, const real *const *in, real *out)
{
    memcpy(out, in[0], sizeof(real) * (size_t)numel_of(&c->out));
}

/* i: the permutation. */
static ms_status run_permute(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    const int32_t perm[4] = {(int32_t)c->i[0], (int32_t)c->i[1], (int32_t)c->i[2],
                             (int32_t)c->i[3]};

    return ms_op_permute(out, in[0], c->out.ndim, perm);
}

static void oracle_permute(const op_case *c, const real *const *in, real *out)
{
    const operand *x = &c->in[0];

    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        int64_t rest = i, index[5] = {0}, position = 0;

        for (int32_t d = c->out.ndim - 1; d >= 0; d--) {
            index[c->i[d]] = rest % c->out.shape[d];
            rest /= c->out.shape[d];
        }
        for (int32_t d = 0; d < x->ndim; d++) {
            position = position * x->shape[d] + index[d];
        }
        out[i] = in[0][position];
    }
}

/* i[0]: bits of the dimensions. */
static ms_status run_flip(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_flip(out, in[0], (uint32_t)c->i[0]);
}

static void oracle_flip(const op_case *c, const real *const *in, real *out)
{
    const operand *x = &c->in[0];

    for (int64_t i = 0; i < numel_of(x); i++) {
        int64_t rest = i, at = 0, step = 1;

        for (int32_t d = x->ndim - 1; d >= 0; d--) {
            const int64_t index = rest % x->shape[d];

            at += (c->i[0] >> d & 1 ? x->shape[d] - 1 - index : index) * step;
            rest /= x->shape[d];
            step *= x->shape[d];
        }
        out[i] = in[0][at];
    }
}

/* i: dimension, start; the length is the result's. */
static ms_status run_narrow(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_narrow(out, in[0], (int32_t)c->i[0], c->i[1], c->out.shape[c->i[0]]);
}

static void oracle_narrow(const op_case *c, const real *const *in, real *out)
{
    int64_t inner = 1, at = 0;

    for (int32_t d = c->out.ndim - 1; d > c->i[0]; d--) {
        inner *= c->out.shape[d];
    }
    const int64_t rows = c->in[0].shape[c->i[0]] * inner, kept = c->out.shape[c->i[0]] * inner;

    for (int64_t first = c->i[1] * inner; at < numel_of(&c->out); first += rows, at += kept) {
        memcpy(out + at, in[0] + first, sizeof(real) * (size_t)kept);
    }
}

/* i: dimension, index. */
static ms_status run_select(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_select(out, in[0], (int32_t)c->i[0], c->i[1]);
}

static void oracle_select(const op_case *c, const real *const *in, real *out)
{
    const operand *x = &c->in[0];
    int64_t inner = 1, at = 0;

    for (int32_t d = x->ndim - 1; d > c->i[0]; d--) {
        inner *= x->shape[d];
    }
    for (int64_t i = 0; i < numel_of(x); i++) {
        if (i / inner % x->shape[c->i[0]] == c->i[1]) {
            out[at++] = in[0][i];
        }
    }
}

/* i: dimension. */
static ms_status run_cat(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_cat(out, in, c->n_in, (int32_t)c->i[0]);
}

static void oracle_cat(const op_case *c, const real *const *in, real *out)
{
    int64_t outer = 1, inner = 1;

    for (int32_t d = 0; d < c->out.ndim; d++) {
        *(d < c->i[0] ? &outer : &inner) *= d == c->i[0] ? 1 : c->out.shape[d];
    }
    for (int64_t o = 0; o < outer; o++) {
        for (int32_t k = 0; k < c->n_in; k++) {
            int64_t n = c->in[k].shape[c->i[0]] * inner;

            memcpy(out, in[k] + o * n, sizeof(real) * (size_t)n);
            out += n;
        }
    }
}

/* -- mean squared error ------------------------------------------------------------------------ */

static ms_status run_mse(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_mse_loss(out, in[0], in[1], (int32_t)c->i[0]);
}

static void oracle_mse(const op_case *c, const real *const *in, real *out)
{
    const int64_t n = numel_of(&c->in[0]);

    out[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        out[0] += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
    }
    out[0] /= c->i[0] == MS_REDUCTION_MEAN ? (real)n : 1;
}

static const op_case cases[] = {
    ROW1("sum, all", sum, SHAPE(5, 7), SCALAR, .terms = 35),
    ROW1("sum, long", sum, SHAPE(1000), SCALAR, .terms = 1000),
    ROW1("sum, rows", sum, SHAPE(9, 7), SHAPE(7), .terms = 9, .i = {1}),
    ROW1("sum, columns", sum, SHAPE(5, 37), SHAPE(5), .terms = 37, .i = {2}),
    ROW1("sum, outer and inner", sum, SHAPE(3, 4, 5), SHAPE(1, 4, 1), .terms = 15, .i = {5, 1}),
    ROW1("sum, permuted", sum, PERMUTED(3, 4, 5), SHAPE(3, 5), .terms = 4, .i = {2}),
    ROW1("sum, of nothing", sum, SHAPE(0, 3), SHAPE(3), .i = {1}),
    ROW1("sum, of a scalar", sum, SCALAR, SCALAR),
    ROW1("sum, integers", sum, SHAPE(5, 37), SHAPE(5), .i = {2}, .integer = true),
    ROW1("sum, integers, all", sum, PERMUTED(5, 7), SCALAR, .integer = true),
    ROW1("mean, all", mean, NARROWED(5, 7), SCALAR, .terms = 35),
    ROW1("mean, columns", mean, SHAPE(5, 7), SHAPE(5, 1), .terms = 7, .i = {2, 1}),
    ROW1("mean, middle", mean, PERMUTED(3, 4, 5), SHAPE(3, 5), .terms = 4, .i = {2}),
    ROW1("reshape, view", reshape, SHAPE(4, 6), SHAPE(2, 2, 6)),
    ROW1("reshape, copy", reshape, PERMUTED(4, 6), SHAPE(24)),
    ROW1("reshape, view of gaps", reshape, NARROWED(4, 6), SHAPE(2, 2, 2, 3)),
    ROW1("reshape, one size inferred", reshape, SHAPE(4, 6), SHAPE(8, 3), .i = {1}),
    ROW1("reshape, to a scalar", reshape, SHAPE(1, 1), SCALAR),
    ROW1("reshape, empty", reshape, SHAPE(0, 6), SHAPE(3, 0)),
    ROW1("clone", clone, SHAPE(5, 7), SHAPE(5, 7)),
    ROW1("clone, permuted", clone, PERMUTED(5, 7), SHAPE(5, 7)),
    ROW1("expand", expand, SHAPE(3, 1), SHAPE(2, 3, 4), .terms = 8),
    ROW1("expand, permuted", expand, PERMUTED(1, 5), SHAPE(4, 5), .terms = 4),
    ROW1("expand, a scalar", expand, SCALAR, SHAPE(2, 3), .terms = 6),
    ROW1("expand, to nothing", expand, SHAPE(3, 1), SHAPE(3, 0)),
    ROW1("expand, to itself", expand, NARROWED(3, 2), SHAPE(3, 2)),
    ROW1("flip", flip, SHAPE(3, 4, 5), SHAPE(3, 4, 5), .i = {5}),
    ROW1("flip, last, permuted", flip, PERMUTED(3, 300), SHAPE(3, 300), .i = {2}),
    ROW1("flip, gaps", flip, NARROWED(3, 4), SHAPE(3, 4), .i = {3}),
    ROW1("flip, of nothing", flip, SHAPE(0, 4), SHAPE(0, 4), .i = {3}),
    ROW1("flip, a scalar", flip, SCALAR, SCALAR),
    ROW1("permute", permute, SHAPE(3, 4, 5), SHAPE(5, 3, 4), .i = {2, 0, 1}),
    ROW1("permute, of a permuted", permute, PERMUTED(2, 3, 4, 5), SHAPE(2, 4, 3, 5),
         .i = {0, 2, 1, 3}),
    ROW1("narrow, first", narrow, SHAPE(5, 7), SHAPE(3, 7), .i = {0, 1}),
    ROW1("narrow, last", narrow, PERMUTED(5, 7), SHAPE(5, 2), .i = {1, 4}),
    ROW1("narrow, to nothing", narrow, SHAPE(5, 7), SHAPE(5, 0), .i = {1, 7}),
    ROW1("select, first", select, SHAPE(5, 7), SHAPE(7), .i = {0, 2}),
    ROW1("select, middle", select, SHAPE(3, 4, 5), SHAPE(3, 5), .i = {1, 3}),
    ROW1("select, last, permuted", select, PERMUTED(5, 7), SHAPE(5), .i = {1, 0}),
    ROW1("select, gaps", select, NARROWED(3, 4, 3), SHAPE(4, 3), .i = {0, 2}),
    ROW1("select, to a scalar", select, SHAPE(9), SCALAR, .i = {0, 8}),
    ROW1("select, of nothing", select, SHAPE(3, 0), SHAPE(0), .i = {0, 1}),
    ROW2("cat, first", cat, SHAPE(2, 7), SHAPE(3, 7), SHAPE(5, 7)),
    ROW2("cat, last, gaps", cat, NARROWED(4, 3), PERMUTED(4, 6), SHAPE(4, 9), .i = {1}),
    ROW2("cat, with nothing", cat, SHAPE(0, 7), SHAPE(3, 7), SHAPE(3, 7)),
    ROW2("mse_loss, mean", mse, SHAPE(5, 7), SHAPE(5, 7), SCALAR, .terms = 35),
    ROW2("mse_loss, sum, permuted", mse, PERMUTED(5, 7), NARROWED(5, 7), SCALAR, .terms = 35,
         .i = {MS_REDUCTION_SUM}),
};

const op_family shape_cases = {cases, COUNT(cases)};
