/* Body of softmax.c for one dtype; the macros are documented in each_float.h. */

#include "log_sum_exp_body.h"

/* Store lanes of a row of the result from element j. */
LANES_INLINE void LOCAL(give)(const msi_softmax_args *a, T *y, int64_t j, V v)
{
    LOCAL(put)(y, j, a->cols, a->accumulate ? LOCAL(at)(y, j, a->cols) + v : v);
}

void MSI_NAME(LOCAL(log_softmax))(const void *args)
{
    const msi_softmax_args *a = args;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *x = (const T *)a->x + i * a->cols;
        T *y = (T *)a->out + i * a->cols;
        REAL sum;
        const REAL m = LOCAL(row_sum_exp)(x, a->cols, &sum), log_sum = LOG1(sum);

        for (int64_t j = 0; j < a->cols; j += 16) {
            LOCAL(give)(a, y, j, LOCAL(at)(x, j, a->cols) - m - log_sum);
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
        V sums[2] = {SPLAT(0), SPLAT(0)};

        for (int64_t j = 0; j < a->cols; j += 32) {
            sums[0] += LOCAL(at)(dy, j, a->cols);
            if (j + 16 < a->cols) {
                sums[1] += LOCAL(at)(dy, j + 16, a->cols);
            }
        }
        const REAL sum = HSUM(sums[0] + sums[1]);

        for (int64_t j = 0; j < a->cols; j += 16) {
            LOCAL(give)(a, dx, j, LOCAL(at)(dy, j, a->cols) - EXP(LOCAL(at)(y, j, a->cols)) * sum);
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

        for (int64_t j = 0; j < a->cols; j += 16) {
            LOCAL(give)(a, y, j, EXP(LOCAL(at)(x, j, a->cols) - m) / sum);
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
        V sums[2] = {SPLAT(0), SPLAT(0)};

        for (int64_t j = 0; j < a->cols; j += 32) {
            sums[0] += LOCAL(at)(y, j, a->cols) * LOCAL(at)(dy, j, a->cols);
            if (j + 16 < a->cols) {
                sums[1] += LOCAL(at)(y, j + 16, a->cols) * LOCAL(at)(dy, j + 16, a->cols);
            }
        }
        const REAL sum = HSUM(sums[0] + sums[1]);

        for (int64_t j = 0; j < a->cols; j += 16) {
            LOCAL(give)(a, dx, j, LOCAL(at)(y, j, a->cols) * (LOCAL(at)(dy, j, a->cols) - sum));
        }
    }
}
