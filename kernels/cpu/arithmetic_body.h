/* Body of arithmetic.c for one dtype; the comments beside MSI_KERNELS say what each computes. */

EW(add, 2, a + b)
EW(sub, 2, a - b)
EW(mul, 2, a *b)
EW(affine, 1, a *s0 + s1)
EW(square, 1, a *a)

#ifdef INTEGER
#define LESS(a, b) ((V)((SIGNED)(a) < (SIGNED)(b)))

LANES_INLINE V LOCAL(largest)(V a, V b)
{
    return (a & ~LESS(a, b)) | (b & LESS(a, b));
}

LANES_INLINE V LOCAL(smallest)(V a, V b)
{
    return (a & ~LESS(b, a)) | (b & LESS(b, a));
}

#undef LESS
/* All bits where the number is negative. */
LANES_INLINE V LOCAL(below_zero)(V a)
{
    return -(a >> (8 * sizeof(T) - 1));
}

EW(abs, 1, (a ^ LOCAL(below_zero)(a)) - LOCAL(below_zero)(a))
EW(sign, 1, LOCAL(below_zero)(a) | ((V)(a != 0) & 1))
#else
/* NaN where either is. */
LANES_INLINE V LOCAL(largest)(V a, V b)
{
    return OF(select)(OF(ne)(a, a), a, OF(max)(a, b));
}

LANES_INLINE V LOCAL(smallest)(V a, V b)
{
    return OF(select)(OF(ne)(a, a), a, OF(min)(a, b));
}

/* The incoming gradient g as x takes it where it competes with y: none where `lost`. */
#define SHARE(g, x, y, lost)                                                                       \
    OF(select)((lost), SPLAT(0), OF(select)(OF(eq)(x, y), (g) * (REAL)0.5, (g)))
EW(maximum_grad, 3, SHARE(a, b, c, OF(lt)(b, c)))
EW(minimum_grad, 3, SHARE(a, b, c, OF(lt)(c, b)))
#undef SHARE

/* A bound as the dtype holds it. */
LANES_INLINE V LOCAL(held)(REAL bound)
{
    T held;

    STORE_N(&held, OF(splat)(bound), 1);
    return OF(splat)(LOAD_N(&held, 1)[0]);
}

/* Are a and b in ascending order, and apart? Infinity is no bound that a number reaches. */
#define WITHIN(a, b)                                                                               \
    (OF(lt)((a), (b)) | (OF(eq)((a), (b)) & OF(eq)(OF(abs)(a), SPLAT(INFINITY))))
EW(clamp_grad, 2,
   OF(select)(WITHIN(LOCAL(held)(s0), b) & WITHIN(b, LOCAL(held)(s1)), a, SPLAT(0)))
#undef WITHIN

/* 0 of NaN, too. */
LANES_INLINE V LOCAL(sign_lanes)(V a)
{
    const V zero = SPLAT(0);

    return OF(select)(OF(lt)(zero, a), SPLAT(1), OF(select)(OF(lt)(a, zero), SPLAT(-1), zero));
}

EW(abs, 1, OF(abs)(a))
EW(abs_grad, 2, a *LOCAL(sign_lanes)(b))
EW(sign, 1, LOCAL(sign_lanes)(a))
EW(sign_grad, 2, SPLAT(0))
EW(square_grad, 2, a *(b + b))
EW(div, 2, a / b)
EW_SCALED(scale, 1, a *s0, *(const double *)r->args->in[1])
EW(reciprocal, 1, s0 / a)
EW(mul_neg, 3, -(a *b *c))
EW(div_neg, 3, -(a *b / c))
EW(sqrt, 1, OF(sqrt)(a))
EW(sqrt_grad, 2, a / (b + b))
EW(rsqrt, 1, (REAL)1 / OF(sqrt)(a))
EW(rsqrt_grad, 2, a *(b *b *b) * (REAL)-0.5)
EW_SCALED(mse_grad, 2, (a - b) * s0, r->args->scalar[0] * (double)*(const REAL *)r->args->in[2])
#ifndef NARROW /* squares of narrow numbers are f32 */
EW(mse, 2, (a - b) * (a - b))
#endif
#endif

EW(maximum, 2, LOCAL(largest)(a, b))
EW(minimum, 2, LOCAL(smallest)(a, b))
EW(clamp, 1, LOCAL(smallest)(LOCAL(largest)(a, SPLAT(s0)), SPLAT(s1)))
