/* Body of arithmetic.c for one dtype; the comments beside MSI_KERNELS say what each computes. */

EW(add, 2, a + b)
EW(sub, 2, a - b)
EW(mul, 2, a *b)
EW(affine, 1, a *s0 + s1)
EW(square, 1, a *a)

#ifdef INTEGER
/* All bits where the number is negative. */
LANES_INLINE V LOCAL(below_zero)(V a)
{
    return -(a >> (8 * sizeof(T) - 1));
}

EW(abs, 1, (a ^ LOCAL(below_zero)(a)) - LOCAL(below_zero)(a))
EW(sign, 1, LOCAL(below_zero)(a) | ((V)(a != 0) & 1))
#else
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
