/* Lanes: the vector types and functions of all CPU kernels.
 *
 * Vectors are the compiler's, so + - * / & | << and scalar operands work on them; other functions
 * are here. Results have equal bits on all three builds and at any address, for three reasons:
 *
 *   no fused multiply-add (-ffp-contract=off), and our own functions instead of a library's
 *   independent lanes may be as many as a register holds: f32_part, functions end in _f32w
 *   lanes that are combined are always 16, in one order: f32x16, functions end in _f32
 *
 * A tail is a body whose missing lanes are 0.
 *
 *   load_f32(p)      16 lanes from memory, any address;   load_n_f32(p, n)      the first n, rest 0
 *   store_f32(p, v)  and back;                            store_n_f32(p, v, n)  0 <= n <= 16
 *   load_bf16, load_f16, ...   16 bits in memory, lanes in f32: widened exactly, rounded to
 *                    nearest even
 *   lt_ le_ eq_ ne_  masks, 0 or -1 in integers of the same width: i32x16, i32_part
 *   select_(mask, yes, no), min_ max_ abs_ copysign_ sqrt_ splat_(scalar), hsum_ hmax_ (16 lanes)
 *   exp_ log_ tanh_   in lanes_math.h, included below (sin_ cos_ in lanes_trig.h)
 *
 * A register-wide vector is always faster: the compiler keeps wider ones in memory. */
#ifndef MSI_LANES_H
#define MSI_LANES_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline, unused))
#define LANES_CAT2(a, b) a##_##b
#define LANES_CAT(a, b) LANES_CAT2(a, b)

enum { LANES = 16 };

/* Bytes of one vector register. */
#if MSI_ISA == 4
#define LANES_REGISTER 64
#elif MSI_ISA == 3
#define LANES_REGISTER 32
#else
#define LANES_REGISTER 16
#endif

/* 16 lanes of a scalar type, and as many as fit a register (half a register if lanes are paired
 * with a type twice as wide). */
#define LANES_TYPE(scalar, name, part_bytes)                                                       \
    typedef scalar name##x16 __attribute__((vector_size(16 * sizeof(scalar))));                    \
    typedef scalar name##_part __attribute__((vector_size(part_bytes)))

LANES_TYPE(float, f32, LANES_REGISTER);
LANES_TYPE(int32_t, i32, LANES_REGISTER);
LANES_TYPE(uint32_t, u32, LANES_REGISTER);
LANES_TYPE(uint16_t, u16, LANES_REGISTER / 2);
typedef float f32_half __attribute__((vector_size(LANES_REGISTER / 2)));
LANES_TYPE(double, f64, LANES_REGISTER);
LANES_TYPE(int64_t, i64, LANES_REGISTER);
LANES_TYPE(uint64_t, u64, LANES_REGISTER);

/* r = EXPR over lx (and ly), parts of a and b, one register at a time: the compiler splits
 * comparisons and conversions of wider vectors into single lanes. */
#define LANES_MAP1(r, r_part, a, a_part, EXPR)                                                     \
    _Pragma("GCC unroll 8") for (size_t i_ = 0; i_ < sizeof(r) / sizeof(r_part); i_++)             \
    {                                                                                              \
        a_part lx;                                                                                 \
        r_part z_;                                                                                 \
        memcpy(&lx, (const char *)&(a) + i_ * sizeof(lx), sizeof(lx));                             \
        z_ = (EXPR);                                                                               \
        memcpy((char *)&(r) + i_ * sizeof(z_), &z_, sizeof(z_));                                   \
    }
#define LANES_MAP2(r, r_part, a, b, a_part, EXPR)                                                  \
    _Pragma("GCC unroll 8") for (size_t i_ = 0; i_ < sizeof(r) / sizeof(r_part); i_++)             \
    {                                                                                              \
        a_part lx, ly;                                                                             \
        r_part z_;                                                                                 \
        memcpy(&lx, (const char *)&(a) + i_ * sizeof(lx), sizeof(lx));                             \
        memcpy(&ly, (const char *)&(b) + i_ * sizeof(ly), sizeof(ly));                             \
        z_ = (EXPR);                                                                               \
        memcpy((char *)&(r) + i_ * sizeof(z_), &z_, sizeof(z_));                                   \
    }

/* Single instructions that C cannot express or the compiler does not recognise. mul_low32
 * multiplies the lower halves of 64-bit lanes. */
