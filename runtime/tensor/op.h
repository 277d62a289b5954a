/* The one observable point: every operator of every forward passes msi_op_call(), which sees
 * identity, storage, view and version of its operands. Profilers and recorders hook in here. */
#ifndef MSI_OP_H
#define MSI_OP_H

#include "tensor.h"

enum { MSI_OP_MAX_IN = 64, MSI_OP_MAX_OUT = 4 };

struct msi_bwd; /* autograd's */

typedef struct msi_op_call msi_op_call;

/* An operator. `forward` checks, makes the outputs (msi_out() or msi_out_view()), dispatches, saves
 * what `backward` needs when `call->node` is set. `attrs` is copied into the node. */
typedef struct msi_op {
    const char *name;
    ms_status (*forward)(msi_op_call *call);
    ms_status (*backward)(struct msi_bwd *b); /* NULL: not differentiable */
    int32_t attrs_size;
    int32_t n_saved; /* views the node can hold */
} msi_op;

struct msi_op_call {
    ms_context *ctx;
    const msi_op *op;
    const void *attrs;
    ms_tensor *const *in;
    int32_t n_in;
    ms_tensor *out[MSI_OP_MAX_OUT];
    int32_t n_out;
    struct msi_node *node; /* NULL when nothing is recorded */
};

/* Run an operator. in[i] may be NULL for optional operands. On success `out` gets n_out handles the
 * caller owns; on failure they are NULL. */
ms_status msi_op_run(const msi_op *op, const void *attrs, ms_tensor *const *in, int32_t n_in,
                     ms_tensor **out, int32_t n_out);

/* Output i: new contiguous memory. */
ms_status msi_out(msi_op_call *c, int32_t i, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Output i: a view of existing storage. */
ms_status msi_out_view(msi_op_call *c, int32_t i, const msi_view *v);

/* Watchers of the point. `begin` sees operands before, `end` results after. */
typedef struct msi_op_observer {
    void (*begin)(void *user, const msi_op_call *call);
    void (*end)(void *user, const msi_op_call *call, ms_status status);
    void *user;
} msi_op_observer;
/* Install (NULL removes). One per context. */
void msi_op_observe(ms_context *ctx, const msi_op_observer *observer);

/* Autograd's side of the point: a context has it from the beginning. */
typedef struct msi_op_recorder {
    /* Make a node when grad mode is on and an operand requires grad; NULL otherwise. */
    ms_status (*begin)(msi_op_call *call);
    /* Tie outputs to the node, or drop it on failure. */
    void (*end)(msi_op_call *call, ms_status status);
    /* Is grad mode on? */
    bool (*recording)(const ms_context *ctx);
    /* A handle dies: drop what was hung onto it. */
    void (*drop)(ms_tensor *t);
} msi_op_recorder;

#endif
