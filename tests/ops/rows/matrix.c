/* Rows of products and attention. */
#include "philox_oracle.h"
#include "row.h"

#include <float.h>

/* A dot product and how far a sum in the compute type may be from it. Units that multiply bf16 take
 * denormals for 0. */
static real dot(int32_t dtype, const real *a, int64_t a_step, const real *b, int64_t b_step,
                int64_t n, real *slack)
{
    real sum = 0, size = 0x1p-1000L, lost = 0;

    for (int64_t k = 0; k < n; k++) {
        const real x = a[k * a_step], y = b[k * b_step];

        sum += x * y;
        size += fabsl(x * y);
        if (dtype != MS_DTYPE_F64 && (fabsl(x) < FLT_MIN || fabsl(y) < FLT_MIN)) {
            lost += fabsl(x * y);
        }
    }
    *slack = size < largest_of(dtype) ? lost + 32 * compute_unit_of(dtype) * size : INFINITY;
    return sum;
}

/* -- matmul ------------------------------------------------------------------------------------ */

/* Of matrices with leading dimensions these. */
static form leading_of(const form *f)
{
    form lead = *f;

    lead.ndim = f->ndim > 2 ? f->ndim - 2 : 0;
    return lead;
}

static bool plan_matmul(call *c)
{
    const form *x = &c->in[0];
    form *y = &c->in[1];

    c->n_in = 2;
    if (!is_float(x) || x->ndim < 1) {
        return false;
    }
    const form lead = leading_of(x);

    draw_broadcast(y, &lead, c->rng);
    y->shape[y->ndim++] = x->shape[x->ndim - 1];
    if (y->ndim > 1 || below(c->rng, 3) > 0) {
        y->shape[y->ndim++] = below(c->rng, 8) == 0 ? 0 : 1 + below(c->rng, c->size ? 40 : 4);
    }
    const int64_t n = y->ndim > 1 ? y->shape[y->ndim - 1] : 1;

    return numel_of(y) <= 2000 &&
           numel_of(x) / (x->shape[x->ndim - 1] + (x->shape[x->ndim - 1] == 0)) * n <= 2000;
}

RUN(matmul, ms_op_matmul(out, in[0], in[1]))

static void oracle_matmul(const call *c, const array *const *in, array *out)
{
    const form *a = &in[0]->form, *b = &in[1]->form, a_lead = leading_of(a), b_lead = leading_of(b);
    const int64_t m = a->ndim > 1 ? a->shape[a->ndim - 2] : 1, k = a->shape[a->ndim - 1];
    const int64_t n = b->ndim > 1 ? b->shape[b->ndim - 1] : 1;
    form y = {.dtype = a->dtype};

    (void)c;
    broadcast_shape(&a_lead, &b_lead, &y.ndim, y.shape);
    const form batch = y;

    if (a->ndim > 1) {
        y.shape[y.ndim++] = m;
    }
    if (b->ndim > 1) {
        y.shape[y.ndim++] = n;
    }
    set_form(out, y.dtype, y.ndim, y.shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t at = i / (m * n), row = i / n % m, col = i % n;
        const int64_t x = broadcast_at(&a_lead, batch.ndim, batch.shape, at);
        const int64_t w = broadcast_at(&b_lead, batch.ndim, batch.shape, at);

        out->v[i] = dot(y.dtype, in[0]->v + (x * m + row) * k, 1, in[1]->v + w * k * n + col, n, k,
                        &out->slack[i]);
    }
}

/* -- linear, linear_gelu ----------------------------------------------------------------------- */

static bool plan_linear(call *c)
{
    const form *x = &c->in[0];

    if (!is_float(x) || x->ndim < 1) {
        return false;
    }
    const int64_t width = x->shape[x->ndim - 1], out = 1 + below(c->rng, c->size ? 40 : 4);

    c->n_in = 2 + below(c->rng, 2);
    c->in[1] = (form){.dtype = x->dtype, .ndim = 2, .shape = {out, width}};
    c->in[2] = (form){.dtype = x->dtype, .ndim = 1, .shape = {out}};
    c->i[0] = below(c->rng, 2);
    return out * width <= 2000 && numel_of(x) / (width + (width == 0)) * out <= 2000;
}

