/* Operands as kernels read them, gradients as kernels write them: contiguous copies, matrix
 * strides, destinations of another dtype. For operators that are not elementwise. */
#ifndef MSI_OPERAND_H
#define MSI_OPERAND_H

#include "autograd.h"

/* `v`, or a contiguous copy. The caller owns a reference to `out->storage` (msi_storage_release()).
 */
ms_status msi_contiguous(msi_view *out, ms_context *ctx, const msi_view *v);
/* The same in a backward rule; the copy lives until the rule returns. */
ms_status msi_bwd_contiguous(msi_bwd *b, const msi_view *v, msi_view *out);
/* New contiguous memory without a handle (statistics for backward). The caller owns one reference
 * to `out->storage`. */
ms_status msi_internal(msi_view *out, ms_context *ctx, int32_t dtype, int32_t ndim,
                       const int64_t *shape);
/* Dtype of per-row statistics: f64 for f64, else f32. */
int32_t msi_stat_dtype(int32_t dtype);
/* Product of the first `n` sizes. */
int64_t msi_leading(const msi_view *v, int32_t n);

/* -- matrices ---------------------------------------------------------------------------------- */

/* The last two dimensions as msi_gemm() reads them. */
typedef struct msi_matrix {
    const void *data;
    int64_t row, col; /* strides; one is 1 */
    int64_t batch;    /* stride of dimension 0 of three, else 0 */
} msi_matrix;

/* True if msi_gemm() can read the last two dimensions of `v` in place. */
bool msi_is_matrix(const msi_view *v);
/* Describe a view that msi_is_matrix() accepts. Fails if its bytes are absent. */
ms_status msi_matrix_of(const msi_view *v, msi_matrix *m);
msi_matrix msi_transposed(msi_matrix m);

/* -- destinations ------------------------------------------------------------------------------ */

enum {
    MSI_CAN_ADD = 1,  /* can add to its destination */
    MSI_CAN_WIDEN = 2 /* can write f32 if its dtype is narrow */
};

/* Memory a kernel writes an operand's gradient to: the destination if it can, else a temporary that
 * msi_target_close() copies or adds there. */
typedef struct msi_target {
    void *data; /* NULL if no gradient is needed */
    bool add;
    msi_view view; /* contiguous, operand's shape */
    msi_view dest;
    bool dest_add, staged;
    msi_bwd *passes; /* not NULL: the view becomes the gradient of `operand` */
    int32_t operand;
} msi_target;

/* Open operand i's destination for a kernel that writes `dtype`; `can` is MSI_CAN_*. */
ms_status msi_target_open(msi_target *t, msi_bwd *b, int32_t i, int32_t dtype, int32_t can);
/* The same for a kernel that writes the dtype of saved view `which`, can add, and reads an element
 * of the view before it writes it: over the view, if msi_bwd_overwrites(). */
ms_status msi_target_open_over(msi_target *t, msi_bwd *b, int32_t i, int32_t which);
/* Turn an open target into a temporary of `dtype`. */
ms_status msi_target_stage(msi_target *t, msi_bwd *b, int32_t dtype);
/* True if two open targets have one destination (operands that are one tensor). Stage the later one
 * if the kernel may write it first. */
bool msi_target_shares(const msi_target *a, const msi_target *b);
/* Copy to the destination. No-op if the operand needs no gradient. */
ms_status msi_target_close(msi_target *t);

/* Add kernel(in[0], ...) to operand i, if it needs a gradient. Computed in the incoming gradient's
 * shape, summed over the operand's broadcast dimensions. */
ms_status msi_bwd_elementwise(msi_bwd *b, int32_t i, const char *op, int32_t kernel,
                              const msi_view *const *in, int32_t n_in);

/* Write the matrix product `args` to an open target with data (sets c, c_row, c_batch, c_dtype and
 * accumulate). The caller closes it. */
ms_status msi_bwd_gemm_to(msi_bwd *b, const msi_target *t, msi_gemm_args *args);
/* Add the matrix product `args` to operand i (sets c, c_row, c_batch, c_dtype and accumulate).
 * No-op if the operand needs no gradient. */
ms_status msi_bwd_gemm(msi_bwd *b, int32_t i, msi_gemm_args *args);

#endif
