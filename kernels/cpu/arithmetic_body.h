/* Body of arithmetic.c for one dtype. The operators are documented beside MSI_KERNELS. */

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
/* All bits set where the number is negative, else 0. */
LANES_INLINE V LOCAL(below_zero)(V a)
{
    return -(a >> (8 * sizeof(T) - 1));
}

EW(abs, 1, (a ^ LOCAL(below_zero)(a)) - LOCAL(below_zero)(a))
EW(sign, 1, LOCAL(below_zero)(a) | ((V)(a != 0) & 1))
EW(floor, 1, a)
EW(ceil, 1, a)
EW(trunc, 1, a)
EW(round, 1, a)

/* A divisor of -1 is special: the quotient of the lowest integer would overflow. */
LANES_INLINE V LOCAL(rest)(V a, V b)
{
    V rest = SPLAT(0);

    for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(T)); i++) {
        const T divisor = (T)b[i], r = divisor == 0 || divisor == -1 ? 0 : (T)a[i] % divisor;

        rest[i] = (REAL)r + (r != 0 && (r < 0) != (divisor < 0) ? (REAL)divisor : 0);
    }
    return rest;
}

EW(remainder, 2, LOCAL(rest)(a, b))
#else
/* FUNCTION of the double in each lane of x. */
#define EACH_LANE(FUNCTION, x)                                                                     \
    for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(REAL)); i++) {                            \
        (x)[i] = (REAL)FUNCTION((double)(x)[i]);                                                   \
    }                                                                                              \
    return (x)

LANES_INLINE V LOCAL(floor_lanes)(V x)
{
    EACH_LANE(__builtin_floor, x);
}

LANES_INLINE V LOCAL(ceil_lanes)(V x)
{
    EACH_LANE(__builtin_ceil, x);
}

LANES_INLINE V LOCAL(trunc_lanes)(V x)
{
    EACH_LANE(__builtin_trunc, x);
}

/* Round half to even. */
LANES_INLINE V LOCAL(round_lanes)(V x)
{
    EACH_LANE(__builtin_rint, x);
}
#undef EACH_LANE

EW(floor, 1, LOCAL(floor_lanes)(a))
EW(ceil, 1, LOCAL(ceil_lanes)(a))
EW(trunc, 1, LOCAL(trunc_lanes)(a))
EW(round, 1, LOCAL(round_lanes)(a))

/* The remainder of truncated division: it has a's sign and is exact. */
LANES_INLINE V LOCAL(cut_rest)(V a, V b)
{
    for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(REAL)); i++) {
        a[i] = (REAL)__builtin_fmod((double)a[i], (double)b[i]);
    }
    return a;
}

/* Is the truncated quotient greater than its floor? */
#define IS_ABOVE(rest, b) (OF(ne)(rest, SPLAT(0)) & (OF(lt)(rest, SPLAT(0)) ^ OF(lt)(b, SPLAT(0))))

LANES_INLINE V LOCAL(remainder_lanes)(V a, V b)
{
    V rest = LOCAL(cut_rest)(a, b);

    return OF(select)(IS_ABOVE(rest, b), rest + b, rest);
}

LANES_INLINE V LOCAL(floor_quotient)(V a, V b)
{
    V rest = LOCAL(cut_rest)(a, b), cut = LOCAL(round_lanes)((a - rest) / b);

    return OF(select)(IS_ABOVE(rest, b), cut - (REAL)1, cut);
}
#undef IS_ABOVE

EW(remainder, 2, LOCAL(remainder_lanes)(a, b))
EW(remainder_grad, 3, -(a *LOCAL(floor_quotient)(b, c)))

/* The larger one; NaN if either is NaN. */
LANES_INLINE V LOCAL(largest)(V a, V b)
{
    return OF(select)(OF(ne)(a, a), a, OF(max)(a, b));
}

LANES_INLINE V LOCAL(smallest)(V a, V b)
{
    return OF(select)(OF(ne)(a, a), a, OF(min)(a, b));
}

/* The part of the incoming gradient g for x, which competes with y; 0 where `lost`. */
#define SHARE(g, x, y, lost)                                                                       \
    OF(select)((lost), SPLAT(0), OF(select)(OF(eq)(x, y), (g) * (REAL)0.5, (g)))
EW(maximum_grad, 3, SHARE(a, b, c, OF(lt)(b, c)))
EW(minimum_grad, 3, SHARE(a, b, c, OF(lt)(c, b)))
#undef SHARE

/* A bound, rounded to the dtype. */
LANES_INLINE V LOCAL(held)(REAL bound)
{
    T held;

    STORE_N(&held, OF(splat)(bound), 1);
    return OF(splat)(LOAD_N(&held, 1)[0]);
}

/* Is a < b, or are both the same infinity? (No number is beyond an infinite bound.) */
#define WITHIN(a, b) (OF(lt)((a), (b)) | (OF(eq)((a), (b)) & OF(eq)(OF(abs)(a), SPLAT(INFINITY))))
EW(clamp_grad, 2, OF(select)(WITHIN(LOCAL(held)(s0), b) & WITHIN(b, LOCAL(held)(s1)), a, SPLAT(0)))
#undef WITHIN

/* 0 for NaN, too. */
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
#ifndef NARROW /* squares of f16 and bf16 are computed in f32 */
EW(mse, 2, (a - b) * (a - b))
#endif
#endif

EW(maximum, 2, LOCAL(largest)(a, b))
EW(minimum, 2, LOCAL(smallest)(a, b))
EW(clamp, 1, LOCAL(smallest)(LOCAL(largest)(a, SPLAT(s0)), SPLAT(s1)))
