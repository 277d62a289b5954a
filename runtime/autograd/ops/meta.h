/* Meta functions: what the results of an operator are, from its attributes and the forms of its
 * operands. Here is what operators share of them; what is one operator's own stands beside its
 * forward. */
#ifndef MSI_META_H
#define MSI_META_H

#include "op.h"

/* -- whole families ---------------------------------------------------------------------------- */

/* One result of the first operand's shape and dtype. */
ms_status msi_meta_like(const msi_meta *m);
/* The shape two operands of one dtype, `a` and `b`, broadcast to, in `dtype`. */
ms_status msi_meta_broadcast(const msi_meta *m, int32_t dtype);

/* -- checks ------------------------------------------------------------------------------------ */

/* MS_NOT_IMPLEMENTED_ERROR unless the kernel that fills a result is there for `dtype`; a result
 * without elements needs none. */
ms_status msi_meta_kernel(const msi_meta *m, int32_t kernel, int32_t dtype);
/* MS_TYPE_ERROR that names both dtypes unless they are one. */
ms_status msi_same_dtype(const char *op, const char *a_name, const msi_view *a, const char *b_name,
                         const msi_view *b);
/* MS_NOT_IMPLEMENTED_ERROR unless matrices of this dtype can be multiplied. */
ms_status msi_check_product(const char *op, int32_t dtype);

#endif