RUN(linear, ms_op_linear(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL))

static void oracle_linear(const call *c, const array *const *in, array *out)
{
    const form *w = &in[1]->form;
    form y = in[0]->form;

    y.shape[y.ndim - 1] = w->shape[0];
    set_form(out, y.dtype, y.ndim, y.shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t row = i / w->shape[0], col = i % w->shape[0], k = w->shape[1];

        out->v[i] = dot(y.dtype, in[0]->v + row * k, 1, in[1]->v + col * k, 1, k, &out->slack[i]);
        if (c->n_in > 2) {
            out->v[i] += in[2]->v[col];
            out->slack[i] += 2 * compute_unit_of(y.dtype) * fabsl(in[2]->v[col]);
        }
    }
}

RUN(linear_padded, ms_op_linear_padded(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL))
#define oracle_linear_padded oracle_linear

RUN(linear_gelu, ms_op_linear_gelu(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL, c->i[0]))

/* The pre-activation is rounded to the dtype before its gelu, whose slope is at most 1.13. */
static void oracle_linear_gelu(const call *c, const array *const *in, array *out)
{
    oracle_linear(c, in, out);
    for (int64_t i = 0; i < out->n; i++) {
        const real h = out->v[i], u = 0.79788456080286535588L * (h + 0.044715L * h * h * h);

        out->slack[i] = 1.2L * (out->slack[i] + unit_of(out->form.dtype) * fabsl(h) +
                                (out->form.dtype == MS_DTYPE_F16 ? 0x1p-25L : 0)) +
                        16 * compute_unit_of(out->form.dtype) * (fabsl(h) + h * h);
        out->v[i] =
            h * (c->i[0] ? 1 / (1 + expl(-2 * u)) : 0.5L * erfcl(-h * 0.70710678118654752L));
        if (!(fabsl(h) * 2 < largest_of(out->form.dtype))) { /* it is perhaps infinite there */
            out->slack[i] = INFINITY;
        }
    }
}

/* -- rotary ------------------------------------------------------------------------------------ */

/* in[1] and in[2] broadcast to in[0] with half of its last size. */
static bool plan_rotary(call *c)
{
    const form *x = &c->in[0];
    const int32_t last = x->ndim - 1;

    if (!is_float(x) || x->ndim < 1 || x->shape[last] % 2 != 0) {
        return false;
    }
    c->n_in = 3;
    for (int32_t k = 1; k <= 2; k++) {
        form *table = &c->in[k];
        const int32_t skip = below(c->rng, x->ndim);

        *table = (form){.dtype = x->dtype, .ndim = x->ndim - skip};
        for (int32_t d = skip; d < last; d++) {
            table->shape[d - skip] = below(c->rng, 3) == 0 ? 1 : x->shape[d];
        }
        table->shape[last - skip] = x->shape[last] / 2;
    }
    return true;
}

RUN(rotary, ms_op_rotary(out, in[0], in[1], in[2]))

static void oracle_rotary(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    const int64_t width = x->shape[x->ndim - 1], half = width / 2;
    form pairs = *x;

    (void)c;
    pairs.shape[pairs.ndim - 1] = half;
    set_form(out, x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t j = i % width, at = i / width * half + j % half;
        const real cos = in[1]->v[broadcast_at(&in[1]->form, x->ndim, pairs.shape, at)];
        const real sin = in[2]->v[broadcast_at(&in[2]->form, x->ndim, pairs.shape, at)];
        const real own = in[0]->v[i] * cos;
        const real other = j < half ? -in[0]->v[i + half] * sin : in[0]->v[i - half] * sin;

        out->v[i] = own + other;
        out->slack[i] = 4 * compute_unit_of(x->dtype) * (fabsl(own) + fabsl(other)) +
                        (x->dtype == MS_DTYPE_F64 ? 0x1p-1072L : 0x1p-147L);
        if (fabsl(own) + fabsl(other) > largest_of(x->dtype)) {
            out->slack[i] = INFINITY; /* a product may overflow, their sum not */
        }
    }
}

/* -- attention --------------------------------------------------------------------------------- */

