/* x^p for one number p, or for an exponent of each element, and their gradients.
 *
 * Integers p of at most 32 in magnitude: repeated squaring of x (of 1/x for negative p) in a fixed
 * order, with at most 2 |p| roundings and none for p = 0 and 1. |p| = 1/2: a square root. Others:
 * f32 as 2^(p log2 |x|) in f64, which leaves one rounding; f64 by the C library. A negative x gives
 * NaN unless p is an integer. */
#include "ew.h"

enum { MOST_MULTIPLIED = 32 };

typedef struct power {
    enum { POWER_WHOLE, POWER_ROOT, POWER_GENERAL } way;
    int32_t n;    /* POWER_WHOLE: |p| */
    bool inverse; /* POWER_WHOLE, POWER_ROOT: p < 0 */
    bool integer; /* POWER_GENERAL: negative x are allowed */
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

/* c[0] + c[1] x + ... + c[n - 1] x^(n - 1). */
LANES_INLINE f64_part series(const double *c, int n, f64_part x)
{
    f64_part y = c[n - 1] - (f64_part){0};

#pragma GCC unroll 16
    for (int k = n - 2; k >= 0; k--) {
        y = y * x + c[k];
    }
    return y;
}

/* log2 of a nonnegative float, within 2^-39 relative; 0 for 1. With x = 2^n m, m from sqrt(1/2) to
 * sqrt(2), and s = (m - 1) / (m + 1): n + 2 / ln(2) (s + s^3 / 3 + s^5 / 5 + ...). */
LANES_INLINE f64_part log2_narrow(f64_part x)
{
    static const double c[] = {0x1.71547652b82fep+1, 0x1.ec709dc3a03fdp-1, 0x1.2776c50ef9bfep-1,
                               0x1.a61762a7aded9p-2, 0x1.484b13d7c02a9p-2, 0x1.0c9a84994022dp-2,
                               0x1.c68f568d31760p-3};
    const u64_part bits = (u64_part)x - 0x3fe6a09e667f3bcd; /* of sqrt(1/2) */
    const u64_part n = (bits + (1024ULL << 52)) >> 52;      /* biased by 1024 */
    const f64_part m = (f64_part)((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
    const f64_part s = (m - 1.0) / (m + 1.0);
    const f64_part whole = (f64_part)(n | 0x4330000000000000) - (0x1p52 + 1024);
    const f64_part y = whole + s * series(c, sizeof(c) / sizeof(c[0]), s * s);

    return select_f64w(eq_f64w(x, splat_f64w(0)), splat_f64w(-INFINITY),
                       select_f64w(lt_f64w(x, splat_f64w(INFINITY)), y, x)); /* keeps inf and NaN */
}

/* 2^y within 2^-37 relative, limited to where a float overflows or is 0. NaN is unchanged. */
LANES_INLINE f64_part exp2_narrow(f64_part y)
{
    static const double c[] = {1,
                               0x1.62e42fefa39efp-1,
                               0x1.ebfbdff82c58fp-3,
                               0x1.c6b08d704a0c0p-5,
                               0x1.3b2ab6fba4e77p-7,
                               0x1.5d87fe78a6731p-10,
                               0x1.430912f86c787p-13,
                               0x1.ffcbfc588b0c7p-17,
                               0x1.62c0223a5c824p-20,
                               0x1.b5253d395e7c4p-24};
    const double round = 0x1.8p52; /* adding it rounds to an integer, in the low bits */

    y = min_f64w(splat_f64w(129), max_f64w(splat_f64w(-152), y));
    const f64_part shifted = y + round;
    const u64_part scale = ((u64_part)shifted + 1023) << 52;

    return series(c, sizeof(c) / sizeof(c[0]), y - (shifted - round)) * (f64_part)scale;
}

/* x^p for x >= 0. */
LANES_INLINE f32_part power_f32w(f32_part x, double p)
{
    f32_half half[2];

    memcpy(half, &x, sizeof(half));
    for (int i = 0; i < 2; i++) {
        const f64_part wide = __builtin_convertvector(half[i], f64_part);

        half[i] = __builtin_convertvector(exp2_narrow(log2_narrow(wide) * p), f32_half);
    }
    memcpy(&x, half, sizeof(x));
    return x;
}

#define BODY "pow_body.h"
#include "each_register.h"
