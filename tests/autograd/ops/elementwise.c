/* Elementwise operators: every formula on plain operands, and the broadcasting, layouts and sizes
 * on a few of them (the loops are shared). */
#include "op_test.h"

#include "unary_oracle.h"

static ms_status run_add(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_add(out, in[0], in[1]);
}

static ms_status run_sub(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_sub(out, in[0], in[1]);
}

static ms_status run_mul(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_mul(out, in[0], in[1]);
}

static ms_status run_div(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_div(out, in[0], in[1]);
}

static ms_status run_maximum(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_maximum(out, in[0], in[1]);
}

static ms_status run_minimum(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_minimum(out, in[0], in[1]);
}

static ms_status run_clamp(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_clamp(out, in[0], c->p[0], c->p[1]);
}

static ms_status run_affine(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_affine(out, in[0], c->p[0], c->p[1]);
}

static ms_status run_neg(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_neg(out, in[0]);
}

static ms_status run_softplus(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_softplus(out, in[0], c->p[0], c->p[1]);
}

static ms_status run_reciprocal(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_reciprocal(out, in[0]);
}

static ms_status run_pow(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_pow(out, in[0], c->p[0]);
}

static ms_status run_gelu(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_gelu(out, in[0], c->i[0] != 0);
}

/* x * x: one tensor as both operands. */
static ms_status run_by_itself(ms_tensor **out, ms_tensor *const *in, const op_case *c)
{
    return ms_op_mul(out, in[0], in[0]);
}

static real map_add(const op_case *c, real a, real b)
{
    return a + b;
}

static real map_sub(const op_case *c, real a, real b)
{
    return a - b;
}

static real map_mul(const op_case *c, real a, real b)
{
    return a * b;
}

static real map_div(const op_case *c, real a, real b)
{
    return a / b;
}

static real map_maximum(const op_case *c, real a, real b)
{
    return a > b ? a : b;
}

static real map_minimum(const op_case *c, real a, real b)
{
    return a < b ? a : b;
}

static real map_clamp(const op_case *c, real a, real b)
{
    const real raised = a < c->p[0] ? c->p[0] : a;

    return raised > c->p[1] ? c->p[1] : raised;
}

static real map_affine(const op_case *c, real a, real b)
{
    return c->p[0] * a + c->p[1];
}

static real map_neg(const op_case *c, real a, real b)
{
    return -a;
}

static real map_softplus(const op_case *c, real a, real b)
{
    return c->p[0] * a > c->p[1] ? a : log1pl(expl(c->p[0] * a)) / c->p[0];
}

static real map_reciprocal(const op_case *c, real a, real b)
{
    return 1 / a;
}

static real map_pow(const op_case *c, real a, real b)
{
    return powl(a, c->p[0]);
}

static real map_gelu(const op_case *c, real a, real b)
{
    return c->i[0] ? 0.5L * a * (1 + tanhl(sqrtl(2 / M_PIl) * (a + 0.044715L * a * a * a)))
                   : 0.5L * a * (1 + erfl(a / sqrtl(2)));
}

static real map_by_itself(const op_case *c, real a, real b)
{
    return a * a;
}

/* The functions of unary.h: operands of every layout, and none. */
#define FUNCTION(A, f, gradient, saved)                                                            \
    static ms_status run_##f(ms_tensor **out, ms_tensor *const *in, const op_case *c)              \
    {                                                                                              \
        return ms_op_##f(out, in[0]);                                                              \
    }                                                                                              \
    static real map_##f(const op_case *c, real a, real b)                                          \
    {                                                                                              \
        return unary_value_##f(a);                                                                 \
    }
MSI_UNARY(FUNCTION, )

#define DRAWN(f, layout_, ...)                                                                     \
    {                                                                                              \
        DIMS(__VA_ARGS__), .layout = (layout_),                                                    \
                           .values = unary_positive_##f ? VALUES_POSITIVE : VALUES_SIGNED          \
    }
