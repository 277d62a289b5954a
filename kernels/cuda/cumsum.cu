/* Running sums along one dimension, a thread a line. Floating sums run in f64 and are rounded once
 * an element, sums of integers and bool in i64, which wraps. */
#include "cuda_kernel.h"

template <class R> struct running {
    typedef double type;
    static __device__ inline double value(double x)
    {
        return x;
    }
};
template <> struct running<int64_t> {
    typedef uint64_t type;
    static __device__ inline int64_t value(uint64_t x)
    {
        return (int64_t)x;
    }
};

template <class T, class Out>
static __global__ void cumsum_kernel(const msi_sum_args a, int64_t lines, int64_t n)
{
    typedef running<REAL(T)> S;

    MS_EACH(line, lines)
    {
        Out *out = (Out *)a.out + loop_offset(a.kept, 0, line);
        const T *in = (const T *)a.in + loop_offset(a.kept, 1, line);
        typename S::type total = 0;

        for (int64_t i = 0; i < n; i++) {
            total += (typename S::type)get(in[i * a.reduced.stride[1][0]]);
            store(out + i * a.reduced.stride[0][0], S::value(total), a.accumulate);
        }
    }
}

#define ENTER(dtype, type, own, wide)                                                              \
    MS_ENTRY(cumsum, dtype)                                                                        \
    {                                                                                              \
        const msi_sum_args *a = (const msi_sum_args *)args;                                        \
        const int64_t lines = loop_count(a->kept), n = loop_count(a->reduced);                     \
        return ms_launch(a->out_dtype == MS_DTYPE_F32 ? cumsum_kernel<type, wide>                  \
                                                      : cumsum_kernel<type, own>,                  \
                         ms_grid(lines), (unsigned)MS_THREADS, 0, stream, *a, lines, n);           \
    }
ENTER(f32, float, float, float)
ENTER(f64, double, double, double)
ENTER(bf16, bf16, bf16, float)
ENTER(f16, f16, f16, float)
ENTER(i64, int64_t, int64_t, int64_t)
ENTER(i32, int32_t, int64_t, int64_t)
ENTER(u8, uint8_t, int64_t, int64_t)
ENTER(bool, truth, int64_t, int64_t)