#if MSI_ISA == 4
#define LANES_CALL(name) _mm512_##name
#define LANES_INTEGER __m512i
#elif MSI_ISA == 3
#define LANES_CALL(name) _mm256_##name
#define LANES_INTEGER __m256i
#else
#define LANES_CALL(name) _mm_##name
#define LANES_INTEGER __m128i
#endif

LANES_INLINE u64_part mul_low32(u64_part x, u64_part y)
{
    return (u64_part)LANES_CALL(mul_epu32)((LANES_INTEGER)x, (LANES_INTEGER)y);
}

LANES_INLINE u32_part widen_u16(u16_part x)
{
#if MSI_ISA == 4
    return (u32_part)_mm512_cvtepu16_epi32((__m256i)x);
#elif MSI_ISA == 3
    return (u32_part)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, u32_part);
#endif
}

/* Of values below 65,536. */
LANES_INLINE u16_part narrow_u32(u32_part x)
{
#if MSI_ISA == 4
    return (u16_part)_mm512_cvtepi32_epi16((__m512i)x);
#elif MSI_ISA == 3
    return (u16_part)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
                                      _mm256_extracti128_si256((__m256i)x, 1));
#else
    return __builtin_convertvector(x, u16_part);
#endif
}

/* Inline memcpy() of n < width elements: n is split into powers of two. */
#define LANES_COPY_N(to, from, n, width, size)                                                     \
    do {                                                                                           \
        char *to_ = (char *)(to);                                                                  \
        const char *from_ = (const char *)(from);                                                  \
        if ((width) > 8 && ((n)&8)) {                                                              \
            memcpy(to_, from_, 8 * (size));                                                        \
            to_ += 8 * (size);                                                                     \
            from_ += 8 * (size);                                                                   \
        }                                                                                          \
        if ((width) > 4 && ((n)&4)) {                                                              \
            memcpy(to_, from_, 4 * (size));                                                        \
            to_ += 4 * (size);                                                                     \
            from_ += 4 * (size);                                                                   \
        }                                                                                          \
        if ((width) > 2 && ((n)&2)) {                                                              \
            memcpy(to_, from_, 2 * (size));                                                        \
            to_ += 2 * (size);                                                                     \
            from_ += 2 * (size);                                                                   \
        }                                                                                          \
        if ((n)&1) {                                                                               \
            memcpy(to_, from_, (size));                                                            \
        }                                                                                          \
    } while (0)

/* -- all vectors of floats -------------------------------------------------------------------- */

#define SCALAR float
#define MAX LANES_CALL(max_ps)
#define MIN LANES_CALL(min_ps)
#define SQRT LANES_CALL(sqrt_ps)
#define S f32
#define VEC f32x16
#define MVEC i32x16
#define PART f32_part
#define MPART i32_part
#include "lanes_float.h"
#define S f32w
#define VEC f32_part
#define MVEC i32_part
#define PART f32_part
#define MPART i32_part
#include "lanes_float.h"
#undef SCALAR
#undef MAX
#undef MIN
#undef SQRT

#define SCALAR double
#define MAX LANES_CALL(max_pd)
#define MIN LANES_CALL(min_pd)
#define SQRT LANES_CALL(sqrt_pd)
#define S f64
#define VEC f64x16
#define MVEC i64x16
#define PART f64_part
#define MPART i64_part
#include "lanes_float.h"
#define S f64w
#define VEC f64_part
#define MVEC i64_part
#define PART f64_part
#define MPART i64_part
#include "lanes_float.h"
#undef SCALAR
#undef MAX
#undef MIN
#undef SQRT

/* -- folding lanes: i and i + 8, then i and i + 4, ..., always in this order ------------------- */

#define LANES_FOLD(name, type, scalar, EXPR)                                                       \
    LANES_INLINE scalar name(type v)                                                               \
    {                                                                                              \
        scalar lane[LANES];                                                                        \
        memcpy(lane, &v, sizeof(lane));                                                            \
        _Pragma("GCC unroll 4") for (int half = LANES / 2; half > 0; half /= 2)                    \
        {                                                                                          \
            _Pragma("GCC unroll 8") for (int i = 0; i < half; i++)                                 \
            {                                                                                      \
                const scalar a = lane[i], b = lane[i + half];                                      \
                lane[i] = (EXPR);                                                                  \
            }                                                                                      \
        }                                                                                          \
        return lane[0];                                                                            \
    }
LANES_FOLD(hsum_f32, f32x16, float, a + b)
LANES_FOLD(hsum_f64, f64x16, double, a + b)
/* If lanes are NaN, which one wins is unspecified but fixed. */
LANES_FOLD(hmax_f32, f32x16, float, a > b ? a : b)
LANES_FOLD(hmax_f64, f64x16, double, a > b ? a : b)
#undef LANES_FOLD

