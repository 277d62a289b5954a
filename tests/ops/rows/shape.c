/* Rows of views, copies, casts and in-place writes. */
#include "row.h"

static bool any_form(call *c)
{
    c->n_in = 1;
    return true;
}

static bool has_dims(call *c)
{
    c->n_in = 1;
    return c->in[0].ndim > 0;
}

/* Position in x, row-major, of the element at these indices. */
static int64_t position(const form *x, const int64_t *index)
{
    int64_t at = 0;

    for (int32_t d = 0; d < x->ndim; d++) {
        at = at * x->shape[d] + index[d];
    }
    return at;
}

/* A result of this shape whose elements are x's: `where` turns indices of the result into indices
 * of x. */
static void move(const call *c, const array *x, array *out, int32_t ndim, const int64_t *shape,
                 void (*where)(const call *c, const int64_t *index, int64_t *of_x))
{
    int64_t index[MS_MAX_DIMS], of_x[MS_MAX_DIMS];

    set_form(out, x->form.dtype, ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        int64_t rest = i;

        for (int32_t d = ndim - 1; d >= 0; d--) {
            index[d] = rest % shape[d];
            rest /= shape[d];
        }
        where(c, index, of_x);
        out->v[i] = x->v[position(&x->form, of_x)];
    }
}

/* The elements of x in their order. */
static void copy_elements(const array *x, array *out)
{
    memcpy(out->v, x->v, (size_t)out->n * sizeof(*out->v));
}

/* -- reshape ----------------------------------------------------------------------------------- */

/* Neighbouring sizes merged, sizes of 1 put between, others split where they can be. */
static bool plan_reshape(call *c)
{
    const form *x = &c->in[0];
    int32_t ndim = 0;

    c->n_in = 1;
    for (int32_t d = 0; d < x->ndim; d++) {
        int64_t n = x->shape[d];

        while (d + 1 < x->ndim && below(c->rng, 3) == 0) {
            n *= x->shape[++d];
        }
        if (ndim < 5 && below(c->rng, 3) == 0) {
            c->i[1 + ndim++] = 1;
        }
        if (ndim < 5 && n > 2 && n % 2 == 0 && below(c->rng, 2) == 0) {
            c->i[1 + ndim++] = 2;
            n /= 2;
        }
        c->i[1 + ndim++] = n;
        if (ndim == 6 && d + 1 < x->ndim) {
            return false;
        }
    }
    c->i[0] = ndim;
    if (ndim > 0 && numel_of(x) > 0 && below(c->rng, 3) == 0) {
        c->i[1 + below(c->rng, ndim)] = -1;
    }
    return true;
}

RUN(reshape, ms_op_reshape(out, in[0], (int32_t)c->i[0], c->i + 1))

static void oracle_reshape(const call *c, const array *const *in, array *out)
{
    int64_t shape[MS_MAX_DIMS], known = 1;

    for (int32_t d = 0; d < c->i[0]; d++) {
        known *= c->i[1 + d] >= 0 ? c->i[1 + d] : 1;
    }
    for (int32_t d = 0; d < c->i[0]; d++) {
        shape[d] = c->i[1 + d] >= 0 ? c->i[1 + d] : in[0]->n / known;
    }
    set_form(out, in[0]->form.dtype, (int32_t)c->i[0], shape);
    copy_elements(in[0], out);
}

/* -- expand ------------------------------------------------------------------------------------ */

/* i: sizes; i[7]: how many. */
static bool plan_expand(call *c)
{
    const form *x = &c->in[0];
    const int32_t more = below(c->rng, 3);
    int64_t numel = 1;

    c->n_in = 1;
    c->i[7] = x->ndim + more;
    for (int32_t d = 0; d < c->i[7] && c->i[7] < 8; d++) {
        const int64_t own = d < more ? 1 : x->shape[d - more];

        c->i[d] = own == 1 ? below(c->rng, 4) : own;
        numel *= c->i[d];
        c->i[d] = d >= more && c->i[d] == own && below(c->rng, 3) == 0 ? -1 : c->i[d];
    }
    return c->i[7] < 8 && numel <= (c->size ? 4000 : 120);
}

RUN(expand, ms_op_expand(out, in[0], (int32_t)c->i[7], c->i))

