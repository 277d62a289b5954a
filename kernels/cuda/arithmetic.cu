/* Arithmetic of two or three operands and its gradients, elementwise. */
#include "ew.h"

/* Integers wrap. */
#define U(x) ((typename wrapping<R>::type)(x))

template <class R> static __device__ inline R largest(R a, R b)
{
    return a != a || a > b ? a : b;
}

template <class R> static __device__ inline R smallest(R a, R b)
{
    return a != a || a < b ? a : b;
}

/* 0 of NaN, too. */
template <class R> static __device__ inline R signum(R a)
{
    return (R)(0 < a ? 1 : a < 0 ? -1 : 0);
}

template <class R> static __device__ inline R magnitude(R a)
{
    return a < 0 ? (R)(0 - (typename wrapping<R>::type)a) : a;
}
template <> __device__ inline float magnitude<float>(float a)
{
    return fabsf(a);
}
template <> __device__ inline double magnitude<double>(double a)
{
    return fabs(a);
}

/* A bound as the dtype holds it. */
template <class T, class R> static __device__ inline R held(R bound)
{
    return get(element<T>::put(bound));
}

/* The rest of a division cut towards 0; of integers 0 where b is 0. A divisor of -1 is left out:
 * the quotient of the least number does not exist. */
template <class R> static __device__ inline R cut_rest(R a, R b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}
template <> __device__ inline float cut_rest<float>(float a, float b)
{
    return fmodf(a, b);
}
template <> __device__ inline double cut_rest<double>(double a, double b)
{
    return fmod(a, b);
}

/* Does the quotient that was cut towards 0 exceed its floor? */
template <class R> static __device__ inline bool is_above(R rest, R b)
{
    return rest != 0 && (rest < 0) != (b < 0);
}

template <class R> static __device__ inline R remainder_of(R a, R b)
{
    const R rest = cut_rest(a, b);

    return is_above(rest, b) ? rest + b : rest;
}

template <class R> static __device__ inline R floor_quotient(R a, R b)
{
    const R rest = cut_rest(a, b), cut = (R)rint((a - rest) / b);

    return is_above(rest, b) ? cut - 1 : cut;
}

enum { DOWN, UP, TO_ZERO, TO_NEAREST };

/* Integers are whole. */
template <class R> static __device__ inline R whole(R a, int where)
{
    const double x = (double)a;

    return (R)0.5 == 0        ? a
           : where == DOWN    ? (R)floor(x)
           : where == UP      ? (R)ceil(x)
           : where == TO_ZERO ? (R)trunc(x)
                              : (R)rint(x);
}

EW_NUMBERS(floor, 1, whole(a, DOWN))
EW_NUMBERS(ceil, 1, whole(a, UP))
EW_NUMBERS(trunc, 1, whole(a, TO_ZERO))
EW_NUMBERS(round, 1, whole(a, TO_NEAREST))
EW_NUMBERS(remainder, 2, remainder_of(a, b))
EW_NUMBERS(add, 2, U(a) + U(b))
EW_NUMBERS(sub, 2, U(a) - U(b))
EW_NUMBERS(mul, 2, U(a) * U(b))
EW_NUMBERS(affine, 1, U(a) * U(s0) + U(s1))
EW_NUMBERS(square, 1, U(a) * U(a))
EW_NUMBERS(abs, 1, magnitude(a))
EW_NUMBERS(sign, 1, signum(a))
EW_NUMBERS(maximum, 2, largest(a, b))
EW_NUMBERS(minimum, 2, smallest(a, b))
EW_NUMBERS(clamp, 1, smallest(largest(a, s0), s1))

/* The incoming gradient g as x takes it where it competes with y: none where `lost`. */
#define SHARE(g, x, y, lost) ((lost) ? (R)0 : (x) == (y) ? (g) * (R)0.5 : (g))
EW(maximum_grad, 3, SHARE(a, b, c, b < c))
EW(minimum_grad, 3, SHARE(a, b, c, c < b))

/* Are a and b in ascending order, and apart? Infinity is no bound that a number reaches. */
template <class R> static __device__ inline bool within(R a, R b)
{
    return a < b || (a == b && isinf(a));
}

EW(clamp_grad, 2, (within(held<T, R>(s0), b) && within(b, held<T, R>(s1)) ? a : (R)0))
EW(remainder_grad, 3, -(a *floor_quotient(b, c)))
EW(abs_grad, 2, a *signum(b))
EW(sign_grad, 2, 0)
EW(square_grad, 2, a *(b + b))
EW(div, 2, a / b)
EW(reciprocal, 1, s0 / a)
EW(mul_neg, 3, -(a *b *c))
EW(div_neg, 3, -(a *b / c))
EW(sqrt, 1, root_of(a))
EW(sqrt_grad, 2, a / (b + b))
EW(rsqrt, 1, (R)1 / root_of(a))
EW(rsqrt_grad, 2, a *(b *b *b) * (R)-0.5)
EW_KIND(scale, 1, EW_SCALE, a *s0)
EW_KIND(mse_grad, 2, EW_MSE, (a - b) * s0)

EW_FUNCTION(mse, (a - b) * (a - b))
EW_ENTRY(mse, 2, EW_PLAIN, f32, float) /* squares of narrow numbers are f32 */
EW_ENTRY(mse, 2, EW_PLAIN, f64, double)
