/* x^p for one number p, and its gradient.
 *
 * Integers of at most 32 in magnitude: repeated squaring of x (of 1/x for negative p), always in
 * the same order, so 2 |p| roundings at most and none for p = 0 and 1. A half: a square root.
 * Everything else: f32 as exp(p log |x|), whose relative error is below (4 + 6 |p log x|) 2^-24,
 * f64 by the C library. A negative x has a power when p is an integer, else NaN. */
#include "ew.h"

enum { MOST_MULTIPLIED = 32 };

typedef struct power {
    enum { POWER_WHOLE, POWER_ROOT, POWER_GENERAL } way;
    int32_t n;    /* POWER_WHOLE: |p| */
    bool inverse; /* POWER_WHOLE, POWER_ROOT: p < 0 */
    bool integer; /* POWER_GENERAL: negative x have a power */
    bool odd;     /* ... and it is negative */
    double p;
} power;

static power power_of(double p)
{
    const double size = __builtin_fabs(p);
    power w = {.way = POWER_GENERAL, .inverse = p < 0, .p = p};

    if (size <= MOST_MULTIPLIED && size == (double)(int32_t)size) {
        w.way = POWER_WHOLE;
        w.n = (int32_t)size;
    } else if (size == 0.5) {
        w.way = POWER_ROOT;
    }
    /* From 2^53 on every number is an even integer. */
    w.integer = size >= 0x1p53 || size == (double)(int64_t)size;
    w.odd = size < 0x1p53 && w.integer && ((int64_t)size & 1) != 0;
    return w;
}

/* p as the lanes of f32 take it: neither 0 nor infinite when p is not. */
static float power_exponent(double p)
{
    const double size = __builtin_fabs(p);
    const double cut = size > 0x1p126 ? 0x1p126 : size < 0x1p-126 ? 0x1p-126 : size;

    return (float)(p < 0 ? -cut : cut);
}

#define BODY "pow_body.h"
#include "each_register.h"
