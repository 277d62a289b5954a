/* Code for one dtype that softmax.c and cross_entropy.c share: the maximum and sum of a row.
 *
 * The maximum m and the logarithm of the sum are kept apart: their sum is rounded at the magnitude
 * of m, so x - (m + log(sum)) would lose the precision of x - m. */

enum { LOCAL(CHUNK) = 1024 }; /* elements that stay in the cache until the second read */

/* Largest of x[j .. end). */
static inline REAL LOCAL(chunk_max)(const T *x, int64_t j, int64_t end)
{
    V best[2] = {SPLAT(-INFINITY), SPLAT(-INFINITY)};

    for (; j < end; j += 32) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            const int64_t left = end - j - 16 * u;

            if (left > 0) {
                V v = LOCAL(at)(x, j + 16 * u, end);

                best[u] = VMAX(best[u], left < 16 ? LOCAL(keep)(v, left, -INFINITY) : v);
            }
        }
    }
    return HMAX(VMAX(best[0], best[1]));
}

/* Sum of exp(x - m) over x[j .. end). */
static inline REAL LOCAL(chunk_sum)(const T *x, int64_t j, int64_t end, REAL m)
{
    V sum[2] = {SPLAT(0), SPLAT(0)};

    for (; j < end; j += 32) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            const int64_t left = end - j - 16 * u;

            if (left > 0) {
                V v = EXP(LOCAL(at)(x, j + 16 * u, end) - m);

                sum[u] += left < 16 ? LOCAL(keep)(v, left, 0) : v;
            }
        }
    }
    return HSUM(sum[0] + sum[1]);
}

/* @return m, the largest element; *total: the sum of exp(x - m). One pass over memory, chunk by
 * chunk; the running sum is relative to the running maximum. */
static REAL LOCAL(row_sum_exp)(const T *x, int64_t cols, REAL *total)
{
    REAL m = -INFINITY, sum = 0;

    for (int64_t j = 0; j < cols; j += LOCAL(CHUNK)) {
        const int64_t end = j + LOCAL(CHUNK) < cols ? j + LOCAL(CHUNK) : cols;
        const REAL here = LOCAL(chunk_max)(x, j, end);

        if (here == -INFINITY) { /* -inf - -inf is NaN: masked entries add 0, a NaN itself */
            sum += LOCAL(chunk_sum)(x, j, end, 0);
            continue;
        }
        if (here > m) {
            sum = sum == 0 ? 0 : sum * EXP1(m - here);
            m = here;
        }
        sum += LOCAL(chunk_sum)(x, j, end, m);
    }
    *total = sum;
    return m;
}
