/* For the kernels of this folder: element types, sums over a block, launching, Philox.
 *
 * A kernel file defines `msi_cuda_<kernel>_<dtype>(stream, args)` for each dtype it has; table.c
 * collects them. Sums have a fixed order that depends on shapes only: no floating-point atomics. A
 * block is a multiple of 32 threads. */
#ifndef MS_CUDA_KERNEL_H
#define MS_CUDA_KERNEL_H

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "cudasim.h"
#endif

#include "kernels.h"
#include "moonshard/tensor.h"

#include <math.h>

#ifdef __CUDACC__
#define MS_UNROLL _Pragma("unroll")
#define MS_ROLLED _Pragma("unroll 1")
#else
#define MS_UNROLL
#define MS_ROLLED
#endif

/* -- element types ----------------------------------------------------------------------------- */

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct truth { /* bool */
    uint8_t bits;
};

/* What elements are computed in. */
template <class T> struct compute {
    typedef T type;
};
template <> struct compute<bf16> {
    typedef float type;
};
template <> struct compute<f16> {
    typedef float type;
};
template <> struct compute<int32_t> {
    typedef int64_t type;
};
template <> struct compute<uint8_t> {
    typedef int64_t type;
};
template <> struct compute<truth> {
    typedef int64_t type;
};
#define REAL(T) typename compute<T>::type

/* Where results of two's complement are defined. */
template <class R> struct wrapping {
    typedef R type;
};
template <> struct wrapping<int64_t> {
    typedef uint64_t type;
};

template <class T> struct dtype_of;
template <> struct dtype_of<float> {
    enum { value = MS_DTYPE_F32 };
};
template <> struct dtype_of<double> {
    enum { value = MS_DTYPE_F64 };
};
template <> struct dtype_of<bf16> {
    enum { value = MS_DTYPE_BF16 };
};
template <> struct dtype_of<f16> {
    enum { value = MS_DTYPE_F16 };
};

static __host__ __device__ inline float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static __host__ __device__ inline uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static __host__ __device__ inline float get(float x)
{
    return x;
}
static __host__ __device__ inline double get(double x)
{
    return x;
}
static __host__ __device__ inline float get(bf16 x)
{
    return float_of_bits((uint32_t)x.bits << 16);
}
static __host__ __device__ inline float get(f16 x)
{
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(x.bits));
#else
    _Float16 h;

    memcpy(&h, &x, sizeof(h));
    return (float)h;
#endif
}
static __host__ __device__ inline int64_t get(int64_t x)
{
    return x;
}
static __host__ __device__ inline int64_t get(int32_t x)
{
    return x;
}
static __host__ __device__ inline int64_t get(uint8_t x)
{
    return x;
}
static __host__ __device__ inline int64_t get(truth x)
{
    return x.bits != 0;
}

/* Any number as an i64: truncated, NaN is 0, beyond the range the nearest. */
static __host__ __device__ inline int64_t whole(double x)
{
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}
static __host__ __device__ inline int64_t whole(float x)
{
    return whole((double)x);
}
static __host__ __device__ inline int64_t whole(int64_t x)
{
    return x;
}

template <class T> struct element {
    template <class X> static __host__ __device__ inline T put(X x)
    {
        return (T)x;
    }
};
template <> struct element<bf16> {
    template <class X> static __host__ __device__ inline bf16 put(X wide)
    {
        const float x = (float)wide;
#ifdef __CUDACC__
        return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#endif
        const uint32_t bits = bits_of_float(x), upper = bits >> 16;

        return bf16{(uint16_t)(x != x ? upper | 0x40 : (bits + 0x7fff + (upper & 1)) >> 16)};
    }
};
template <> struct element<f16> {
    template <class X> static __host__ __device__ inline f16 put(X wide)
    {
#ifdef __CUDACC__
        return f16{__half_as_ushort(__float2half_rn((float)wide))};
#else
        const _Float16 h = (_Float16)(float)wide;
        f16 x;

        memcpy(&x, &h, sizeof(x));
        return x;
#endif
    }
};
template <> struct element<int64_t> {
    template <class X> static __host__ __device__ inline int64_t put(X x)
    {
        return whole(x);
    }
};
template <> struct element<int32_t> {
    template <class X> static __host__ __device__ inline int32_t put(X x)
    {
        return (int32_t)whole(x);
    }
};
template <> struct element<uint8_t> {
    template <class X> static __host__ __device__ inline uint8_t put(X x)
    {
        return (uint8_t)whole(x);
    }
};
template <> struct element<truth> {
    template <class X> static __host__ __device__ inline truth put(X x)
    {
        return truth{(uint8_t)(x != 0)};
    }
};

/* `old` + x in the destination's arithmetic; integers wrap, bool is "or". A product x is rounded
 * first: fused, it would have other bits in some of the kernels that compute it. */
