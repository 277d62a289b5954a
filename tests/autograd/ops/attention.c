/* Attention, separate and packed, against scores written out. */
#include "op_test.h"

/* softmax(q k^T scale + mask) v of one head; strides between positions, D neighbours. */
static void one_head(const real *q, const real *k, const real *v, real *out, int64_t q_len,
                     int64_t kv_len, int64_t depth, int64_t in_step, int64_t out_step, bool causal,
                     real scale)
{
    real weight[64];

    for (int64_t t = 0; t < q_len; t++) {
        const int64_t seen = causal && t < kv_len ? t + 1 : kv_len;
        real total = 0;

        for (int64_t s = 0; s < seen; s++) {
            real score = 0;

            for (int64_t d = 0; d < depth; d++) {
                score += q[t * in_step + d] * k[s * in_step + d];
            }
            weight[s] = expl(score * scale);
            total += weight[s];
        }
        for (int64_t d = 0; d < depth; d++) {
            out[t * out_step + d] = 0;
            for (int64_t s = 0; s < seen; s++) {
                out[t * out_step + d] += weight[s] / total * v[s * in_step + d];
            }
        }
    }
}

/* i[0]: causal; p[0]: scale, 0 for the default. */
static ms_status run_attention(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_attention(out, in[0], in[1], in[2], c->i[0] != 0, c->p[0]);
}

static real scale_of(const op_case *c, int64_t depth)
{
    return c->p[0] != 0 ? c->p[0] : 1 / sqrtl((real)depth);
}

static void oracle_attention(const op_case *c, const real *const *in, real *out)
{
    const int64_t heads = c->in[0].shape[0] * c->in[0].shape[1], depth = c->in[0].shape[3];
    const int64_t q_len = c->in[0].shape[2], kv_len = c->in[1].shape[2];

    for (int64_t h = 0; h < heads; h++) {
        int64_t q = h * q_len * depth, kv = h * kv_len * depth;

        one_head(in[0] + q, in[1] + kv, in[2] + kv, out + q, q_len, kv_len, depth, depth, depth,
                 c->i[0], scale_of(c, depth));
    }
}

/* One tensor as q, k and v. */
static ms_status run_attention_self(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_attention(out, in[0], in[0], in[0], c->i[0] != 0, c->p[0]);
}

static void oracle_attention_self(const op_case *c, const real *const *in, real *out)
{
    const real *const thrice[3] = {in[0], in[0], in[0]};
    op_case wide = *c;

    wide.in[1] = wide.in[2] = c->in[0];
    oracle_attention(&wide, thrice, out);
}

/* i[1]: heads. */
static ms_status run_packed(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_attention_packed(out, in[0], (int32_t)c->i[1], c->i[0] != 0, c->p[0]);
}

static void oracle_packed(const op_case *c, const real *const *in, real *out)
{
    const int64_t batch = c->out.shape[0], length = c->out.shape[1], width = c->out.shape[2];
    const int64_t depth = width / c->i[1];

    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < c->i[1]; h++) {
            const real *q = in[0] + b * length * 3 * width + h * depth;

            one_head(q, q + width, q + 2 * width, out + b * length * width + h * depth, length,
                     length, depth, 3 * width, width, c->i[0], scale_of(c, depth));
        }
    }
}

static const op_case cases[] = {
    ROW3("attention", attention, SHAPE(1, 2, 3, 4), SHAPE(1, 2, 5, 4), SHAPE(1, 2, 5, 4),
         SHAPE(1, 2, 3, 4), .terms = 20),
    ROW3("attention, causal", attention, SHAPE(2, 2, 6, 5), SHAPE(2, 2, 6, 5), SHAPE(2, 2, 6, 5),
         SHAPE(2, 2, 6, 5), .terms = 30, .i = {1}),
    ROW3("attention, causal, more keys than queries", attention, SHAPE(1, 1, 3, 8),
         SHAPE(1, 1, 7, 8), SHAPE(1, 1, 7, 8), SHAPE(1, 1, 3, 8), .terms = 56, .i = {1},
         .p = {0.25}),
    ROW3("attention, permuted", attention, PERMUTED(2, 3, 4, 5), PERMUTED(2, 3, 4, 5),
         SHAPE(2, 3, 4, 5), SHAPE(2, 3, 4, 5), .terms = 20, .i = {1}),
    ROW3("attention, gaps", attention, NARROWED(1, 2, 3, 4), SHAPE(1, 2, 3, 4),
         NARROWED(1, 2, 3, 4), SHAPE(1, 2, 3, 4), .terms = 12, .p = {1.0}),
    ROW3("attention, several tiles", attention, SHAPE(1, 1, 45, 3), SHAPE(1, 1, 45, 3),
         SHAPE(1, 1, 45, 3), SHAPE(1, 1, 45, 3), .terms = 135, .i = {1}),
    ROW1("attention, to itself", attention_self, SHAPE(1, 2, 5, 4), SHAPE(1, 2, 5, 4), .terms = 60,
         .i = {1}),
    ROW3("attention, no batch", attention, SHAPE(0, 2, 3, 4), SHAPE(0, 2, 3, 4), SHAPE(0, 2, 3, 4),
         SHAPE(0, 2, 3, 4)),
    ROW1("attention_packed", packed, SHAPE(2, 5, 24), SHAPE(2, 5, 8), .terms = 20, .i = {1, 2}),
    ROW1("attention_packed, all see all", packed, SHAPE(1, 4, 18), SHAPE(1, 4, 6), .terms = 24,
         .i = {0, 1}, .p = {0.5}),
    ROW1("attention_packed, gaps", packed, NARROWED(2, 3, 12), SHAPE(2, 3, 4), .terms = 6,
         .i = {1, 2}),
    ROW1("attention_packed, permuted", packed, PERMUTED(2, 3, 12), SHAPE(2, 3, 4), .terms = 6,
         .i = {1, 2}),
    ROW1("attention_packed, one position", packed, SHAPE(2, 1, 12), SHAPE(2, 1, 4), .terms = 4,
         .i = {1, 1}),
    ROW1("attention_packed, no batch", packed, SHAPE(0, 3, 12), SHAPE(0, 3, 4), .i = {1, 2}),
};

const op_family attention_cases = {cases, COUNT(cases)};
