/* Operators that normalise along rows, the losses over them, and dropout. */
#include "op_test.h"

/* -- layer norm: in = x [, w [, bias]]; p[0] = eps; i[0]: only a bias beside x ----------------- */

static ms_status run_layer_norm(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    ms_tensor *w = c->n_in > 1 && !c->i[0] ? in[1] : NULL;
    ms_tensor *bias = c->i[0] ? in[1] : c->n_in > 2 ? in[2] : NULL;

    return ms_op_layer_norm(out, in[0], w, bias, c->p[0]);
}

static void oracle_layer_norm(const op_case *c, const real *const *in, real *out)
{
    const int64_t cols = c->out.shape[c->out.ndim - 1], n = numel_of(&c->out);
    const real *w = c->n_in > 1 && !c->i[0] ? in[1] : NULL;
    const real *bias = c->i[0] ? in[1] : c->n_in > 2 ? in[2] : NULL;

    for (int64_t first = 0; first < n; first += cols) {
        const real *x = in[0] + first;
        real mean = 0, variance = 0;

        for (int64_t j = 0; j < cols; j++) {
            mean += x[j] / (real)cols;
        }
        for (int64_t j = 0; j < cols; j++) {
            variance += (x[j] - mean) * (x[j] - mean) / (real)cols;
        }
        for (int64_t j = 0; j < cols; j++) {
            out[first + j] =
                (x[j] - mean) / sqrtl(variance + c->p[0]) * (w ? w[j] : 1) + (bias ? bias[j] : 0);
        }
    }
}

/* x as its own weight and bias: one row. */
static ms_status run_layer_norm_self(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_layer_norm(out, in[0], in[0], in[0], c->p[0]);
}

static void oracle_layer_norm_self(const op_case *c, const real *const *in, real *out)
{
    const real *const thrice[3] = {in[0], in[0], in[0]};
    op_case wide = *c;

    wide.n_in = 3;
    oracle_layer_norm(&wide, thrice, out);
}

/* -- softmax and cross-entropy ----------------------------------------------------------------- */

static real log_sum_exp(const real *x, int64_t n)
{
    real sum = 0;

    for (int64_t j = 0; j < n; j++) {
        sum += expl(x[j]);
    }
    return logl(sum);
}

static ms_status run_log_softmax(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_log_softmax(out, in[0]);
}

static void oracle_log_softmax(const op_case *c, const real *const *in, real *out)
{
    const int64_t cols = c->out.shape[c->out.ndim - 1];

    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        out[i] = in[0][i] - log_sum_exp(in[0] + i / cols * cols, cols);
    }
}

static ms_status run_softmax(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_softmax(out, in[0]);
}

static void oracle_softmax(const op_case *c, const real *const *in, real *out)
{
    oracle_log_softmax(c, in, out);
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        out[i] = expl(out[i]);
    }
}

/* i[0]: reduction, i[1]: ignored target. */
static ms_status run_cross_entropy(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_cross_entropy(out, in[0], in[1], c->i[1], (int32_t)c->i[0]);
}

static void oracle_cross_entropy(const op_case *c, const real *const *in, real *out)
{
    const int64_t cols = c->in[0].shape[c->in[0].ndim - 1], rows = numel_of(&c->in[1]);
    int64_t counted = 0;

    out[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t target = (int64_t)in[1][r];

        if (target != c->i[1]) {
            out[0] += log_sum_exp(in[0] + r * cols, cols) - in[0][r * cols + target];
            counted++;
        }
    }
    out[0] /= c->i[0] == MS_REDUCTION_MEAN ? (real)counted : 1;
}

/* -- dropout: p[0] = probability. The mask is what the operator does to ones ------------------- */

enum { DROPOUT_SITE = 77, DROPOUT_CALL = 3 };

static ms_status run_dropout(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_dropout(out, in[0], c->p[0], DROPOUT_SITE, DROPOUT_CALL);
}

static void oracle_dropout(const op_case *c, const real *const *in, real *out)
{
    static double mask[OP_MAX_NUMEL];
    const int64_t n = numel_of(&c->out);
    ms_tensor *ones, *dropped;

    assert_ok(ms_tensor_full(&ones, MS_DTYPE_F64, c->out.ndim, c->out.shape, 1));
    assert_ok(ms_op_dropout(&dropped, ones, c->p[0], DROPOUT_SITE, DROPOUT_CALL));
    assert_ok(ms_tensor_to_doubles(dropped, mask, n));
    ms_tensor_free(dropped);
    ms_tensor_free(ones);
    for (int64_t i = 0; i < n; i++) {
        assert_true(mask[i] == 0 || fabs(mask[i] * (1 - c->p[0]) - 1) < 1e-15);
        out[i] = mask[i] == 0 ? 0 : in[0][i] / (1 - (real)c->p[0]);
    }
}

