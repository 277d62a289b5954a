/* The part of lanes.h that f32 and f64, 16 lanes and one register share. Included for each with
 *
 *   S, SCALAR    the suffix of the functions' names; the C type of a lane
 *   VEC, MVEC    the vector type; that of masks: integers of the same width
 *   PART, MPART  their parts that fit a register (VEC and MVEC themselves where they are a
 * register) MAX, MIN, SQRT  the machine's instructions on a PART */

#define FN(name) LANES_CAT(name, S)
#define WIDTH ((int64_t)(sizeof(VEC) / sizeof(SCALAR)))

LANES_INLINE VEC FN(splat)(SCALAR x)
{
    return x - (VEC){0}; /* x + 0 would change -0 to 0 */
}

LANES_INLINE VEC FN(load)(const SCALAR *p)
{
    VEC v;

    memcpy(&v, p, sizeof(v));
    return v;
}

LANES_INLINE void FN(store)(SCALAR *p, VEC v)
{
    memcpy(p, &v, sizeof(v));
}

LANES_INLINE VEC FN(load_n)(const SCALAR *p, int64_t n)
{
    VEC v = {0};

    if (n >= WIDTH) {
        return FN(load)(p);
    }
    LANES_COPY_N(&v, p, n, WIDTH, sizeof(SCALAR));
    return v;
}

LANES_INLINE void FN(store_n)(SCALAR *p, VEC v, int64_t n)
{
    if (n >= WIDTH) {
        FN(store)(p, v);
        return;
    }
    LANES_COPY_N(p, &v, n, WIDTH, sizeof(SCALAR));
}

#define COMPARE(name, op)                                                                          \
    LANES_INLINE MVEC FN(name)(VEC a, VEC b)                                                       \
    {                                                                                              \
        MVEC r;                                                                                    \
        LANES_MAP2(r, MPART, a, b, PART, lx op ly);                                                \
        return r;                                                                                  \
    }
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(eq, ==)
COMPARE(ne, !=)
#undef COMPARE

LANES_INLINE VEC FN(select)(MVEC mask, VEC yes, VEC no)
{
    return (VEC)(((MVEC)yes & mask) | ((MVEC)no & ~mask));
}

/* b if either is NaN. */
LANES_INLINE VEC FN(max)(VEC a, VEC b)
{
    VEC r;

    LANES_MAP2(r, PART, a, b, PART, (PART)MAX(lx, ly));
    return r;
}

LANES_INLINE VEC FN(min)(VEC a, VEC b)
{
    VEC r;

    LANES_MAP2(r, PART, a, b, PART, (PART)MIN(lx, ly));
    return r;
}

LANES_INLINE VEC FN(abs)(VEC v)
{
    return (VEC)((MVEC)v & (MVEC) ~(MVEC)FN(splat)((SCALAR)-0.0));
}

/* The magnitude of v with the sign of `sign`. */
LANES_INLINE VEC FN(copysign)(VEC v, VEC sign)
{
    MVEC bit = (MVEC)FN(splat)((SCALAR)-0.0);

    return (VEC)(((MVEC)v & ~bit) | ((MVEC)sign & bit));
}

LANES_INLINE VEC FN(sqrt)(VEC v)
{
    VEC r;

    LANES_MAP1(r, PART, v, PART, (PART)SQRT(lx));
    return r;
}

#undef FN
#undef WIDTH
#undef S
#undef VEC
#undef PART
#undef MVEC
#undef MPART
