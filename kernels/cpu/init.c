/* Initial values of parameters, for any range of elements: element i is a function of (seed, key,
 * i).
 *
 * Elements 2q and 2q + 1 share Philox counter {q, 0} under philox_key(seed, key, 0). Words 0, 1 and
 * 2, 3 form two numbers u, v of 53 bits in [0, 1). The uniform distribution uses one for each
 * element; the normal distribution uses the radius sqrt(-2 log(1 - u)) and the angle 2 pi v of a
 * Box-Muller pair (cosine, then sine).
 *
 * Uniform values, and normal values in f64, are computed in f64 with the C library and rounded
 * once. Normal values in other dtypes are computed in f32 lanes from all 53 bits, so that their
 * range of magnitudes is that of f64: (value - mean) has a relative error within 6 x 2^-24. */
#include "lanes.h"
#include "philox.h"
#include "table.h"

enum { PER_BLOCK = 2 * LANES };

/* The words of elements [32 block, 32 block + 32): word j of pair i in words[j][i]. */
static void words_of(uint32_t words[4][LANES], const msi_init_args *a, int64_t block)
{
    philox_columns(words, (uint64_t)block * LANES, 0, philox_key(a->seed, a->key, 0));
}

static double unit(uint32_t high, uint32_t low)
{
    return (double)(int64_t)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

static void uniform_values(double *out, const msi_init_args *a, int64_t block)
{
    uint32_t words[4][LANES];

    words_of(words, a, block);
    for (int i = 0; i < LANES; i++) {
        out[2 * i] = a->a + unit(words[0][i], words[1][i]) * (a->b - a->a);
        out[2 * i + 1] = a->a + unit(words[2][i], words[3][i]) * (a->b - a->a);
    }
}

static void normal_values_f64(double *out, const msi_init_args *a, int64_t block)
{
    uint32_t words[4][LANES];

    words_of(words, a, block);
    for (int i = 0; i < LANES; i++) {
        const double u = unit(words[0][i], words[1][i]), v = unit(words[2][i], words[3][i]);
        const double radius = a->b * sqrt(-2 * log(1 - u)), angle = 6.283185307179586477 * v;

        out[2 * i] = a->a + radius * cos(angle);
        out[2 * i + 1] = a->a + radius * sin(angle);
    }
}

/* -- normal values in f32 lanes ---------------------------------------------------------------- */

/* (2^21 high + low) 2^-53, low <= 2^21. The small parts are added first, each exact, so that
 * leading zeros do not reduce accuracy. */
LANES_INLINE f32_part fraction(u32_part high, u32_part low)
{
    f32_part tail = to_f32w((i32_part)low) * 0x1p-53f + to_f32w((i32_part)(high & 0xff)) * 0x1p-32f;

    return to_f32w((i32_part)(high >> 8)) * 0x1p-24f + tail;
}

/* sqrt(-2 log(1 - u)), u = (2^32 high + low) >> 11. If 1 - u is near 1 the logarithm depends on u
 * itself, otherwise on 1 - u; both are formed from the words, because one computed from the other
 * would be rounded. */
LANES_INLINE f32_part radius_of(u32_part high, u32_part low)
{
    const u32_part u_low = low >> 11, rest_low = (~low >> 11) + 1;
    f32_part u = fraction(high, u_low), rest = fraction(~high, rest_low); /* rest = 1 - u */
    i32_part n;
    f32_part m = log_reduce_f32w(rest, &n);

    m = select_f32w(n == 0, -u, m);
    return sqrt_f32w(-2.0f * log_reduced_f32w(to_f32w(n), m));
}

/* cos and sin of 2 pi v, v = (2^32 high + low) >> 11: quarter turns q plus an angle x within an
 * eighth turn. Near-minimax polynomials as in Cephes (Moshier), sinf.c. */
LANES_INLINE f32_part cos_sin_of(u32_part high, u32_part low, f32_part *sine)
{
    const u32_part q = (high + 0x20000000) >> 30;
    f32_part turn = to_f32w((i32_part)(high << 2)) * 0x1p-32f +
                    to_f32w((i32_part)(low >> 11)) * 0x1p-51f; /* in quarters */
    f32_part x = turn * 0x1.921fb6p+0f, square = x * x, c, s;  /* pi / 2 */

    LANES_POLY(c, square, 0x1.99eb9cp-16f, -0x1.6c0c34p-10f, 0x1.55554ap-5f);
    c = c * square * square - 0.5f * square + 1.0f;
    LANES_POLY(s, square, -0x1.9943f2p-13f, 0x1.11073cp-7f, -0x1.555546p-3f);
    s = s * square * x + x;

    i32_part odd = -(i32_part)(q & 1);
    f32_part cosine = select_f32w(odd, s, c);

    *sine = (f32_part)((u32_part)select_f32w(odd, c, s) ^ (q & 2) << 30);
    return (f32_part)((u32_part)cosine ^ ((q + 1) & 2) << 30);
}

static void normal_values_f32(float *out, const msi_init_args *a, int64_t block)
{
    enum { WIDE = LANES_REGISTER / 4 };
    const float mean = (float)a->a, deviation = (float)a->b;
    uint32_t words[4][LANES];
    float first[LANES], second[LANES];

    words_of(words, a, block);
    for (int i = 0; i < LANES; i += WIDE) {
        u32_part w[4];

        for (int j = 0; j < 4; j++) {
            memcpy(&w[j], words[j] + i, sizeof(w[j]));
        }
        f32_part radius = radius_of(w[0], w[1]) * deviation, sine;
        f32_part cosine = cos_sin_of(w[2], w[3], &sine);

        store_f32w(first + i, radius * cosine + mean);
        store_f32w(second + i, radius * sine + mean);
    }
    for (int i = 0; i < LANES; i++) {
        out[2 * i] = first[i];
        out[2 * i + 1] = second[i];
    }
}

#define BODY "init_body.h"
#include "each_register.h"