#define ONE_ID(limit_)                                                                             \
    {                                                                                              \
        .ndim = 0, .values = VALUES_IDS, .limit = (limit_)                                         \
    }

static const op_case cases[] = {
    ROW3("layer_norm", layer_norm, SHAPE(5, 7), SHAPE(7), SHAPE(7), SHAPE(5, 7), .terms = 14,
         .p = {1e-5}),
    ROW3("layer_norm, wide", layer_norm, SHAPE(2, 3, 67), SHAPE(67), SHAPE(67), SHAPE(2, 3, 67),
         .terms = 67, .p = {1e-5}),
    ROW1("layer_norm, bare", layer_norm, SHAPE(5, 16), SHAPE(5, 16), .terms = 16, .p = {1e-3}),
    ROW2("layer_norm, no bias", layer_norm, SHAPE(40, 9), SHAPE(9), SHAPE(40, 9), .terms = 40,
         .p = {1e-5}),
    ROW2("layer_norm, no weight", layer_norm, SHAPE(5, 7), SHAPE(7), SHAPE(5, 7), .terms = 14,
         .p = {1e-5}, .i = {1}),
    ROW3("layer_norm, gaps", layer_norm, PERMUTED(4, 3, 7), NARROWED(7), NARROWED(7),
         SHAPE(4, 3, 7), .terms = 14, .p = {1e-5}),
    ROW3("layer_norm, one row", layer_norm, SHAPE(9), SHAPE(9), SHAPE(9), SHAPE(9), .terms = 9,
         .p = {1e-5}),
    ROW1("layer_norm, by itself", layer_norm_self, SHAPE(9), SHAPE(9), .terms = 9, .p = {1e-5}),
    ROW3("layer_norm, no rows", layer_norm, SHAPE(0, 7), SHAPE(7), SHAPE(7), SHAPE(0, 7),
         .p = {1e-5}),

    ROW1("log_softmax", log_softmax, SHAPE(5, 7), SHAPE(5, 7), .terms = 7),
    ROW1("log_softmax, wide", log_softmax, SHAPE(2, 2, 133), SHAPE(2, 2, 133), .terms = 133),
    ROW1("log_softmax, permuted", log_softmax, PERMUTED(4, 9), SHAPE(4, 9), .terms = 9),
    ROW1("log_softmax, one column", log_softmax, SHAPE(4, 1), SHAPE(4, 1)),
    ROW1("log_softmax, no rows", log_softmax, SHAPE(0, 7), SHAPE(0, 7)),
    ROW1("softmax", softmax, SHAPE(5, 7), SHAPE(5, 7), .terms = 7),
    ROW1("softmax, wide", softmax, SHAPE(2, 2, 133), SHAPE(2, 2, 133), .terms = 133),
    ROW1("softmax, permuted", softmax, PERMUTED(4, 9), SHAPE(4, 9), .terms = 9),
    ROW1("softmax, one column", softmax, SHAPE(4, 1), SHAPE(4, 1)),
    ROW1("softmax, no rows", softmax, SHAPE(0, 7), SHAPE(0, 7)),

    ROW2("cross_entropy, mean", cross_entropy, SHAPE(3, 4, 13), IDS(13, 3, 4), SCALAR, .terms = 13,
         .i = {MS_REDUCTION_MEAN, -100}),
    ROW2("cross_entropy, sum", cross_entropy, SHAPE(6, 131), IDS(131, 6), SCALAR, .terms = 131,
         .i = {MS_REDUCTION_SUM, -100}),
    ROW2("cross_entropy, ignored rows", cross_entropy, SHAPE(20, 3), IDS(3, 20), SCALAR,
         .terms = 20, .i = {MS_REDUCTION_MEAN, 1}),
    ROW2("cross_entropy, gaps", cross_entropy, PERMUTED(6, 5), IDS(5, 6), SCALAR, .terms = 6,
         .i = {MS_REDUCTION_MEAN, -100}),
    ROW2("cross_entropy, one row", cross_entropy, SHAPE(9), ONE_ID(9), SCALAR, .terms = 9,
         .i = {MS_REDUCTION_MEAN, -100}),
    ROW2("cross_entropy, no rows", cross_entropy, SHAPE(0, 5), IDS(5, 0), SCALAR,
         .i = {MS_REDUCTION_SUM, -100}),

    ROW1("dropout", dropout, SHAPE(5, 37), SHAPE(5, 37), .p = {0.3}),
    ROW1("dropout, permuted", dropout, PERMUTED(4, 3, 7), SHAPE(4, 3, 7), .p = {0.5}),
    ROW1("dropout, none", dropout, NARROWED(5, 7), SHAPE(5, 7), .p = {0}),
    ROW1("dropout, scalar", dropout, SCALAR, SCALAR, .p = {0.1}),
    ROW1("dropout, no rows", dropout, SHAPE(0, 7), SHAPE(0, 7), .p = {0.5}),
};

const op_family row_cases = {cases, COUNT(cases)};