/* Of 16 lanes in memory. */
#define LANES_FOLD_OF(fold, scalar, name)                                                          \
    LANES_INLINE scalar fold##_of_##name(const scalar *lane)                                       \
    {                                                                                              \
        return fold##_##name(load_##name(lane));                                                   \
    }
LANES_FOLD_OF(hsum, float, f32)
LANES_FOLD_OF(hsum, double, f64)
LANES_FOLD_OF(hmax, float, f32)
LANES_FOLD_OF(hmax, double, f64)
#undef LANES_FOLD_OF

/* -- integers: two's complement in unsigned lanes, where wrapping is defined ------------------- */

#define LANES_WHOLE(S, VEC, size)                                                                  \
    LANES_INLINE VEC load_##S(const void *p)                                                       \
    {                                                                                              \
        VEC v;                                                                                     \
        memcpy(&v, p, sizeof(v));                                                                  \
        return v;                                                                                  \
    }                                                                                              \
    LANES_INLINE void store_##S(void *p, VEC v)                                                    \
    {                                                                                              \
        memcpy(p, &v, sizeof(v));                                                                  \
    }                                                                                              \
    LANES_INLINE VEC load_n_##S(const void *p, int64_t n)                                          \
    {                                                                                              \
        VEC v = {0};                                                                               \
        if (n >= LANES_REGISTER / (size)) {                                                        \
            return load_##S(p);                                                                    \
        }                                                                                          \
        LANES_COPY_N(&v, p, n, LANES_REGISTER / (size), (size));                                   \
        return v;                                                                                  \
    }                                                                                              \
    LANES_INLINE void store_n_##S(void *p, VEC v, int64_t n)                                       \
    {                                                                                              \
        if (n >= LANES_REGISTER / (size)) {                                                        \
            store_##S(p, v);                                                                       \
            return;                                                                                \
        }                                                                                          \
        LANES_COPY_N(p, &v, n, LANES_REGISTER / (size), (size));                                   \
    }
LANES_WHOLE(u64w, u64_part, 8)
LANES_WHOLE(u32w, u32_part, 4)
#undef LANES_WHOLE

/* Integers that are widened to a register of i64: i32, u8 or bool. */
typedef int32_t i32_half __attribute__((vector_size(LANES_REGISTER / 2)));
typedef uint8_t u8_eighth __attribute__((vector_size(LANES_REGISTER / 8)));

LANES_INLINE u64_part widen_i32_u64w(const int32_t *p)
{
    i32_half v;

    memcpy(&v, p, sizeof(v));
    return (u64_part) __builtin_convertvector(v, i64_part);
}

LANES_INLINE u64_part widen_u8_u64w(const uint8_t *p)
{
    u8_eighth v;

    memcpy(&v, p, sizeof(v));
    return __builtin_convertvector(v, u64_part);
}

LANES_INLINE u64_part widen_bool_u64w(const uint8_t *p)
{
    return (u64_part)(widen_u8_u64w(p) != 0) & 1;
}

/* -- bf16: the upper half of an f32 ------------------------------------------------------------ */

LANES_INLINE f32_part widen_bf16w(u16_part h)
{
    return (f32_part)(widen_u16(h) << 16);
}

/* Round to nearest even. A NaN stays a NaN (quiet, with the upper bits of its payload). */
LANES_INLINE u16_part narrow_bf16w(f32_part v)
{
    u32_part bits = (u32_part)v, rounded = bits + 0x7fff + ((bits >> 16) & 1);
#if MSI_ISA == 4 /* the compiler would turn the mask into a vector */
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);

    rounded = (u32_part)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits,
                                             _mm512_set1_epi32(0x400000));
#elif MSI_ISA == 3
    rounded = (u32_part)_mm256_blendv_ps((__m256)rounded, (__m256)(bits | 0x400000),
                                         (__m256)ne_f32w(v, v));
#else
    u32_part nan = (u32_part)ne_f32w(v, v);

    rounded = (rounded & ~nan) | ((bits | 0x400000) & nan);
#endif
    return narrow_u32(rounded >> 16);
}

/* -- f16: binary16 ----------------------------------------------------------------------------- */

