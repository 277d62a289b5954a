/* The fixed tree over sources: reductions of collectives and of gradient accumulation. The binary
 * counter merges leaves: as many merges after leaf k as k has trailing ones. */
#include "cuda_kernel.h"

enum { SOURCES = 64, LEVELS = 8 };

struct source_list {
    msi_tree_source at[SOURCES];
};

template <class R> static __device__ inline R leaf(const msi_tree_source &s, int64_t i)
{
    switch (s.dtype) {
    case MS_DTYPE_F64:
        return (R)((const double *)s.data)[i];
    case MS_DTYPE_F32:
        return (R)((const float *)s.data)[i];
    case MS_DTYPE_F16:
        return (R)get(((const f16 *)s.data)[i]);
    default:
        return (R)get(((const bf16 *)s.data)[i]);
    }
}

/* A NaN on either side is the result, in max and min too. */
template <class R> static __device__ inline R node(R left, R right, int32_t reduce)
{
    if (reduce == MSI_TREE_MAX) {
        return left != left || left > right ? left : right;
    }
    if (reduce == MSI_TREE_MIN) {
        return left != left || left < right ? left : right;
    }
    return left + right;
}

/* What `dtype` holds of it: all, unless it is narrow. */
template <class R> static __device__ inline R rounded(R x, int32_t dtype)
{
    return dtype == MS_DTYPE_BF16  ? (R)get(element<bf16>::put(x))
           : dtype == MS_DTYPE_F16 ? (R)get(element<f16>::put(x))
           : dtype == MS_DTYPE_F32 ? (R)(float)x
                                   : x;
}

/* N sources, or 0: any number. */
template <class T, int N>
static __global__ void tree_kernel(const msi_tree_args a, const source_list src)
{
    typedef REAL(T) R;
    const bool extreme = a.reduce == MSI_TREE_MAX || a.reduce == MSI_TREE_MIN;
    const int32_t n_src = N > 0 ? N : a.n_src;

    MS_EACH(i, a.n)
    {
        R nodes[N > 0 ? N : LEVELS];
        int32_t top = 0;

        MS_UNROLL
        for (int32_t k = 0; k < n_src; k++) {
            R x = leaf<R>(src.at[k], i);

            MS_UNROLL
            for (int32_t bits = k; bits & 1; bits >>= 1) {
                x = node(nodes[--top], x, a.reduce);
            }
            nodes[top++] = x;
        }
        R x = nodes[--top];

        MS_UNROLL
        while (top > 0) {
            x = node(nodes[--top], x, a.reduce);
        }
        x = rounded(extreme ? x : x * (R)a.factor, a.round_dtype);
        store((T *)a.out + i, x, a.accumulate);
    }
}

template <class T> static __global__ void tree_whole(const msi_tree_args a, const source_list src)
{
    MS_EACH(i, a.n)
    {
        T *out = (T *)a.out + i;
        int64_t x = ((const T *)src.at[0].data)[i];

        for (int32_t k = 1; k < a.n_src; k++) {
            const int64_t y = ((const T *)src.at[k].data)[i];

            x = a.reduce == MSI_TREE_MAX   ? (x > y ? x : y)
                : a.reduce == MSI_TREE_MIN ? (x < y ? x : y)
                                           : (int64_t)((uint64_t)x + (uint64_t)y);
        }
        if (a.reduce == MSI_TREE_SUM) {
            x = (int64_t)((uint64_t)x * (uint64_t)(int64_t)a.factor);
        }
        *out = (T)(a.accumulate ? (int64_t)((uint64_t)x + (uint64_t)*out) : x);
    }
}

static bool sources(source_list *to, const msi_tree_args *a)
{
    for (int32_t k = 0; k < a->n_src && k < SOURCES; k++) {
        to->at[k] = a->src[k];
    }
    return a->n_src <= SOURCES;
}

template <class T> static cudaError_t tree(cudaStream_t stream, const void *args)
{
    const msi_tree_args *a = (const msi_tree_args *)args;
    source_list src;

    if (a->n_src == 0 || !sources(&src, a)) {
        return a->n_src == 0 ? cudaSuccess : cudaErrorNotSupported;
    }
    return ms_launch(a->n_src == 1   ? tree_kernel<T, 1>
                     : a->n_src == 2 ? tree_kernel<T, 2>
                     : a->n_src == 4 ? tree_kernel<T, 4>
                                     : tree_kernel<T, 0>,
                     ms_grid(a->n), (unsigned)MS_THREADS, 0, stream, *a, src);
}

template <class T> static cudaError_t tree_of_whole(cudaStream_t stream, const void *args)
{
    const msi_tree_args *a = (const msi_tree_args *)args;
    source_list src;

    if (a->n_src == 0 || !sources(&src, a)) {
        return a->n_src == 0 ? cudaSuccess : cudaErrorNotSupported;
    }
    return ms_launch(tree_whole<T>, ms_grid(a->n), (unsigned)MS_THREADS, 0, stream, *a, src);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return tree<type>(stream, args);                                                           \
    }
MS_FLOATS(ENTER, tree)

MS_ENTRY(tree, i64)
{
    return tree_of_whole<int64_t>(stream, args);
}

MS_ENTRY(tree, i32)
{
    return tree_of_whole<int32_t>(stream, args);
}
