/* What the functions of unary.h must give, in long double. A row here serves every test of them: of
 * kernels (cpu/test_elementwise.c), of operators (autograd/ops/), of random programs
 * (autograd/programs/). A function without one does not compile there.
 *
 *   X(function, domain, bend, VALUE, ERROR, SLOPE, SLOPE_ERROR, ULPS)
 *
 * domain       ANY, or POSITIVE: where tests draw operands
 * bend         BENT where finite differences near 0 say nothing, else SMOOTH
 * VALUE        of x
 * ERROR        how far y, the value of x, may be off, in roundings of what it is computed in
 * SLOPE        what the incoming gradient is multiplied by: of s, which is what the function saves
 * SLOPE_ERROR  likewise
 * ULPS         of f32, over all its numbers: units in the last place */
#ifndef UNARY_ORACLE_H
#define UNARY_ORACLE_H

#include "backend.h"

#include <math.h>

#define UNARY_ORACLES(X)                                                                           \
    X(exp, ANY, SMOOTH, expl(x), 8 * fabsl(y), s, fabsl(s), 2)                                     \
    X(log, POSITIVE, BENT, logl(x), 8 * (fabsl(y) + 1e-3L), 1 / s, fabsl(1 / s), 2)                \
    X(sqrt, POSITIVE, BENT, sqrtl(x), fabsl(y), 0.5L / s, fabsl(0.5L / s), 0.5)                    \
    X(rsqrt, POSITIVE, BENT, 1 / sqrtl(x), 2 * fabsl(y), -0.5L * s * s * s, fabsl(s * s * s), 1.5) \
    X(expm1, ANY, SMOOTH, expm1l(x), 8 * fabsl(y), s + 1, 1 + fabsl(s), 2)                         \
    X(log1p, POSITIVE, BENT, log1pl(x), 8 * fabsl(y), 1 / (1 + s), fabsl(1 / (1 + s)), 2)          \
    X(sin, ANY, SMOOTH, sinl(x), 2 * fabsl(y), cosl(s), fabsl(cosl(s)), 1)                         \
    X(cos, ANY, SMOOTH, cosl(x), 2 * fabsl(y), -sinl(s), fabsl(sinl(s)), 1)                        \
    X(sigmoid, ANY, SMOOTH, 1 / (1 + expl(-x)), 8 * fabsl(y), s * (1 - s),                         \
      fabsl(s) * (1 + fabsl(s)), 3)                                                                \
    X(silu, ANY, SMOOTH, x / (1 + expl(-x)), 16 * fabsl(y),                                        \
      (1 + s / (1 + expl(s))) / (1 + expl(-s)), 1 + fabsl(s), 6)                                   \
    X(abs, ANY, BENT, fabsl(x), 0 * y, (s > 0) - (s < 0), 0 * s, 0)                                \
    X(sign, ANY, BENT, (x > 0) - (x < 0), 0, 0, 0, 0)                                              \
    X(square, ANY, SMOOTH, x *x, fabsl(y), 2 * s, fabsl(2 * s), 0.5)                               \
    X(tanh, ANY, SMOOTH, tanhl(x), 8 * fabsl(y), 1 - s * s, 1 + s * s, 2)                          \
    X(relu, ANY, BENT, x < 0 ? 0 : x, 0 * y, s <= 0 ? 0 : 1, 0 * s, 0)                             \
    X(erf, ANY, SMOOTH, erfl(x), 8 * fabsl(y), M_2_SQRTPIl * expl(-s * s),                         \
      (1 + s * s) * 2 * expl(-s * s), 2)

enum { UNARY_ANY = false, UNARY_POSITIVE = true, UNARY_SMOOTH = false, UNARY_BENT = true };

#define UNARY_DEFINE(f, domain, bend, VALUE, ERROR, SLOPE, SLOPE_ERROR, ULPS)                      \
    enum { unary_positive_##f = UNARY_##domain };                                                  \
                                                                                                   \
    static inline long double unary_value_##f(long double x)                                       \
    {                                                                                              \
        return (VALUE);                                                                            \
    }                                                                                              \
    static inline long double unary_error_##f(long double x, long double y)                        \
    {                                                                                              \
        return (void)x, (ERROR);                                                                   \
    }                                                                                              \
    static inline long double unary_slope_##f(long double s)                                       \
    {                                                                                              \
        return (SLOPE);                                                                            \
    }                                                                                              \
    static inline long double unary_slope_error_##f(long double s)                                 \
    {                                                                                              \
        return (SLOPE_ERROR);                                                                      \
    }
UNARY_ORACLES(UNARY_DEFINE)
#undef UNARY_DEFINE

typedef struct unary_oracle {
    const char *function; /* of the public header */
    int32_t kernel;
    bool bent;
    long double (*value)(long double x);
    double ulps;
} unary_oracle;

static const unary_oracle unary_oracles[] = {
#define UNARY_ROW(f, domain, bend, VALUE, ERROR, SLOPE, SLOPE_ERROR, ULPS)                         \
    {"ms_op_" #f, MSI_K_##f, UNARY_##bend, unary_value_##f, (ULPS)},
    UNARY_ORACLES(UNARY_ROW)
#undef UNARY_ROW
};

#endif
