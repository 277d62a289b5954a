/* Matrix products and the embedding. Sizes stand on both sides of m n k = 4,096, where the
 * library takes over from the own kernel. */
#include "op_test.h"

static ms_status run_matmul(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_matmul(out, in[0], in[1]);
}

/* An operand as matrices, and its leading dimensions alone. */
static void split_operand(const operand *o, bool left, operand *lead, int64_t *rows, int64_t *cols)
{
    *lead = *o;
    lead->ndim = o->ndim > 2 ? o->ndim - 2 : 0;
    *rows = o->ndim > 1 ? o->shape[o->ndim - 2] : left ? 1 : o->shape[0];
    *cols = o->ndim > 1 || left ? o->shape[o->ndim - 1] : 1;
}

static void oracle_matmul(const op_case *c, const real *const *in, real *out)
{
    operand a, b, batch = c->out;
    int64_t m, k, n;

    split_operand(&c->in[0], true, &a, &m, &k);
    split_operand(&c->in[1], false, &b, &k, &n);
    batch.ndim = a.ndim > b.ndim ? a.ndim : b.ndim;
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        const int64_t at = i / (m * n), row = i / n % m, col = i % n;
        const real *x = in[0] + (broadcast_position(&batch, at, &a) * m + row) * k;
        const real *y = in[1] + broadcast_position(&batch, at, &b) * k * n + col;

        out[i] = 0;
        for (int64_t j = 0; j < k; j++) {
            out[i] += x[j] * y[j * n];
        }
    }
}

static ms_status run_square(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_matmul(out, in[0], in[0]);
}

static void oracle_square(const op_case *c, const real *const *in, real *out)
{
    const real *const twice[2] = {in[0], in[0]};
    op_case wide = *c;

    wide.in[1] = c->in[0];
    oracle_matmul(&wide, twice, out);
}

static ms_status run_linear(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_linear(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL);
}

static void oracle_linear(const op_case *c, const real *const *in, real *out)
{
    const int64_t n_out = c->in[1].shape[0], n_in = c->in[1].shape[1];

    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        out[i] = c->n_in > 2 ? in[2][i % n_out] : 0;
        for (int64_t j = 0; j < n_in; j++) {
            out[i] += in[0][i / n_out * n_in + j] * in[1][i % n_out * n_in + j];
        }
    }
}

/* i[0]: tanh form. */
static ms_status run_linear_gelu(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_linear_gelu(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL, c->i[0] != 0);
}

static void oracle_linear_gelu(const op_case *c, const real *const *in, real *out)
{
    oracle_linear(c, in, out);
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        real h = out[i];

        out[i] = c->i[0] ? h / (1 + expl(-2 * sqrtl(2 / M_PIl) * (h + 0.044715L * h * h * h)))
                         : h * erfcl(-h / sqrtl(2)) / 2;
    }
}

static ms_status run_embedding(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_embedding(out, in[0], in[1]);
}

static void oracle_embedding(const op_case *c, const real *const *in, real *out)
{
    const int64_t width = c->in[0].shape[1];

    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        out[i] = in[0][(int64_t)in[1][i / width] * width + i % width];
    }
}

#define STRIDED_IDS(limit_, ...)                                                                   \
    {                                                                                              \
        DIMS(__VA_ARGS__), .layout = LAYOUT_PERMUTED, .values = VALUES_IDS, .limit = (limit_)      \
    }

