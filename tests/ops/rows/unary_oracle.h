/* Oracles of the functions of unary.h, in long double. rows/elementwise.c does not compile for a
 * function without one.
 *
 *   X(function, plan, smooth, VALUE, ERROR, ULPS)
 *
 * plan         floating, positive (drawn in [0.5, 2.5)), or counting (integers, too)
 * smooth       operands away from poles and bends; NULL: all
 * VALUE        of x
 * ERROR        how far y, the value of x, may be off, in roundings of what it is computed in
 * ULPS         of f32, over all its numbers: units in the last place */
#ifndef UNARY_ORACLE_H
#define UNARY_ORACLE_H

#include "moonshard.h"

#include <math.h>

#define UNARY_ORACLES(X)                                                                           \
    X(exp, floating, NULL, expl(x), 8 * fabsl(y), 2)                                               \
    X(log, positive, away_from_0, logl(x), 8 * (fabsl(y) + 1e-3L), 2)                              \
    X(sqrt, positive, away_from_0, sqrtl(x), fabsl(y), 0.5)                                        \
    X(rsqrt, positive, away_from_0, 1 / sqrtl(x), 2 * fabsl(y), 1.5)                               \
    X(expm1, floating, NULL, expm1l(x), 8 * fabsl(y), 2)                                           \
    X(log1p, positive, smooth_log1p, log1pl(x), 8 * fabsl(y), 2)                                   \
    X(sin, floating, NULL, sinl(x), 2 * fabsl(y), 1)                                               \
    X(cos, floating, NULL, cosl(x), 2 * fabsl(y), 1)                                               \
    X(sigmoid, floating, NULL, 1 / (1 + expl(-x)), 8 * fabsl(y), 3)                                \
    X(silu, floating, NULL, x / (1 + expl(-x)), 16 * fabsl(y), 6)                                  \
    X(logsigmoid, floating, NULL, x < 0 ? x - log1pl(expl(x)) : 0 - log1pl(expl(-x)),              \
      8 * fabsl(y), 3)                                                                             \
    X(abs, counting, away_from_0, fabsl(x), 0 * y, 0)                                              \
    X(sign, counting, away_from_0, (x > 0) - (x < 0), 0, 0)                                        \
    X(square, counting, NULL, x *x, fabsl(y), 0.5)                                                 \
    X(tanh, floating, NULL, tanhl(x), 8 * fabsl(y), 2)                                             \
    X(relu, floating, away_from_0, x < 0 ? 0 : x, 0 * y, 0)                                        \
    X(floor, counting, NULL, floorl(x), 0 * y, 0)                                                  \
    X(ceil, counting, NULL, ceill(x), 0 * y, 0)                                                    \
    X(trunc, counting, NULL, truncl(x), 0 * y, 0)                                                  \
    X(round, counting, NULL, rintl(x), 0 * y, 0)                                                   \
    X(erf, floating, NULL, erfl(x), 8 * fabsl(y), 2)

typedef struct unary_oracle {
    const char *name;
    ms_status (*run)(ms_tensor **out, ms_tensor *x);
    long double (*value)(long double x);
    double ulps;
} unary_oracle;

#define UNARY_DEFINE(f, plan, smooth, VALUE, ERROR, ULPS)                                          \
    static inline long double unary_value_##f(long double x)                                       \
    {                                                                                              \
        return (VALUE);                                                                            \
    }
UNARY_ORACLES(UNARY_DEFINE)
#undef UNARY_DEFINE

#endif
