/* Rows in registers, for one dtype of each_register.h: reductions in 16 lanes or a multiple,
 * whatever a register holds. Element j of a row is in lane j % 16 (% 32, ...). */

enum {
    LOCAL(PARTS) = LANES / WIDTH, /* registers that hold 16 lanes */
    LOCAL(PARTS64) = 64 / WIDTH
};

/* The sum of 16 lanes, in the order of hsum. */
LANES_INLINE REAL LOCAL(fold)(const V *part)
{
    REAL lane[LANES];

    memcpy(lane, part, sizeof(lane));
    return LANES_CAT(hsum_of, REAL_NAME)(lane);
}

/* Their maximum. */
LANES_INLINE REAL LOCAL(fold_max)(const V *part)
{
    REAL lane[LANES];

    memcpy(lane, part, sizeof(lane));
    return LANES_CAT(hmax_of, REAL_NAME)(lane);
}

/* The sum of 32 lanes: i and i + 16 first. */
LANES_INLINE REAL LOCAL(fold2)(const V *part)
{
    V v[LOCAL(PARTS)];

#pragma GCC unroll 8
    for (int u = 0; u < LOCAL(PARTS); u++) {
        v[u] = part[u] + part[LOCAL(PARTS) + u];
    }
    return LOCAL(fold)(v);
}

/* The first n lanes of v; the other lanes are `fill`. */
LANES_INLINE V LOCAL(keep)(V v, int64_t n, REAL fill)
{
    REAL index[WIDTH];

#pragma GCC unroll 16
    for (int u = 0; u < WIDTH; u++) {
        index[u] = (REAL)u;
    }
    return n < WIDTH ? OF(select)(OF(lt)(OF(load)(index), SPLAT(n)), v, SPLAT(fill)) : v;
}

/* One element. */
LANES_INLINE REAL LOCAL(get)(const T *x)
{
    return LOAD_N(x, 1)[0];
}

/* -- sums of a row in 64 lanes, whose additions do not wait for each other --------------------- */

LANES_INLINE REAL LOCAL(fold4)(const V *sum)
{
    V v[LOCAL(PARTS)];

#pragma GCC unroll 8
    for (int u = 0; u < LOCAL(PARTS); u++) {
        const V *s = sum + u;

        v[u] = (s[0] + s[LOCAL(PARTS)]) + (s[2 * LOCAL(PARTS)] + s[3 * LOCAL(PARTS)]);
    }
    return LOCAL(fold)(v);
}

/* Sum of x. */
LANES_INLINE REAL LOCAL(sum64)(const T *x, int64_t n)
{
    V sum[LOCAL(PARTS64)] = {SPLAT(0)};
    int64_t j = 0;

    for (; j + 64 <= n; j += 64) {
#pragma GCC unroll 32
        for (int u = 0; u < LOCAL(PARTS64); u++) {
            sum[u] += LOAD(x + j + WIDTH * u);
        }
    }
#pragma GCC unroll 32
    for (int u = 0; u < LOCAL(PARTS64); u++) {
        if (j + WIDTH * u < n) {
            sum[u] += LOAD_N(x + j + WIDTH * u, n - j - WIDTH * u);
        }
    }
    return LOCAL(fold4)(sum);
}

/* Sum of (x - mean)^2. */
LANES_INLINE REAL LOCAL(squares64)(const T *x, int64_t n, REAL mean)
{
    V sum[LOCAL(PARTS64)] = {SPLAT(0)};
    const V middle = SPLAT(mean);
    int64_t j = 0;

    for (; j + 64 <= n; j += 64) {
#pragma GCC unroll 32
        for (int u = 0; u < LOCAL(PARTS64); u++) {
            const V d = LOAD(x + j + WIDTH * u) - middle;

            sum[u] += d * d;
        }
    }
#pragma GCC unroll 32
    for (int u = 0; u < LOCAL(PARTS64); u++) {
        const int64_t left = n - j - WIDTH * u;

        if (left > 0) {
            const V d = LOAD_N(x + j + WIDTH * u, left) - middle;

            sum[u] += LOCAL(keep)(d * d, left, 0);
        }
    }
    return LOCAL(fold4)(sum);
}
