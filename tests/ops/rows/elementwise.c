/* Rows of elementwise operators. */
#include "row.h"

#include "unary_oracle.h"

/* -- one operand ------------------------------------------------------------------------------- */

typedef real (*formula)(const call *c, real x);
/* How far a result may be, in units of what it is computed in. */
typedef real (*error)(const call *c, real x, real y);

static void map(const call *c, const array *x, array *out, formula f, error e)
{
    const real unit = compute_unit_of(x->form.dtype);

    set_form(out, x->form.dtype, x->form.ndim, x->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = f(c, x->v[i]);
        out->slack[i] = unit * e(c, x->v[i], out->v[i]);
    }
}

static bool floating(call *c)
{
    c->n_in = 1;
    return is_float(&c->in[0]);
}

static bool positive(call *c)
{
    c->in[0].draw = DRAW_POSITIVE;
    return floating(c);
}

#define UNARY(name, FORMULA, ERROR)                                                                \
    static real value_##name(const call *c, real x)                                                \
    {                                                                                              \
        (void)c;                                                                                   \
        return (FORMULA);                                                                          \
    }                                                                                              \
    static real error_##name(const call *c, real x, real y)                                        \
    {                                                                                              \
        (void)c, (void)x, (void)y;                                                                 \
        return (ERROR);                                                                            \
    }                                                                                              \
    static void oracle_##name(const call *c, const array *const *in, array *out)                   \
    {                                                                                              \
        map(c, in[0], out, value_##name, error_##name);                                            \
    }

#define PLAIN_UNARY(name, FORMULA, ERROR)                                                          \
    UNARY(name, FORMULA, ERROR)                                                                    \
    static ms_status run_##name(ms_tensor **out, ms_tensor *const *in, const call *c)              \
    {                                                                                              \
        (void)c;                                                                                   \
        return ms_op_##name(out, in[0]);                                                           \
    }

#define FUNCTION(f, plan, smooth, VALUE, ERROR, ULPS) PLAIN_UNARY(f, VALUE, ERROR)
UNARY_ORACLES(FUNCTION)

PLAIN_UNARY(reciprocal, 1 / x, fabsl(y))
PLAIN_UNARY(neg, -x, 0)

/* Integers, too. */
static bool counting(call *c)
{
    c->n_in = 1;
    return is_float(&c->in[0]) || is_integer(&c->in[0]);
}

static bool plan_softplus(call *c)
{
    static const double betas[] = {1, 0.5, 3, -2}, thresholds[] = {20, 2, 50};

    c->p[0] = betas[below(c->rng, COUNT(betas))];
    c->p[1] = thresholds[below(c->rng, COUNT(thresholds))];
    return floating(c);
}

RUN(softplus, ms_op_softplus(out, in[0], c->p[0], c->p[1]))

static real softplus(const call *c, real x)
{
    const real t = (real)c->p[0] * x;

    return t > (real)c->p[1] ? x : (fmaxl(t, 0) + log1pl(expl(-fabsl(t)))) / (real)c->p[0];
}

/* Near the threshold either side is right; an exponent's rounding is its own magnitude's. */
UNARY(softplus, isnan(x) ? x : softplus(c, x),
      8 * (1 + fabsl((real)c->p[0] * x)) * fabsl(y) +
          (fabsl((real)c->p[0] * x - (real)c->p[1]) < 1e-3L ? INFINITY : 0))

static bool plan_leaky_relu(call *c)
{
    c->p[0] = below(c->rng, 2) ? 0.25 : -0.5;
    return floating(c);
}

RUN(leaky_relu, ms_op_leaky_relu(out, in[0], c->p[0]))
UNARY(leaky_relu, x > 0 ? x : (real)c->p[0] * x, fabsl(y))

static real gelu(real x, bool approximate)
{
    const real u = 0.79788456080286535588L * (x + 0.044715L * x * x * x);

    if (isinf(x)) { /* the limits; at -infinity the formula has none */
        return x > 0 ? x : NAN;
    }
    return x * (approximate ? 1 / (1 + expl(-2 * u)) : 0.5L * erfcl(-x * 0.70710678118654752440L));
}

static bool plan_gelu(call *c)
{
    c->i[0] = below(c->rng, 2);
    return floating(c);
}

RUN(gelu, ms_op_gelu(out, in[0], c->i[0]))

/* In f64 the exact form takes 1 + erf(x), which keeps no relative digits far below 0. */
UNARY(gelu, gelu(x, c->i[0]),
      16 * (fabsl(x) + 1) * fabsl(y) + (c->in[0].dtype == MS_DTYPE_F64 ? fabsl(x) : 0) +
          (c->in[0].dtype != MS_DTYPE_F64 ? 2 * fminl(fabsl(x), 16) : 0))

static bool plan_affine(call *c)
{
    static const double scales[] = {-1, 2, 0.5, -1.75, 0}, shifts[] = {0, -0.0, 1, -0.375};

    c->n_in = 1;
    c->p[0] = scales[below(c->rng, 5)];
    c->p[1] = shifts[below(c->rng, 4)];
    if (is_integer(&c->in[0])) {
        c->p[0] = below(c->rng, 7) - 3;
        c->p[1] = below(c->rng, 7) - 3;
    }
    return is_float(&c->in[0]) || is_integer(&c->in[0]);
}

RUN(affine, ms_op_affine(out, in[0], c->p[0], c->p[1]))

UNARY(affine, x *(real)c->p[0] + (real)c->p[1], 2 * (fabsl(x * (real)c->p[0]) + 1))

/* x with a number under an operation. */
static bool plan_with_number(call *c)
{
    static const double numbers[] = {0, -0.0, 1, -1, 2.5, -0.375, 1e30, NAN, INFINITY};
    const bool whole = is_integer(&c->in[0]);

    c->n_in = 1;
    c->p[0] = numbers[below(c->rng, whole ? 4 : 9)];
    c->i[0] = below(c->rng, 4);
    return is_float(&c->in[0]) || whole;
}

RUN(with_number, ms_op_with_number(out, in[0], c->p[0], (int32_t)c->i[0]))

static real with_number(const call *c, real x)
{
    const real number = (real)c->p[0];

    return c->i[0] == MS_NUMBER_ADD   ? x + number
           : c->i[0] == MS_NUMBER_SUB ? x - number
           : c->i[0] == MS_NUMBER_MUL ? x * number
                                      : number - x;
}

UNARY(with_number, with_number(c, x), 2 * (fabsl(y) + fabsl((real)c->p[0])))

static bool plan_pow(call *c)
{
    static const double powers[] = {2, 3, -1, 0.5, -0.5, 1.5, 0, 1, -2, 33};

    c->p[0] = powers[below(c->rng, COUNT(powers))];
    return floating(c);
}

RUN(pow, ms_op_pow(out, in[0], c->p[0]))

UNARY(pow,
      c->p[0] == 0.5    ? sqrtl(x)
      : c->p[0] == -0.5 ? 1 / sqrtl(x)
                        : powl(x, (real)c->p[0]),
      fabsl(y) *
          (8 + 4 * fabsl((real)c->p[0]) + 8 * (x != 0 ? fabsl((real)c->p[0] * logl(fabsl(x))) : 0)))

/* x with a number. */
static bool plan_compare_number(call *c)
{
    static const double numbers[] = {0, 1, -0.5, 2, NAN, INFINITY, -INFINITY, 300, 2.5, -1};

    c->n_in = 1;
    c->p[0] = numbers[below(c->rng, COUNT(numbers))];
    c->i[0] = below(c->rng, 6);
    return true;
}

RUN(compare_number, ms_op_compare_number(out, in[0], c->p[0], (int32_t)c->i[0]))

static bool relation_holds(int64_t relation, real a, real b)
{
    switch (relation) {
    case MS_COMPARE_EQ:
        return a == b;
    case MS_COMPARE_NE:
        return a != b;
    case MS_COMPARE_LT:
        return a < b;
    case MS_COMPARE_LE:
        return a <= b;
    case MS_COMPARE_GT:
        return a > b;
    default:
        return a >= b;
    }
}

static void oracle_compare_number(const call *c, const array *const *in, array *out)
{
    set_form(out, MS_DTYPE_BOOL, in[0]->form.ndim, in[0]->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = relation_holds(c->i[0], in[0]->v[i], (real)c->p[0]);
    }
}

/* -- two operands ------------------------------------------------------------------------------ */

static bool plan_binary(call *c)
{
    c->n_in = 2;
    draw_broadcast(&c->in[1], &c->in[0], c->rng);
    return is_float(&c->in[0]) || is_integer(&c->in[0]);
}

static bool plan_div(call *c)
{
    bool fits = plan_binary(c);

    c->in[1].draw = DRAW_POSITIVE;
    return fits && is_float(&c->in[0]);
}

#define BINARY(name, FORMULA, ERROR)                                                               \
    static ms_status run_##name(ms_tensor **out, ms_tensor *const *in, const call *c)              \
    {                                                                                              \
        (void)c;                                                                                   \
        return ms_op_##name(out, in[0], in[1]);                                                    \
    }                                                                                              \
    static void oracle_##name(const call *c, const array *const *in, array *out)                   \
    {                                                                                              \
        int64_t shape[MS_MAX_DIMS];                                                                \
        int32_t ndim;                                                                              \
        (void)c;                                                                                   \
        broadcast_shape(&in[0]->form, &in[1]->form, &ndim, shape);                                 \
        set_form(out, in[0]->form.dtype, ndim, shape);                                             \
        for (int64_t i = 0; i < out->n; i++) {                                                     \
            const real a = in[0]->v[broadcast_at(&in[0]->form, ndim, shape, i)];                   \
            const real b = in[1]->v[broadcast_at(&in[1]->form, ndim, shape, i)];                   \
            const real y = out->v[i] = (FORMULA);                                                  \
            out->slack[i] = compute_unit_of(in[0]->form.dtype) * (ERROR);                          \
            (void)y;                                                                               \
        }                                                                                          \
    }

BINARY(add, a + b, fabsl(y))
BINARY(sub, a - b, fabsl(y))
BINARY(mul, a *b, fabsl(y))
BINARY(div, a / b, fabsl(y))

static bool plan_power(call *c)
{
    const bool fits = plan_binary(c);

    c->in[0].draw = DRAW_POSITIVE;
    return fits && is_float(&c->in[0]);
}

BINARY(power, powl(a, b), 2 * fabsl(y))

/* Integers are whole in long double, and have the remainder 0 for a divisor of 0. */
static real remainder_of(const call *c, real a, real b)
{
    const real rest = fmodl(a, b);

    return b == 0 && is_integer(&c->in[0])      ? 0
           : rest != 0 && (rest < 0) != (b < 0) ? rest + b
                                                : rest;
}

BINARY(remainder, remainder_of(c, a, b), fabsl(b))

/* Which zero comes out where both meet is not said. */
#define ZEROS(y) ((y) == 0 ? 0x1p-900L : 0)

BINARY(maximum, isnan(a) || a > b ? a : b, ZEROS(y))
BINARY(minimum, isnan(a) || a < b ? a : b, ZEROS(y))

static bool plan_clamp(call *c)
{
    static const double lows[] = {-INFINITY, -1, 0, 2}, highs[] = {INFINITY, 1, 0, NAN};

    c->p[0] = lows[below(c->rng, 4)];
    c->p[1] = highs[below(c->rng, is_float(&c->in[0]) ? 4 : 3)];
    return counting(c);
}

RUN(clamp, ms_op_clamp(out, in[0], c->p[0], c->p[1]))

static real clamped(const call *c, real x)
{
    const real low = (real)c->p[0], high = (real)c->p[1], raised = x < low ? low : x;

    return isnan(high) ? NAN : raised > high ? high : raised;
}

UNARY(clamp, clamped(c, x), ZEROS(y))

#define CLASS(name)                                                                                \
    static ms_status run_##name(ms_tensor **out, ms_tensor *const *in, const call *c)              \
    {                                                                                              \
        (void)c;                                                                                   \
        return ms_op_##name(out, in[0]);                                                           \
    }                                                                                              \
    static void oracle_##name(const call *c, const array *const *in, array *out)                   \
    {                                                                                              \
        (void)c;                                                                                   \
        set_form(out, MS_DTYPE_BOOL, in[0]->form.ndim, in[0]->form.shape);                         \
        for (int64_t i = 0; i < out->n; i++) {                                                     \
            out->v[i] = name(in[0]->v[i]) != 0;                                                    \
        }                                                                                          \
    }
CLASS(isnan)
CLASS(isinf)
CLASS(isfinite)

static bool any_dtype(call *c)
{
    c->n_in = 1;
    return true;
}

static bool plan_compare(call *c)
{
    c->n_in = 2;
    c->i[0] = below(c->rng, 6);
    draw_broadcast(&c->in[1], &c->in[0], c->rng);
    c->in[1].draw = c->in[0].dtype == MS_DTYPE_BOOL ? DRAW_BOOL : DRAW_SIGNED;
    return true;
}

RUN(compare, ms_op_compare(out, in[0], in[1], (int32_t)c->i[0]))

static void oracle_compare(const call *c, const array *const *in, array *out)
{
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    broadcast_shape(&in[0]->form, &in[1]->form, &ndim, shape);
    set_form(out, MS_DTYPE_BOOL, ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = relation_holds(c->i[0], in[0]->v[broadcast_at(&in[0]->form, ndim, shape, i)],
                                   in[1]->v[broadcast_at(&in[1]->form, ndim, shape, i)]);
    }
}

/* in[0] and in[1] are chosen between by in[2]. */
static bool plan_where(call *c)
{
    c->n_in = 3;
    draw_broadcast(&c->in[1], &c->in[0], c->rng);
    c->in[2] = c->in[below(c->rng, 2)];
    c->in[2].dtype = MS_DTYPE_BOOL;
    c->in[1].draw = c->in[0].dtype == MS_DTYPE_BOOL ? DRAW_BOOL : DRAW_SIGNED;
    c->in[2].draw = DRAW_BOOL;
    return true;
}

RUN(where, ms_op_where(out, in[2], in[0], in[1]))

static void oracle_where(const call *c, const array *const *in, array *out)
{
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    (void)c;
    broadcast_shape(&in[0]->form, &in[1]->form, &ndim, shape);
    set_form(out, in[0]->form.dtype, ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        const bool first = in[2]->v[broadcast_at(&in[2]->form, ndim, shape, i)] != 0;
        const array *from = in[first ? 0 : 1];

        out->v[i] = from->v[broadcast_at(&from->form, ndim, shape, i)];
    }
}

/* -- poles and bends --------------------------------------------------------------------------- */

static bool away_from_0(const call *c, const array *const *in)
{
    return is_away(in[c->n_in - 1], 0);
}

static bool smooth_log1p(const call *c, const array *const *in)
{
    return is_away(in[0], -1);
}

static bool smooth_softplus(const call *c, const array *const *in)
{
    return is_away(in[0], (real)c->p[1] / (real)c->p[0]);
}

static bool smooth_with_number(const call *c, const array *const *in)
{
    return fabs(c->p[0]) < 1e6; /* else x is lost in the sum */
}

static bool smooth_clamp(const call *c, const array *const *in)
{
    return is_away(in[0], (real)c->p[0]) && is_away(in[0], (real)c->p[1]);
}

/* The broadcast shape of two operands, and its elements. */
static int64_t broadcast_numel(const form *a, const form *b, int32_t *ndim, int64_t *shape)
{
    int64_t n = 1;

    broadcast_shape(a, b, ndim, shape);
    for (int32_t d = 0; d < *ndim; d++) {
        n *= shape[d];
    }
    return n;
}

/* Equal operands share the gradient, as the central difference does; nearly equal ones do not. */
static bool smooth_choice(const call *c, const array *const *in)
{
    const form *a = &in[0]->form, *b = &in[1]->form;
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;
    const int64_t n = broadcast_numel(a, b, &ndim, shape);
    bool smooth = true;

    for (int64_t i = 0; i < n; i++) {
        const real gap = fabsl(in[0]->v[broadcast_at(a, ndim, shape, i)] -
                               in[1]->v[broadcast_at(b, ndim, shape, i)]);

        smooth = smooth && !(gap > 0 && gap < 0.02L);
    }
    return smooth;
}

/* Is no quotient near a whole number? */
static bool smooth_remainder(const call *c, const array *const *in)
{
    const form *a = &in[0]->form, *b = &in[1]->form;
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;
    const int64_t n = broadcast_numel(a, b, &ndim, shape);
    bool smooth = true;

    for (int64_t i = 0; i < n; i++) {
        const real divisor = in[1]->v[broadcast_at(b, ndim, shape, i)];
        const real quotient = in[0]->v[broadcast_at(a, ndim, shape, i)] / divisor;

        smooth = smooth &&
                 fabsl(divisor) * fabsl(quotient - rintl(quotient)) > 0.02L * (1 + fabsl(quotient));
    }
    return smooth;
}

#define FUNCTION_ROW(f, plan_, smooth_, VALUE, ERROR, ULPS) OP(f, plan_, .smooth = smooth_),

const op_row elementwise_rows[] = {
    UNARY_ORACLES(FUNCTION_ROW) /* of unary_oracle.h */
    OP(neg, counting),
    OP(reciprocal, floating, .smooth = away_from_0),
    OP(softplus, plan_softplus, .smooth = smooth_softplus, .grad_error = 64),
    OP(leaky_relu, plan_leaky_relu, .smooth = away_from_0),
    OP(gelu, plan_gelu),
    OP(affine, plan_affine),
    OP(pow, plan_pow, .smooth = away_from_0, .grad_error = 256),
    OP(compare_number, plan_compare_number),
    OP(add, plan_binary),
    OP(sub, plan_binary),
    OP(mul, plan_binary),
    OP(div, plan_div, .smooth = away_from_0),
    OP(power, plan_power, .grad_error = 64),
    OP(remainder, plan_binary, .smooth = smooth_remainder),
    OP(with_number, plan_with_number, .smooth = smooth_with_number),
    OP(maximum, plan_binary, .smooth = smooth_choice),
    OP(minimum, plan_binary, .smooth = smooth_choice),
    OP(clamp, plan_clamp, .smooth = smooth_clamp),
    OP(isnan, any_dtype),
    OP(isinf, any_dtype),
    OP(isfinite, any_dtype),
    OP(compare, plan_compare),
    OP(where, plan_where),
    {0},
};
