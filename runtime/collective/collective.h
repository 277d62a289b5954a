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
        int32_t root;   /* of a broadcast, scatter, gather */
    };
    int32_t to; /* root of a reduce */
} msi_collective;

/* Attributes of an all_to_all: rows to and from each member, if they are not equal. */
typedef struct msi_all_to_all {
    msi_collective base;
    bool unequal;
    int64_t in[MS_MAX_RANKS], out[MS_MAX_RANKS];
} msi_all_to_all;

/* Rows by name; `_extreme`: maximum and minimum, not differentiable. */
#define MSI_COLLECTIVES(X)                                                                         \
    X(all_reduce)                                                                                  \
    X(all_reduce_extreme)                                                                          \
    X(all_gather)                                                                                  \
    X(reduce_scatter)                                                                              \
    X(reduce_scatter_extreme)                                                                      \
    X(broadcast)                                                                                   \
    X(dist_scatter)                                                                                \
    X(dist_gather)                                                                                 \
    X(dist_reduce)                                                                                 \
    X(dist_reduce_extreme)                                                                         \
    X(all_to_all)

#define MSI_COLLECTIVES_DECLARE(name) extern const msi_op msi_op_##name;
MSI_COLLECTIVES(MSI_COLLECTIVES_DECLARE)
#undef MSI_COLLECTIVES_DECLARE

/* Error if the dtype lacks the reduction. */
ms_status msi_check_reduction(const char *op, int32_t dtype, int32_t reduce);
/* Error if the group has no such rank. */
ms_status msi_check_root(const ms_comm *comm, const char *op, int32_t root);
/* Fill rows of an all_to_all of tensors with first sizes `n_out` and `n_in`; NULL: equal parts. */
ms_status msi_check_rows(msi_all_to_all *attrs, int64_t n_out, int64_t n_in,
                         const int64_t *out_rows, const int64_t *in_rows);

#endif
