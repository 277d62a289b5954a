/* Body of activations.c for one dtype. In gradients a is the incoming gradient, and b is documented
 * beside MSI_KERNELS. */

/* Gelu is x P(X < x), X standard normal (arXiv:1606.08415). For a = |x|, with e = exp(-a^2 / 2),
 * P(X > a) = e t Q(t), t = 1 / (1 + a / 4). Q is a polynomial fitted over all a >= 0 to 1e-8. So
 * one exponential gives the tail probability and the density, and small results keep their
 * precision. */
LANES_INLINE V LOCAL(gauss)(V x)
{
    return OF(exp)(x * x * (REAL)-0.5);
}

/* P(X < x) given e = gauss(x). */
LANES_INLINE V LOCAL(normal_below)(V x, V e)
{
#if IS_F64
    (void)e;
    return OF(erf)(x * (REAL)0.70710678118654752440) * (REAL)0.5 + (REAL)0.5;
#else
    V t = 1.0f / (OF(abs)(x) * GELU_C + 1.0f), q;

    LANES_POLY(q, t, GELU_Q);
    V tail = e * (t * q);

    return OF(select)(OF(lt)(x, SPLAT(0)), tail, 1.0f - tail);
#endif
}

LANES_INLINE V LOCAL(gelu_lanes)(V x)
{
    return x * LOCAL(normal_below)(x, LOCAL(gauss)(x));
}

/* P(X < x) + x density(x). */
LANES_INLINE V LOCAL(gelu_slope)(V x)
{
    V e = LOCAL(gauss)(x);

    return LOCAL(normal_below)(x, e) + x * (REAL)0.39894228040143267794 * e;
}

/* -2 u for u = sqrt(2 / pi) (x + 0.044715 x^3), so that (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)):
 * one exponential instead of a tanh, and small results keep their precision. */
LANES_INLINE V LOCAL(gelu_exponent)(V x)
{
    return x * (x * x * (REAL)-0.07135481627260024878 - (REAL)1.59576912160573071176);
}

LANES_INLINE V LOCAL(gelu_tanh_lanes)(V x)
{
    return x / (OF(exp)(LOCAL(gelu_exponent)(x)) + (REAL)1);
}

/* s + x s (1 - s) 2 du/dx with s = 1 / (1 + e); 1 - s = e s does not cancel. Beyond 10 the second
 * term is negligible; limiting x there keeps e and x^2 finite. NaN for infinities, by x - x. */
LANES_INLINE V LOCAL(gelu_tanh_slope)(V x)
{
    V cut = OF(min)(OF(splat)(10), OF(max)(OF(splat)(-10), x));
    V e = OF(exp)(LOCAL(gelu_exponent)(cut)), s = (REAL)1 / (e + (REAL)1);
    V du2 = cut * cut * (REAL)0.21406444881780074633 + (REAL)1.59576912160573071176;

    return s + cut * s * (e * s) * du2 + (x - x);
}

/* sigmoid(x), and sigmoid(-x) = 1 - sigmoid(x) in *other, without overflow or cancellation. */
LANES_INLINE V LOCAL(sigmoid_lanes)(V x, V *other)
{
    V e = OF(exp)(-OF(abs)(x)), large = (REAL)1 / (e + (REAL)1), small = e * large;
    const __auto_type negative = OF(lt)(x, SPLAT(0));

    *other = OF(select)(negative, large, small);
    return OF(select)(negative, small, large);
}

LANES_INLINE V LOCAL(sigmoid_single)(V x)
{
    V other;

    return LOCAL(sigmoid_lanes)(x, &other);
}

/* x / (1 + exp(-x)) with h = exp(-|x| / 2), so that no factor of a small result is denormal. */
LANES_INLINE V LOCAL(silu_lanes)(V x)
{
    V h = OF(exp)(OF(abs)(x) * (REAL)-0.5), weight = (REAL)1 / (h * h + (REAL)1);
    V y = OF(select)(OF(lt)(x, SPLAT(0)), x * h * h, x) * weight;

    return OF(select)(OF(ne)(x, x), x + x, y); /* a product of two NaNs may return either */
}

LANES_INLINE V LOCAL(silu_slope)(V x)
{
    V other, s = LOCAL(sigmoid_lanes)(x, &other);

    return OF(select)(OF(ne)(x, x), x + x, s * (x * other + (REAL)1));
}

/* log(1 + exp(b x)) / b; exp(-|b x|) does not overflow. */
LANES_INLINE V LOCAL(softplus_lanes)(V x, REAL beta, REAL threshold)
{
    V t = x * beta;
    V y = (OF(max)(SPLAT(0), t) + OF(log1p)(OF(exp)(-OF(abs)(t)))) / beta;

    return OF(select)(OF(lt)(OF(splat)(threshold), t), x, y);
}

LANES_INLINE V LOCAL(softplus_slope)(V x, REAL beta, REAL threshold)
{
    V t = x * beta, other;

    return OF(select)(OF(lt)(OF(splat)(threshold), t), SPLAT(1), LOCAL(sigmoid_lanes)(t, &other));
}

EW(exp, 1, OF(exp)(a))
EW(expm1, 1, OF(expm1)(a))
EW(expm1_grad, 2, a *(b + (REAL)1))
EW(log, 1, OF(log)(a))
EW(log1p, 1, OF(log1p)(a))
EW(log1p_grad, 2, a / (b + (REAL)1))
EW(sin, 1, OF(sin)(a))
EW(sin_grad, 2, a *OF(cos)(b))
EW(cos, 1, OF(cos)(a))
EW(cos_grad, 2, -(a *OF(sin)(b)))
EW(sigmoid, 1, LOCAL(sigmoid_single)(a))
EW(sigmoid_grad, 2, a *((REAL)1 - b) * b)
EW(logsigmoid, 1, OF(min)(SPLAT(0), a) - OF(log1p)(OF(exp)(-OF(abs)(a))))
EW(logsigmoid_grad, 2, a *LOCAL(sigmoid_single)(-b))
EW(silu, 1, LOCAL(silu_lanes)(a))
EW(silu_grad, 2, a *LOCAL(silu_slope)(b))
EW(softplus, 1, LOCAL(softplus_lanes)(a, s0, s1))
EW(softplus_grad, 2, a *LOCAL(softplus_slope)(b, s0, s1))
EW(tanh, 1, OF(tanh)(a))
EW(tanh_grad, 2, a *((REAL)1 - b * b))
EW(relu, 1, OF(select)(OF(lt)(a, SPLAT(0)), SPLAT(0), a)) /* NaN and -0 are unchanged */
EW(relu_grad, 2, OF(select)(OF(le)(b, SPLAT(0)), SPLAT(0), a))
EW(leaky_relu, 1, OF(select)(OF(lt)(SPLAT(0), a), a, a *s0))
EW(leaky_relu_grad, 2, OF(select)(OF(lt)(SPLAT(0), b), a, a *s0))
EW(erf, 1, OF(erf)(a))
EW(erf_grad, 2, OF(exp)(-(b *b)) * (REAL)1.12837916709551257390 * a)
EW(gelu, 1, LOCAL(gelu_lanes)(a))
EW(gelu_grad, 2, a *LOCAL(gelu_slope)(b))
EW(gelu_tanh, 1, LOCAL(gelu_tanh_lanes)(a))
EW(gelu_tanh_grad, 2, a *LOCAL(gelu_tanh_slope)(b))
