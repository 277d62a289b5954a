/* The one observable point: every forward operator, collective on tensors, and unshard, reshard and
 * reduction of a unit passes here. Observers see identity, storage, view and version of operands.
 */
#ifndef MSI_OP_H
#define MSI_OP_H

#include "tensor.h"

enum { MSI_OP_MAX_IN = 64, MSI_OP_MAX_OUT = 4 };

struct msi_bwd; /* autograd's */

typedef struct msi_op_call msi_op_call;

typedef struct msi_op msi_op;

/* Input of a meta function: attributes and the views of operands. */
typedef struct msi_meta {
    const msi_op *op;
    const void *attrs;
    const msi_view *const *in; /* NULL for an omitted operand */
    int32_t n_in;
    msi_view *out; /* one per result: set by msi_result() or msi_result_view() */
} msi_meta;

/* The random mask of an operator's call, in its attributes: a function of these four numbers. */
typedef struct msi_draw {
    uint64_t seed, site;
    int64_t call, sample_base;
    bool active; /* false: this call draws none */
} msi_draw;
/* The draw of a call on samples `x`, from stream `site`. */
msi_draw msi_draw_of(const msi_view *x, const ms_context *ctx, uint64_t site, int64_t call,
                     bool active);

/* The row of an operator. */
struct msi_op {
    const char *name;
    /* Check the operands and describe the results. Reads shapes, strides and dtypes, never values;
     * for meta operands nothing else runs. */
    ms_status (*meta)(const msi_meta *m);
    /* Fill the results, allocated as `meta` described; save what `backward` needs if `call->node`
     * is set. Not called if all results are views; NULL: always so. In msi_op_run_into() a result
     * may be an operand. */
    ms_status (*forward)(msi_op_call *call);
    ms_status (*backward)(struct msi_bwd *b); /* NULL: not differentiable */
    int32_t attrs_size;                       /* bytes of `attrs`, copied into the node */
    int32_t n_saved;                          /* views the node can save */
    int32_t draw;  /* 1 + offset of its msi_draw in the attributes; 0: has none */
    bool constant; /* the result depends on attributes alone, and forward computes it on the host */
    bool overwrites_rows; /* likewise over rows with gaps between them */
    bool overwrites; /* backward writes the gradient of operand 0 over it if nothing else owns it */
};

struct msi_op_call {
    ms_context *ctx;
    const msi_op *op;
    const void *attrs;
    ms_tensor *const *in;
    int32_t n_in;
    ms_tensor **out; /* NULL: not made yet, or failed */
    int32_t n_out;
    bool meta;             /* an operand is meta, so results are */
    struct msi_node *node; /* NULL if not recorded, as for meta operands */
};

/* Run an operator. in[i] may be NULL for optional operands. On success the caller owns the n_out
 * handles in `out`; on failure they are NULL. If an operand is meta, so are the results: no kernel
 * runs, no memory is allocated or read. */
ms_status msi_op_run(const msi_op *op, const void *attrs, ms_tensor *const *in, int32_t n_in,
                     ms_tensor **out, int32_t n_out);
/* True if some operands are in host memory and some on the device. */
bool msi_places_differ(ms_tensor *const *in, int32_t n);
/* Copy such scalars of the host to the device, into their places of `moved`, which holds NULL.
 * Other tensors of the host are an error. The caller frees `moved`. */
ms_status msi_bring_scalars(const char *op, ms_tensor *const *in, int32_t n, ms_tensor **moved);
/* Run an operator on any number of existing results; the caller has checked all operands. Not
 * recorded. If all operands and results are meta, nothing runs. */
ms_status msi_op_run_into(ms_context *ctx, const msi_op *op, const void *attrs,
                          ms_tensor *const *in, int32_t n_in, ms_tensor **out, int32_t n_out);

/* The result is new contiguous memory. */
ms_status msi_result(msi_view *out, int32_t dtype, int32_t ndim, const int64_t *shape);
/* The result is a view of an operand. */
void msi_result_view(msi_view *out, const msi_view *v);

/* An observer. `begin` sees operands before, `end` results after. `host` (or NULL) sees what is no
 * operator: that the host reads values, makes a tensor from them, adds a hook. */
typedef struct msi_op_observer {
    void (*begin)(void *user, const msi_op_call *call);
    void (*end)(void *user, const msi_op_call *call, ms_status status);
    void *user;
    void (*host)(void *user, const char *what);
    /* (or NULL: `host` is called) `out` (n) are handles on the memory of `results`, whose graph is
     * now one node that computes them again. */
    void (*checkpoint)(void *user, ms_tensor *const *results, ms_tensor *const *out, int32_t n);
} msi_op_observer;
/* Install (NULL removes). One per context. */
void msi_op_observe(ms_context *ctx, const msi_op_observer *observer);
/* Report to it what the host does, e.g. "the host reads values of a tensor". Every public function
 * calls it that reads or writes values without an operator, or whose effect a repetition of the
 * operators alone would lose. `ctx` may be NULL, as msi_context() if memory is out. */
void msi_op_host(const ms_context *ctx, const char *what);
/* Report an activation checkpoint to it. */
void msi_op_checkpoint(const ms_context *ctx, ms_tensor *const *results, ms_tensor *const *out,
                       int32_t n);
/* True if there is one. For callers that make operands only for it. */
bool msi_op_is_observed(const ms_context *ctx);

/* Autograd's hooks, present in every context. */
typedef struct msi_op_recorder {
    /* Make a node when grad mode is on and an operand requires grad; NULL otherwise. */
    ms_status (*begin)(msi_op_call *call);
    /* Tie outputs to the node, or drop it on failure. */
    void (*end)(msi_op_call *call, ms_status status);
    /* True if grad mode is on. */
    bool (*recording)(const ms_context *ctx);
    /* A handle is freed: drop its autograd state. */
    void (*drop)(ms_tensor *t);
} msi_op_recorder;

#endif
