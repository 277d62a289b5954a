/* Body of cross_entropy.c for one dtype; the macros are documented in each_register.h. */

#include "log_sum_exp_body.h"

void MSI_NAME(LOCAL(cross_entropy))(const void *args)
{
    const msi_cross_entropy_args *a = args;
    double loss = 0;
    int64_t n_counted = 0;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *x = (const T *)a->logits + i * a->pitch;
        const int64_t target = a->targets[i];
        REAL m = 0, sum = 0; /* not read if the row is ignored */

        if (row_counts(a, i)) {
            m = LOCAL(row_sum_exp)(x, a->cols, &sum);
            loss += (double)m - (double)LOCAL(get)(x + target) + (double)LOCAL(log1)(sum);
            n_counted++;
        } else if (target != a->ignore_index) {
            fault_found(a->fault, MSI_K_cross_entropy, a->targets, i, a->rows, a->cols);
            loss = (double)NAN;
        }
        ((REAL *)a->max)[i] = m;
        ((REAL *)a->sum)[i] = sum;
    }
    *(REAL *)a->loss = (REAL)(a->mean ? loss / (double)n_counted : loss);
    *a->n_counted = n_counted;
}

/* Factor of every row: the incoming gradient, divided by the number of rows for a mean. */
static double LOCAL(row_scale)(const msi_cross_entropy_args *a)
{
    const double dloss = (double)*(const REAL *)a->dloss;

    return a->mean ? dloss / (double)*a->n_counted : dloss;
}

static void LOCAL(spoil_row)(T *dx, int64_t n)
{
    for (int64_t j = 0; j < n; j += WIDTH) {
        STORE_N(dx + j, SPLAT(NAN), n - j);
    }
}

/* dlogits = row_scale (exp(x - m) / sum - one_hot(target)); may overwrite the logits. */
static void LOCAL(row_loss_grad)(const msi_cross_entropy_args *a, int64_t i, double row_scale)
{
    const T *x = (const T *)a->logits + i * a->pitch;
    T *dx = (T *)a->dlogits + i * a->pitch;
    const REAL m = ((const REAL *)a->max)[i], sum = ((const REAL *)a->sum)[i];
    const REAL scale = (REAL)row_scale, factor = (REAL)(row_scale / (double)sum);
    const int64_t target = a->targets[i];
    REAL at_target = (LOCAL(exp1)(LOCAL(get)(x + target) - m) / sum - 1) * scale;

    if (a->accumulate) {
        at_target += LOCAL(get)(dx + target);
    }
    for (int64_t j = 0; j < a->cols; j += WIDTH) {
        const int64_t n = a->cols - j;
        V v = OF(exp)(LOAD_N(x + j, n) - SPLAT(m)) * SPLAT(factor);

        if (a->accumulate) {
            v += LOAD_N(dx + j, n);
        }
        STORE_N(dx + j, v, n);
    }
    STORE_N(dx + target, SPLAT(at_target), 1);
}

void MSI_NAME(LOCAL(cross_entropy_grad))(const void *args)
{
    const msi_cross_entropy_args *a = args;
    const double scale = LOCAL(row_scale)(a); /* not read if all rows are ignored */

    for (int64_t i = 0; i < a->rows; i++) {
        if (row_counts(a, i)) {
            LOCAL(row_loss_grad)(a, i, scale);
        } else if (a->targets[i] != a->ignore_index) { /* invalid, as the forward has reported */
            LOCAL(spoil_row)((T *)a->dlogits + i * a->pitch, a->cols);
        } else if (!a->accumulate) {
            memset((T *)a->dlogits + i * a->pitch, 0, (size_t)a->cols * sizeof(T));
        }
    }
}
