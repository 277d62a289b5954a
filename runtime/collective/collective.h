/* Collectives as operators. Between groups, which know no gradients, and autograd, which knows no
 * ranks: the rows that join the two, and the functions that scripts call. */
#ifndef MSI_COLLECTIVE_H
#define MSI_COLLECTIVE_H

#include "comm.h"
#include "op.h"

/* What a collective is asked for beside its operand. */
typedef struct msi_collective {
    ms_comm *comm;     /* borrowed: when backward runs it may be freed, and its address reused */
    double serial;     /* ms_comm_serial() in forward; another number then */
    uint64_t sequence; /* that it is named with, where it may be recorded */
    uint64_t forward;  /* in backward: that of the collective whose gradient this is; else 0 */
    union {
        int32_t reduce; /* MS_REDUCE_* */
        int32_t root;   /* of a broadcast */
    };
} msi_collective;

/* Rows by their names; `_extreme`: of a maximum or minimum, which is not differentiable. */
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

/* Is there such a reduction, of that dtype? */
ms_status msi_check_reduction(const char *op, int32_t dtype, int32_t reduce);
/* Is there such a rank in the group? */
ms_status msi_check_root(const ms_comm *comm, int32_t root);

#endif
