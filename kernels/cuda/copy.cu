/* copy: out = in with any pair of dtypes; fill: out = a scalar. Conversions are those of
 * moonshard/ops.h. Between equal dtypes bits are moved. */
#include "ew.h"

template <class To, class From> struct moved {
    static __device__ inline To of(From x)
    {
        return element<To>::put(get(x));
    }
};
template <class T> struct moved<T, T> {
    static __device__ inline T of(T x)
    {
        return x;
    }
};
template <> struct moved<truth, truth> { /* 0 or 1 whatever byte stood for true */
    static __device__ inline truth of(truth x)
    {
        return truth{(uint8_t)(x.bits != 0)};
    }
};

template <class To, class From> static __global__ void copy_kernel(const msi_ew_args a, int64_t n)
{
    MS_EACH(i, n)
    {
        To *to = (To *)a.out + loop_offset(a.loop, 0, i);
        const From x = ((const From *)a.in[0])[loop_offset(a.loop, 1, i)];

        *to = a.accumulate ? add_to(*to, get(x)) : moved<To, From>::of(x);
    }
}

/* Without gaps: as many elements a thread as 16 bytes of the wider type. */
template <class To, class From> static __global__ void copy_dense(const msi_ew_args a, int64_t n)
{
    enum { N = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)) };
    struct alignas(N * sizeof(From)) sources {
        From at[N];
    };
    struct alignas(N * sizeof(To)) results {
        To at[N];
    };

    MS_EACH(i, (n + N - 1) / N)
    {
        if (i * N + N > n) {
            for (int64_t j = i * N; j < n; j++) {
                ((To *)a.out)[j] = moved<To, From>::of(((const From *)a.in[0])[j]);
            }
            continue;
        }
        const sources x = ((const sources *)a.in[0])[i];
        results y;

        MS_UNROLL
        for (int e = 0; e < N; e++) {
            y.at[e] = moved<To, From>::of(x.at[e]);
        }
        ((results *)a.out)[i] = y;
    }
}

template <class To, class From>
static cudaError_t copy_from(cudaStream_t stream, const msi_ew_args *a, int64_t n)
{
    const int64_t each = 16 / (int64_t)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

    return loop_dense(a->loop, 2) && !a->accumulate && at_16(a->out, a->in[0])
               ? ms_launch(copy_dense<To, From>, ms_grid((n + each - 1) / each),
                           (unsigned)MS_THREADS, 0, stream, *a, n)
               : ms_launch(copy_kernel<To, From>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a,
                           n);
}

template <class T> static __global__ void fill_kernel(const msi_ew_args a, int64_t n)
{
    MS_EACH(i, n)
    {
        store((T *)a.out + loop_offset(a.loop, 0, i), a.scalar[0], a.accumulate);
    }
}

template <class To> static cudaError_t copy(cudaStream_t stream, const void *args)
{
    const msi_ew_args *a = (const msi_ew_args *)args;
    const int64_t n = loop_count(a->loop);

    switch (a->in_dtype) {
#define CASE(op, dtype, type)                                                                      \
    case MS_DTYPE_##dtype:                                                                         \
        return copy_from<To, type>(stream, a, n);
        CASE(copy, F32, float)
        CASE(copy, F64, double)
        CASE(copy, BF16, bf16)
        CASE(copy, F16, f16)
        CASE(copy, I64, int64_t)
        CASE(copy, I32, int32_t)
        CASE(copy, U8, uint8_t)
        CASE(copy, BOOL, truth)
    default:
        return cudaErrorNotSupported;
    }
}

template <class T> static cudaError_t fill(cudaStream_t stream, const void *args)
{
    const msi_ew_args *a = (const msi_ew_args *)args;
    const int64_t n = loop_count(a->loop);

    return ms_launch(fill_kernel<T>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_ALL_DTYPES(ENTER, copy)
MS_ALL_DTYPES(ENTER, fill)
