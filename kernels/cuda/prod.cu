/* Products over dimensions: floating ones in f64, rounded once; those of integers and bool in i64,
 * which wraps. A block a kept element. */
#include "cuda_kernel.h"

struct fold_product {
    template <class R> static __device__ inline R of(R a, R b)
    {
        return a * b;
    }
};

template <class R> struct product_of {
    typedef double type;
};
template <> struct product_of<int64_t> {
    typedef uint64_t type;
};

template <class T> struct result_of { /* of a product */
    typedef T type;
};
template <> struct result_of<int32_t> {
    typedef int64_t type;
};
template <> struct result_of<uint8_t> {
    typedef int64_t type;
};
template <> struct result_of<truth> {
    typedef int64_t type;
};

static __device__ inline double value_of(double x)
{
    return x;
}
static __device__ inline int64_t value_of(uint64_t x)
{
    return (int64_t)x;
}

template <class T>
static __global__ void prod_kernel(const msi_reduction_args a, int64_t kept, int64_t n)
{
    typedef typename product_of<REAL(T)>::type P;
    typedef typename result_of<T>::type Out;

    for (int64_t k = blockIdx.x; k < kept; k += gridDim.x) {
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, k);
        P total = 1;

        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            total *= (P)get(in[loop_offset(a.reduced, 1, i)]);
        }
        total = block_fold<fold_product>(total, (P)1);
        if (threadIdx.x == 0) {
            ((Out *)a.out)[loop_offset(a.kept, 0, k)] = element<Out>::put(value_of(total));
        }
    }
}

/* The product of the others: P / x without a zero; with one zero only that element has a slope. */
template <class T>
static __global__ void prod_grad_kernel(const msi_reduction_args a, int64_t kept, int64_t n)
{
    for (int64_t k = blockIdx.x; k < kept; k += gridDim.x) {
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, k);
        T *out = (T *)a.out + loop_offset(a.kept, 0, k);
        const double g = (double)get(((const T *)a.g)[loop_offset(a.kept, 3, k)]);
        double total = 1;
        int64_t zeros = 0;

        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const double v = (double)get(in[loop_offset(a.reduced, 1, i)]);

            zeros += v == 0;
            total *= v == 0 ? 1 : v;
        }
        total = block_fold<fold_product>(total, 1.0);
        zeros = block_sum(zeros);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const double v = (double)get(in[loop_offset(a.reduced, 1, i)]);
            const double others = zeros == 0 ? total / v : zeros == 1 && v == 0 ? total : 0;

            store(out + loop_offset(a.reduced, 0, i), g * others, a.accumulate);
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
MS_ALL_DTYPES(ENTER, prod)
MS_FLOATS(ENTER, prod_grad)