static void oracle_expand(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    int64_t shape[MS_MAX_DIMS];

    for (int32_t d = 0; d < c->i[7]; d++) {
        shape[d] = c->i[d] >= 0 ? c->i[d] : x->shape[d - ((int32_t)c->i[7] - x->ndim)];
    }
    set_form(out, x->dtype, (int32_t)c->i[7], shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = in[0]->v[broadcast_at(x, out->form.ndim, shape, i)];
    }
}

/* -- flip, permute ----------------------------------------------------------------------------- */

static bool plan_flip(call *c)
{
    c->n_in = 1;
    c->i[0] = below(c->rng, 1 << c->in[0].ndim);
    return true;
}

RUN(flip, ms_op_flip(out, in[0], (uint32_t)c->i[0]))

static void flipped(const call *c, const int64_t *index, int64_t *of_x)
{
    for (int32_t d = 0; d < c->in[0].ndim; d++) {
        of_x[d] = c->i[0] >> d & 1 ? c->in[0].shape[d] - 1 - index[d] : index[d];
    }
}

static void oracle_flip(const call *c, const array *const *in, array *out)
{
    move(c, in[0], out, in[0]->form.ndim, in[0]->form.shape, flipped);
}

static bool plan_permute(call *c)
{
    const int32_t ndim = c->in[0].ndim;

    c->n_in = 1;
    for (int32_t d = 0; d < ndim; d++) {
        const int32_t k = below(c->rng, d + 1);

        c->i[d] = c->i[k];
        c->i[k] = d;
    }
    return true;
}

static ms_status run_permute(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    int32_t perm[MS_MAX_DIMS];

    for (int32_t d = 0; d < c->in[0].ndim; d++) {
        perm[d] = (int32_t)c->i[d];
    }
    return ms_op_permute(out, in[0], c->in[0].ndim, perm);
}

static void permuted(const call *c, const int64_t *index, int64_t *of_x)
{
    for (int32_t d = 0; d < c->in[0].ndim; d++) {
        of_x[c->i[d]] = index[d];
    }
}

static void oracle_permute(const call *c, const array *const *in, array *out)
{
    int64_t shape[MS_MAX_DIMS] = {0};

    for (int32_t d = 0; d < in[0]->form.ndim; d++) {
        shape[d] = in[0]->form.shape[c->i[d]];
    }
    move(c, in[0], out, in[0]->form.ndim, shape, permuted);
}

/* -- narrow, select ---------------------------------------------------------------------------- */

/* i: dimension, start, length. */
static bool plan_narrow(call *c)
{
    if (!has_dims(c)) {
        return false;
    }
    c->i[0] = below(c->rng, c->in[0].ndim);
    const int32_t n = (int32_t)c->in[0].shape[c->i[0]];

    c->i[1] = below(c->rng, n + 1);
    c->i[2] = below(c->rng, n - (int32_t)c->i[1] + 1);
    return true;
}

static bool plan_select(call *c)
{
    if (!plan_narrow(c) || c->in[0].shape[c->i[0]] == 0) {
        return false;
    }
    c->i[1] = below(c->rng, (int32_t)c->in[0].shape[c->i[0]]);
    c->i[2] = 1;
    return true;
}

RUN(narrow, ms_op_narrow(out, in[0], (int32_t)c->i[0], c->i[1], c->i[2]))
RUN(select, ms_op_select(out, in[0], (int32_t)c->i[0], c->i[1]))

static void narrowed(const call *c, const int64_t *index, int64_t *of_x)
{
    for (int32_t d = 0; d < c->in[0].ndim; d++) {
        of_x[d] = index[d] + (d == c->i[0] ? c->i[1] : 0);
    }
}

static void oracle_narrow(const call *c, const array *const *in, array *out)
{
    form y = in[0]->form;

    y.shape[c->i[0]] = c->i[2];
    move(c, in[0], out, y.ndim, y.shape, narrowed);
}

static void oracle_select(const call *c, const array *const *in, array *out)
{
    form *y = &out->form;

    oracle_narrow(c, in, out);
    for (int32_t d = (int32_t)c->i[0]; d + 1 < y->ndim; d++) {
        y->shape[d] = y->shape[d + 1];
    }
    y->ndim--;
}

/* -- cat --------------------------------------------------------------------------------------- */

