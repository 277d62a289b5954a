/* Folding of block results (MSI_K_norm), for the kernel that folds in place and for the host, which
 * folds those exchanged by ranks. */
#ifndef MSI_NORM_FOLD_H
#define MSI_NORM_FOLD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Fold n block results into `total` (initially 0), in order. Keeps NaN. Order 0 counts the results
 * that are not 0: a norm of order 0 is the number of tensors that have an element other than 0. */
static inline double msi_norm_fold(double total, const double *blocks, int64_t n, double order)
{
    for (int64_t i = 0; i < n; i++) {
        if (order == 0) {
            total += blocks[i] != 0;
        } else if (order != HUGE_VAL) {
            total += blocks[i];
        } else if (blocks[i] > total || isnan(blocks[i])) {
            total = blocks[i]; /* NaN > anything is false, so a NaN total is kept */
        }
    }
    return total;
}

/* The norm of a folded total. */
static inline double msi_norm_finish(double total, double order)
{
    if (order == 0 || order == 1 || order == HUGE_VAL) {
        return total;
    }
    return order == 2 ? sqrt(total) : pow(total, 1 / order);
}

/* max_norm / (norm + 1e-6), at most 1; NaN is kept to expose bad gradients. */
static inline double msi_clip_coefficient(double max_norm, double norm)
{
    const double coefficient = max_norm / (norm + 1e-6);

    return coefficient > 1 ? 1 : coefficient;
}

#endif
