/* Sums over dimensions. Threads add in the compute type, a run of 16 elements at a time, and the
 * runs in f64 (integers in i64).
 *
 *   rows     a block a kept element
 *   columns  neighbouring kept elements are neighbours in memory, neighbouring reduced ones not: 32
 *            of them a block, 8 threads each
 *   tall     the same of a floating matrix with many rows: 32 bytes a block, 256 threads each */
#include "cuda_kernel.h"

#include <type_traits>

template <class R> struct total_of {
    typedef double type;
};
template <> struct total_of<int64_t> {
    typedef uint64_t type;
};
#define TOTAL(T) typename total_of<REAL(T)>::type

enum { SUM_RUN = 16, SUM_LANES = 8, SUM_TALL = 512, SUM_ROWS = SUM_TALL / 2, SUM_LOADS = 4 };

/* Elements first, first + step, ... of the reduced. */
template <class T>
static __device__ inline TOTAL(T)
    partial(const msi_sum_args &a, const T *in, int64_t n, int64_t first, int64_t step)
{
    typedef TOTAL(T) S;
    S total = 0;

    for (int64_t i = first; i < n;) {
        typename wrapping<REAL(T)>::type run = 0;

        for (int k = 0; k < SUM_RUN && i < n; k++, i += step) {
            run += get(in[loop_offset(a.reduced, 1, i)]);
        }
        total += (S)run;
    }
    return total;
}

template <class T>
static __device__ inline void finish(const msi_sum_args &a, int64_t at, double total)
{
    const double x = a.scale * total;

    if (a.out_dtype != dtype_of<T>::value) {
        REAL(T) *out = (REAL(T) *)a.out + at;

        *out = (REAL(T))(a.accumulate ? x + (double)*out : x);
    } else {
        T *out = (T *)a.out + at;

        *out = element<T>::put((REAL(T))(a.accumulate ? x + (double)get(*out) : x));
    }
}

template <class T>
static __device__ inline void finish(const msi_sum_args &a, int64_t at, uint64_t total)
{
    int64_t *out = (int64_t *)a.out + at;
    const int64_t x = a.scale == 1 ? (int64_t)total : whole(a.scale * (double)(int64_t)total);

    *out = a.accumulate ? (int64_t)((uint64_t)*out + (uint64_t)x) : x;
}

template <class T> static __global__ void sum_rows(const msi_sum_args a, int64_t n_kept, int64_t n)
{
    for (int64_t i = blockIdx.x; i < n_kept; i += gridDim.x) {
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, i);
        const TOTAL(T) total = block_sum(partial<T>(a, in, n, threadIdx.x, blockDim.x));

        if (threadIdx.x == 0) {
            finish<T>(a, loop_offset(a.kept, 0, i), total);
        }
    }
}

template <class T>
static __global__ void sum_columns(const msi_sum_args a, int64_t n_kept, int64_t n)
{
    __shared__ TOTAL(T) parts[SUM_LANES][32];
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;

    if (i < n_kept) {
        parts[threadIdx.y][threadIdx.x] =
            partial<T>(a, (const T *)a.in + loop_offset(a.kept, 1, i), n, threadIdx.y, SUM_LANES);
    }
    __syncthreads();
    if (i < n_kept && threadIdx.y == 0) {
        TOTAL(T) total = 0;

        for (int k = 0; k < SUM_LANES; k++) {
            total += parts[k][threadIdx.x];
        }
        finish<T>(a, loop_offset(a.kept, 0, i), total);
    }
}

/* Rows are `step` apart; SUM_LOADS of a thread's are in flight. */
template <class T>
static __global__ void __launch_bounds__(SUM_TALL)
    sum_tall(const msi_sum_args a, int64_t n_kept, int64_t n, int64_t step, bool whole)
{
    typedef TOTAL(T) S;
    __shared__ S parts[SUM_TALL / 32][2 * EACH(T)];
    const int side = threadIdx.x % 2;
    const int64_t j = ((int64_t)blockIdx.x * 2 + side) * EACH(T);
    S total[EACH(T)] = {0};

    for (int64_t i = threadIdx.x / 2; i < n;) {
        typename wrapping<REAL(T)>::type run[EACH(T)] = {0};

        MS_ROLLED
        for (int k = 0; k < SUM_RUN / SUM_LOADS; k++, i += SUM_LOADS * SUM_ROWS) {
            group<T> g[SUM_LOADS];

            MS_UNROLL
            for (int q = 0; q < SUM_LOADS; q++) {
                const int64_t row = i + q * SUM_ROWS;

                g[q] = row < n && j < n_kept
                           ? load_group((const T *)a.in + row * step, j, n_kept, whole)
                           : group<T>();
            }
            MS_UNROLL
            for (int q = 0; q < SUM_LOADS; q++) {
                MS_UNROLL
                for (int e = 0; e < EACH(T); e++) {
                    run[e] += get(g[q].at[e]);
                }
            }
        }
        MS_UNROLL
        for (int e = 0; e < EACH(T); e++) {
            total[e] += (S)run[e];
        }
    }
    MS_UNROLL
    for (int e = 0; e < EACH(T); e++) {
        for (int by = 2; by < 32; by *= 2) {
            total[e] += __shfl_xor_sync(0xffffffffu, total[e], by);
        }
        if (threadIdx.x % 32 < 2) {
            parts[threadIdx.x / 32][side * EACH(T) + e] = total[e];
        }
    }
    __syncthreads();
    const int64_t mine = (int64_t)blockIdx.x * 2 * EACH(T) + threadIdx.x;

    if (threadIdx.x < 2 * EACH(T) && mine < n_kept) {
        S all = 0;

        for (int k = 0; k < SUM_TALL / 32; k++) {
            all += parts[k][threadIdx.x];
        }
        finish<T>(a, loop_offset(a.kept, 0, mine), all);
    }
}

template <class T> static cudaError_t sum(cudaStream_t stream, const void *args)
{
    const msi_sum_args *a = (const msi_sum_args *)args;
    const int64_t n = loop_count(a->reduced), n_kept = loop_count(a->kept);
    const int32_t k = a->kept.ndim - 1, r = a->reduced.ndim - 1;
    const bool columns = k >= 0 && a->kept.shape[k] > 1 && a->kept.stride[1][k] == 1 &&
                         (r < 0 || a->reduced.stride[1][r] != 1);

    if constexpr (!std::is_same<REAL(T), int64_t>::value) {
        const int64_t step = a->reduced.stride[1][0];
        const bool whole = step % EACH(T) == 0 && n_kept % EACH(T) == 0 && at_16(a->in);

        if (columns && k == 0 && r == 0 && n >= SUM_TALL) {
            return ms_launch(sum_tall<T>, (unsigned)((n_kept + 2 * EACH(T) - 1) / (2 * EACH(T))),
                             SUM_TALL, 0, stream, *a, n_kept, n, step, whole);
        }
    }
    return columns ? ms_launch(sum_columns<T>, (unsigned)((n_kept + 31) / 32), dim3(32, SUM_LANES),
                               0, stream, *a, n_kept, n)
                   : ms_launch(sum_rows<T>, (unsigned)(n_kept < 65536 ? n_kept : 65536),
                               n <= 64 ? 32 : 256, 0, stream, *a, n_kept, n);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_ALL_DTYPES(ENTER, sum)
