/* Norms that do not depend on how a parameter is cut: fp64 sums over blocks of 4,096 elements
 * counted from each parameter's element 0, folded in index order. Optimizers of plain parameters
 * and units of sharded ones clip by the same few functions, so they get the same bits. */
#ifndef MSI_NORM_H
#define MSI_NORM_H

#include "tensor.h"

enum { MSI_NORM_BLOCK = 4096 };

/* What clipping is asked for: norm_type 2 or HUGE_VAL into `*largest`, MS_NOT_IMPLEMENTED_ERROR
 * otherwise; MS_VALUE_ERROR unless the bound is 0 or more. */
ms_status msi_clip_check(double max_norm, double norm_type, bool *largest);
/* Blocks that `numel` elements make. */
int64_t msi_norm_n_blocks(int64_t numel);
/* out[b] = sum of squares, or largest magnitude, of block b of `v`, whose element 0 begins a block.
 */
ms_status msi_norm_blocks(const msi_view *v, bool largest, double *out);
/* Fold n block results into `total` (which begins at 0), in order. NaN stays. */
double msi_norm_fold(double total, const double *blocks, int64_t n, bool largest);
/* msi_norm_fold() over the blocks of `v`, without memory for them. */
ms_status msi_norm_fold_view(double *total, const msi_view *v, bool largest);
/* The norm a folded total stands for. */
double msi_norm_finish(double total, bool largest);
/* max_norm / (norm + 1e-6), at most 1; NaN stays, so bad gradients are not hidden. */
double msi_clip_coefficient(double max_norm, double norm);
/* v *= factor, in place. */
ms_status msi_scale(const msi_view *v, double factor);

#endif
