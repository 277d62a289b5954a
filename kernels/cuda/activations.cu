/* Functions of one operand and their gradients, elementwise. Gradients: a is the incoming one, b
 * what the comments beside MSI_KERNELS say. */
#include "ew.h"

/* P(X < x), X standard normal. */
template <class R> static __device__ inline R normal_below(R x)
{
    return (R)0.5 * erfc_of(x * (R)-0.70710678118654752440);
}

template <class R> static __device__ inline R gelu_slope(R x)
{
    return normal_below(x) + x * (R)0.39894228040143267794 * exp_of(x * x * (R)-0.5);
}

/* -2 u for u = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)). */
template <class R> static __device__ inline R gelu_exponent(R x)
{
    return x * (x * x * (R)-0.07135481627260024878 - (R)1.59576912160573071176);
}

/* NaN of infinities, by x - x. */
template <class R> static __device__ inline R gelu_tanh_slope(R x)
{
    const R cut = x > 10 ? (R)10 : x < -10 ? (R)-10 : x;
    const R e = exp_of(gelu_exponent(cut)), s = 1 / (e + 1);

    return s +
           cut * s * (e * s) * (cut * cut * (R)0.21406444881780074633 + (R)1.59576912160573071176) +
           (x - x);
}

/* Without overflow or cancellation. */
template <class R> static __device__ inline R sigmoid(R x)
{
    const R e = exp_of(-abs_of(x)), large = 1 / (e + 1);

    return x < 0 ? e * large : large;
}

/* x / (1 + exp(-x)) with h = exp(-|x| / 2), so that no factor of a small result is denormal. */
template <class R> static __device__ inline R silu_fn(R x)
{
    const R h = exp_of(abs_of(x) * (R)-0.5), weight = 1 / (h * h + 1);

    return (x < 0 ? x * h * h : x) * weight;
}

template <class R> static __device__ inline R softplus_fn(R x, R beta, R threshold)
{
    const R t = x * beta, above = t > 0 ? t : t != t ? t : (R)0;

    return t > threshold ? x : (above + log1p_of(exp_of(-abs_of(t)))) / beta;
}

EW(exp, 1, exp_of(a))
EW(expm1, 1, expm1_of(a))
EW(expm1_grad, 2, a *(b + 1))
EW(log, 1, log_of(a))
EW(log1p, 1, log1p_of(a))
EW(log1p_grad, 2, a / (b + 1))
EW(sin, 1, sin_of(a))
EW(sin_grad, 2, a *cos_of(b))
EW(cos, 1, cos_of(a))
EW(cos_grad, 2, -(a *sin_of(b)))
EW(sigmoid, 1, sigmoid(a))
EW(sigmoid_grad, 2, a *(1 - b) * b)
EW(logsigmoid, 1, (a > 0 ? (R)0 : a) - log1p_of(exp_of(-abs_of(a))))
EW(logsigmoid_grad, 2, a *sigmoid(-b))
EW(silu, 1, silu_fn(a))
EW(silu_grad, 2, a *sigmoid(b) * (b * sigmoid(-b) + 1))
EW(softplus, 1, softplus_fn(a, s0, s1))
EW(softplus_grad, 2, (b * s0 > s1 ? a : a * sigmoid(b * s0)))
EW(tanh, 1, tanh_of(a))
EW(tanh_grad, 2, a *(1 - b * b))
EW(relu, 1, (a < 0 ? (R)0 : a)) /* NaN and -0 stay */
EW(relu_grad, 2, (b <= 0 ? (R)0 : a))
EW(leaky_relu, 1, (0 < a ? a : a * s0))
EW(leaky_relu_grad, 2, (0 < b ? a : a * s0))
EW(erf, 1, erf_of(a))
EW(erf_grad, 2, exp_of(-(b *b)) * (R)1.12837916709551257390 * a)
EW(gelu, 1, a *normal_below(a))
EW(gelu_grad, 2, a *gelu_slope(b))
EW(gelu_tanh, 1, a / (exp_of(gelu_exponent(a)) + 1))
EW(gelu_tanh_grad, 2, a *gelu_tanh_slope(b))
