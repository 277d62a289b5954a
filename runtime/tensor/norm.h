/* Norms that do not depend on sharding: f64 sums over blocks of 4,096 elements counted from each
 * parameter's element 0, folded in index order. Optimizers and units clip with these functions, so
 * they get equal bits. */
#ifndef MSI_NORM_H
#define MSI_NORM_H

#include "norm_fold.h"
#include "tensor.h"

enum { MSI_NORM_BLOCK = 4096 };

/* Check clipping's arguments. norm_type 2 or HUGE_VAL sets `*largest`, else
 * MS_NOT_IMPLEMENTED_ERROR; MS_VALUE_ERROR unless max_norm >= 0. */
ms_status msi_clip_check(double max_norm, double norm_type, bool *largest);
/* Number of blocks of `numel` elements. */
int64_t msi_norm_n_blocks(int64_t numel);
/* out[b] = sum of squares, or largest magnitude, of block b of `v`, whose element 0 begins a block.
 * `out` is context memory, written in stream order. */
ms_status msi_norm_blocks(const msi_view *v, bool largest, double *out);

/* Norm of several tensors and the factor that clips them, in context memory, computed and used by
 * kernels. The opener releases it. */
typedef struct msi_norm {
    ms_tensor *total;     /* (), f64: the norm; NULL once taken */
    msi_storage *storage; /* f64: the factor, then the blocks */
    int64_t n_blocks;     /* added so far */
    bool largest;
} msi_norm;

/* With room for `n_blocks`. Allocates all memory. */
ms_status msi_norm_open(msi_norm *norm, ms_context *ctx, int64_t n_blocks, bool largest);
/* Append the blocks of `v`. */
ms_status msi_norm_add(msi_norm *norm, const msi_view *v);
/* Fold the blocks. */
ms_status msi_norm_fold_blocks(const msi_norm *norm, double max_norm);
/* Instead of blocks: set the norm to `value`. */
ms_status msi_norm_set(const msi_norm *norm, double max_norm, double value);
/* v *= the factor, in place. */
ms_status msi_norm_clip(const msi_norm *norm, const msi_view *v);
/* The norm, possibly pending. The caller owns it. */
ms_tensor *msi_norm_take(msi_norm *norm);
void msi_norm_release(msi_norm *norm);

#endif
