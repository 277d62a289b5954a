/* The one observable point: every operator of every forward, every collective on tensors and every
 * unshard, reshard and reduction of a unit passes here, where identity, storage, view and version
 * of operands are seen. Profilers and recorders hook in. */
#ifndef MSI_OP_H
#define MSI_OP_H

#include "tensor.h"

enum { MSI_OP_MAX_IN = 64, MSI_OP_MAX_OUT = 4 };

struct msi_bwd; /* autograd's */

typedef struct msi_op_call msi_op_call;

typedef struct msi_op msi_op;

/* What an operator's results are asked from: attributes and the forms of its operands. */
typedef struct msi_meta {
    const msi_op *op;
    const void *attrs;
    const msi_view *const *in; /* NULL for an operand that was left out */
    int32_t n_in;
    msi_view *out; /* the answer, a view a result: see msi_result() and msi_result_view() */
} msi_meta;

/* An operator: its row. */
struct msi_op {
    const char *name;
    /* Check the operands, and say what the results are. Reads shapes, strides and dtypes, never
     * values: it is all that runs for meta operands. */
    ms_status (*meta)(const msi_meta *m);
    /* Fill the results, which are there as `meta` said; save what `backward` needs when
     * `call->node` is set. Does not run where all are views of operands; NULL: they always are. In
     * msi_op_run_into() a result may be an operand, too. */
    ms_status (*forward)(msi_op_call *call);
    ms_status (*backward)(struct msi_bwd *b); /* NULL: not differentiable */
    int32_t attrs_size;                       /* bytes of `attrs`, which are copied into the node */
    int32_t n_saved;                          /* views the node can hold */
};

struct msi_op_call {
    ms_context *ctx;
    const msi_op *op;
    const void *attrs;
    ms_tensor *const *in;
    int32_t n_in;
    ms_tensor **out; /* NULL where there is none: not yet, or as it failed */
    int32_t n_out;
    bool meta;             /* an operand has no values and never will: nor have the results */
    struct msi_node *node; /* NULL when nothing is recorded, as of meta operands */
};

/* Run an operator. in[i] may be NULL for optional operands. On success `out` gets n_out handles the
 * caller owns; on failure they are NULL. With a meta tensor among the operands the results are meta
 * tensors: no kernel runs, and no memory is taken or read. */
ms_status msi_op_run(const msi_op *op, const void *attrs, ms_tensor *const *in, int32_t n_in,
                     ms_tensor **out, int32_t n_out);
/* Run an operator on results that are there already, any number of them; the caller has looked at
 * all operands. Nothing is recorded. Where all results are meta tensors, and all operands, nothing
 * runs. */
ms_status msi_op_run_into(ms_context *ctx, const msi_op *op, const void *attrs,
                          ms_tensor *const *in, int32_t n_in, ms_tensor **out, int32_t n_out);

/* A result is new contiguous memory. */
ms_status msi_result(msi_view *out, int32_t dtype, int32_t ndim, const int64_t *shape);
/* A result is a view of an operand's memory. */
void msi_result_view(msi_view *out, const msi_view *v);

/* Watchers of the point. `begin` sees operands before, `end` results after. */
typedef struct msi_op_observer {
    void (*begin)(void *user, const msi_op_call *call);
    void (*end)(void *user, const msi_op_call *call, ms_status status);
    void *user;
} msi_op_observer;
/* Install (NULL removes). One per context. */
void msi_op_observe(ms_context *ctx, const msi_op_observer *observer);
/* Is there one? For who makes operands only to be watched, in a context that has tensors. */
bool msi_op_is_observed(const ms_context *ctx);

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
