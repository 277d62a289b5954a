/* Norms that do not depend on how a parameter is cut: fp64 sums over blocks of 4,096 elements
 * counted from each parameter's element 0, folded in index order. Optimizers of plain parameters
 * and units of sharded ones clip by the same few functions, so they get the same bits. */
#ifndef MSI_NORM_H
#define MSI_NORM_H

#include "norm_fold.h"
#include "tensor.h"

enum { MSI_NORM_BLOCK = 4096 };

/* What clipping is asked for: norm_type 2 or HUGE_VAL into `*largest`, MS_NOT_IMPLEMENTED_ERROR
 * otherwise; MS_VALUE_ERROR unless the bound is 0 or more. */
ms_status msi_clip_check(double max_norm, double norm_type, bool *largest);
/* Blocks that `numel` elements make. */
int64_t msi_norm_n_blocks(int64_t numel);
/* out[b] = sum of squares, or largest magnitude, of block b of `v`, whose element 0 begins a block:
 * in the context's memory, and in stream order, as kernels are. */
ms_status msi_norm_blocks(const msi_view *v, bool largest, double *out);

/* The norm of some tensors and the factor that clips them by it: numbers in the context's memory,
 * made and used by kernels. Who opens it releases it. */
typedef struct msi_norm {
    ms_tensor *total;     /* (), f64: the norm; NULL when it was taken */
    msi_storage *storage; /* f64: the factor, then the blocks */
    int64_t n_blocks;     /* there so far */
    bool largest;
} msi_norm;

/* With room for `n_blocks`. All memory it needs is had then. */
ms_status msi_norm_open(msi_norm *norm, ms_context *ctx, int64_t n_blocks, bool largest);
/* The blocks of `v` come next. */
ms_status msi_norm_add(msi_norm *norm, const msi_view *v);
/* Fold the blocks. */
ms_status msi_norm_fold_blocks(const msi_norm *norm, double max_norm);
/* In their place: the norm is `value`. */
ms_status msi_norm_set(const msi_norm *norm, double max_norm, double value);
/* v *= the factor, in place. */
ms_status msi_norm_clip(const msi_norm *norm, const msi_view *v);
/* The norm itself, from now on the caller's. Nobody waits for it. */
ms_tensor *msi_norm_take(msi_norm *norm);
void msi_norm_release(msi_norm *norm);

#endif