/* get_f16() and put_f16() of element.h for lanes. */
LANES_INLINE f32_part widen_f16w(u16_part h)
{
#if MSI_ISA == 4
    return (f32_part)_mm512_cvtph_ps((__m256i)h);
#elif MSI_ISA == 3
    return (f32_part)_mm256_cvtph_ps((__m128i)h);
#else
    const u32_part bits = widen_u16(h), sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
    const u32_part tiny = (u32_part)((f32_part)(rest + 0x38800000) - 0x1p-14f);
    const u32_part is_large = (u32_part)(rest >= 0x0f800000),
                   is_nan = (u32_part)(rest > 0x0f800000);
    const u32_part is_tiny = (u32_part)(rest < 0x00800000);
    const u32_part large = rest | 0x7f800000 | (is_nan & 0x400000);

    return (f32_part)(sign | (is_large & large) | (is_tiny & tiny) |
                      (~(is_large | is_tiny) & (rest + 0x38000000)));
#endif
}

LANES_INLINE u16_part narrow_f16w(f32_part v)
{
#if MSI_ISA == 4
    return (u16_part)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif MSI_ISA == 3
    return (u16_part)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const u32_part bits = (u32_part)v, sign = bits & 0x80000000, rest = bits ^ sign;
    const u32_part tiny = (u32_part)((f32_part)rest + 0.5f) - 0x3f000000;
    const u32_part is_nan = (u32_part)(rest > 0x7f800000);
    const u32_part is_large = (u32_part)(rest >= 0x47800000);
    const u32_part is_tiny = (u32_part)(rest < 0x38800000);
    const u32_part large = 0x7c00 | (is_nan & (0x200 | ((rest >> 13) & 0x3ff)));
    const u32_part normal = (rest + 0xc8000fff + ((rest >> 13) & 1)) >> 13;

    return narrow_u32(sign >> 16 | (is_large & large) | (is_tiny & tiny) |
                      (~(is_large | is_tiny) & normal));
#endif
}

/* -- both: 16 bits in memory, f32 in lanes ----------------------------------------------------- */

#define LANES_NARROW_16(S)                                                                         \
    LANES_INLINE f32x16 widen_##S(u16x16 h)                                                        \
    {                                                                                              \
        f32x16 v;                                                                                  \
        LANES_MAP1(v, f32_part, h, u16_part, widen_##S##w(lx));                                    \
        return v;                                                                                  \
    }                                                                                              \
    LANES_INLINE u16x16 narrow_##S(f32x16 v)                                                       \
    {                                                                                              \
        u16x16 h;                                                                                  \
        LANES_MAP1(h, u16_part, v, f32_part, narrow_##S##w(lx));                                   \
        return h;                                                                                  \
    }
LANES_NARROW_16(bf16)
LANES_NARROW_16(f16)
#undef LANES_NARROW_16

#define LANES_NARROW(S, VEC, HALF, width)                                                          \
    LANES_INLINE VEC load_##S(const uint16_t *p)                                                   \
    {                                                                                              \
        HALF h;                                                                                    \
        memcpy(&h, p, sizeof(h));                                                                  \
        return widen_##S(h);                                                                       \
    }                                                                                              \
    LANES_INLINE void store_##S(uint16_t *p, VEC v)                                                \
    {                                                                                              \
        HALF h = narrow_##S(v);                                                                    \
        memcpy(p, &h, sizeof(h));                                                                  \
    }                                                                                              \
    LANES_INLINE VEC load_n_##S(const uint16_t *p, int64_t n)                                      \
    {                                                                                              \
        HALF h = {0};                                                                              \
        if (n >= (width)) {                                                                        \
            return load_##S(p);                                                                    \
        }                                                                                          \
        LANES_COPY_N(&h, p, n, width, sizeof(uint16_t));                                           \
        return widen_##S(h);                                                                       \
    }                                                                                              \
    LANES_INLINE void store_n_##S(uint16_t *p, VEC v, int64_t n)                                   \
    {                                                                                              \
        HALF h = narrow_##S(v);                                                                    \
        if (n >= (width)) {                                                                        \
            memcpy(p, &h, sizeof(h));                                                              \
            return;                                                                                \
        }                                                                                          \
        LANES_COPY_N(p, &h, n, width, sizeof(uint16_t));                                           \
    }
LANES_NARROW(bf16, f32x16, u16x16, LANES)
LANES_NARROW(bf16w, f32_part, u16_part, LANES_REGISTER / 4)
LANES_NARROW(f16, f32x16, u16x16, LANES)
LANES_NARROW(f16w, f32_part, u16_part, LANES_REGISTER / 4)
#undef LANES_NARROW

#include "lanes_math.h"

#endif
