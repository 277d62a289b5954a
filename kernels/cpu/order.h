/* Maps elements to signed integers of the same order, so that comparisons are exact, vectorised,
 * and equal on every instruction set. -0 is below 0. NaN is the largest key in both directions. */
#ifndef MSI_KERNEL_ORDER_H
#define MSI_KERNEL_ORDER_H

#include "element.h"

#include <stdbool.h>

typedef int32_t o_f32, o_bf16, o_f16, o_i32, o_u8, o_bool;
typedef int64_t o_f64, o_i64;

/* `flip` is 0, or -1 to reverse the order of everything except NaN. Without branches, so that loops
 * can be vectorised. */
static inline int32_t order_f32(float x, int32_t flip)
{
    const int32_t bits = (int32_t)bits_of_float(x);
    const int32_t key = bits ^ ((bits >> 31) & INT32_MAX) ^ flip;

    const int32_t nan = (0x7f800000 - (bits & INT32_MAX)) >> 31; /* all bits, or 0 */

    return key ^ ((key ^ INT32_MAX) & nan);
}

static inline int64_t order_f64(double x, int64_t flip)
{
    int64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    const int64_t key = bits ^ ((bits >> 63) & INT64_MAX) ^ flip;

    const int64_t nan = (0x7ff0000000000000 - (bits & INT64_MAX)) >> 63;

    return key ^ ((key ^ INT64_MAX) & nan);
}

/* The number of a key; INT32_MAX is NaN, also with `flip`. */
static inline float number_f32(int32_t key, int32_t flip)
{
    const int32_t bits = key == INT32_MAX ? key : key ^ flip;

    return float_of_bits((uint32_t)(bits ^ ((bits >> 31) & INT32_MAX)));
}

static inline double number_f64(int64_t key, int64_t flip)
{
    int64_t bits = key == INT64_MAX ? key : key ^ flip;
    double x;

    bits ^= (bits >> 63) & INT64_MAX;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The key of an element. ORDER_SAME: 0 and -0 have the same key. */
#define ORDER_f32(x, flip) order_f32(x, flip)
#define ORDER_f64(x, flip) order_f64(x, flip)
#define ORDER_bf16(x, flip) order_f32(get_bf16(x), flip)
#define ORDER_f16(x, flip) order_f32(get_f16(x), flip)
#define ORDER_i64(x, flip) ((x) ^ (flip))
#define ORDER_i32(x, flip) ((x) ^ (flip))
#define ORDER_u8(x, flip) ((int32_t)(x) ^ (flip))
#define ORDER_truth(x, flip) ((int32_t)((x) != 0) ^ (flip))

#define ORDER_SAME_f32(x, flip) order_f32((x) + 0.0f, flip)
#define ORDER_SAME_f64(x, flip) order_f64((x) + 0.0, flip)
#define ORDER_SAME_bf16(x, flip) order_f32(get_bf16(x) + 0.0f, flip)
#define ORDER_SAME_f16(x, flip) order_f32(get_f16(x) + 0.0f, flip)
#define ORDER_SAME_i64 ORDER_i64
#define ORDER_SAME_i32 ORDER_i32
#define ORDER_SAME_u8 ORDER_u8
#define ORDER_SAME_truth ORDER_truth

#define NUMBER_f32(key, flip) number_f32(key, flip)
#define NUMBER_f64(key, flip) number_f64(key, flip)
#define NUMBER_bf16(key, flip) put_bf16(number_f32(key, flip))
#define NUMBER_f16(key, flip) put_f16(number_f32(key, flip))
#define NUMBER_i64(key, flip) ((key) ^ (flip))
#define NUMBER_i32(key, flip) ((key) ^ (flip))
#define NUMBER_u8(key, flip) ((uint8_t)((key) ^ (flip)))
#define NUMBER_truth(key, flip) ((uint8_t)((key) ^ (flip)))

typedef c_bool c_truth; /* `bool` is a macro */
typedef o_bool o_truth;

/* X(dtype) for every dtype. */
#define ORDER_ALL(X) X(f32) X(f64) X(bf16) X(f16) X(i64) X(i32) X(u8) X(truth)
#define ORDER_LEAST(type) ((type)(sizeof(type) == 4 ? INT32_MIN : INT64_MIN))

#endif
