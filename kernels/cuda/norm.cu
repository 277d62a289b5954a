/* Sum of powers (in f64) or largest magnitude per block of elements, the fold of the results, and
 * the scaling of many tensors by the factor that clips.
 * Squares and other powers add in the CPU kernel's order (kernels/cpu/norm.c), as the host sums
 * blocks that a shard boundary cuts. NaN propagates, except with order 0. */
#include "cuda_kernel.h"

static __device__ inline double power(double a, double order)
{
    if (order == 0) {
        return a != 0;
    }
    if (order > 64 || order != floor(order)) {
        return pow(a, order);
    }
    double product = a;

    for (int64_t i = 1; i < (int64_t)order; i++) {
        product = __dmul_rn(product, a);
    }
    return product;
}

/* Lane l adds elements l, l + 32, ...; then lanes l and l + 16 are added, l and l + 8, ... */
template <class T> static __device__ inline double squares(const T *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = threadIdx.x; i < n; i += 32) {
        const double v = (double)get(x[i]);

        sum = __dadd_rn(sum, __dmul_rn(v, v));
    }
    for (unsigned by = 16; by > 0; by /= 2) {
        sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, by));
    }
    return sum;
}

template <class T> static __device__ inline double magnitude(const T *x, int64_t n)
{
    double most = 0, bad = 0;

    for (int64_t i = threadIdx.x; i < n; i += 32) {
        const double v = fabs((double)get(x[i]));

        most = v > most ? v : most;
        bad = v != v ? 1 : bad;
    }
    most = block_fold<fold_max>(most, 0.0);
    return block_sum(bad) > 0 ? (double)NAN : most;
}

template <class T> static __device__ inline double powers(const T *x, int64_t n, double order)
{
    double total = 0;

    for (int64_t i = 0; threadIdx.x == 0 && i < n; i++) {
        total = __dadd_rn(total, power(fabs((double)get(x[i])), order));
    }
    return total;
}

template <class T> static __device__ inline double block_norm(const T *x, int64_t n, double order)
{
    return order == 2 ? squares(x, n) : order == HUGE_VAL ? magnitude(x, n) : powers(x, n, order);
}

/* The blocks of n tensors, those of tensor k up to end[k]. */
struct norms {
    msi_norm_args of[MSI_RUN_ALL];
    int64_t end[MSI_RUN_ALL];
    int32_t n;
};

/* A warp a block of elements. */
template <class T> static __global__ void norm_kernel(const __grid_constant__ norms all)
{
    for (int64_t c = blockIdx.x; c < all.end[all.n - 1]; c += gridDim.x) {
        int32_t k = 0;

        while (c >= all.end[k]) {
            k++;
        }
        const msi_norm_args &a = all.of[k];
        const int64_t b = k > 0 ? c - all.end[k - 1] : c;
        const int64_t left = a.n - b * a.block, n = left < a.block ? left : a.block;
        const double y = block_norm((const T *)a.x + b * a.block, n, a.order);

        if (threadIdx.x == 0) {
            a.out[b] = y;
        }
    }
}

/* A warp a block, which it puts together first. */
template <class T> static __global__ void norm_cut_kernel(const msi_norm_cut_args a)
{
    __shared__ T block[MSI_NORM_BLOCK];

    for (int64_t k = blockIdx.x; k < a.n; k += gridDim.x) {
        int64_t n = 0;

        __syncthreads(); /* the block before has been read */
        for (int64_t i = a.first[k]; i < a.first[k + 1]; i++) {
            const msi_norm_piece p = a.pieces[i];

            for (int64_t e = threadIdx.x; e < p.n; e += 32) {
                block[n + e] = ((const T *)a.in)[p.from + e];
            }
            n += p.n;
        }
        __syncthreads();
        const double y = block_norm((const T *)block, n, a.order);

        if (threadIdx.x == 0) {
            a.out[k] = y;
        }
    }
}

template <class T> static cudaError_t norm_cut(cudaStream_t stream, const void *args)
{
    const msi_norm_cut_args *a = (const msi_norm_cut_args *)args;

    return ms_launch(norm_cut_kernel<T>, (unsigned)(a->n < 65536 ? a->n : 65536), 32, 0, stream,
                     *a);
}

/* The sum has the order of the host's, which folds the blocks of several ranks: one thread adds,
 * and the others fetch what it adds next. */
enum { FOLD_THREADS = 256, FOLD_EACH = 4, FOLD = FOLD_THREADS * FOLD_EACH };

static __device__ inline void fetch(double *to, const msi_norm_fold_args &a, int64_t first)
{
    MS_UNROLL
    for (int e = 0; e < FOLD_EACH; e++) {
        const int64_t i = e * FOLD_THREADS + threadIdx.x;

        to[i] = first + i < a.n ? a.blocks[first + i] : 0;
    }
}

static __device__ inline double fold(double total, const double *blocks, int64_t n, double order)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = blocks[i];

        if (order == 0) {
            total += x != 0;
        } else if (order != HUGE_VAL) {
            total += x;
        } else if (x > total || x != x) {
            total = x;
        }
    }
    return total;
}

