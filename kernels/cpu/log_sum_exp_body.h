/* Code for one dtype that softmax.c and cross_entropy.c share: the maximum and sum of a row.
 *
 * The maximum m and the logarithm of the sum are kept apart: their sum is rounded at the magnitude
 * of m, so x - (m + log(sum)) would lose the precision of x - m. */

#include "row_lanes.h"

enum {
    LOCAL(CHUNK) = 1024, /* elements that stay in the cache until the second read */
    LOCAL(SUMS) = 32 / WIDTH
};

/* exp and log of one. */
LANES_INLINE REAL LOCAL(exp1)(REAL x)
{
    return OF(exp)(SPLAT(x))[0];
}

LANES_INLINE REAL LOCAL(log1)(REAL x)
{
    return OF(log)(SPLAT(x))[0];
}

/* Largest of x[j .. end), in 32 lanes. */
static inline REAL LOCAL(chunk_max)(const T *x, int64_t j, int64_t end)
{
    V best[LOCAL(SUMS)];

#pragma GCC unroll 16
    for (int u = 0; u < LOCAL(SUMS); u++) {
        best[u] = SPLAT(-INFINITY);
    }
    for (; j + 32 <= end; j += 32) {
#pragma GCC unroll 16
        for (int u = 0; u < LOCAL(SUMS); u++) {
            best[u] = OF(max)(best[u], LOAD(x + j + WIDTH * u));
        }
    }
    for (int u = 0; u < LOCAL(SUMS) && j < end; u++, j += WIDTH) {
        best[u] = OF(max)(best[u], LOCAL(keep)(LOAD_N(x + j, end - j), end - j, -INFINITY));
    }
#pragma GCC unroll 8
    for (int u = 0; u < LOCAL(PARTS); u++) {
        best[u] = OF(max)(best[u], best[LOCAL(PARTS) + u]);
    }
    return LOCAL(fold_max)(best);
}

/* Sum of exp(x - m) over x[j .. end), in 32 lanes. */
static inline REAL LOCAL(chunk_sum)(const T *x, int64_t j, int64_t end, REAL m)
{
    V sum[LOCAL(SUMS)] = {SPLAT(0)};

    for (; j + 32 <= end; j += 32) {
#pragma GCC unroll 16
        for (int u = 0; u < LOCAL(SUMS); u++) {
            sum[u] += OF(exp)(LOAD(x + j + WIDTH * u) - SPLAT(m));
        }
    }
    for (int u = 0; u < LOCAL(SUMS) && j < end; u++, j += WIDTH) {
        sum[u] += LOCAL(keep)(OF(exp)(LOAD_N(x + j, end - j) - SPLAT(m)), end - j, 0);
    }
    return LOCAL(fold2)(sum);
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
            sum = sum == 0 ? 0 : sum * LOCAL(exp1)(m - here);
            m = here;
        }
        sum += LOCAL(chunk_sum)(x, j, end, m);
    }
    *total = sum;
    return m;
}
