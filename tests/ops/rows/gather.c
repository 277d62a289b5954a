/* Rows of positions along a dimension: gather, scatter, argsort. */
#include "row.h"

/* i[0]: the dimension; in[1]: positions there, other sizes at most x's. */
static bool plan_gather(call *c)
{
    form *index = &c->in[1];

    c->n_in = 2;
    if (c->in[0].ndim == 0) {
        return false;
    }
    c->i[0] = below(c->rng, c->in[0].ndim);
    *index = c->in[0];
    index->dtype = MS_DTYPE_I64;
    index->draw = DRAW_POSITIONS;
    index->limit = c->in[0].shape[c->i[0]];
    for (int32_t d = 0; d < index->ndim; d++) {
        const int32_t most = (int32_t)index->shape[d] + (d == c->i[0]);

        index->shape[d] = below(c->rng, 2) ? index->shape[d] : below(c->rng, most + 1);
    }
    return index->limit > 0;
}

/* in[2]: what is stored, of sizes that are at least those of in[1]. */
static bool plan_scatter(call *c)
{
    const bool fits = plan_gather(c);

    c->n_in = 3;
    c->in[2] = c->in[1];
    c->in[2].dtype = c->in[0].dtype;
    c->in[2].draw = c->in[0].draw;
    for (int32_t d = 0; d < c->in[2].ndim; d++) {
        c->in[2].shape[d] += below(c->rng, 4) == 0;
    }
    return fits && numel_of(&c->in[2]) < MAX_NUMEL / 2;
}

RUN(gather, ms_op_gather(out, in[0], (int32_t)c->i[0], in[1]))
RUN(scatter, ms_op_scatter(out, in[0], (int32_t)c->i[0], in[1], in[2]))
RUN(scatter_add, ms_op_scatter_add(out, in[0], (int32_t)c->i[0], in[1], in[2]))

/* Position, row-major, in an array of the form `f` of element i of the index; with `at` >= 0 that
 * entry along the call's dimension. */
static int64_t place(const call *c, const form *f, const form *index, int64_t i, int64_t at)
{
    int64_t place = 0, stride = 1;

    for (int32_t d = index->ndim - 1; d >= 0; d--) {
        place += (d == c->i[0] && at >= 0 ? at : i % index->shape[d]) * stride;
        stride *= f->shape[d];
        i /= index->shape[d];
    }
    return place;
}

static void oracle_gather(const call *c, const array *const *in, array *out)
{
    set_form(out, in[0]->form.dtype, in[1]->form.ndim, in[1]->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = in[0]->v[place(c, &in[0]->form, &in[1]->form, i, (int64_t)in[1]->v[i] - 1)];
    }
}

static void scatter(const call *c, const array *const *in, array *out, bool add)
{
    const form *x = &in[0]->form;
    static real size[MAX_NUMEL];

    copy_array(out, in[0]);
    for (int64_t i = 0; i < out->n; i++) {
        out->slack[i] = 0;
        size[i] = fabsl(out->v[i]);
    }
    for (int64_t i = 0; i < in[1]->n; i++) {
        const int64_t to = place(c, x, &in[1]->form, i, (int64_t)in[1]->v[i] - 1);
        const real v = in[2]->v[place(c, &in[2]->form, &in[1]->form, i, -1)];

        if (!add) {
            out->v[to] = v;
            continue;
        }
        out->v[to] += v;
        size[to] += fabsl(v);
        out->slack[to] += compute_unit_of(x->dtype) * size[to];
        if (!is_float(&in[0]->form)) {
            out->v[to] = x->dtype == MS_DTYPE_BOOL ? out->v[to] != 0
                         : x->dtype == MS_DTYPE_U8 ? (real)(uint8_t)(int64_t)out->v[to]
                                                   : out->v[to];
        } else if (size[to] >= largest_of(ms_dtype_is_narrow(x->dtype) ? MS_DTYPE_F32 : x->dtype)) {
            out->slack[to] = isfinite(size[to]) ? (real)INFINITY : 0;
        }
    }
}

static void oracle_scatter(const call *c, const array *const *in, array *out)
{
    scatter(c, in, out, false);
}

static void oracle_scatter_add(const call *c, const array *const *in, array *out)
{
    scatter(c, in, out, true);
}

/* Positions that differ: what is overwritten has a gradient and no slope. */
static bool smooth_scatter(const call *c, const array *const *in)
{
    static bool taken[MAX_NUMEL];

    memset(taken, 0, sizeof(taken));
    for (int64_t i = 0; i < in[1]->n; i++) {
        bool *to = &taken[place(c, &in[0]->form, &in[1]->form, i, (int64_t)in[1]->v[i] - 1)];

        if (*to) {
            return false;
        }
        *to = true;
    }
    return true;
}

/* -- argsort ----------------------------------------------------------------------------------- */

/* i: dimension, descending, how many. */
static bool plan_argsort(call *c)
{
    c->n_in = 1;
    if (c->in[0].ndim == 0) {
        return false;
    }
    c->i[0] = below(c->rng, c->in[0].ndim);
    c->i[1] = below(c->rng, 2);
    c->i[2] = below(c->rng, (int32_t)c->in[0].shape[c->i[0]] + 2) - 1;
    return true;
}

RUN(argsort, ms_op_argsort(out, in[0], (int32_t)c->i[0], c->i[1] != 0, c->i[2]))

/* Is a before b? NaN is above all numbers. */
static bool is_before(const call *c, real a, real b)
{
    if (isnan(a) || isnan(b)) {
        return c->i[1] ? isnan(a) && !isnan(b) : !isnan(a) && isnan(b);
    }
    return c->i[1] ? a > b : a < b;
}

/* Each element's place is the number of those before it. */
static void oracle_argsort(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    const int64_t n = x->shape[c->i[0]];
    form y = *x;
    int64_t inner = 1;

    y.shape[c->i[0]] = c->i[2] >= 0 ? c->i[2] : n;
    for (int32_t d = (int32_t)c->i[0] + 1; d < x->ndim; d++) {
        inner *= x->shape[d];
    }
    set_form(out, MS_DTYPE_I64, y.ndim, y.shape);
    for (int64_t i = 0; i < in[0]->n; i++) {
        const int64_t outer = i / (n * inner), row = i / inner % n, column = i % inner;
        int64_t rank = 0;

        for (int64_t j = 0; j < n; j++) {
            const real other = in[0]->v[(outer * n + j) * inner + column];

            rank +=
                is_before(c, other, in[0]->v[i]) || (j < row && !is_before(c, in[0]->v[i], other));
        }
        if (rank < y.shape[c->i[0]]) {
            out->v[(outer * y.shape[c->i[0]] + rank) * inner + column] = (real)(row + 1);
        }
    }
}

const op_row gather_rows[] = {
    OP(gather, plan_gather),
    OP(scatter, plan_scatter, .smooth = smooth_scatter),
    OP(scatter_add, plan_scatter),
    OP(argsort, plan_argsort),
    {0},
};
