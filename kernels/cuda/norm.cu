/* Sum of powers (in f64) or largest magnitude per block of elements, and the fold of the results.
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

/* A warp a block of elements. */
template <class T> static __global__ void norm_kernel(const msi_norm_args a, int64_t blocks)
{
    for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
        const int64_t left = a.n - b * a.block, n = left < a.block ? left : a.block;
        const T *x = (const T *)a.x + b * a.block;
        const double y = a.order == 2          ? squares(x, n)
                         : a.order == HUGE_VAL ? magnitude(x, n)
                                               : powers(x, n, a.order);

        if (threadIdx.x == 0) {
            a.out[b] = y;
        }
    }
}

static __global__ void norm_fold_kernel(const msi_norm_fold_args a)
{
    if (threadIdx.x == 0) {
        double total = 0;

        for (int64_t i = 0; i < a.n; i++) {
            const double x = a.blocks[i];

            if (a.order == 0) {
                total += x != 0;
            } else if (a.order != HUGE_VAL) {
                total += x;
            } else if (x > total || x != x) {
                total = x;
            }
        }
        const double norm = a.order == 0 || a.order == 1 || a.order == HUGE_VAL ? total
                            : a.order == 2                                      ? sqrt(total)
                                           : pow(total, 1 / a.order);
        const double coefficient = a.max_norm / (norm + 1e-6);

        *a.norm = norm;
        *a.coefficient = coefficient > 1 ? 1 : coefficient;
    }
}

template <class T> static cudaError_t norm(cudaStream_t stream, const void *args)
{
    const msi_norm_args *a = (const msi_norm_args *)args;
    const int64_t blocks = (a->n + a->block - 1) / a->block;

    return ms_launch(norm_kernel<T>, (unsigned)(blocks < 65536 ? blocks : 65536), 32, 0, stream, *a,
                     blocks);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, norm)

MS_ENTRY(norm_fold, f64)
{
    return ms_launch(norm_fold_kernel, 1, 32, 0, stream, *(const msi_norm_fold_args *)args);
}