static bool plan_cat(call *c)
{
    if (!has_dims(c)) {
        return false;
    }
    c->n_in = 1 + below(c->rng, 3);
    c->i[0] = below(c->rng, c->in[0].ndim);
    for (int32_t k = 1; k < c->n_in; k++) {
        c->in[k] = c->in[0];
        c->in[k].draw = c->in[0].dtype == MS_DTYPE_BOOL ? DRAW_BOOL : DRAW_SIGNED;
        c->in[k].shape[c->i[0]] = below(c->rng, 3);
    }
    return true;
}

RUN(cat, ms_op_cat(out, in, c->n_in, (int32_t)c->i[0]))

static void oracle_cat(const call *c, const array *const *in, array *out)
{
    const int64_t dim = c->i[0];
    form y = in[0]->form;
    int64_t inner = 1;

    for (int32_t k = 1; k < c->n_in; k++) {
        y.shape[dim] += in[k]->form.shape[dim];
    }
    for (int32_t d = (int32_t)dim + 1; d < y.ndim; d++) {
        inner *= y.shape[d];
    }
    set_form(out, y.dtype, y.ndim, y.shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t outer = i / (y.shape[dim] * inner);
        int64_t row = i / inner % y.shape[dim];
        int32_t k = 0;

        for (; row >= in[k]->form.shape[dim]; k++) {
            row -= in[k]->form.shape[dim];
        }
        out->v[i] = in[k]->v[(outer * in[k]->form.shape[dim] + row) * inner + i % inner];
    }
}

/* -- copies ------------------------------------------------------------------------------------ */

/* A number in another dtype, as moonshard/ops.h says; rounding to floats is the comparison's. */
static real convert(int32_t from, int32_t to, real x)
{
    if (ms_dtype_is_floating(to)) {
        return x;
    }
    if (to == MS_DTYPE_BOOL) {
        return x != 0;
    }
    if (ms_dtype_is_floating(from)) {
        x = isnan(x) ? 0 : x >= 0x1p63L ? 0x1p63L - 1 : x < -0x1p63L ? -0x1p63L : truncl(x);
    }
    return to == MS_DTYPE_U8    ? (real)(uint8_t)(uint64_t)(int64_t)x
           : to == MS_DTYPE_I32 ? (real)(int32_t)(uint32_t)(uint64_t)(int64_t)x
                                : x;
}

static bool plan_cast(call *c)
{
    c->i[0] = below(c->rng, MS_DTYPE_COUNT);
    return any_form(c);
}

RUN(cast, ms_op_cast(out, in[0], (int32_t)c->i[0]))

static void oracle_cast(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;

    set_form(out, (int32_t)c->i[0], x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = convert(x->dtype, (int32_t)c->i[0], in[0]->v[i]);
        if (ms_dtype_is_narrow((int32_t)c->i[0])) {
            out->slack[i] = 0x1p-24L * fabsl(out->v[i]); /* it rounds to f32 first */
        }
    }
}

RUN(clone, ms_op_clone(out, in[0]))

static void oracle_clone(const call *c, const array *const *in, array *out)
{
    set_form(out, in[0]->form.dtype, in[0]->form.ndim, in[0]->form.shape);
    copy_elements(in[0], out);
}

/* -- in place ---------------------------------------------------------------------------------- */

/* in[0] in new memory whose dimensions lie in reverse order. */
static ms_status reversed_copy(ms_tensor **out, ms_tensor *x, const form *f)
{
    int64_t shape[MS_MAX_DIMS];
    int32_t perm[MS_MAX_DIMS];
    ms_tensor *memory;

    for (int32_t d = 0; d < f->ndim; d++) {
        shape[d] = f->shape[f->ndim - 1 - d];
        perm[d] = f->ndim - 1 - d;
    }
    assert_ok(ms_tensor_empty(&memory, f->dtype, f->ndim, shape));
    assert_ok(ms_op_permute(out, memory, f->ndim, perm));
    ms_tensor_free(memory);
    return ms_tensor_copy(*out, x);
}

/* Write in place while nothing is recorded: values that require grad are refused otherwise. */
#define RUN_WRITE(name, WRITE)                                                                     \
    static ms_status run_##name(ms_tensor **out, ms_tensor *const *in, const call *c)              \
    {                                                                                              \
        const bool recording = ms_grad_enabled_set(false);                                         \
        ms_status status = reversed_copy(out, in[0], &c->in[0]);                                   \
                                                                                                   \
        status = status == MS_OK ? (WRITE) : status;                                               \
        ms_grad_enabled_set(recording);                                                            \
        return status;                                                                             \
    }