template <class T, class X> static __device__ inline T add_to(T old, X x)
{
    return element<T>::put((int64_t)((uint64_t)get(old) + (uint64_t)whole(x)));
}
template <class X> static __device__ inline float add_to(float old, X x)
{
    return __fadd_rn(old, (float)x);
}
template <class X> static __device__ inline double add_to(double old, X x)
{
    return __dadd_rn(old, (double)x);
}
template <class X> static __device__ inline bf16 add_to(bf16 old, X x)
{
    return element<bf16>::put(__fadd_rn(get(old), (float)x));
}
template <class X> static __device__ inline f16 add_to(f16 old, X x)
{
    return element<f16>::put(__fadd_rn(get(old), (float)x));
}
template <class X> static __device__ inline truth add_to(truth old, X x)
{
    return truth{(uint8_t)(old.bits != 0 || x != 0)};
}

/* to = x, or to += x. */
template <class T, class X> static __device__ inline void store(T *to, X x, bool accumulate)
{
    *to = accumulate ? add_to(*to, x) : element<T>::put(x);
}

/* -- functions --------------------------------------------------------------------------------- */

/* The C library's function of either type. */
#define OF_BOTH(name, fn)                                                                          \
    static __device__ inline float name(float x)                                                   \
    {                                                                                              \
        return fn##f(x);                                                                           \
    }                                                                                              \
    static __device__ inline double name(double x)                                                 \
    {                                                                                              \
        return fn(x);                                                                              \
    }
OF_BOTH(exp_of, exp)
OF_BOTH(expm1_of, expm1)
OF_BOTH(log_of, log)
OF_BOTH(log1p_of, log1p)
OF_BOTH(sin_of, sin)
OF_BOTH(cos_of, cos)
OF_BOTH(tanh_of, tanh)
OF_BOTH(erf_of, erf)
OF_BOTH(erfc_of, erfc)
OF_BOTH(abs_of, fabs)
OF_BOTH(root_of, sqrt)
#undef OF_BOTH

/* -- groups of 16 bytes ------------------------------------------------------------------------ */

/* Neighbouring elements that a thread loads and stores at once. */
template <class T> struct alignas(16) group {
    enum { N = 16 / sizeof(T) };
    T at[N];
};
#define EACH(T) (int64_t) group<T>::N

/* Elements [j, j + EACH) of a row of n. `whole`: addresses and n are multiples of a group; else
 * what lies behind the end is 0. */
template <class T>
static __device__ inline group<T> load_group(const T *x, int64_t j, int64_t n, bool whole)
{
    group<T> g;

    if (whole) {
        return *(const group<T> *)(x + j);
    }
    MS_UNROLL
    for (int e = 0; e < EACH(T); e++) {
        g.at[e] = j + e < n ? x[j + e] : T();
    }
    return g;
}

template <class T>
static __device__ inline void store_group(T *x, int64_t j, int64_t n, bool whole, const group<T> &g)
{
    if (whole) {
        *(group<T> *)(x + j) = g;
        return;
    }
    MS_UNROLL
    for (int e = 0; e < EACH(T); e++) {
        if (j + e < n) {
            x[j + e] = g.at[e];
        }
    }
}

/* Is every address a multiple of 16? */
template <class... P> static inline bool at_16(P... x)
{
    uintptr_t all = 0;

    for (const void *p : {(const void *)x...}) {
        all |= (uintptr_t)p;
    }
    return all % 16 == 0;
}

/* -- loops ------------------------------------------------------------------------------------- */

static __host__ __device__ inline int64_t loop_count(const msi_loop &loop)
{
    int64_t n = 1;

    for (int32_t d = 0; d < loop.ndim; d++) {
        n *= loop.shape[d];
    }
    return n;
}

/* Are the first n_operands operands without gaps? */
static inline bool loop_dense(const msi_loop &loop, int32_t n_operands)
{
    bool dense = loop.ndim == 1;

    for (int32_t k = 0; dense && k < n_operands; k++) {
        dense = loop.stride[k][0] == 1;
    }
    return dense;
}

/* Offset of operand k at row-major position i. */
static __host__ __device__ inline int64_t loop_offset(const msi_loop &loop, int32_t k, int64_t i)
{
    int64_t offset = 0;

    for (int32_t d = loop.ndim - 1; d > 0; d--) {
        offset += i % loop.shape[d] * loop.stride[k][d];
        i /= loop.shape[d];
    }
    return loop.ndim > 0 ? offset + i * loop.stride[k][0] : 0;
}

/* Element i of n, each handled by one thread of the grid. */
#define MS_EACH(i, n)                                                                              \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

/* -- sums over a block ------------------------------------------------------------------------- */

