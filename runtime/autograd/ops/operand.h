/* Operands in the form kernels read and gradients in the form kernels write: contiguous copies,
 * matrix strides, destinations of another dtype. Shared by the operators that are no elementwise
 * formula. */
#ifndef MSI_OPERAND_H
#define MSI_OPERAND_H

#include "autograd.h"

/* `v` itself, or a contiguous copy when it has gaps. Either way the caller holds a reference to
 * `out->storage` and gives it back with msi_storage_release(). */
ms_status msi_contiguous(msi_view *out, ms_context *ctx, const msi_view *v);
/* The same inside a backward rule: the copy lives until the rule returns, nothing to release. */
ms_status msi_bwd_contiguous(msi_bwd *b, const msi_view *v, msi_view *out);
/* New contiguous memory that belongs to no handle (statistics kept for backward). The caller owns
 * one reference to `out->storage`. */
ms_status msi_internal(msi_view *out, ms_context *ctx, int32_t dtype, int32_t ndim,
                       const int64_t *shape);
/* Dtype in which per-row statistics of `dtype` are kept: f64 for f64, else f32. */
int32_t msi_stat_dtype(int32_t dtype);
/* Product of the first `n` sizes. */
int64_t msi_leading(const msi_view *v, int32_t n);

/* -- matrices ---------------------------------------------------------------------------------- */

/* The last two dimensions as msi_gemm() reads them. */
typedef struct msi_matrix {
    const void *data;
    int64_t row, col; /* strides; one of them is 1 */
    int64_t batch;    /* stride of dimension 0 when there are three, else 0 */
} msi_matrix;

/* Can msi_gemm() read the last two dimensions of `v` where they are? */
bool msi_is_matrix(const msi_view *v);
/* Describe a view for which msi_is_matrix() holds. Fails when its bytes are absent. */
ms_status msi_matrix_of(const msi_view *v, msi_matrix *m);
msi_matrix msi_transposed(msi_matrix m);

/* -- destinations ------------------------------------------------------------------------------ */

enum {
    MSI_CAN_ADD = 1,  /* the kernel can add to its destination */
    MSI_CAN_WIDEN = 2 /* the kernel can write f32 when its dtype is narrow */
};

/* Where a kernel writes the gradient of one operand: the operand's destination itself when the
 * kernel can write it, else a temporary that msi_target_close() copies or adds there. */
typedef struct msi_target {
    void *data; /* NULL when the operand needs no gradient */
    bool add;
    msi_view view; /* contiguous, operand's shape */
    msi_view dest;
    bool dest_add, staged;
} msi_target;

/* Open operand i's destination for a kernel that writes `dtype`; `can` is MSI_CAN_*. */
ms_status msi_target_open(msi_target *t, msi_bwd *b, int32_t i, int32_t dtype, int32_t can);
/* Turn an open target into a temporary of `dtype`. */
ms_status msi_target_stage(msi_target *t, msi_bwd *b, int32_t dtype);
/* Do two open targets end in the same place (operands that are one tensor)? The later one must then
 * be staged if the kernel may write it first. */
bool msi_target_shares(const msi_target *a, const msi_target *b);
/* Bring what was written to the destination. Does nothing when the operand needs no gradient. */
ms_status msi_target_close(msi_target *t);

/* Contribute kernel(in[0], ...) to operand i, if it needs a gradient. It is formed in the shape of
 * the incoming gradient and summed over the dimensions the operand was broadcast along. */
ms_status msi_bwd_elementwise(msi_bwd *b, int32_t i, const char *op, int32_t kernel,
                              const msi_view *const *in, int32_t n_in);

/* Contribute the matrix product `args` describes to operand i (c, c_row, c_batch, c_dtype and
 * accumulate are filled in here). Does nothing when the operand needs no gradient. */
ms_status msi_bwd_gemm(msi_bwd *b, int32_t i, msi_gemm_args *args);

#endif