typedef struct heads {
    int64_t b, h, t, s, d;
    int64_t q_row, q_head, q_batch, k_row, k_head, k_batch; /* strides, d has 1 */
    int64_t group;                                          /* query heads of a key head; 0: 1 */
    const array *mask;                                      /* may be NULL */
    bool has_scale;                                         /* p[0] as it is */
    uint64_t key;                                           /* of dropout with probability p[1] */
} heads;

/* What the mask adds to the score of query `row`, counted over batches and heads, and key s. */
static real mask_at(const heads *n, int64_t row, int64_t s)
{
    const int64_t shape[4] = {n->b, n->h, n->t, n->s};

    if (n->mask == NULL) {
        return 0;
    }
    const real m = n->mask->v[broadcast_at(&n->mask->form, 4, shape, row * n->s + s)];

    return n->mask->form.dtype != MS_DTYPE_BOOL ? m : m != 0 ? 0 : -INFINITY;
}

/* What dropout multiplies the probability of that pair by. */
static real kept_at(const call *c, const heads *n, int64_t row, int64_t s)
{
    const int64_t rows = n->h * n->t, e = row % rows * n->s + s;

    if (c->p[1] == 0) {
        return 1;
    }
    const uint32_t word =
        oracle_word((uint64_t)e / 4, (uint64_t)(row / rows), n->key, (int)(e % 4));

    return word < c->p[1] * 0x1p32 ? 0 : 1 / (1 - (real)c->p[1]);
}

/* out has q's strides but for the batch and row of a packed projection. */
static void attend(const call *c, const heads *n, const real *q, const real *k, const real *v,
                   array *out, int64_t o_row, int64_t o_head, int64_t o_batch)
{
    const int32_t dtype = out->form.dtype;
    const real scale = c->p[0] != 0 || n->has_scale ? (real)c->p[0] : 1 / sqrtl((real)n->d);
    real p[MAX_NUMEL];

    for (int64_t row = 0; row < n->b * n->h * n->t; row++) {
        const int64_t b = row / (n->h * n->t), h = row / n->t % n->h, t = row % n->t;
        const int64_t k_at = b * n->k_batch + h / (n->group > 0 ? n->group : 1) * n->k_head;
        const int64_t seen = c->i[0] && t < n->s ? t + 1 : n->s;
        const real *at = q + b * n->q_batch + h * n->q_head + t * n->q_row;
        real most = -INFINITY, sum = 0, size = 0;
        bool shows = false; /* a key whose score is not -inf; else the result is 0 */

        for (int64_t s = 0; s < seen; s++) {
            real slack;

            p[s] = scale * dot(dtype, at, 1, k + k_at + s * n->k_row, 1, n->d, &slack) +
                   mask_at(n, row, s);
            size = fmaxl(size, fabsl(scale) * slack);
            if (mask_at(n, row, s) == -INFINITY) {
                p[s] = -INFINITY; /* what is hidden may be anything */
            }
            most = fmaxl(most, p[s]);
            shows = shows || p[s] != -INFINITY;
        }
        for (int64_t s = 0; s < seen; s++) {
            p[s] = shows ? expl(p[s] - most) : 0;
            sum += p[s];
        }
        for (int64_t s = 0; s < seen; s++) {
            p[s] = shows ? p[s] / sum * kept_at(c, n, row, s) : 0;
        }
        for (int64_t d = 0; d < n->d; d++) {
            const int64_t o = b * o_batch + h * o_head + t * o_row + d;
            real y = 0, magnitude = 0, largest = 0;

            for (int64_t s = 0; s < seen; s++) {
                const real x = v[k_at + s * n->k_row + d];

                y += mask_at(n, row, s) != -INFINITY ? p[s] * x : 0;
                magnitude += p[s] * fabsl(x);
                largest = fmaxl(largest, fabsl(x));
            }
            out->v[o] = y;
            out->slack[o] =
                magnitude * (4 * unit_of(dtype) + 64 * compute_unit_of(dtype) + 4 * size) +
                (real)n->s * 0x1p-124L * largest; /* no weight becomes smaller than that */
        }
    }
}

