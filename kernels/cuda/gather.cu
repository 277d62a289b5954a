/* Elements at given positions along one dimension, and the way back. scatter: a thread has all
 * positions that share a line of the destination, in row-major order, so that positions that repeat
 * are stored, or added, in ascending order. */
#include "cuda_kernel.h"

/* One block: report the first position out of range. */
static __global__ void check(const msi_gather_args a, int32_t kernel, int64_t n)
{
    int64_t bad = n;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        bad = i < bad && !is_inside(a.index[loop_offset(a.loop, 1, i)] - 1, a.size) ? i : bad;
    }
    bad = block_fold<fold_min>(bad, n);
    if (threadIdx.x == 0 && bad < n) {
        fault_found(a.fault, kernel, a.index[loop_offset(a.loop, 1, bad)], bad, n, a.size);
    }
}

template <class T> static __global__ void gather_kernel(const msi_gather_args a, int64_t n)
{
    MS_EACH(i, n)
    {
        T *to = (T *)a.out + loop_offset(a.loop, 0, i);
        const int64_t at = a.index[loop_offset(a.loop, 1, i)] - 1;

        if (is_inside(at, a.size)) {
            *to = ((const T *)a.in)[loop_offset(a.loop, 2, i) + at * a.step];
        } else {
            memset(to, 0xff, sizeof(*to)); /* NaN */
        }
    }
}

/* `lines` has the dimensions along which the destination moves, `along` the others. */
template <class T, class Out>
static __global__ void scatter_kernel(const msi_gather_args a, const msi_loop lines,
                                      const msi_loop along, int64_t n_lines, int64_t n)
{
    MS_EACH(line, n_lines)
    {
        Out *out = (Out *)a.out + loop_offset(lines, 0, line);
        const int64_t *index = a.index + loop_offset(lines, 1, line);
        const T *in = (const T *)a.in + loop_offset(lines, 2, line);

        for (int64_t i = 0; i < n; i++) {
            const int64_t at = index[loop_offset(along, 1, i)] - 1;

            if (is_inside(at, a.size)) {
                store(out + at * a.step, get(in[loop_offset(along, 2, i)]), a.add);
            }
        }
    }
}

static void append(msi_loop *to, const msi_loop *from, int32_t d)
{
    to->shape[to->ndim] = from->shape[d];
    for (int32_t k = 0; k < 4; k++) {
        to->stride[k][to->ndim] = from->stride[k][d];
    }
    to->ndim++;
}

static cudaError_t checked(cudaStream_t stream, const msi_gather_args *a, int32_t kernel)
{
    return a->fault == NULL ? cudaSuccess
                            : ms_launch(check, 1, 256, 0, stream, *a, kernel, loop_count(a->loop));
}

template <class T> static cudaError_t gather(cudaStream_t stream, const void *args)
{
    const msi_gather_args *a = (const msi_gather_args *)args;
    const int64_t n = loop_count(a->loop);
    const cudaError_t e = checked(stream, a, MSI_K_gather);

    return e != cudaSuccess
               ? e
               : ms_launch(gather_kernel<T>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);
}

/* What narrow elements are added to. */
template <class T> struct sums_of {
    typedef T type;
};
template <> struct sums_of<bf16> {
    typedef float type;
};
template <> struct sums_of<f16> {
    typedef float type;
};

template <class T> static cudaError_t scatter(cudaStream_t stream, const void *args)
{
    const msi_gather_args *a = (const msi_gather_args *)args;
    const cudaError_t e = checked(stream, a, MSI_K_scatter);
    msi_loop lines = {}, along = {};

    for (int32_t d = 0; d < a->loop.ndim; d++) {
        append(a->loop.stride[0][d] != 0 ? &lines : &along, &a->loop, d);
    }
    const int64_t n_lines = loop_count(lines), n = loop_count(along);

    return e != cudaSuccess ? e
                            : ms_launch(a->add ? scatter_kernel<T, typename sums_of<T>::type>
                                               : scatter_kernel<T, T>,
                                        ms_grid(n_lines), (unsigned)MS_THREADS, 0, stream, *a,
                                        lines, along, n_lines, n);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_ALL_DTYPES(ENTER, gather)
MS_ALL_DTYPES(ENTER, scatter)
