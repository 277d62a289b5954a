/* Rotary positions, a thread a pair. */
#include "cuda_kernel.h"

template <class T>
static __global__ void rotary_kernel(const msi_rotary_args a, int64_t n, REAL(T) sign)
{
    MS_EACH(i, n)
    {
        const int64_t row = i / a.half, j = i % a.half;
        const T *x = (const T *)a.x + loop_offset(a.rows, 1, row) + j;
        const REAL(T) u = get(x[0]), v = get(x[a.half]);
        const REAL(T) c = get(((const T *)a.cos)[loop_offset(a.rows, 2, row) + j]);
        const REAL(T) s = get(((const T *)a.sin)[loop_offset(a.rows, 3, row) + j]) * sign;
        T *out = (T *)a.out + loop_offset(a.rows, 0, row) + j;

        store(out, u * c - v * s, a.accumulate);
        store(out + a.half, v * c + u * s, a.accumulate);
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_rotary_args *a = (const msi_rotary_args *)args;                                  \
        const int64_t n = loop_count(a->rows) * a->half;                                           \
        return ms_launch(rotary_kernel<type>, ms_grid(n), MS_THREADS, 0, stream, *a, n,            \
                         (REAL(type))(a->inverse ? -1 : 1));                                       \
    }
MS_FLOATS(ENTER, rotary)
