/* Body of softmax.c for one dtype; the macros are documented in each_register.h. */

#include "log_sum_exp_body.h"

/* Store lanes of a row of the result from element j. */
LANES_INLINE void LOCAL(give)(const msi_softmax_args *a, T *y, int64_t j, V v)
{
    const int64_t n = a->cols - j;

    STORE_N(y + j, a->accumulate ? LOAD_N(y + j, n) + v : v, n);
}

/* Sum of y dy (y NULL: of dy) over a row, in 32 lanes. */
LANES_INLINE REAL LOCAL(dot)(const T *y, const T *dy, int64_t cols)
{
    V sum[LOCAL(SUMS)] = {SPLAT(0)};

    for (int64_t j = 0; j < cols; j += 32) {
#pragma GCC unroll 16
        for (int u = 0; u < LOCAL(SUMS); u++) {
            const int64_t at = j + WIDTH * u, n = cols - at;

            if (n > 0) {
                const V v = LOAD_N(dy + at, n);

                sum[u] += y != NULL ? LOAD_N(y + at, n) * v : v;
            }
        }
    }
    return LOCAL(fold2)(sum);
}

void MSI_NAME(LOCAL(log_softmax))(const void *args)
{
    const msi_softmax_args *a = args;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *x = (const T *)a->x + i * a->cols;
        T *y = (T *)a->out + i * a->cols;
        REAL sum;
        const REAL m = LOCAL(row_sum_exp)(x, a->cols, &sum), log_sum = LOCAL(log1)(sum);

        for (int64_t j = 0; j < a->cols; j += WIDTH) {
            LOCAL(give)(a, y, j, LOAD_N(x + j, a->cols - j) - SPLAT(m) - SPLAT(log_sum));
        }
    }
}

/* dx = dy - exp(y) sum(dy). */
void MSI_NAME(LOCAL(log_softmax_grad))(const void *args)
{
    const msi_softmax_args *a = args;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *y = (const T *)a->y + i * a->cols, *dy = (const T *)a->dy + i * a->cols;
        T *dx = (T *)a->out + i * a->cols;
        const REAL sum = LOCAL(dot)(NULL, dy, a->cols);

        for (int64_t j = 0; j < a->cols; j += WIDTH) {
            const int64_t n = a->cols - j;

            LOCAL(give)(a, dx, j, LOAD_N(dy + j, n) - OF(exp)(LOAD_N(y + j, n)) * SPLAT(sum));
        }
    }
}

/* exp(x - m) / sum(exp(x - m)). */
void MSI_NAME(LOCAL(softmax))(const void *args)
{
    const msi_softmax_args *a = args;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *x = (const T *)a->x + i * a->cols;
        T *y = (T *)a->out + i * a->cols;
        REAL sum;
        const REAL m = LOCAL(row_sum_exp)(x, a->cols, &sum);

        for (int64_t j = 0; j < a->cols; j += WIDTH) {
            LOCAL(give)(a, y, j, OF(exp)(LOAD_N(x + j, a->cols - j) - SPLAT(m)) / SPLAT(sum));
        }
    }
}

/* dx = y (dy - sum(y dy)). */
void MSI_NAME(LOCAL(softmax_grad))(const void *args)
{
    const msi_softmax_args *a = args;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *y = (const T *)a->y + i * a->cols, *dy = (const T *)a->dy + i * a->cols;
        T *dx = (T *)a->out + i * a->cols;
        const REAL sum = LOCAL(dot)(y, dy, a->cols);

        for (int64_t j = 0; j < a->cols; j += WIDTH) {
            const int64_t n = a->cols - j;

            LOCAL(give)(a, dx, j, LOAD_N(y + j, n) * (LOAD_N(dy + j, n) - SPLAT(sum)));
        }
    }
}
