/* Meta functions: describe an operator's results from its attributes and operands' views. Shared
 * ones are here, others next to their forward. */
#ifndef MSI_META_H
#define MSI_META_H

#include "op.h"

/* -- whole families ---------------------------------------------------------------------------- */

/* One result of the first operand's shape and dtype. */
ms_status msi_meta_like(const msi_meta *m);
/* Broadcast shape of operands `a` and `b`, which have one dtype, in `dtype`. */
ms_status msi_meta_broadcast(const msi_meta *m, int32_t dtype);

/* -- checks ------------------------------------------------------------------------------------ */

/* MS_NOT_IMPLEMENTED_ERROR if the result's kernel is missing for `dtype`; an empty result needs
 * none. */
ms_status msi_meta_kernel(const msi_meta *m, int32_t kernel, int32_t dtype);
/* MS_TYPE_ERROR with both dtypes unless equal. */
ms_status msi_same_dtype(const char *op, const char *a_name, const msi_view *a, const char *b_name,
                         const msi_view *b);
/* Of the operands of a matrix product: PyTorch's MS_RUNTIME_ERROR. */
ms_status msi_same_dtype_of_product(const char *op, const msi_view *a, const msi_view *b);
/* MS_NOT_IMPLEMENTED_ERROR unless matrices of this dtype can be multiplied. */
ms_status msi_check_product(const char *op, int32_t dtype);

#endif