static const op_case cases[] = {
    ROW2("matmul", matmul, SHAPE(3, 5), SHAPE(5, 7), SHAPE(3, 7), .terms = 7),
    ROW2("matmul, large", matmul, SHAPE(15, 17), SHAPE(17, 19), SHAPE(15, 19), .terms = 19),
    ROW2("matmul, transposed", matmul, PERMUTED(6, 5), PERMUTED(5, 7), SHAPE(6, 7), .terms = 7),
    ROW2("matmul, gaps", matmul, NARROWED(6, 5), NARROWED(5, 7), SHAPE(6, 7), .terms = 7),
    ROW2("matmul, large, gaps", matmul, NARROWED(15, 17), PERMUTED(17, 19), SHAPE(15, 19),
         .terms = 19),
    ROW2("matmul, row by column", matmul, SHAPE(1, 9), SHAPE(9, 1), SHAPE(1, 1), .terms = 9),
    ROW2("matmul, column by row", matmul, PERMUTED(9, 1), NARROWED(1, 8), SHAPE(9, 8), .terms = 9),
    ROW2("matmul, large, a row that was a column", matmul, PERMUTED(1, 65), SHAPE(65, 64),
         SHAPE(1, 64), .terms = 65),
    ROW2("matmul, batched", matmul, SHAPE(3, 4, 5), SHAPE(3, 5, 2), SHAPE(3, 4, 2), .terms = 5),
    ROW2("matmul, two batch dimensions", matmul, SHAPE(2, 3, 4, 5), PERMUTED(2, 3, 5, 2),
         SHAPE(2, 3, 4, 2), .terms = 5),
    ROW2("matmul, batched, gaps", matmul, NARROWED(3, 4, 5), NARROWED(3, 5, 2), SHAPE(3, 4, 2),
         .terms = 5),
    ROW2("matmul, vectors", matmul, SHAPE(5), NARROWED(5), SCALAR, .terms = 5),
    ROW2("matmul, row", matmul, SHAPE(5), SHAPE(5, 3), SHAPE(3), .terms = 5),
    ROW2("matmul, column, gaps", matmul, PERMUTED(3, 5), NARROWED(5), SHAPE(3), .terms = 5),
    ROW2("matmul, batch by column", matmul, SHAPE(2, 3, 5), SHAPE(5), SHAPE(2, 3), .terms = 6),
    ROW2("matmul, row by batch", matmul, SHAPE(5), SHAPE(2, 3, 5, 4), SHAPE(2, 3, 4), .terms = 24),
    ROW2("matmul, batch by matrix", matmul, SHAPE(2, 3, 4, 5), SHAPE(5, 2), SHAPE(2, 3, 4, 2),
         .terms = 24),
    ROW2("matmul, batch by matrix, permuted", matmul, PERMUTED(3, 4, 5), PERMUTED(5, 2),
         SHAPE(3, 4, 2), .terms = 12),
    ROW2("matmul, batch by matrix, large", matmul, SHAPE(3, 15, 17), SHAPE(17, 19),
         SHAPE(3, 15, 19), .terms = 45),
    ROW2("matmul, matrix by batch", matmul, SHAPE(4, 5), SHAPE(3, 5, 2), SHAPE(3, 4, 2),
         .terms = 6),
    ROW2("matmul, matrix by batch, large", matmul, SHAPE(15, 17), SHAPE(3, 17, 19),
         SHAPE(3, 15, 19), .terms = 57),
    ROW2("matmul, batches broadcast", matmul, SHAPE(2, 1, 4, 5), NARROWED(3, 5, 2),
         SHAPE(2, 3, 4, 2), .terms = 12),
    ROW2("matmul, a batch of one", matmul, SHAPE(1, 4, 5), SHAPE(3, 5, 2), SHAPE(3, 4, 2),
         .terms = 6),
    ROW2("matmul, batch of nothing by matrix", matmul, SHAPE(0, 4, 5), SHAPE(5, 2), SHAPE(0, 4, 2)),
    ROW2("matmul, matrix by no batch", matmul, SHAPE(4, 5), SHAPE(0, 5, 2), SHAPE(0, 4, 2)),
    ROW2("matmul, vectors of nothing", matmul, SHAPE(0), SHAPE(0), SCALAR),
    ROW1("matmul, by itself", square, SHAPE(5, 5), SHAPE(5, 5), .terms = 10),
    ROW2("matmul, no rows", matmul, SHAPE(0, 5), SHAPE(5, 7), SHAPE(0, 7)),
    ROW2("matmul, nothing to sum", matmul, SHAPE(3, 0), SHAPE(0, 7), SHAPE(3, 7)),
    ROW2("matmul, no batch", matmul, SHAPE(0, 3, 2), SHAPE(0, 2, 4), SHAPE(0, 3, 4)),

    ROW3("linear", linear, SHAPE(5, 7), SHAPE(3, 7), SHAPE(3), SHAPE(5, 3), .terms = 7),
    ROW2("linear, no bias", linear, SHAPE(2, 5, 7), SHAPE(3, 7), SHAPE(2, 5, 3), .terms = 10),
    ROW3("linear, large", linear, SHAPE(2, 7, 17), SHAPE(19, 17), SHAPE(19), SHAPE(2, 7, 19),
         .terms = 19),
    ROW3("linear, one vector", linear, SHAPE(7), SHAPE(3, 7), SHAPE(3), SHAPE(3), .terms = 7),
    ROW3("linear, gaps", linear, NARROWED(2, 5, 7), NARROWED(3, 7), NARROWED(3), SHAPE(2, 5, 3),
         .terms = 10),
    ROW3("linear, permuted", linear, PERMUTED(6, 7), PERMUTED(3, 7), SHAPE(3), SHAPE(6, 3),
         .terms = 7),
    ROW3("linear, no rows", linear, SHAPE(0, 7), SHAPE(3, 7), SHAPE(3), SHAPE(0, 3)),
    ROW3("linear_gelu", linear_gelu, SHAPE(5, 7), SHAPE(3, 7), SHAPE(3), SHAPE(5, 3), .terms = 60),
    ROW3("linear_gelu, tanh form", linear_gelu, SHAPE(2, 7, 17), SHAPE(19, 17), SHAPE(19),
         SHAPE(2, 7, 19), .terms = 80, .i = {1}),
    ROW2("linear_gelu, no bias, gaps", linear_gelu, NARROWED(4, 7), PERMUTED(3, 7), SHAPE(4, 3),
         .terms = 60, .i = {1}),
    ROW3("linear_gelu, no rows", linear_gelu, SHAPE(0, 7), SHAPE(3, 7), SHAPE(3), SHAPE(0, 3)),

    ROW2("embedding", embedding, SHAPE(11, 7), IDS(11, 3, 5), SHAPE(3, 5, 7), .terms = 6),
    ROW2("embedding, repeated", embedding, SHAPE(2, 33), IDS(2, 40), SHAPE(40, 33), .terms = 30),
    ROW2("embedding, gaps", embedding, NARROWED(11, 7), STRIDED_IDS(11, 3, 5), SHAPE(3, 5, 7),
         .terms = 6),
    ROW2("embedding, no ids", embedding, SHAPE(11, 7), IDS(11, 0), SHAPE(0, 7)),
};

const op_family matrix_cases = {cases, COUNT(cases)};
