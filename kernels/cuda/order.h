/* Elements as signed integers of the same order. -0 is below 0; NaN is the largest key in both
 * directions. */
#ifndef MS_CUDA_ORDER_H
#define MS_CUDA_ORDER_H

#include "cuda_kernel.h"

/* flip: 0, or -1 to reverse the order of all but NaN. */
static __device__ inline int64_t order_key(double x, int64_t flip)
{
    int64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return x != x ? INT64_MAX : bits ^ ((bits >> 63) & INT64_MAX) ^ flip;
}
static __device__ inline int64_t order_key(float x, int64_t flip)
{
    return order_key((double)x, flip);
}
static __device__ inline int64_t order_key(int64_t x, int64_t flip)
{
    return x ^ flip;
}

/* 0 and -0 are one. */
static __device__ inline double same_zero(double x)
{
    return x + 0.0;
}
static __device__ inline float same_zero(float x)
{
    return x + 0.0f;
}
static __device__ inline int64_t same_zero(int64_t x)
{
    return x;
}

#endif
