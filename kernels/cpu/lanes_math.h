/* exp, log, related functions, tanh and erf for lanes: part of lanes.h.
 *
 * f32: argument reduction and a polynomial (near-minimax, from a Chebyshev fit), each within 2
 * units in the last place, with the same bits on every instruction set. f64: the C library, lane by
 * lane. */

/* p as a polynomial in x by Horner's rule: c[0] x^(n-1) + ... + c[n-1]. */
#define LANES_POLY(p, x, ...)                                                                      \
    do {                                                                                           \
        const float c_[] = {__VA_ARGS__};                                                          \
        (p) = c_[0] - (f32_part){0};                                                               \
        _Pragma("GCC unroll 16") for (size_t k_ = 1; k_ < sizeof(c_) / sizeof(c_[0]); k_++)        \
        {                                                                                          \
            (p) = (p) * (x) + c_[k_];                                                              \
        }                                                                                          \
    } while (0)

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2. Correct for denormal results. */
LANES_INLINE f32_part exp_f32w(f32_part x)
{
    const float round = 0x1.8p23f; /* adding it rounds to an integer, stored in the low bits */
    f32_part p;

    x = min_f32w(splat_f32w(89), max_f32w(splat_f32w(-104), x)); /* keeps NaN (second operand) */
    f32_part shifted = x * 0x1.715476p0f + round;
    f32_part n = shifted - round;
    f32_part r =
        (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f; /* ln 2 in two parts; n * the first is exact */

    LANES_POLY(p, r, 0x1.6d1606p-10f, 0x1.12106cp-7f, 0x1.555516p-5f, 0x1.5554d8p-3f, 0.5f);
    p = (p * r * r + r) + 1.0f;

#if MSI_ISA == 4 /* the same bits: p times 2^n, rounded once */
    return (f32_part)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    /* 2^n as two factors: a single one would exceed the range of exponents. */
    i32_part k = ((i32_part)shifted << 9) >> 9;
    i32_part half = k >> 1;

    return p * (f32_part)((half + 127) << 23) * (f32_part)((k - half + 127) << 23);
#endif
}

/* n ln 2 + log(1 + m), sqrt(1/2) <= 1 + m < sqrt(2). */
LANES_INLINE f32_part log_reduced_f32w(f32_part n, f32_part m)
{
    f32_part p;

    LANES_POLY(p, m, 0x1.1d8ea6p-4f, -0x1.d635bcp-4f, 0x1.dea282p-4f, -0x1.fcf4c6p-4f,
               0x1.23d21ap-3f, -0x1.555b4ap-3f, 0x1.999d5ap-3f, -0x1.fffffcp-3f, 0x1.555554p-2f);
    f32_part square = m * m;
    f32_part y = p * m * square + n * -0x1.bd0106p-13f;

    return ((y - 0.5f * square) + m) + n * 0x1.63p-1f;
}

/* n and m of x = 2^n (1 + m) for log_reduced_f32w(); x is positive and normal. */
LANES_INLINE f32_part log_reduce_f32w(f32_part x, i32_part *n)
{
    i32_part bits = (i32_part)((u32_part)x - 0x3f3504f3); /* of sqrt(1/2) */

    *n = bits >> 23;
    return (f32_part)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
}

LANES_INLINE f32_part to_f32w(i32_part n)
{
    f32_part x;

    LANES_MAP1(x, f32_part, n, i32_part, __builtin_convertvector(lx, f32_part));
    return x;
}

LANES_INLINE f32_part log_f32w(f32_part x)
{
    i32_part n, tiny = lt_f32w(x, splat_f32w(0x1p-126f));
    f32_part m = log_reduce_f32w(select_f32w(tiny, x * 0x1p25f, x), &n);
    f32_part y = log_reduced_f32w(to_f32w(n - (tiny & 25)), m);

    y = select_f32w(lt_f32w(x, splat_f32w(INFINITY)), y, x); /* keeps inf and NaN */
    y = select_f32w(eq_f32w(x, splat_f32w(0)), splat_f32w(-INFINITY), y);
    return select_f32w(lt_f32w(x, splat_f32w(0)), splat_f32w(NAN), y);
}

/* exp(x) - 1 = 2^n (1 + q) - 1 = (2^n - 1) + 2^n q, where q preserves small results. Half of it is
 * computed and doubled, because 2^128 is not a float. */
LANES_INLINE f32_part expm1_f32w(f32_part x)
{
    const float round = 0x1.8p23f;
    f32_part t = min_f32w(splat_f32w(89), max_f32w(splat_f32w(-30), x)), p;
    f32_part shifted = t * 0x1.715476p0f + round;
    f32_part n = shifted - round;
    f32_part r = (t - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;

    LANES_POLY(p, r, 0x1.6d1606p-10f, 0x1.12106cp-7f, 0x1.555516p-5f, 0x1.5554d8p-3f, 0.5f);
    f32_part q = p * r * r + r;
    i32_part k = ((i32_part)shifted << 9) >> 9;
    f32_part half = (f32_part)((k + 126) << 23);
    f32_part y = ((half - 0.5f) + half * q) * 2.0f;

    return select_f32w(eq_f32w(x, splat_f32w(0)), x, y); /* keeps -0 */
}

/* log(1 + x). If 1 + x is near 1, x is passed to log_reduced_f32w(); otherwise the rounding error
 * of the sum is added as lost / (1 + x). */
LANES_INLINE f32_part log1p_f32w(f32_part x)
{
    i32_part n;
    f32_part u = x + 1.0f, m = log_reduce_f32w(u, &n), whole = u - 1.0f;
    f32_part lost = (1.0f - (u - whole)) + (x - whole);
    i32_part near = n == 0;
    f32_part y = log_reduced_f32w(to_f32w(n), select_f32w(near, x, m));

    y = select_f32w(near, y, y + lost / u);
    y = select_f32w(lt_f32w(x, splat_f32w(INFINITY)), y, x); /* keeps inf and NaN */
    y = select_f32w(eq_f32w(x, splat_f32w(-1)), splat_f32w(-INFINITY), y);
    y = select_f32w(eq_f32w(x, splat_f32w(0)), x, y); /* keeps -0 */
    return select_f32w(lt_f32w(x, splat_f32w(-1)), splat_f32w(NAN), y);
}

/* x + x^3 p(x^2) near 0, else 1 - 2 / (exp(2 |x|) + 1). */
LANES_INLINE f32_part tanh_f32w(f32_part x)
{
    f32_part a = abs_f32w(x), square = x * x, p;

    LANES_POLY(p, square, 0x1.2c83cp-9f, -0x1.116a16p-7f, 0x1.64a976p-6f, -0x1.ba08c4p-5f,
               0x1.1110eap-3f, -0x1.555556p-2f);
    f32_part small = p * square * x + x;
    f32_part large = 1.0f - 2.0f / (exp_f32w(a + a) + 1.0f);

    return copysign_f32w(select_f32w(lt_f32w(a, splat_f32w(0.625f)), small, large),
                         x); /* keeps -0 */
}

/* x + x p(x^2) near 0, else 1 - exp(t q(t)), t = |x|; the difference from 1 is negligible from 4
 * on. */
LANES_INLINE f32_part erf_f32w(f32_part x)
{
    f32_part a = abs_f32w(x), square = x * x, t = min_f32w(splat_f32w(4), a), p, q;

    LANES_POLY(p, square, 0x1.4a569p-14f, -0x1.a45088p-11f, 0x1.54127p-8f, -0x1.b7fabap-6f,
               0x1.ce2d1p-4f, -0x1.81273ep-2f, 0x1.06eba8p-3f);
    LANES_POLY(q, t, -0x1.119fdep-16f, 0x1.831846p-12f, -0x1.f2bfbep-9f, 0x1.89c008p-6f,
               -0x1.b3fbaep-4f, -0x1.452d0ep-1f, -0x1.20ee3cp+0f);
    f32_part small = p * x + x;
    f32_part large = 1.0f - exp_f32w(q * t);

    return copysign_f32w(select_f32w(lt_f32w(a, splat_f32w(1)), small, large), x); /* keeps -0 */
}

/* The C library's function on every lane. */
#define LANES_BY_LANE(name, S, VEC)                                                                \
    LANES_INLINE VEC name##_##S(VEC v)                                                             \
    {                                                                                              \
        for (size_t i = 0; i < sizeof(v) / sizeof(double); i++) {                                  \
            v[i] = name(v[i]);                                                                     \
        }                                                                                          \
        return v;                                                                                  \
    }
LANES_BY_LANE(exp, f64w, f64_part)
LANES_BY_LANE(log, f64w, f64_part)
LANES_BY_LANE(expm1, f64w, f64_part)
LANES_BY_LANE(log1p, f64w, f64_part)
LANES_BY_LANE(sin, f64w, f64_part)
LANES_BY_LANE(cos, f64w, f64_part)
LANES_BY_LANE(tanh, f64w, f64_part)
LANES_BY_LANE(erf, f64w, f64_part)
LANES_BY_LANE(exp, f64, f64x16)
LANES_BY_LANE(log, f64, f64x16)
#undef LANES_BY_LANE

#define LANES_BY_PART(name)                                                                        \
    LANES_INLINE f32x16 name##_f32(f32x16 v)                                                       \
    {                                                                                              \
        f32x16 r;                                                                                  \
        LANES_MAP1(r, f32_part, v, f32_part, name##_f32w(lx));                                     \
        return r;                                                                                  \
    }
LANES_BY_PART(exp)
LANES_BY_PART(log)
#undef LANES_BY_PART
