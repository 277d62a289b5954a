/* Rows of a table, and their gradient. Each row adds the gradients of its tokens in ascending
 * order: the block of the first token of an id adds for all of them. */
#include "cuda_kernel.h"

template <class T> static __global__ void forward(const msi_embedding_args a)
{
    MS_EACH(i, a.n * a.width)
    {
        const int64_t id = a.ids[i / a.width];

        ((T *)a.out)[i] = is_inside(id, a.vocab) ? ((const T *)a.table)[id * a.width + i % a.width]
                                                 : element<T>::put((REAL(T))NAN);
    }
}

/* One block: report the first id out of range. */
static __global__ void check(const msi_embedding_args a)
{
    int64_t bad = a.n;

    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        bad = !is_inside(a.ids[i], a.vocab) && i < bad ? i : bad;
    }
    bad = block_fold<fold_min>(bad, a.n);
    if (threadIdx.x == 0 && bad < a.n) {
        fault_found(a.fault, MSI_K_embedding, a.ids[bad], bad, a.n, a.vocab);
    }
}

enum { THREADS = 128, COLUMNS = 4 }; /* columns of a thread at a time */

template <class T, class Out> static __global__ void backward(const msi_embedding_args a)
{
    typedef REAL(T) R;
    __shared__ bool hit[THREADS];
    const int64_t i = blockIdx.x, id = a.ids[i];
    int earlier = 0;

    if (!is_inside(id, a.vocab)) {
        return;
    }
    for (int64_t k = threadIdx.x; k < i; k += THREADS) {
        earlier |= a.ids[k] == id;
    }
    if (__syncthreads_or(earlier)) {
        return;
    }
    Out *to = (Out *)a.dtable + id * a.width;

    for (int64_t j0 = 0; j0 < a.width; j0 += THREADS * COLUMNS) {
        R sum[COLUMNS];

        for (int c = 0; c < COLUMNS; c++) {
            const int64_t j = j0 + c * THREADS + threadIdx.x;

            sum[c] = j < a.width ? get(to[j]) : (R)0;
        }
        for (int64_t k0 = i; k0 < a.n; k0 += THREADS) {
            const int64_t mine = k0 + threadIdx.x;
            const bool found = mine < a.n && a.ids[mine] == id;

            if (!__syncthreads_or(found)) {
                continue;
            }
            hit[threadIdx.x] = found;
            __syncthreads();
            for (int k = 0; k < THREADS; k++) {
                for (int c = 0; hit[k] && c < COLUMNS; c++) {
                    const int64_t j = j0 + c * THREADS + threadIdx.x;

                    sum[c] += j < a.width ? get(((const T *)a.dy)[(k0 + k) * a.width + j]) : (R)0;
                }
            }
        }
        for (int c = 0; c < COLUMNS; c++) {
            const int64_t j = j0 + c * THREADS + threadIdx.x;

            if (j < a.width) {
                to[j] = element<Out>::put(sum[c]);
            }
        }
    }
}

template <class T> static cudaError_t embedding(cudaStream_t stream, const void *args)
{
    const msi_embedding_args *a = (const msi_embedding_args *)args;
    const cudaError_t e =
        ms_launch(forward<T>, ms_grid(a->n * a->width), (unsigned)MS_THREADS, 0, stream, *a);

    return e != cudaSuccess ? e : ms_launch(check, 1, 256, 0, stream, *a);
}

template <class T> static cudaError_t embedding_grad(cudaStream_t stream, const void *args)
{
    const msi_embedding_args *a = (const msi_embedding_args *)args;
    const bool narrow = a->dtable_dtype == dtype_of<T>::value;

    if (!a->accumulate) {
        const cudaError_t e = cudaMemsetAsync(
            a->dtable, 0, (size_t)(a->vocab * a->width) * (narrow ? sizeof(T) : sizeof(REAL(T))),
            stream);

        if (e != cudaSuccess) {
            return e;
        }
    }
    return ms_launch(narrow ? backward<T, T> : backward<T, REAL(T)>, (unsigned)a->n, THREADS, 0,
                     stream, *a);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, embedding)
MS_FLOATS(ENTER, embedding_grad)
