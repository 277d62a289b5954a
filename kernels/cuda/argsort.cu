/* Positions of the elements of lines in sorted order: stable, NaN as the largest number, 0 and -0
 * equal. Short lines: a thread counts the elements that come before its own, n comparisons an
 * element. Long lines, one after another: CUB's radix sort. */
#include "order.h"

template <class T> static __global__ void argsort_kernel(const msi_argsort_args a, int64_t total)
{
    MS_EACH(e, total)
    {
        const int64_t line = e / a.n, i = e % a.n;
        const T *in = (const T *)a.in + loop_offset(a.lines, 1, line);
        const int64_t mine = order_key(same_zero(get(in[i * a.in_step])), 0);
        int64_t rank = 0;

        for (int64_t j = 0; j < a.n; j++) {
            const int64_t other = order_key(same_zero(get(in[j * a.in_step])), 0);

            rank += (a.descending ? other > mine : other < mine) || (other == mine && j < i);
        }
        if (rank < a.take) {
            a.out[loop_offset(a.lines, 0, line) + rank * a.out_step] = i + 1;
        }
    }
}

#ifdef __CUDACC__
#include <cub/device/device_radix_sort.cuh>

enum { LONG = 4096 };

/* A line's keys and positions, twice: the sort goes from one to the other and back. */
template <class T>
static __global__ void keys_kernel(const msi_argsort_args a, int64_t line, int64_t *key,
                                   int32_t *position)
{
    const T *in = (const T *)a.in + loop_offset(a.lines, 1, line);

    MS_EACH(i, a.n)
    {
        key[i] = order_key(same_zero(get(in[i * a.in_step])), 0);
        position[i] = (int32_t)i + 1;
    }
}

static __global__ void positions_kernel(const msi_argsort_args a, int64_t line,
                                        const int32_t *position)
{
    MS_EACH(i, a.take)
    {
        a.out[loop_offset(a.lines, 0, line) + i * a.out_step] = position[i];
    }
}

/* `work`: 24 n bytes of keys and positions, 8 n for the sort; cudaErrorNotSupported: it needs more,
 * and nothing was enqueued. */
template <class T>
static cudaError_t sort_lines(cudaStream_t stream, const msi_argsort_args *a, int64_t lines)
{
    /* Keys of f32 and narrower have equal lower bits, but for the sign's. */
    const int first = sizeof(REAL(T)) == sizeof(float) ? 29 : 0;
    const int32_t n = (int32_t)a->n;
    int64_t *key = (int64_t *)a->work;
    int32_t *position = (int32_t *)(key + 2 * a->n);
    void *temp = position + 2 * a->n;
    size_t bytes = 0;
    cudaError_t e = cudaSuccess;

    if (a->n > INT32_MAX) {
        return cudaErrorNotSupported;
    }
    for (int64_t line = -1; line < lines && e == cudaSuccess; line++) { /* -1 finds `bytes` */
        cub::DoubleBuffer<int64_t> keys(key, key + a->n);
        cub::DoubleBuffer<int32_t> positions(position, position + a->n);
        void *at = line < 0 ? NULL : temp;

        if (line >= 0) {
            e = ms_launch(keys_kernel<T>, ms_grid(a->n), (unsigned)MS_THREADS, 0, stream, *a, line,
                          key, position);
        }
        if (e == cudaSuccess) {
            e = a->descending ? cub::DeviceRadixSort::SortPairsDescending(
                                    at, bytes, keys, positions, n, first, 64, stream)
                              : cub::DeviceRadixSort::SortPairs(at, bytes, keys, positions, n,
                                                                first, 64, stream);
        }
        if (line < 0) {
            e = e == cudaSuccess && bytes > (size_t)(8 * a->n) ? cudaErrorNotSupported : e;
        } else if (e == cudaSuccess) {
            e = ms_launch(positions_kernel, ms_grid(a->take), (unsigned)MS_THREADS, 0, stream, *a,
                          line, positions.Current());
        }
    }
    return e;
}
#endif

template <class T> static cudaError_t argsort(cudaStream_t stream, const void *args)
{
    const msi_argsort_args *a = (const msi_argsort_args *)args;
    const int64_t lines = loop_count(a->lines), total = lines * a->n;

#ifdef __CUDACC__
    if (a->n >= LONG && a->take > 0) {
        const cudaError_t e = sort_lines<T>(stream, a, lines);

        if (e != cudaErrorNotSupported) {
            return e;
        }
    }
#endif
    return ms_launch(argsort_kernel<T>, ms_grid(total), (unsigned)MS_THREADS, 0, stream, *a, total);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_ALL_DTYPES(ENTER, argsort)
