/* The largest or the smallest element, or its position, over dimensions; the gradient, which equal
 * elements share. A block a kept element. */
#include "order.h"

template <class T>
static __global__ void extreme_kernel(const msi_reduction_args a, int64_t kept, int64_t n)
{
    const int64_t flip = a.largest ? 0 : -1;

    for (int64_t k = blockIdx.x; k < kept; k += gridDim.x) {
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, k);
        const int64_t to = loop_offset(a.kept, 0, k);
        int64_t best = INT64_MIN, first = n;

        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const REAL(T) x = get(in[loop_offset(a.reduced, 1, i)]);
            const int64_t key = order_key(a.index != NULL ? same_zero(x) : x, flip);

            if (first == n || key > best) {
                best = key;
                first = i;
            }
        }
        const int64_t most = block_fold<fold_max>(best, (int64_t)INT64_MIN);

        first = block_fold<fold_min>(best == most ? first : n, n);
        if (threadIdx.x == 0 && a.index != NULL) {
            a.index[to] = first + 1;
        } else if (threadIdx.x == 0) {
            const T x = in[loop_offset(a.reduced, 1, first)];

            ((T *)a.out)[to] = element<T>::put(get(x)); /* a bool: 0 or 1 */
        }
    }
}

template <class R> static __device__ inline bool equal(R a, R b)
{
    return a == b || (a != a && b != b);
}

template <class T>
static __global__ void extreme_grad_kernel(const msi_reduction_args a, int64_t kept, int64_t n)
{
    typedef REAL(T) R;

    for (int64_t k = blockIdx.x; k < kept; k += gridDim.x) {
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, k);
        T *out = (T *)a.out + loop_offset(a.kept, 0, k);
        const R y = get(((const T *)a.y)[loop_offset(a.kept, 2, k)]);
        const R g = get(((const T *)a.g)[loop_offset(a.kept, 3, k)]);
        int64_t count = 0;

        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            count += equal(get(in[loop_offset(a.reduced, 1, i)]), y);
        }
        count = block_sum(count);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const bool takes = equal(get(in[loop_offset(a.reduced, 1, i)]), y);

            store(out + loop_offset(a.reduced, 0, i), takes ? g / (R)count : (R)0, a.accumulate);
        }
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_reduction_args *a = (const msi_reduction_args *)args;                            \
        const int64_t kept = loop_count(a->kept), n = loop_count(a->reduced);                      \
        return ms_launch(op##_kernel<type>, ms_blocks(kept), ms_row_threads(n), 0, stream, *a,     \
                         kept, n);                                                                 \
    }
MS_ALL_DTYPES(ENTER, extreme)
MS_FLOATS(ENTER, extreme_grad)
