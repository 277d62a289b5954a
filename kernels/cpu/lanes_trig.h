/* sin and cos of f32 lanes, within one unit in the last place for every number, with the same bits
 * on every instruction set. Computed in f64: for |x| < 2^20, x = k pi/2 + r with |r| <= pi/4 is
 * exact enough after two subtractions. Beyond, r is computed with integers (M. Payne and R. Hanek,
 * Radian Reduction for Trigonometric Functions, SIGNUM 1983). (f64 is in lanes_math.h.) */
#ifndef MSI_LANES_TRIG_H
#define MSI_LANES_TRIG_H

#include "lanes.h"

#define TRIG_NEAR 0x1p20

/* r of a number of at least 2^20; *turns: k modulo 4. NaN for infinities and NaN. */
static double trig_reduce_far(float x, int64_t *turns)
{
    /* 2 / pi, 32 bits a word, after the words before the binary point */
    static const uint32_t digits[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                      0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    uint32_t bits, part[3];

    if (!(__builtin_fabsf(x) < INFINITY)) {
        *turns = 0;
        return NAN;
    }
    memcpy(&bits, &x, sizeof(bits));
    /* |x| = mantissa 2^e. Digits of weight 2^(2 - e) and above contribute whole turns. */
    const uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    const int32_t skip = (int32_t)(bits >> 23 & 0xff) - 150 - 2 + 32;

    for (int32_t i = 0; i < 3; i++) {
        const uint64_t two = (uint64_t)digits[skip / 32 + i] << 32 | digits[skip / 32 + i + 1];

        part[i] = (uint32_t)(two << skip % 32 >> 32);
    }
    /* in units of 2^-62 quarter turns */
    const uint64_t angle =
        (mantissa * part[0] << 32) + mantissa * part[1] + (mantissa * part[2] >> 32);
    const uint64_t k = (angle + (UINT64_C(1) << 61)) >> 62;
    const double r = (double)(int64_t)(angle - (k << 62)) * 0x1.921fb54442d18p-62;

    *turns = x < 0 ? -(int64_t)k : (int64_t)k;
    return x < 0 ? -r : r;
}

LANES_INLINE f64_part trig_reduce(f64_part x, i64_part *turns)
{
    const double round = 0x1.8p52; /* as in exp_f32w() */
    f64_part shifted = x * 0x1.45f306dc9c883p-1 + round, k = shifted - round;
    f64_part r = (x - k * 0x1.921fb544p0) - k * 0x1.0b4611a626331p-34; /* k * the first is exact */
    i64_part near = lt_f64w(abs_f64w(x), splat_f64w(TRIG_NEAR));

    *turns = (i64_part)shifted;
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        if (__builtin_expect(near[i] == 0, 0)) {
            int64_t far_turns;

            r[i] = trig_reduce_far((float)x[i], &far_turns);
            (*turns)[i] = far_turns;
        }
    }
    return r;
}

/* sin(x + ahead pi/2): Taylor series of r, to 1e-11. */
LANES_INLINE f64_part trig_wave(f64_part x, int64_t ahead)
{
    i64_part turns;
    f64_part r = trig_reduce(x, &turns), q = r * r;
    f64_part s = 1.0 / 362880 - q * (1.0 / 39916800);
    f64_part c = 1.0 / 40320 - q * (1.0 / 3628800 - q * (1.0 / 479001600));

    s = r * (1.0 - q * (1.0 / 6 - q * (1.0 / 120 - q * (1.0 / 5040 - q * s))));
    c = 1.0 - q * (0.5 - q * (1.0 / 24 - q * (1.0 / 720 - q * c)));
    turns += ahead;
    f64_part y = select_f64w(-(turns & 1), c, s);

    return (f64_part)((i64_part)y ^ (i64_part)((u64_part)(turns & 2) << 62));
}

LANES_INLINE f32_part trig_wave_f32w(f32_part x, int64_t ahead)
{
    f32_half half[2];

    memcpy(half, &x, sizeof(x));
    for (int i = 0; i < 2; i++) {
        const f64_part wide = __builtin_convertvector(half[i], f64_part);

        half[i] = __builtin_convertvector(trig_wave(wide, ahead), f32_half);
    }
    memcpy(&x, half, sizeof(x));
    return x;
}

LANES_INLINE f32_part sin_f32w(f32_part x)
{
    return trig_wave_f32w(x, 0);
}

LANES_INLINE f32_part cos_f32w(f32_part x)
{
    return trig_wave_f32w(x, 1);
}

#endif
