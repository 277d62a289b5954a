/* Collectives as operators: the rows that join groups, which know no gradients, and autograd, which
 * knows no ranks; and the public functions. */
#ifndef MSI_COLLECTIVE_H
#define MSI_COLLECTIVE_H

#include "comm.h"
#include "op.h"

/* Rows of msi_collectives. */
enum {
    MSI_ALL_REDUCE,
    MSI_ALL_GATHER,
    MSI_REDUCE_SCATTER,
    MSI_BROADCAST,
    MSI_SCATTER,
    MSI_GATHER,
    MSI_REDUCE,
    MSI_ALL_TO_ALL,
    MSI_PERMUTE,
    MSI_COLLECTIVE_COUNT
};

/* The first size of the result: the operand's, W times it, a W-th of it, or the rows received. */
enum { MSI_SHAPE_SAME, MSI_SHAPE_WHOLE, MSI_SHAPE_PART, MSI_SHAPE_ROWS };

/* The root's operand is used alone; or the root's result is written alone, others are zeros. */
enum { MSI_ROOT_NONE, MSI_ROOT_GIVES, MSI_ROOT_GETS };

typedef struct msi_collective_row msi_collective_row;

/* Attributes of a collective. */
typedef struct msi_collective {
    const msi_collective_row *row;
    ms_comm *comm;     /* borrowed; may be freed by backward, and its address reused */
    double serial;     /* ms_comm_serial() in forward, to detect that */
    uint64_t sequence; /* its sequence, if it may be recorded */
    uint64_t forward;  /* in backward: the forward collective's sequence; else 0 */
    int32_t reduce;    /* MS_REDUCE_* */
    int32_t root;
} msi_collective;

/* Attributes of a row of MSI_SHAPE_ROWS: rows to and from each member, if they are not equal. */
typedef struct msi_all_to_all {
    msi_collective base;
    bool unequal;
    int64_t in[MS_MAX_RANKS], out[MS_MAX_RANKS];
} msi_all_to_all;

struct msi_collective_row {
    msi_op op;
    msi_op extreme; /* for maximum and minimum, not differentiable; of rows that reduce */
    int32_t shape;  /* MSI_SHAPE_* */
    int32_t root;   /* MSI_ROOT_* */
    bool reduces;
    bool in_place;                  /* the verb works on the result, which starts as the operand */
    const msi_collective_row *dual; /* the collective of the gradient */
    /* `in` is contiguous; in place both are one. */
    ms_status (*run)(const msi_collective *attrs, const msi_view *out, const msi_view *in);
};

extern const msi_collective_row msi_collectives[MSI_COLLECTIVE_COUNT];

/* operator.c: the functions of every row. */
ms_status msi_collective_meta(const msi_meta *m);
ms_status msi_collective_forward(msi_op_call *c);
ms_status msi_collective_backward(struct msi_bwd *b);

bool msi_collective_is_root(const msi_collective *attrs);
/* Error if the group has no such root, or the dtype lacks the reduction. */
ms_status msi_check_collective(const msi_collective *attrs, int32_t dtype);
/* For forward: with the serial that identifies the group. */
msi_collective msi_collective_of(const msi_collective_row *row, ms_comm *comm, int32_t root,
                                 int32_t reduce);
/* Run a collective on `x`. If it is recorded, its group is kept for backward while it is abandoned.
 */
ms_status msi_collective_run(const msi_collective *attrs, ms_tensor *x, ms_tensor **out);
/* into.c: error unless both are contiguous tensors of one dtype. */
ms_status msi_check_pair(const char *op, const ms_tensor *out, const ms_tensor *in);
/* Into an existing tensor, not recorded, after checking both. `in` is not used in place,
 * nor elsewhere than on the root that gives; `out` is not used elsewhere than on the root that
 * gets.
 */
ms_status msi_collective_into(const msi_collective *attrs, ms_tensor *out, ms_tensor *in);

#endif
