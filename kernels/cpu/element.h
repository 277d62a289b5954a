/* Single elements of any dtype, for loops that the compiler vectorises. c_<dtype> is the type in
 * memory, GET widens to the compute type, PUT rounds back, ADD adds in the destination's
 * arithmetic. */
#ifndef MSI_ELEMENT_H
#define MSI_ELEMENT_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float get_bf16(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

static inline uint16_t put_bf16(float x)
{
    const uint32_t bits = bits_of_float(x), upper = bits >> 16;

    return (uint16_t)(x != x ? upper | 0x40 : (bits + 0x7fff + (upper & 1)) >> 16);
}

/* f16 is IEEE 754's binary16. All three ranges are computed and one is selected, so that loops can
 * be vectorised. A NaN stays a NaN (quiet, with the upper bits of its payload), as with the
 * processor's own instructions. */
static inline float get_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    const uint32_t normal = rest + 0x38000000; /* 127 - 15 */
    const uint32_t tiny = bits_of_float(float_of_bits(rest + 0x38800000) - 0x1p-14f);
    const uint32_t large = rest | 0x7f800000 | (rest > 0x0f800000 ? 0x400000 : 0);

    return float_of_bits(sign | (rest >= 0x0f800000 ? large : rest < 0x00800000 ? tiny : normal));
}

static inline uint16_t put_f16(float x)
{
    const uint32_t bits = bits_of_float(x), sign = bits & 0x80000000, rest = bits ^ sign;
    const uint32_t normal = (rest + 0xc8000fff + ((rest >> 13) & 1)) >> 13;
    const uint32_t tiny = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000;
    const uint32_t large = rest > 0x7f800000 ? 0x7e00 | ((rest >> 13) & 0x3ff) : 0x7c00;

    return (uint16_t)(sign >> 16 | (rest >= 0x47800000  ? large
                                    : rest < 0x38800000 ? tiny
                                                        : normal));
}

/* Convert to i64: truncated, 0 for NaN, saturated outside the range. (A C conversion that overflows
 * is undefined.) */
static inline int64_t whole_f64(double x)
{
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

static inline int64_t whole_i64(int64_t x)
{
    return x;
}

#define WHOLE(x) _Generic((x), float : whole_f64, double : whole_f64, default : whole_i64)(x)

#define GET_f32(x) (x)
#define GET_f64(x) (x)
#define GET_bf16(x) get_bf16(x)
#define GET_f16(x) get_f16(x)
#define GET_i64(x) (x)
#define GET_i32(x) ((int64_t)(x))
#define GET_u8(x) (x)
#define GET_bool(x) ((x) != 0)

#define PUT_f32(x) ((float)(x))
#define PUT_f64(x) ((double)(x))
#define PUT_bf16(x) put_bf16((float)(x))
#define PUT_f16(x) put_f16((float)(x))
#define PUT_i64(x) WHOLE(x)
#define PUT_i32(x) ((int32_t)WHOLE(x))
#define PUT_u8(x) ((uint8_t)WHOLE(x))
#define PUT_bool(x) ((uint8_t)((x) != 0))

/* old + x in the destination's arithmetic; integers wrap, bool is "or". */
#define ADD_f32(old, x) ((old) + (float)(x))
#define ADD_f64(old, x) ((old) + (double)(x))
#define ADD_bf16(old, x) put_bf16(get_bf16(old) + (float)(x))
#define ADD_f16(old, x) put_f16(get_f16(old) + (float)(x))
#define ADD_i64(old, x) ((int64_t)((uint64_t)(old) + (uint64_t)WHOLE(x)))
#define ADD_i32(old, x) ((int32_t)((uint32_t)(old) + (uint32_t)WHOLE(x)))
#define ADD_u8(old, x) ((uint8_t)((old) + (uint8_t)WHOLE(x)))
#define ADD_bool(old, x) ((uint8_t)(((old) | ((x) != 0)) != 0))

typedef float c_f32;
typedef double c_f64;
typedef uint16_t c_bf16;
typedef uint16_t c_f16;
typedef int64_t c_i64;
typedef int32_t c_i32;
typedef uint8_t c_u8;
typedef uint8_t c_bool;

#endif
