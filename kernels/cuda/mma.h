/* Tensor-core instructions of sm_80 and later: D (16, 8) += A (16, 16) B (16, 8) of bf16 or f16 by
 * a warp, and loads of its operands. Thread l holds, with g = l / 4 and c = 2 (l % 4), the
 * neighbours
 *
 *   A  (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)
 *   B  (c, g), (c + 8, g), neighbours in a column
 *   D  (g, c), (g + 8, c) */
#ifndef MS_CUDA_MMA_H
#define MS_CUDA_MMA_H

#include "cuda_kernel.h"

/* Two numbers of type T as one word. */
template <class T> static __device__ inline uint32_t pack(float low, float high)
{
    return (uint32_t)element<T>::put(low).bits | (uint32_t)element<T>::put(high).bits << 16;
}

#ifdef __CUDACC__

template <> __device__ inline uint32_t pack<bf16>(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <> __device__ inline uint32_t pack<f16>(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#define MS_MMA(type)                                                                               \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                            \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <class T>
static __device__ inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
template <> __device__ inline void mma<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    MS_MMA("bf16");
}
template <> __device__ inline void mma<f16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    MS_MMA("f16");
}
#undef MS_MMA

/* Four 8 x 8 matrices from shared memory; thread l has the address of row l % 8 of matrix l / 8.
 * Each thread gets (g, c) and its neighbour of each; if TRANSPOSED, of each transposed. */
template <bool TRANSPOSED>
static __device__ inline void load_matrices(uint32_t x[4], const void *at)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(at);

    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    }
}

/* 16 bytes into shared memory, zeros unless `inside`, when `from` may be any address; there after
 * copies_wait(). */
static __device__ inline void copy_16(void *to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

/* 2^x within 2 units of the last place; 0 below 2^-126. One instruction, exp2f() is four. */
static __device__ inline float exp2_of(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* This thread's copies have been done. */
static __device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#else

template <class T> static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    cudasim::mma<T>(d, a, b, [](T x) { return get(x); });
}

template <bool TRANSPOSED> static inline void load_matrices(uint32_t x[4], const void *at)
{
    cudasim::load_matrices(x, at, TRANSPOSED);
}

static inline void copy_16(void *to, const void *from, bool inside)
{
    if (inside) {
        memcpy(to, from, 16);
    } else {
        memset(to, 0, 16);
    }
}

static inline float exp2_of(float x)
{
    return exp2f(x);
}

static inline void copies_wait()
{
}

#endif
#endif
