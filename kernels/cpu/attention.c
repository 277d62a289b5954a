/* Scaled dot-product attention and its gradient, in tiles: the (T, S) scores never exist.
 *
 * Between the products stand exp() and rounding over every score, so both are cut to what scores
 * need: arguments are at most 0 (a little above, by rounding), and NaN are the machine's own. */
#include "lanes.h"
#include "table.h"

#include "backend.h"

/* exp(x) for x <= about 0: below 2^-126 it stays there instead of becoming smaller. NaN passes. */
LANES_INLINE f32_part exp_neg_f32w(f32_part x)
{
    const float round = 0x1.8p23f; /* as in exp_f32w(), with the whole exponent in one factor */
    f32_part p;

    x = max_f32w(splat_f32w(-87), x);
    f32_part shifted = x * 0x1.715476p0f + round;
    f32_part n = shifted - round;
    f32_part r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;

    LANES_POLY(p, r, 0x1.6d1606p-10f, 0x1.12106cp-7f, 0x1.555516p-5f, 0x1.5554d8p-3f, 0.5f);
    p = (p * r * r + r) + 1.0f;
    return p * (f32_part)(((u32_part)shifted + 127) << 23); /* the low bits of shifted hold n */
}

LANES_INLINE f32x16 exp_neg_f32(f32x16 x)
{
    f32x16 y;

    LANES_MAP1(y, f32_part, x, f32_part, exp_neg_f32w(lx));
    return y;
}

LANES_INLINE f64x16 exp_neg_f64(f64x16 x)
{
    return exp_f64(x);
}

/* Nearest even. The low 16 bits of a NaN that came out of arithmetic are 0: rounding keeps it. */
LANES_INLINE u16_part narrow_score(f32_part v)
{
    u32_part bits = (u32_part)v;

    return narrow_u32((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

LANES_INLINE void store_score_bf16(uint16_t *p, f32x16 v)
{
    u16x16 h;

    LANES_MAP1(h, u16_part, v, f32_part, narrow_score(lx));
    memcpy(p, &h, sizeof(h));
}

LANES_INLINE void store_score_f32(float *p, f32x16 v)
{
    store_f32(p, v);
}

LANES_INLINE void store_score_f64(double *p, f64x16 v)
{
    store_f64(p, v);
}

#define BODY "attention_tile.h"
#include "each_float.h"
