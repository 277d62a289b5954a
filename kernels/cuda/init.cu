/* First values of parameters: element i is a function of (seed, key, i), as kernels/cpu/init.c.
 * Normal values are computed in f64 and rounded once. */
#include "cuda_kernel.h"

static __device__ inline double unit(uint32_t high, uint32_t low)
{
    return (double)(int64_t)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

static __device__ inline double value_of(const msi_init_args &a, int64_t i)
{
    uint32_t w[4];

    if (a.kind == MS_INIT_CONSTANT) {
        return a.a;
    }
    philox(w, (uint64_t)(i / 2), 0, philox_key(a.seed, a.key, 0));
    if (a.kind == MS_INIT_UNIFORM) {
        return a.a + (i % 2 == 0 ? unit(w[0], w[1]) : unit(w[2], w[3])) * (a.b - a.a);
    }
    const double radius = a.b * sqrt(-2 * log1p(-unit(w[0], w[1])));
    const double angle = 6.283185307179586477 * unit(w[2], w[3]);

    return a.a + radius * (i % 2 == 0 ? cos(angle) : sin(angle));
}

template <class T> static __global__ void init_kernel(const msi_init_args a, double most)
{
    MS_EACH(i, a.n)
    {
        const double x = value_of(a, a.first + i);

        ((T *)a.out)[i] = element<T>::put(x > most ? most : x);
    }
}

/* The largest T below b: rounding must not carry a uniform value up to the open end. */
template <class T> static double below(double b)
{
    T x = element<T>::put(b);

    if ((double)get(x) >= b) { /* the neighbour: sign and magnitude */
        x.bits = (uint16_t)((x.bits & 0x7fff) == 0 ? 0x8001
                            : x.bits & 0x8000      ? x.bits + 1
                                                   : x.bits - 1);
    }
    return (double)get(x);
}
template <> double below<float>(double b)
{
    return (double)(float)b >= b ? (double)nextafterf((float)b, -INFINITY) : (double)(float)b;
}
template <> double below<double>(double b)
{
    return nextafter(b, -(double)INFINITY);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_init_args *a = (const msi_init_args *)args;                                      \
        const bool bounded = a->kind == MS_INIT_UNIFORM && a->b > a->a;                            \
        return ms_launch(init_kernel<type>, ms_grid(a->n), (unsigned)MS_THREADS, 0, stream, *a,    \
                         bounded ? below<type>(a->b) : (double)INFINITY);                          \
    }
MS_FLOATS(ENTER, init)
