/* What the attention kernels share: which keys a query sees, its scores, dropout. */
#ifndef MS_CUDA_ATTENTION_H
#define MS_CUDA_ATTENTION_H

#include "cuda_kernel.h"

#include <float.h>

template <class R> static __device__ inline R lowest();
template <> __device__ inline float lowest<float>()
{
    return -FLT_MAX; /* not -inf: a score of -inf has the probability 0 beside it */
}
template <> __device__ inline double lowest<double>()
{
    return -DBL_MAX;
}

/* What a block works on. */
struct head {
    int64_t b, h, kv;
};

template <class T>
static __device__ inline T *at(const void *x, const int64_t *stride, int64_t b, int64_t h,
                               int64_t t)
{
    return (T *)x + b * stride[0] + h * stride[1] + t * stride[2];
}

/* The weight of a key that a query does not see: -0, and what it multiplies counts for nothing, NaN
 * included. A weight that dropout or rounding made zero is +0. */
template <class R> static __device__ inline R hidden()
{
    return -(R)0;
}

template <class R> static __device__ inline R times(R weight, R x)
{
    return weight == 0 && signbit(weight) ? weight : weight * x;
}

static __device__ inline bool sees(const msi_attention_args &a, int64_t t, int64_t s)
{
    return t < a.q_len && s < a.kv_len && (!a.causal || s <= t);
}

/* The score of query t and key s, which it sees, from the product of the two. */
template <class R>
static __device__ inline R score(const msi_attention_args &a, const head &w, int64_t t, int64_t s,
                                 R product)
{
    const R x = product * (R)a.scale;

    if (a.mask == NULL) {
        return x;
    }
    const int64_t i = w.b * a.mask_stride[0] + w.h * a.mask_stride[1] + t * a.mask_stride[2] +
                      s * a.mask_stride[3];

    return a.mask_is_bool ? (((const uint8_t *)a.mask)[i] != 0 ? x : -(R)INFINITY)
                          : x + ((const R *)a.mask)[i];
}

struct dropper {
    uint64_t threshold, key; /* threshold 0: no dropout */
    double factor;
};

/* What dropout multiplies the probability of (t, s) by. */
template <class R>
static __device__ inline R kept(const msi_attention_args &a, const dropper &drop, const head &w,
                                int64_t t, int64_t s)
{
    uint32_t word[4];

    if (drop.threshold == 0) {
        return 1;
    }
    const int64_t e = (w.h * a.q_len + t) * a.kv_len + s;

    philox(word, (uint64_t)(e / 4), (uint64_t)(a.sample_base + w.b), drop.key);
    const uint32_t mine =
        e % 4 < 2 ? (e % 2 == 0 ? word[0] : word[1]) : (e % 2 == 0 ? word[2] : word[3]);

    return mine >= drop.threshold ? (R)drop.factor : (R)0;
}

static __device__ inline head head_of(const msi_attention_args &a, int64_t i)
{
    head w = {i / a.heads, i % a.heads, 0};

    w.kv = w.h / (a.heads / a.kv_heads);
    return w;
}

static dropper dropper_of(const msi_attention_args *a)
{
    dropper d = {0, 0, 0};

    if (a->dropout_p > 0) {
        d.threshold = drop_threshold(a->dropout_p);
        d.key = philox_key(a->seed, a->site, (uint64_t)a->call);
        d.factor = a->dropout_p < 1 ? 1 / (1 - a->dropout_p) : 0;
    }
    return d;
}

/* -- attention_mma.cu ---------------------------------------------------------------------------
 */

enum { MMA_DEPTH = 128 }; /* the most head dimensions it takes */

/* Attention of bf16 or f16 on tensor cores; and dq, dk, dv, from the products of out and dout in
 * `work`. */
extern "C" cudaError_t msi_cuda_attention_mma(cudaStream_t stream, int32_t dtype,
                                              const msi_attention_args *a);
extern "C" cudaError_t msi_cuda_attention_mma_grad(cudaStream_t stream, int32_t dtype,
                                                   const msi_attention_args *a);

#endif
