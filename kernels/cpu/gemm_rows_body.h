/* Body of gemm_rows.c for one dtype T of A and B. */
#include "row_lanes.h"

#if !IS_F64
/* Sum of x y. */
LANES_INLINE REAL LOCAL(dot64)(const T *x, const T *y, int64_t n)
{
    V sum[LOCAL(PARTS64)] = {SPLAT(0)};
    int64_t j = 0;

    for (; j + 64 <= n; j += 64) {
#pragma GCC unroll 32
        for (int u = 0; u < LOCAL(PARTS64); u++) {
            sum[u] += LOAD(x + j + WIDTH * u) * LOAD(y + j + WIDTH * u);
        }
    }
#pragma GCC unroll 32
    for (int u = 0; u < LOCAL(PARTS64); u++) {
        const int64_t at = j + WIDTH * u;

        if (at < n) {
            sum[u] += LOAD_N(x + at, n - at) * LOAD_N(y + at, n - at);
        }
    }
    return LOCAL(fold4)(sum);
}

/* c = sum [+ bias] [+ c], rounded once. */
LANES_INLINE void LOCAL(put)(const msi_gemm_args *g, int64_t at, int64_t column, REAL sum)
{
    if (g->bias != NULL) {
        sum += LOCAL(get)((const T *)g->bias + column);
    }
    if (g->c_dtype == DTYPE) {
        T *c = (T *)g->c + at;

        STORE_N(c, SPLAT(g->accumulate ? sum + LOCAL(get)(c) : sum), 1);
    } else {
        REAL *c = (REAL *)g->c + at;

        *c = g->accumulate ? sum + *c : sum;
    }
}

void MSI_NAME(LOCAL(gemm_rows))(const void *args);
void MSI_NAME(LOCAL(gemm_rows))(const void *args)
{
    const msi_gemm_args *g = args;

    for (int64_t p = 0; p < g->batch; p++) {
        const T *a = (const T *)g->a + p * g->a_batch, *b = (const T *)g->b + p * g->b_batch;

        for (int64_t j = 0; j < g->n; j++) {
            for (int64_t i = 0; i < g->m; i++) {
                LOCAL(put)
                (g, p * g->c_batch + i * g->c_row + j, j,
                 LOCAL(dot64)(a + i * g->a_row, b + j * g->b_col, g->k));
            }
        }
    }
}
#endif