enum { LIBRARY_LENGTH = 64 /* libraries take its multiples */ };

static bool plan_attention(call *c)
{
    static const int32_t most_keys[N_SIZES] = {5, 70, 300};
    const form *q = &c->in[0];

    c->n_in = 3;
    if (!is_float(q) || q->ndim != 4) {
        return false;
    }
    c->in[1] = *q;
    c->in[1].shape[2] = q->shape[2] == LIBRARY_LENGTH ? LIBRARY_LENGTH * (1 + below(c->rng, 2))
                        : below(c->rng, 8) == 0       ? 0
                                                      : 1 + below(c->rng, most_keys[c->size]);
    c->in[2] = c->in[1];
    c->i[0] = below(c->rng, 2);
    c->p[0] = below(c->rng, 2) ? 0 : 0.75;
    return true;
}

static void begin_heads(call *c)
{
    static const int32_t most[N_SIZES][4] = {{2, 2, 5, 5}, {2, 2, 20, 28}, {1, 1, 70, 6}};
    form *x = &c->in[0];

    x->ndim = 4;
    for (int32_t d = 0; d < 4; d++) {
        x->shape[d] = 1 + below(c->rng, most[c->size][d]);
    }
}

static void begin_attention(call *c)
{
    begin_heads(c);
    if (below(c->rng, 3) == 0) { /* sizes that libraries take */
        c->in[0].shape[2] = LIBRARY_LENGTH;
        c->in[0].shape[3] = 8;
    }
}

RUN(attention, ms_op_attention(out, in[0], in[1], in[2], c->i[0], c->p[0]))

static void oracle_attention(const call *c, const array *const *in, array *out)
{
    const int64_t *q = in[0]->form.shape, *k = in[1]->form.shape;
    const heads n = {.b = q[0],
                     .h = q[1],
                     .t = q[2],
                     .s = k[2],
                     .d = q[3],
                     .q_row = q[3],
                     .q_head = q[2] * q[3],
                     .q_batch = q[1] * q[2] * q[3],
                     .k_row = k[3],
                     .k_head = k[2] * k[3],
                     .k_batch = k[1] * k[2] * k[3]};

    set_form(out, in[0]->form.dtype, 4, q);
    attend(c, &n, in[0]->v, in[1]->v, in[2]->v, out, n.q_row, n.q_head, n.q_batch);
}

enum { SEED = 7 };

static bool plan_scaled_dot_product_attention(call *c)
{
    static const double rates[] = {0, 0, 0.25, 1};
    const form *q = &c->in[0];
    form *mask = &c->in[3];

    if (!plan_attention(c)) {
        return false;
    }
    c->i[1] = below(c->rng, 100);
    c->i[2] = below(c->rng, 5);
    c->p[0] = below(c->rng, 3) ? 0.75 : 0;
    c->p[1] = rates[below(c->rng, COUNT(rates))];
    if (below(c->rng, 2) == 0 && q->shape[1] % 2 == 0) {
        c->in[1].shape[1] = c->in[2].shape[1] = q->shape[1] / 2; /* two read a key head */
    }
    if (below(c->rng, 4) == 0) {
        return true;
    }
    const int64_t shape[4] = {q->shape[0], q->shape[1], q->shape[2], c->in[1].shape[2]};
    const int32_t skipped = below(c->rng, 4);
    int64_t n = 1;

    c->n_in = 4;
    *mask = (form){.dtype = q->dtype, .ndim = 4 - skipped};
    for (int32_t d = 3; d >= skipped; d--) {
        const bool repeats = below(c->rng, 3) == 0 || n * shape[d] > MAX_NUMEL;

        mask->shape[d - skipped] = repeats ? 1 : shape[d];
        n *= mask->shape[d - skipped];
    }
    if (below(c->rng, 2)) {
        mask->dtype = MS_DTYPE_BOOL;
        mask->draw = DRAW_BOOL;
    } else if (ms_dtype_is_narrow(q->dtype) && below(c->rng, 2)) {
        mask->dtype = MS_DTYPE_F32;
    }
    return true;
}