#define FUNCTION_ROWS(A, f, gradient, saved)                                                       \
    MAP1(#f, f, DRAWN(f, LAYOUT_PLAIN, 5, 7), SHAPE(5, 7)),                                        \
        MAP1(#f ", permuted", f, DRAWN(f, LAYOUT_PERMUTED, 4, 3, 5), SHAPE(4, 3, 5)),              \
        MAP1(#f ", gaps", f, DRAWN(f, LAYOUT_NARROWED, 5, 6), SHAPE(5, 6)),                        \
        MAP1(#f ", empty", f, SHAPE(0), SHAPE(0)),
#define INTEGER_ROWS(A, f, gradient, saved)                                                        \
    MAP1(#f ", integers", f, PERMUTED(5, 7), SHAPE(5, 7), .integer = true),                        \
        MAP1(#f ", long, integers", f, SHAPE(131), SHAPE(131), .integer = true),

static const op_case cases[] = {
    MSI_UNARY(FUNCTION_ROWS, )           /* of unary.h */
    MSI_UNARY_OF_NUMBERS(INTEGER_ROWS, ) /* those of integers */
    MAP2("add", add, SHAPE(5, 7), SHAPE(5, 7), SHAPE(5, 7)),
    MAP2("add, long", add, SHAPE(131), SHAPE(131), SHAPE(131)),
    MAP2("add, row", add, SHAPE(5, 7), SHAPE(7), SHAPE(5, 7), .terms = 5),
    MAP2("add, column first", add, SHAPE(5, 1), SHAPE(3, 1, 7), SHAPE(3, 5, 7), .terms = 21),
    MAP2("add, scalar", add, SHAPE(4, 9), SCALAR, SHAPE(4, 9), .terms = 36),
    MAP2("add, scalars", add, SCALAR, SCALAR, SCALAR),
    MAP2("add, empty", add, SHAPE(0, 7), SHAPE(7), SHAPE(0, 7)),
    MAP2("add, permuted", add, PERMUTED(6, 5), SHAPE(6, 5), SHAPE(6, 5)),
    MAP2("sub", sub, SHAPE(5, 7), SHAPE(5, 7), SHAPE(5, 7)),
    MAP2("sub, row, gaps", sub, NARROWED(7), NARROWED(3, 7), SHAPE(3, 7), .terms = 3),
    MAP2("mul", mul, SHAPE(5, 7), SHAPE(5, 7), SHAPE(5, 7)),
    MAP2("mul, middle", mul, SHAPE(3, 4, 5), PERMUTED(3, 1, 5), SHAPE(3, 4, 5), .terms = 4),
    MAP1("mul, by itself", by_itself, SHAPE(33), SHAPE(33)),
    MAP2("div", div, SHAPE(5, 7), POSITIVE(5, 7), SHAPE(5, 7)),
    MAP2("div, both broadcast", div, SHAPE(4, 1), POSITIVE(1, 6), SHAPE(4, 6), .terms = 6),
    MAP2("maximum", maximum, SHAPE(5, 7), SHAPE(5, 7), SHAPE(5, 7)),
    MAP2("maximum, row, gaps", maximum, NARROWED(3, 7), NARROWED(7), SHAPE(3, 7), .terms = 3),
    MAP2("maximum, empty", maximum, SHAPE(0, 7), SHAPE(7), SHAPE(0, 7)),
    MAP2("minimum, column first", minimum, SHAPE(5, 1), SHAPE(3, 1, 7), SHAPE(3, 5, 7),
         .terms = 21),
    MAP2("minimum, scalars", minimum, SCALAR, SCALAR, SCALAR),
    MAP1("clamp", clamp, SHAPE(5, 7), SHAPE(5, 7), .p = {-0.5, 0.75}),
    MAP1("clamp, below, permuted", clamp, PERMUTED(17, 8), SHAPE(17, 8), .p = {0.25, INFINITY}),
    MAP1("clamp, above", clamp, SHAPE(33), SHAPE(33), .p = {-INFINITY, 0}),
    MAP1("clamp, exchanged", clamp, SHAPE(33), SHAPE(33), .p = {1, -1}),
    MAP1("clamp, empty", clamp, SHAPE(0), SHAPE(0), .p = {0, 1}),
    MAP1("affine", affine, SHAPE(5, 7), SHAPE(5, 7), .p = {-1.75, 0.5}),
    MAP1("affine, gaps", affine, NARROWED(3, 3, 3), SHAPE(3, 3, 3), .p = {0.3, 0}),
    MAP1("affine, empty", affine, SHAPE(3, 0), SHAPE(3, 0), .p = {2, 1}),
    MAP1("neg, permuted", neg, PERMUTED(5, 7), SHAPE(5, 7)),
    MAP1("neg, empty", neg, SHAPE(0), SHAPE(0)),
    MAP1("softplus", softplus, SHAPE(5, 7), SHAPE(5, 7), .p = {1, 20}),
    MAP1("softplus, sharp, gaps", softplus, NARROWED(9, 9), SHAPE(9, 9), .p = {9, 20}, .terms = 9),
    MAP1("softplus, both sides", softplus, SHAPE(131), SHAPE(131), .p = {2, 1.5}, .terms = 4),
    MAP1("softplus, mirrored", softplus, SHAPE(33), SHAPE(33), .p = {-1, 20}),
    MAP1("reciprocal", reciprocal, POSITIVE(5, 7), SHAPE(5, 7)),
    MAP1("pow, 0", pow, SHAPE(5, 7), SHAPE(5, 7), .p = {0}),
    MAP1("pow, 1", pow, SHAPE(5, 7), SHAPE(5, 7), .p = {1}),
    MAP1("pow, 2", pow, SHAPE(5, 7), SHAPE(5, 7), .p = {2}),
    MAP1("pow, 3, permuted", pow, PERMUTED(9, 8), SHAPE(9, 8), .p = {3}),
    MAP1("pow, 7, gaps", pow, NARROWED(3, 3, 3), SHAPE(3, 3, 3), .p = {7}, .terms = 4),
    MAP1("pow, -1", pow, POSITIVE(131), SHAPE(131), .p = {-1}),
    MAP1("pow, -3", pow, POSITIVE(5, 7), SHAPE(5, 7), .p = {-3}, .terms = 4),
    MAP1("pow, 1/2", pow, POSITIVE(5, 7), SHAPE(5, 7), .p = {0.5}),
    MAP1("pow, -1/2", pow, POSITIVE(5, 7), SHAPE(5, 7), .p = {-0.5}),
    MAP1("pow, 3/2, scalar", pow, {.values = VALUES_POSITIVE}, SCALAR, .p = {1.5}, .terms = 9),
    MAP1("pow, 2.7", pow, POSITIVE(5, 7), SHAPE(5, 7), .p = {2.7}, .terms = 16),
    MAP1("pow, empty", pow, SHAPE(0), SHAPE(0), .p = {2}),
    MAP1("gelu", gelu, SHAPE(5, 7), SHAPE(5, 7)),
    MAP1("gelu, permuted", gelu, PERMUTED(17, 3), SHAPE(17, 3)),
    MAP1("gelu_tanh", gelu, SHAPE(5, 7), SHAPE(5, 7), .i = {1}),
    MAP1("gelu_tanh, scalar", gelu, SCALAR, SCALAR, .i = {1}),

    MAP2("add, integers", add, SHAPE(5, 7), PERMUTED(5, 7), SHAPE(5, 7), .integer = true),
    MAP2("sub, integers", sub, SHAPE(5, 7), SHAPE(7), SHAPE(5, 7), .integer = true),
    MAP2("mul, integers", mul, NARROWED(5, 7), SHAPE(5, 1), SHAPE(5, 7), .integer = true),
    MAP2("maximum, integers", maximum, SHAPE(5, 7), PERMUTED(5, 7), SHAPE(5, 7), .integer = true),
    MAP2("minimum, integers", minimum, SHAPE(5, 7), SHAPE(7), SHAPE(5, 7), .integer = true),
    MAP1("clamp, integers", clamp, SHAPE(131), SHAPE(131), .p = {-1e5, 2e5}, .integer = true),
    MAP1("clamp, integers, open", clamp, SHAPE(33), SHAPE(33), .p = {-INFINITY, INFINITY},
         .integer = true),
    MAP1("neg, integers", neg, SHAPE(33), SHAPE(33), .integer = true),
    MAP1("affine, integers", affine, SHAPE(33), SHAPE(33), .p = {-3, 2}, .integer = true),
};

const op_family elementwise_cases = {cases, COUNT(cases)};
