/* Collectives as operators: the rows that join groups, which know no gradients, and autograd, which
 * knows no ranks; and the public functions. */
#ifndef MSI_COLLECTIVE_H
#define MSI_COLLECTIVE_H

#include "comm.h"
#include "op.h"

/* Attributes of a collective. */
typedef struct msi_collective {
    ms_comm *comm;     /* borrowed; may be freed by backward, and its address reused */
    double serial;     /* ms_comm_serial() in forward, to detect that */
    uint64_t sequence; /* its sequence, if it may be recorded */
    uint64_t forward;  /* in backward: the forward collective's sequence; else 0 */
    union {
        int32_t reduce; /* MS_REDUCE_* */
        int32_t root;   /* of a broadcast */
    };
} msi_collective;

/* Rows by name; `_extreme`: maximum and minimum, not differentiable. */
#define MSI_COLLECTIVES(X)                                                                         \
    X(all_reduce)                                                                                  \
    X(all_reduce_extreme)                                                                          \
    X(all_gather)                                                                                  \
    X(reduce_scatter)                                                                              \
    X(reduce_scatter_extreme)                                                                      \
    X(broadcast)

#define MSI_COLLECTIVES_DECLARE(name) extern const msi_op msi_op_##name;
MSI_COLLECTIVES(MSI_COLLECTIVES_DECLARE)
#undef MSI_COLLECTIVES_DECLARE

/* Error if the dtype lacks the reduction. */
ms_status msi_check_reduction(const char *op, int32_t dtype, int32_t reduce);
/* Error if the group has no such rank. */
ms_status msi_check_root(const ms_comm *comm, int32_t root);

#endif