static ms_status run_scaled_dot_product_attention(ms_tensor **out, ms_tensor *const *in,
                                                  const call *c)
{
    ms_seed(SEED);
    return ms_op_scaled_dot_product_attention(out, in[0], in[1], in[2], c->n_in > 3 ? in[3] : NULL,
                                              c->i[0], c->p[0], c->p[1], (uint64_t)c->i[1],
                                              c->i[2]);
}

static void oracle_scaled_dot_product_attention(const call *c, const array *const *in, array *out)
{
    const int64_t *q = in[0]->form.shape, *k = in[1]->form.shape;
    const heads n = {.b = q[0],
                     .h = q[1],
                     .t = q[2],
                     .s = k[2],
                     .d = q[3],
                     .q_row = q[3],
                     .q_head = q[2] * q[3],
                     .q_batch = q[1] * q[2] * q[3],
                     .k_row = k[3],
                     .k_head = k[2] * k[3],
                     .k_batch = k[1] * k[2] * k[3],
                     .group = q[1] / k[1],
                     .mask = c->n_in > 3 ? in[3] : NULL,
                     .has_scale = true,
                     .key = oracle_key(SEED, (uint64_t)c->i[1], (uint64_t)c->i[2])};

    set_form(out, in[0]->form.dtype, 4, q);
    attend(c, &n, in[0]->v, in[1]->v, in[2]->v, out, n.q_row, n.q_head, n.q_batch);
}

static bool plan_attention_packed(call *c)
{
    c->n_in = 1;
    c->i[0] = below(c->rng, 2);
    c->i[1] = 1 + below(c->rng, 2);
    c->p[0] = below(c->rng, 2) ? 0 : 0.75;
    return is_float(&c->in[0]) && c->in[0].ndim == 3 && c->in[0].shape[2] % (3 * c->i[1]) == 0;
}

static void begin_attention_packed(call *c)
{
    form *x = &c->in[0];

    x->ndim = 3;
    x->shape[0] = 1 + below(c->rng, 2);
    x->shape[1] = 1 + below(c->rng, c->size ? 30 : 5);
    x->shape[2] = 6 * (1 + below(c->rng, c->size ? 5 : 2));
    if (below(c->rng, 3) == 0) {
        x->shape[0] = 1;
        x->shape[1] = LIBRARY_LENGTH;
        x->shape[2] = 48;
    }
}

RUN(attention_packed, ms_op_attention_packed(out, in[0], (int32_t)c->i[1], c->i[0], c->p[0]))

static void oracle_attention_packed(const call *c, const array *const *in, array *out)
{
    const int64_t *x = in[0]->form.shape, width = x[2] / 3, depth = width / c->i[1];
    const heads n = {.b = x[0],
                     .h = c->i[1],
                     .t = x[1],
                     .s = x[1],
                     .d = depth,
                     .q_row = x[2],
                     .q_head = depth,
                     .q_batch = x[1] * x[2],
                     .k_row = x[2],
                     .k_head = depth,
                     .k_batch = x[1] * x[2]};

    set_form(out, in[0]->form.dtype, 3, (const int64_t[]){x[0], x[1], width});
    attend(c, &n, in[0]->v, in[0]->v + width, in[0]->v + 2 * width, out, width, depth,
           x[1] * width);
}

const op_row matrix_rows[] = {
    OP(matmul, plan_matmul, .flags = ROW_LIBRARY),
    OP(linear, plan_linear, .flags = ROW_LIBRARY),
    OP(linear_padded, plan_linear, .flags = ROW_LIBRARY),
    OP(linear_gelu, plan_linear, .flags = ROW_LIBRARY),
    OP(rotary, plan_rotary),
    OP(attention, plan_attention, .begin = begin_attention,
       .flags = ROW_FINITE | ROW_DEVICE_LIBRARY, .grad_error = 256),
    OP(scaled_dot_product_attention, plan_scaled_dot_product_attention, .begin = begin_heads,
       .flags = ROW_FINITE | ROW_DEVICE_LIBRARY, .grad_error = 256),
    OP(attention_packed, plan_attention_packed, .begin = begin_attention_packed,
       .flags = ROW_FINITE | ROW_DEVICE_LIBRARY, .grad_error = 256),
    {0},
};
