/* All operators by the names of their rows. Those of unary.h are there by that; any other has a
 * line here, and its row, msi_op_<name>, in the file of its family. */
#ifndef MSI_OP_TABLE_H
#define MSI_OP_TABLE_H

#include "op.h"
#include "unary.h"

#define MSI_OPS(X)                                                                                 \
    MSI_UNARY(MSI_OPS_UNARY, X)                                                                    \
    X(neg)                                                                                         \
    X(reciprocal)                                                                                  \
    X(gelu)                                                                                        \
    X(softplus)                                                                                    \
    X(pow)                                                                                         \
    X(affine)                                                                                      \
    X(add_number)                                                                                  \
    X(sub_number)                                                                                  \
    X(sub_from_number)                                                                             \
    X(mul_number)                                                                                  \
    X(add)                                                                                         \
    X(sub)                                                                                         \
    X(mul)                                                                                         \
    X(div)                                                                                         \
    X(maximum)                                                                                     \
    X(minimum)                                                                                     \
    X(clamp)                                                                                       \
    X(eq)                                                                                          \
    X(ne)                                                                                          \
    X(lt)                                                                                          \
    X(le)                                                                                          \
    X(gt)                                                                                          \
    X(ge)                                                                                          \
    X(eq_number)                                                                                   \
    X(ne_number)                                                                                   \
    X(lt_number)                                                                                   \
    X(le_number)                                                                                   \
    X(gt_number)                                                                                   \
    X(ge_number)                                                                                   \
    X(isnan)                                                                                       \
    X(isinf)                                                                                       \
    X(isfinite)                                                                                    \
    X(where)                                                                                       \
    X(matmul)                                                                                      \
    X(linear)                                                                                      \
    X(linear_gelu)                                                                                 \
    X(embedding)                                                                                   \
    X(layer_norm)                                                                                  \
    X(log_softmax)                                                                                 \
    X(softmax)                                                                                     \
    X(cross_entropy)                                                                               \
    X(mse_loss)                                                                                    \
    X(attention)                                                                                   \
    X(attention_packed)                                                                            \
    X(dropout)                                                                                     \
    X(sum)                                                                                         \
    X(mean)                                                                                        \
    X(reshape)                                                                                     \
    X(expand)                                                                                      \
    X(permute)                                                                                     \
    X(flip)                                                                                        \
    X(narrow)                                                                                      \
    X(select)                                                                                      \
    X(cat)                                                                                         \
    X(cast)                                                                                        \
    X(clone)

#define MSI_OPS_UNARY(X, f, gradient, saved) X(f)
#define MSI_OPS_DECLARE(name) extern const msi_op msi_op_##name;
MSI_OPS(MSI_OPS_DECLARE)
#undef MSI_OPS_DECLARE

/* The rows, one behind the other; NULL ends them. */
extern const msi_op *const msi_ops[];

#endif