struct fold_sum {
    template <class R> static __device__ inline R of(R a, R b)
    {
        return a + b;
    }
};
struct fold_max { /* passes over NaN */
    template <class R> static __device__ inline R of(R a, R b)
    {
        return b > a || a != a ? b : a;
    }
};
struct fold_min {
    template <class R> static __device__ inline R of(R a, R b)
    {
        return b < a || a != a ? b : a;
    }
};

/* Over all threads of a block of one dimension; every thread gets the result. */
template <class F, class R> static __device__ inline R block_fold(R x, R neutral)
{
    __shared__ R parts[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockDim.x / 32;

    for (unsigned by = 16; by > 0; by /= 2) {
        x = F::of(x, __shfl_xor_sync(0xffffffffu, x, by));
    }
    if (n == 1) {
        return x;
    }
    __syncthreads(); /* `parts` of the fold before has been read */
    if (lane == 0) {
        parts[warp] = x;
    }
    __syncthreads();
    x = lane < n ? parts[lane] : neutral;
    for (unsigned by = 16; by > 0; by /= 2) {
        x = F::of(x, __shfl_xor_sync(0xffffffffu, x, by));
    }
    return x;
}

template <class R> static __device__ inline R block_sum(R x)
{
    return block_fold<fold_sum, R>(x, 0);
}

/* -- launching --------------------------------------------------------------------------------- */

static const int64_t MS_THREADS = 256, MS_RESIDENT = 2048; /* a block's; a processor's */

/* Of the device, set when it opens. */
extern "C" int32_t msi_cuda_processors;

/* Blocks for n elements, or groups of them, one a thread: as many as the device runs at a time. */
static inline unsigned ms_grid(int64_t n)
{
    const int64_t blocks = (n + MS_THREADS - 1) / MS_THREADS;
    const int64_t most = msi_cuda_processors * (MS_RESIDENT / MS_THREADS);

    return (unsigned)(blocks < most ? blocks : most);
}

/* Blocks for n rows, one a block. */
static inline unsigned ms_blocks(int64_t n)
{
    return (unsigned)(n < 65536 ? n : 65536);
}

/* Threads for a row of so many elements, or groups of them. */
static inline unsigned ms_row_threads(int64_t cols)
{
    return cols <= 512 ? 32 : cols <= 2048 ? 128 : 256;
}

template <class... P, class... A>
static cudaError_t ms_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                             cudaStream_t stream, A... args)
{
    if (grid.x == 0 || grid.y == 0) {
        return cudaSuccess;
    }
#ifdef __CUDACC__
    if (shared > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);

        if (e != cudaSuccess) {
            return e;
        }
    }
    kernel<<<grid, block, shared, stream>>>(args...);
    return cudaGetLastError();
#else
    return cudasim::launch(grid, block, shared, stream, [=] { kernel(args...); });
#endif
}

/* Dynamic shared memory. */
#ifdef __CUDACC__
extern __shared__ __align__(16) char ms_shared_bytes[];
#define MS_SHARED(T) ((T *)ms_shared_bytes)
#else
#define MS_SHARED(T) ((T *)cudasim::here.shared)
#endif

/* The function of a kernel for one dtype. */
#define MS_ENTRY(kernel, dtype)                                                                    \
    extern "C" cudaError_t msi_cuda_##kernel##_##dtype(cudaStream_t stream, const void *args)

/* X(op, dtype, type) */
#define MS_FLOATS(X, op) X(op, f32, float) X(op, f64, double) X(op, bf16, bf16) X(op, f16, f16)
#define MS_ALL_DTYPES(X, op)                                                                       \
    MS_FLOATS(X, op)                                                                               \
    X(op, i64, int64_t) X(op, i32, int32_t) X(op, u8, uint8_t) X(op, bool, truth)

/* -- Philox4x32-10, as kernels/cpu/philox.h ---------------------------------------------------- */

static __host__ __device__ inline uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static __host__ __device__ inline uint64_t philox_key(uint64_t a, uint64_t b, uint64_t c)
{
    return mix64(mix64(mix64(a) ^ b) ^ c);
}

static __device__ inline void philox(uint32_t word[4], uint64_t low, uint64_t high, uint64_t key)
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53 * c0, p1 = (uint64_t)0xcd9e8d57 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* A word below it drops its element; p * 2^32, rounded up. */
static inline uint64_t drop_threshold(double p)
{
    return (uint64_t)ceil(p * 0x1p32);
}

/* -- invalid indices --------------------------------------------------------------------------- */

static __device__ inline bool is_inside(int64_t index, int64_t end)
{
    return (uint64_t)index < (uint64_t)end;
}

static __device__ inline void fault_found(msi_fault *fault, int32_t kernel, int64_t index,
                                          int64_t position, int64_t n, int64_t end)
{
    if (fault->found == 0) {
        fault->found = 1;
        fault->kernel = kernel;
        fault->index = index;
        fault->position = position;
        fault->n = n;
        fault->end = end;
    }
}

#endif
