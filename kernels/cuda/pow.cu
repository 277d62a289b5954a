/* x^p for one number p, or for an exponent of each element, and their gradients. Integers of at
 * most 32 in magnitude by repeated squaring, a half by a square root, everything else by pow() in
 * f64. */
#include "ew.h"

enum { MOST_MULTIPLIED = 32 };

template <class R> static __device__ inline R power(R x, double p)
{
    const double size = fabs(p);

    if (size <= MOST_MULTIPLIED && size == (double)(int32_t)size) {
        R base = p < 0 ? 1 / x : x, y = 1;

        for (int32_t n = (int32_t)size; n > 0; n >>= 1) {
            y = n & 1 ? y * base : y;
            base = base * base;
        }
        return y;
    }
    if (size == 0.5) {
        return p < 0 ? 1 / root_of(x) : root_of(x);
    }
    return (R)pow((double)x, p);
}

template <class T> static __global__ void pow_kernel(const msi_ew_args a, int64_t n)
{
    MS_EACH(i, n)
    {
        store((T *)a.out + loop_offset(a.loop, 0, i),
              power(get(((const T *)a.in[0])[loop_offset(a.loop, 1, i)]), a.scalar[0]),
              a.accumulate);
    }
}

/* in[0] p in[1]^(p - 1); x^0 is 1 everywhere, so its gradient is 0 everywhere. */
template <class T> static __global__ void pow_grad_kernel(const msi_ew_args a, int64_t n)
{
    typedef REAL(T) R;
    const double p = a.scalar[0];

    MS_EACH(i, n)
    {
        const R g = get(((const T *)a.in[0])[loop_offset(a.loop, 1, i)]);
        const R x = get(((const T *)a.in[1])[loop_offset(a.loop, 2, i)]);

        store((T *)a.out + loop_offset(a.loop, 0, i), p != 0 ? power(x, p - 1) * (R)p * g : (R)0,
              a.accumulate);
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_ew_args *a = (const msi_ew_args *)args;                                          \
        const int64_t n = loop_count(a->loop);                                                     \
        return ms_launch(op##_kernel<type>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);   \
    }
MS_FLOATS(ENTER, pow)
MS_FLOATS(ENTER, pow_grad)

/* An exponent for each element. */
template <class R> static __device__ inline R power_each(R x, R p)
{
    return (R)pow((double)x, (double)p);
}

EW(power, 2, power_each(a, b))
EW(power_grad, 3, (c == 0 ? (R)0 : power_each(b, (R)(c - 1)) * c * a))
EW(power_grad_exponent, 3, (c == 0 && b < (R)INFINITY ? (R)0 : a * b * (R)log(c)))