RUN_WRITE(copy, ms_tensor_copy(*out, in[1]))
RUN_WRITE(add_scaled, ms_tensor_add_scaled(*out, in[1], c->p[0]))
RUN_WRITE(fill, ms_tensor_fill(*out, c->p[0]))

static bool plan_copy(call *c)
{
    c->n_in = 2;
    draw_broadcast(&c->in[1], &c->in[0], c->rng);
    for (int32_t d = 0; d < c->in[1].ndim; d++) { /* what is written keeps its shape */
        const int64_t n = c->in[0].shape[d + c->in[0].ndim - c->in[1].ndim];

        c->in[1].shape[d] = c->in[1].shape[d] == n ? n : 1;
    }
    c->in[1].dtype = below(c->rng, MS_DTYPE_COUNT);
    c->in[1].draw = c->in[1].dtype == MS_DTYPE_BOOL ? DRAW_BOOL : DRAW_SIGNED;
    return true;
}

static void oracle_copy(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;

    set_form(out, x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        const real y = in[1]->v[broadcast_at(&in[1]->form, x->ndim, x->shape, i)];

        out->v[i] = convert(c->in[1].dtype, x->dtype, y);
        out->slack[i] = ms_dtype_is_narrow(x->dtype) ? 0x1p-24L * fabsl(y) : 0;
    }
}

static bool plan_add_scaled(call *c)
{
    static const double factors[] = {1, -1, 0.5, 2};
    bool fits = plan_copy(c);

    c->in[1].dtype = c->in[0].dtype;
    c->in[1].draw = DRAW_SIGNED;
    c->p[0] = factors[is_float(&c->in[0]) ? below(c->rng, 4) : below(c->rng, 2)];
    return fits && (is_float(&c->in[0]) || is_integer(&c->in[0]));
}

static void oracle_add_scaled(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;

    set_form(out, x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        const real y = (real)c->p[0] * in[1]->v[broadcast_at(&in[1]->form, x->ndim, x->shape, i)];

        out->v[i] = in[0]->v[i] + y;
        out->slack[i] =
            isfinite(y) ? compute_unit_of(x->dtype) * (fabsl(in[0]->v[i]) + fabsl(y)) : 0;
    }
}

static bool plan_fill(call *c)
{
    static const double numbers[] = {0, -0.0, 1, -2.5, 300, 1e300, NAN, -INFINITY};
    static const double whole[] = {0,  -0.0, 1,      255,
                                   -3, 300,  0x1p53, -0x1p63}; /* u8: the first 4, i32: 6 */
    const int32_t dtype = c->in[0].dtype;

    c->n_in = 1;
    c->p[0] = dtype == MS_DTYPE_I64   ? whole[below(c->rng, COUNT(whole))]
              : dtype == MS_DTYPE_I32 ? whole[below(c->rng, 6)]
              : dtype == MS_DTYPE_U8  ? whole[below(c->rng, 4)]
                                      : numbers[below(c->rng, COUNT(numbers))];
    return true;
}

static void oracle_fill(const call *c, const array *const *in, array *out)
{
    set_form(out, in[0]->form.dtype, in[0]->form.ndim, in[0]->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = convert(MS_DTYPE_F64, out->form.dtype, (real)c->p[0]);
    }
}

const op_row shape_rows[] = {
    OP(reshape, plan_reshape),
    OP(expand, plan_expand),
    OP(flip, plan_flip),
    OP(permute, plan_permute),
    OP(narrow, plan_narrow),
    OP(select, plan_select),
    OP(cat, plan_cat),
    OP(cast, plan_cast),
    OP(clone, any_form),
    {.name = "ms_tensor_copy",
     .plan = plan_copy,
     .run = run_copy,
     .oracle = oracle_copy,
     .flags = ROW_IN_PLACE},
    {.name = "ms_tensor_add_scaled",
     .plan = plan_add_scaled,
     .run = run_add_scaled,
     .oracle = oracle_add_scaled,
     .flags = ROW_IN_PLACE},
    {.name = "ms_tensor_fill",
     .plan = plan_fill,
     .run = run_fill,
     .oracle = oracle_fill,
     .flags = ROW_IN_PLACE},
    {0},
};
