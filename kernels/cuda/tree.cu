/* The fixed tree over sources: reductions of collectives and of gradient accumulation. The binary
 * counter merges leaves: as many merges after leaf k as k has trailing ones. */
#include "cuda_kernel.h"

enum { SOURCES = 128, LEVELS = 8 }; /* MS_MAX_RANKS, and its bits and a leaf */

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

/* Neighbouring elements, four by one load. */
template <class R> struct leaves {
    R at[4];
};
template <class R, class T> static __device__ inline leaves<R> four_of(const void *data, int64_t i)
{
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) four {
        T at[4];
    };
    const four x = ((const four *)data)[i];
    leaves<R> y;

    MS_UNROLL
    for (int e = 0; e < 4; e++) {
        y.at[e] = (R)get(x.at[e]);
    }
    return y;
}

template <class R, int EACH>
static __device__ inline leaves<R> leaves_of(const msi_tree_source &s, int64_t i)
{
    leaves<R> y;

    if (EACH == 1) {
        y.at[0] = leaf<R>(s, i);
        return y;
    }
    return s.dtype == MS_DTYPE_F64   ? four_of<R, double>(s.data, i)
           : s.dtype == MS_DTYPE_F32 ? four_of<R, float>(s.data, i)
           : s.dtype == MS_DTYPE_F16 ? four_of<R, f16>(s.data, i)
                                     : four_of<R, bf16>(s.data, i);
}

template <class R, int EACH>
static __device__ inline void merge(leaves<R> *x, const leaves<R> &left, int32_t reduce)
{
    MS_UNROLL
    for (int e = 0; e < EACH; e++) {
        x->at[e] = node(left.at[e], x->at[e], reduce);
    }
}

/* N sources, or 0: any number. EACH elements a thread. */
template <class T, int N, int EACH>
static __global__ void tree_kernel(const msi_tree_args a, const source_list src)
{
    typedef REAL(T) R;
    struct alignas(EACH * sizeof(T) < 16 ? EACH * sizeof(T) : 16) results {
        T at[EACH];
    };
    const bool extreme = a.reduce == MSI_TREE_MAX || a.reduce == MSI_TREE_MIN;
    const int32_t n_src = N > 0 ? N : a.n_src;

    MS_EACH(i, a.n / EACH)
    {
        leaves<R> nodes[N > 0 ? N : LEVELS];
        int32_t top = 0;

        MS_UNROLL
        for (int32_t k = 0; k < n_src; k++) {
            leaves<R> x = leaves_of<R, EACH>(src.at[k], i);

            MS_UNROLL
            for (int32_t bits = k; bits & 1; bits >>= 1) {
                merge<R, EACH>(&x, nodes[--top], a.reduce);
            }
            nodes[top++] = x;
        }
        leaves<R> x = nodes[--top];

        MS_UNROLL
        while (top > 0) {
            merge<R, EACH>(&x, nodes[--top], a.reduce);
        }
        results *to = (results *)a.out + i, out = a.accumulate ? *to : results{};

        MS_UNROLL
        for (int e = 0; e < EACH; e++) {
            store(&out.at[e], rounded(extreme ? x.at[e] : x.at[e] * (R)a.factor, a.round_dtype),
                  a.accumulate);
        }
        *to = out;
    }
}

/* Nodes are f32 for f64 results, f64 for others. A sum or product of two f32 that is computed in
 * f64 and rounded to f32 is the one computed in f32. */
template <class T> static __global__ void tree_mixed(const msi_tree_args a, const source_list src)
{
    const bool single = sizeof(T) == sizeof(double);

    MS_EACH(i, a.n)
    {
        double nodes[LEVELS];
        int32_t top = 0;

        for (int32_t k = 0; k < a.n_src; k++) {
            double x = leaf<double>(src.at[k], i);

            for (int32_t bits = k; bits & 1; bits >>= 1) {
                x = nodes[--top] + x;
                x = single ? (double)(float)x : x;
            }
            nodes[top++] = x;
        }
        double x = nodes[--top];

        while (top > 0) {
            x = nodes[--top] + x;
            x = single ? (double)(float)x : x;
        }
        x *= single ? (double)(float)a.factor : a.factor;
        store((T *)a.out + i, (REAL(T))rounded(x, a.round_dtype), a.accumulate);
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

/* Moves the host's list into `to`. */
static bool sources(source_list *to, msi_tree_args *a)
{
    *to = {};
    for (int32_t k = 0; k < a->n_src && k < SOURCES; k++) {
        to->at[k] = a->src[k];
    }
    a->src = NULL;
    return a->n_src <= SOURCES;
}

template <class T> static cudaError_t tree(cudaStream_t stream, const void *args)
{
    msi_tree_args a = *(const msi_tree_args *)args;
    source_list src;

    if (a.n_src == 0 || !sources(&src, &a)) {
        return a.n_src == 0 ? cudaSuccess : cudaErrorNotSupported;
    }
    if (a.mixed) {
        return ms_launch(tree_mixed<T>, ms_grid(a.n), (unsigned)MS_THREADS, 0, stream, a, src);
    }
    bool aligned = a.n % 4 == 0 && at_16(a.out);

    for (int32_t k = 0; k < a.n_src; k++) {
        aligned = aligned && at_16(src.at[k].data);
    }
    return aligned ? ms_launch(a.n_src == 1   ? tree_kernel<T, 1, 4>
                               : a.n_src == 2 ? tree_kernel<T, 2, 4>
                               : a.n_src == 4 ? tree_kernel<T, 4, 4>
                               : a.n_src == 8 ? tree_kernel<T, 8, 4>
                                              : tree_kernel<T, 0, 4>,
                               ms_grid(a.n / 4), (unsigned)MS_THREADS, 0, stream, a, src)
                   : ms_launch(tree_kernel<T, 0, 1>, ms_grid(a.n), (unsigned)MS_THREADS, 0, stream,
                               a, src);
}

template <class T> static cudaError_t tree_of_whole(cudaStream_t stream, const void *args)
{
    msi_tree_args a = *(const msi_tree_args *)args;
    source_list src;

    if (a.n_src == 0 || !sources(&src, &a)) {
        return a.n_src == 0 ? cudaSuccess : cudaErrorNotSupported;
    }
    return ms_launch(tree_whole<T>, ms_grid(a.n), (unsigned)MS_THREADS, 0, stream, a, src);
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
