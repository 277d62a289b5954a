/* Rows whose length is not a multiple of 16: part of each_float.h, for one dtype. */

/* The first n lanes of v; the other lanes are `fill`. */
LANES_INLINE V LOCAL(keep)(V v, int64_t n, REAL fill)
{
    static const V index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return SELECT(BEFORE(index, SPLAT(n)), v, SPLAT(fill));
}

/* Lanes of a row of `cols` from element j: 16, or the remaining ones followed by 0. */
LANES_INLINE V LOCAL(at)(const T *x, int64_t j, int64_t cols)
{
    return j + 16 <= cols ? LOAD(x + j) : LOAD_N(x + j, cols - j);
}

LANES_INLINE void LOCAL(put)(T *y, int64_t j, int64_t cols, V v)
{
    if (j + 16 <= cols) {
        STORE(y + j, v);
    } else {
        STORE_N(y + j, v, cols - j);
    }
}

/* One element. */
LANES_INLINE REAL LOCAL(get)(const T *x)
{
    return LOAD_N(x, 1)[0];
}
