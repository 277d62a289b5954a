/* Optimizer steps, one thread an element; the formulas are those of kernels/cpu/<name>_body.h. */
#include "cuda_kernel.h"

#define OPTIM_ARGS(name) const msi_##name##_args a

/* The gradient, negated to maximize, with the decay that is added to it. Without one p is left
 * out, for an infinite p times 0 is none. */
template <class R> static __device__ inline R gradient(R g, R p, bool maximize, double decay)
{
    g = maximize ? -g : g;
    return decay != 0 ? g + p * (R)decay : g;
}

template <class T> static __global__ void adam(OPTIM_ARGS(adam))
{
    typedef REAL(T) R;
    T *p = (T *)a.p, *m = (T *)a.m, *v = (T *)a.v, *most = (T *)a.most;
    const R keep = (R)(a.decoupled ? 1 - a.lr * a.weight_decay : 1);
    const R divisor = (R)sqrt(a.correction2), step = (R)(a.lr / a.correction1);
    const R fresh1 = (R)(1 - a.beta1), fresh2 = (R)(1 - a.beta2);

    MS_EACH(i, a.n)
    {
        const R x = get(p[i]);
        const R g =
            gradient(get(((const T *)a.g)[i]), x, a.maximize, a.decoupled ? 0 : a.weight_decay);
        const R first = get(m[i]) * (R)a.beta1 + g * fresh1;
        R second = get(v[i]) * (R)a.beta2 + g * fresh2 * g;

        m[i] = element<T>::put(first);
        v[i] = element<T>::put(second);
        if (most != NULL) {
            const R before = get(most[i]);

            second = before > second ? before : second;
            most[i] = element<T>::put(second);
        }
        p[i] = element<T>::put(x * keep - first / (root_of(second) / divisor + (R)a.eps) * step);
    }
}

template <class T> static __global__ void sgd(OPTIM_ARGS(sgd))
{
    typedef REAL(T) R;
    T *p = (T *)a.p, *buf = (T *)a.buf;

    MS_EACH(i, a.n)
    {
        const R x = get(p[i]);
        R d = gradient(get(((const T *)a.g)[i]), x, a.maximize, a.weight_decay);

        if (buf != NULL) {
            const R b = a.first_step ? d : get(buf[i]) * (R)a.momentum + d * (R)(1 - a.dampening);

            buf[i] = element<T>::put(b);
            d = a.nesterov ? d + b * (R)a.momentum : b;
        }
        p[i] = element<T>::put(x - d * (R)a.lr);
    }
}

template <class T> static __global__ void lion(OPTIM_ARGS(lion))
{
    typedef REAL(T) R;
    T *p = (T *)a.p, *m = (T *)a.m;
    const R keep = (R)(1 - a.lr * a.weight_decay);

    MS_EACH(i, a.n)
    {
        const R g = a.maximize ? -get(((const T *)a.g)[i]) : get(((const T *)a.g)[i]);
        const R first = get(m[i]), mixed = first * (R)a.beta1 + g * (R)(1 - a.beta1);
        const R move = mixed > 0 ? (R)1 : mixed < 0 ? (R)-1 : mixed; /* NaN stays */

        m[i] = element<T>::put(first * (R)a.beta2 + g * (R)(1 - a.beta2));
        p[i] = element<T>::put(get(p[i]) * keep - move * (R)a.lr);
    }
}

template <class T> static __global__ void rmsprop(OPTIM_ARGS(rmsprop))
{
    typedef REAL(T) R;
    T *p = (T *)a.p, *v = (T *)a.v, *mean = (T *)a.mean, *buf = (T *)a.buf;
    const R fresh = (R)(1 - a.alpha);

    MS_EACH(i, a.n)
    {
        const R x = get(p[i]),
                g = gradient(get(((const T *)a.g)[i]), x, a.maximize, a.weight_decay);
        const R second = get(v[i]) * (R)a.alpha + g * fresh * g;
        R square = second;

        v[i] = element<T>::put(second);
        if (mean != NULL) {
            R m = get(mean[i]);

            m += (g - m) * fresh;
            mean[i] = element<T>::put(m);
            square = second - m * m;
        }
        R move = g / (root_of(square) + (R)a.eps);

        if (buf != NULL) {
            move = get(buf[i]) * (R)a.momentum + move;
            buf[i] = element<T>::put(move);
        }
        p[i] = element<T>::put(x - move * (R)a.lr);
    }
}

template <class T> static __global__ void adagrad(OPTIM_ARGS(adagrad))
{
    typedef REAL(T) R;
    T *p = (T *)a.p, *sum = (T *)a.sum;

    MS_EACH(i, a.n)
    {
        const R x = get(p[i]),
                g = gradient(get(((const T *)a.g)[i]), x, a.maximize, a.weight_decay);
        const R s = get(sum[i]) + g * g;

        sum[i] = element<T>::put(s);
        p[i] = element<T>::put(x - g / (root_of(s) + (R)a.eps) * (R)a.lr);
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_##op##_args *a = (const msi_##op##_args *)args;                                  \
        return ms_launch(op<type>, ms_grid(a->n), (unsigned)MS_THREADS, 0, stream, *a);            \
    }
MS_FLOATS(ENTER, adam)
MS_FLOATS(ENTER, sgd)
MS_FLOATS(ENTER, lion)
MS_FLOATS(ENTER, rmsprop)
MS_FLOATS(ENTER, adagrad)
