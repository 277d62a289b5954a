/* Rows in registers, for one dtype of each_register.h: reductions in 16 lanes or a multiple,
 * whatever a register holds. Element j of a row is in lane j % 16 (% 32, ...). */

enum { LOCAL(PARTS) = LANES / WIDTH }; /* registers that hold 16 lanes */

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
