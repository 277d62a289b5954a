/* Body of nll_loss.c for one dtype. */

#include "row_lanes.h"

void MSI_NAME(LOCAL(nll_loss))(const void *args)
{
    const msi_nll_args *a = args;
    T *out = a->out;

    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t target = a->targets[i];
        REAL y = 0;

        if (target == a->ignore_index) {
            y = 0;
        } else if (index_is_inside(target, a->cols)) {
            y = -LOCAL(get)((const T *)a->x + i * a->cols + target);
        } else {
            fault_found(a->fault, MSI_K_nll_loss, a->targets, i, a->rows, a->cols);
            y = (REAL)NAN;
        }
        STORE_N(out + i, SPLAT(y), 1);
    }
}

void MSI_NAME(LOCAL(nll_loss_grad))(const void *args)
{
    const msi_nll_args *a = args;
    const T *dy = a->dy;

    if (!a->accumulate) {
        memset(a->out, 0, (size_t)(a->rows * a->cols) * sizeof(T));
    }
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t target = a->targets[i];

        if (target != a->ignore_index && index_is_inside(target, a->cols)) {
            T *dx = (T *)a->out + i * a->cols + target;

            STORE_N(dx, SPLAT(LOCAL(get)(dx) - LOCAL(get)(dy + i)), 1);
        }
    }
}
