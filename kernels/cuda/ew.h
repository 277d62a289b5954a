/* Elementwise kernels: any strides, one thread an element; without gaps, a group of them. */
#ifndef MS_CUDA_EW_H
#define MS_CUDA_EW_H

#include "cuda_kernel.h"

/* Where the second scalar operand comes from: a number in device memory that multiplies s0. */
enum { EW_PLAIN, EW_SCALE /* in[1], f64 */, EW_MSE /* in[2], of the compute type */ };

/* F::of(a, b, c, s0, s1); scalars are in the compute type, or rounded to an integer. */
template <class R, int KIND> static __device__ inline R first_scalar(const msi_ew_args &a)
{
    return element<R>::put(KIND == EW_SCALE ? *(const double *)a.in[1]
                           : KIND == EW_MSE ? a.scalar[0] * (double)*(const R *)a.in[2]
                                            : a.scalar[0]);
}

template <class T, class F, int N_IN, int KIND>
static __global__ void ew_kernel(const msi_ew_args a, int64_t n)
{
    typedef REAL(T) R;
    const R s0 = first_scalar<R, KIND>(a), s1 = element<R>::put(a.scalar[1]);

    MS_EACH(i, n)
    {
        R x[3] = {0, 0, 0};

        for (int k = 0; k < N_IN; k++) {
            x[k] = get(((const T *)a.in[k])[loop_offset(a.loop, k + 1, i)]);
        }
        store((T *)a.out + loop_offset(a.loop, 0, i),
              F::template of<T, R>(x[0], x[1], x[2], s0, s1), a.accumulate);
    }
}

/* Operands without gaps, at multiples of 16 bytes. */
template <class T, class F, int N_IN, int KIND>
static __global__ void ew_dense(const msi_ew_args a, int64_t n)
{
    typedef REAL(T) R;
    const R s0 = first_scalar<R, KIND>(a), s1 = element<R>::put(a.scalar[1]);

    MS_EACH(i, (n + EACH(T) - 1) / EACH(T))
    {
        const int64_t j = i * EACH(T);
        const bool whole = j + EACH(T) <= n;
        group<T> x[3], out;

        MS_UNROLL
        for (int k = 0; k < N_IN; k++) {
            x[k] = load_group((const T *)a.in[k], j, n, whole);
        }
        if (a.accumulate) {
            out = load_group((const T *)a.out, j, n, whole);
        }
        MS_UNROLL
        for (int e = 0; e < EACH(T); e++) {
            store(&out.at[e],
                  F::template of<T, R>(get(x[0].at[e]), N_IN > 1 ? get(x[1].at[e]) : R(0),
                                       N_IN > 2 ? get(x[2].at[e]) : R(0), s0, s1),
                  a.accumulate);
        }
        store_group((T *)a.out, j, n, whole, out);
    }
}

template <class T, class F, int N_IN, int KIND>
static cudaError_t ew_run(cudaStream_t stream, const void *args)
{
    const msi_ew_args *a = (const msi_ew_args *)args;
    const int64_t n = loop_count(a->loop);

    if (loop_dense(a->loop, N_IN + 1) &&
        at_16(a->out, a->in[0], N_IN > 1 ? a->in[1] : NULL, N_IN > 2 ? a->in[2] : NULL)) {
        return ms_launch(ew_dense<T, F, N_IN, KIND>, ms_grid((n + EACH(T) - 1) / EACH(T)),
                         (unsigned)MS_THREADS, 0, stream, *a, n);
    }
    return ms_launch(ew_kernel<T, F, N_IN, KIND>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a,
                     n);
}

/* The function EXPR of a, b, c, s0, s1, all of type R; T is the element type. */
#define EW_FUNCTION(name, EXPR)                                                                    \
    struct name##_ew {                                                                             \
        template <class T, class R> static __device__ inline R of(R a, R b, R c, R s0, R s1)       \
        {                                                                                          \
            return (R)(EXPR);                                                                      \
        }                                                                                          \
    };
#define EW_ENTRY(name, n_in, kind, dtype, type)                                                    \
    MS_ENTRY(name, dtype)                                                                          \
    {                                                                                              \
        return ew_run<type, name##_ew, n_in, kind>(stream, args);                                  \
    }

/* Kernels with that function for floating dtypes; and also for i64 and i32. */
#define EW_KIND(name, n_in, kind, EXPR)                                                            \
    EW_FUNCTION(name, EXPR)                                                                        \
    EW_ENTRY(name, n_in, kind, f32, float)                                                         \
    EW_ENTRY(name, n_in, kind, f64, double)                                                        \
    EW_ENTRY(name, n_in, kind, bf16, bf16)                                                         \
    EW_ENTRY(name, n_in, kind, f16, f16)
#define EW(name, n_in, EXPR) EW_KIND(name, n_in, EW_PLAIN, EXPR)
#define EW_NUMBERS(name, n_in, EXPR)                                                               \
    EW(name, n_in, EXPR)                                                                           \
    EW_ENTRY(name, n_in, EW_PLAIN, i64, int64_t)                                                   \
    EW_ENTRY(name, n_in, EW_PLAIN, i32, int32_t)

#endif