static __global__ void norm_fold_kernel(const msi_norm_fold_args a)
{
    __shared__ double fetched[2][FOLD];
    double total = 0;

    fetch(fetched[0], a, 0);
    for (int64_t first = 0, k = 0; first < a.n; first += FOLD, k = 1 - k) {
        const int64_t left = a.n - first;

        __syncthreads(); /* fetched[k] is there, and the other half was added */
        fetch(fetched[1 - k], a, first + FOLD);
        if (threadIdx.x == 0) {
            total = fold(total, fetched[k], left < FOLD ? left : (int64_t)FOLD, a.order);
        }
    }
    if (threadIdx.x == 0) {
        const double norm = a.order == 0 || a.order == 1 || a.order == HUGE_VAL ? total
                            : a.order == 2                                      ? sqrt(total)
                                           : pow(total, 1 / a.order);
        const double coefficient = a.max_norm / (norm + 1e-6);

        *a.norm = norm;
        *a.coefficient = coefficient > 1 ? 1 : coefficient;
    }
}

/* Arguments `stride` bytes apart. */
template <class T>
static cudaError_t norm(cudaStream_t stream, const void *args, int64_t stride, int32_t n)
{
    norms all = {};
    int64_t blocks = 0;

    for (all.n = 0; all.n < n; all.n++) {
        const msi_norm_args *a = (const msi_norm_args *)((const char *)args + all.n * stride);

        all.of[all.n] = *a;
        blocks += (a->n + a->block - 1) / a->block;
        all.end[all.n] = blocks;
    }
    return ms_launch(norm_kernel<T>, (unsigned)(blocks < 65536 ? blocks : 65536), 32, 0, stream,
                     all);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args, 0, 1);                                                       \
    }
MS_FLOATS(ENTER, norm)
#undef ENTER

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, norm_cut)

MS_ENTRY(norm_fold, f64)
{
    return ms_launch(norm_fold_kernel, 1, FOLD_THREADS, 0, stream,
                     *(const msi_norm_fold_args *)args);
}

/* -- clipping many tensors --------------------------------------------------------------------- */

enum { CHUNK = 4096 };

/* x[k] of n elements times *factor, in place; chunks of tensor k up to end[k]. */
struct scaled {
    void *x[MSI_RUN_ALL];
    int64_t n_of[MSI_RUN_ALL], end[MSI_RUN_ALL];
    const double *factor;
    int32_t n;
};

template <class T> static __global__ void scale_kernel(const __grid_constant__ scaled all)
{
    typedef REAL(T) R;
    const R factor = element<R>::put(*all.factor);

    for (int64_t c = blockIdx.x; c < all.end[all.n - 1]; c += gridDim.x) {
        int32_t k = 0;

        while (c >= all.end[k]) {
            k++;
        }
        T *x = (T *)all.x[k];
        const int64_t first = (k > 0 ? c - all.end[k - 1] : c) * CHUNK;
        const int64_t end = first + CHUNK < all.n_of[k] ? first + CHUNK : all.n_of[k];

        for (int64_t j = first + threadIdx.x * EACH(T); j < end; j += blockDim.x * EACH(T)) {
            const bool whole = (uintptr_t)x % 16 == 0 && j + EACH(T) <= end;
            group<T> g = load_group((const T *)x, j, end, whole);

            MS_UNROLL
            for (int e = 0; e < EACH(T); e++) {
                g.at[e] = element<T>::put(get(g.at[e]) * factor);
            }
            store_group(x, j, end, whole, g);
        }
    }
}

template <class T>
static cudaError_t scale(cudaStream_t stream, const void *args, int64_t stride, int32_t n)
{
    scaled all = {};
    int64_t chunks = 0;

    for (all.n = 0; all.n < n; all.n++) {
        const msi_ew_args *a = (const msi_ew_args *)((const char *)args + all.n * stride);

        all.x[all.n] = a->out;
        all.n_of[all.n] = loop_count(a->loop);
        all.factor = (const double *)a->in[1];
        chunks += (all.n_of[all.n] + CHUNK - 1) / CHUNK;
        all.end[all.n] = chunks;
    }
    return ms_launch(scale_kernel<T>, ms_grid(chunks * MS_THREADS), (unsigned)MS_THREADS, 0, stream,
                     all);
}

#define CASE(op, dtype, T)                                                                         \
    case MS_DTYPE_##dtype:                                                                         \
        return op<T>(stream, args, stride, n);
#define CASES(op)                                                                                  \
    switch (dtype) {                                                                               \
        CASE(op, F32, float)                                                                       \
        CASE(op, F64, double)                                                                      \
        CASE(op, BF16, bf16)                                                                       \
        CASE(op, F16, f16)                                                                         \
    default:                                                                                       \
        return cudaErrorNotSupported;                                                              \
    }

extern "C" cudaError_t msi_cuda_norm_all(cudaStream_t stream, int32_t dtype, const void *args,
                                         int64_t stride, int32_t n)
{
    CASES(norm)
}

extern "C" cudaError_t msi_cuda_scale_all(cudaStream_t stream, int32_t dtype, const void *args,
                                          int64_t stride, int32_t n)
{
    CASES(scale)
}
