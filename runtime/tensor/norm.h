/* Norms that do not depend on sharding: f64 sums of powers over blocks of 4,096 elements counted
 * from each parameter's element 0, folded in index order. Optimizers and units clip with these
 * functions, so they get equal bits. */
#ifndef MSI_NORM_H
#define MSI_NORM_H

#include "norm_fold.h"
#include "tensor.h"

/* Check clipping's arguments: MS_VALUE_ERROR unless both are >= 0. */
ms_status msi_clip_check(double max_norm, double order);
/* Number of blocks of `numel` elements. */
int64_t msi_norm_n_blocks(int64_t numel);
/* out[b] = result of MSI_K_norm for block b of `v`, whose element 0 begins a block. `out` is
 * context memory, written in stream order. */
ms_status msi_norm_blocks(const msi_view *v, double order, double *out);

/* Norm of several tensors and the factor that clips them, in context memory, computed and used by
 * kernels. The opener releases it. */
typedef struct msi_norm {
    ms_tensor *total;     /* (), f64: the norm; NULL once taken */
    ms_tensor *rounded;   /* (), the same in the gradients' dtype; NULL: that is f64, or taken */
    msi_storage *storage; /* f64: the factor, then the blocks */
    int64_t n_blocks;     /* added so far */
    double order;
    msi_batch calls; /* of norm, then of scale, that have not run */
} msi_norm;

/* The dtype of the norm of gradients of dtypes a and b, as torch promotes them; MS_DTYPE_NONE: no
 * gradient. */
int32_t msi_norm_dtype(int32_t a, int32_t b);
/* With room for `n_blocks`, for gradients of `dtype` (MS_DTYPE_NONE: f32). Allocates all memory. */
ms_status msi_norm_open(msi_norm *norm, ms_context *ctx, int64_t n_blocks, double order,
                        int32_t dtype);
/* Append the blocks of `v`, which stays until they are folded. */
ms_status msi_norm_add(msi_norm *norm, const msi_view *v);
/* Room for the results of `n` more blocks, which the caller computes in stream order. */
double *msi_norm_room(msi_norm *norm, int64_t n);
/* Fold the blocks. */
ms_status msi_norm_fold_blocks(msi_norm *norm, double max_norm);
/* Instead of blocks: set the norm to `value`. */
ms_status msi_norm_set(const msi_norm *norm, double max_norm, double value);
/* MS_RUNTIME_ERROR, with torch's message, if the norm is not finite. Waits for the device. */
ms_status msi_norm_check_finite(const msi_norm *norm);
/* v *= the factor, in place; run by msi_norm_clip_end() at the latest. */
ms_status msi_norm_clip(msi_norm *norm, const msi_view *v);
ms_status msi_norm_clip_end(msi_norm *norm);
/* The norm in the gradients' dtype, possibly pending. The caller owns it. */
ms_status msi_norm_take(msi_norm *norm, ms_tensor **out);
void msi_norm_release(msi_norm *norm);

#endif
