/* Comparisons of operands of `in_dtype`, with a bool result, and selection by a bool. NaN compares
 * as in C: it is unequal to everything and less than nothing. */
#include "ew.h"

enum { EQ, NE, LT, LE, IS_INF, IS_FINITE, CLOSE };

/* |a - b| <= atol + rtol |b| in f64; equal infinities are close, NaN is close to nothing. */
static __device__ inline bool is_close(double a, double b, double rtol, double atol)
{
    const double distance = fabs(a - b);

    return a == b || (distance <= atol + rtol * fabs(b) && distance < (double)INFINITY);
}

template <class R>
static __device__ inline bool holds(int32_t which, R x, R y, double rtol, double atol)
{
    switch (which) {
    case EQ:
        return x == y;
    case NE:
        return x != y;
    case LT:
        return x < y;
    case LE:
        return x <= y;
    case IS_INF: /* x is y: what is no infinity and no NaN less itself is 0 */
        return x == y && !((double)x - (double)y == 0);
    case IS_FINITE:
        return (double)x - (double)y == 0;
    default:
        return is_close((double)x, (double)y, rtol, atol);
    }
}

template <class T>
static __global__ void compare_kernel(const msi_ew_args a, int32_t which, int64_t n)
{
    MS_EACH(i, n)
    {
        truth *to = (truth *)a.out + loop_offset(a.loop, 0, i);
        const bool z =
            holds(which, get(((const T *)a.in[0])[loop_offset(a.loop, 1, i)]),
                  get(((const T *)a.in[1])[loop_offset(a.loop, 2, i)]), a.scalar[0], a.scalar[1]);

        to->bits = (uint8_t)(z || (a.accumulate && to->bits != 0));
    }
}

static cudaError_t compare(cudaStream_t stream, const void *args, int32_t which)
{
    const msi_ew_args *a = (const msi_ew_args *)args;
    const int64_t n = loop_count(a->loop);

    switch (a->in_dtype) {
#define CASE(dtype, type)                                                                          \
    case MS_DTYPE_##dtype:                                                                         \
        return ms_launch(compare_kernel<type>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a,    \
                         which, n);
        CASE(F32, float)
        CASE(F64, double)
        CASE(BF16, bf16)
        CASE(F16, f16)
        CASE(I64, int64_t)
        CASE(I32, int32_t)
        CASE(U8, uint8_t)
        CASE(BOOL, truth)
    default:
        return cudaErrorNotSupported;
    }
}

#define COMPARE(op, WHICH)                                                                         \
    MS_ENTRY(op, bool)                                                                             \
    {                                                                                              \
        return compare(stream, args, WHICH);                                                       \
    }
COMPARE(eq, EQ)
COMPARE(ne, NE)
COMPARE(lt, LT)
COMPARE(le, LE)
COMPARE(is_inf, IS_INF)
COMPARE(is_finite, IS_FINITE)
COMPARE(close, CLOSE)

template <class T> static __global__ void where_kernel(const msi_ew_args a, int64_t n)
{
    MS_EACH(i, n)
    {
        const bool c = ((const uint8_t *)a.in[0])[loop_offset(a.loop, 1, i)] != 0;
        const T x = c ? ((const T *)a.in[1])[loop_offset(a.loop, 2, i)]
                      : ((const T *)a.in[2])[loop_offset(a.loop, 3, i)];
        T *to = (T *)a.out + loop_offset(a.loop, 0, i);

        *to = a.accumulate ? add_to(*to, get(x)) : x;
    }
}

#define WHERE(op, dtype, type)                                                                     \
    MS_ENTRY(where, dtype)                                                                         \
    {                                                                                              \
        const msi_ew_args *a = (const msi_ew_args *)args;                                          \
        const int64_t n = loop_count(a->loop);                                                     \
        return ms_launch(where_kernel<type>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);  \
    }
MS_ALL_DTYPES(WHERE, where)
