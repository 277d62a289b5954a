/* Private to autograd/: nodes, gradients in flight, hooks, and the context's tape.
 *
 *   msi_node    one recorded op, or (op NULL) a leaf's accumulate node. A node owns its
 *               operands' nodes, results own their node. So a graph lives as long as one of its
 *               results, or until backward has run it.
 *   msi_grad    gradient of one output during a backward: from its first contribution until
 *               the node has run.
 *   msi_hooks   one hook; the hooks of a tensor are a list in order of ids.
 *
 * Records are cut from chunks and recycled, so a steady step never calls malloc. */
#ifndef MSI_TAPE_H
#define MSI_TAPE_H

#include "autograd.h"

typedef struct msi_node msi_node;
typedef struct msi_tape msi_tape;
typedef struct msi_hooks msi_hooks;

/* Destination of one operand's gradient, and the operand's shape and dtype. */
typedef struct msi_edge {
    msi_node *node; /* retained; NULL if no gradient is needed */
    const int64_t *shape;
    int16_t out; /* output of `node` */
    int8_t dtype;
    int8_t ndim; /* -1: omitted operand */
    bool shard;  /* the operand was a shard of a parameter */
} msi_edge;

typedef struct msi_grad {
    msi_view view; /* storage retained; any strides */
    struct msi_grad *next_free;
} msi_grad;

typedef struct msi_output {
    msi_grad *grad;    /* NULL before any contribution */
    ms_tensor *tensor; /* the result; borrowed, NULL if not needed */
    int8_t dtype, ndim;
    int64_t shape[MS_MAX_DIMS];
} msi_output;

struct msi_node {
    const msi_op *op; /* NULL: a leaf's */
    msi_tape *tape;
    ms_tensor *leaf;   /* retained; only in a leaf's node */
    uint64_t sequence; /* order of creation; operands' are smaller */
    uint64_t walk;     /* the last backward that reached it */
    uint64_t mark;     /* the last collection of a segment's edges that met it */
    msi_hooks *hooks;  /* gradient hooks of outputs; a leaf's are in its handle */
    msi_hooks *pre;
    msi_node *next;   /* in a free list, or the list of dead */
    int32_t refcount; /* results, edges, the engine */
    int32_t pending;  /* leaf: contributions still expected */
    int16_t n_in, n_out, n_saved, size_class;
    bool spent;        /* differentiated: saved views, edges, hooks dropped */
    bool queued;       /* in the queue of this backward */
    bool gathers;      /* leaf: summed separately, stored at the end */
    bool reached;      /* leaf: this backward contributed */
    bool newborn;      /* leaf: this backward made its .grad */
    bool reads_grad;   /* a saved view shares memory with leaves' .grad */
    bool captured;     /* this backward returns gradients of its outputs */
    bool idle;         /* this backward needs no gradient beyond it */
    msi_edge *edge;    /* (n_in) */
    msi_saved *saved;  /* (n_saved) */
    void *attrs;       /* op->attrs_size bytes */
    msi_output out[1]; /* (n_out) */
};

/* OWNER: never run, only dropped with the graph. */
enum { MSI_HOOK_GRAD, MSI_HOOK_ACCUMULATE, MSI_HOOK_PRE, MSI_HOOK_OWNER };

struct msi_hooks {
    msi_hooks *next;
    msi_tape *tape;
    int64_t id;
    int16_t kind; /* MSI_HOOK_* */
    int16_t out;  /* output index of the node */
    ms_grad_hook grad;
    ms_accumulate_hook accumulate;
    msi_pre_hook pre;
    void *user;
    void (*drop)(void *user);
};

/* A growing array of pointers. */
typedef struct msi_list {
    void **item;
    int32_t n, capacity;
} msi_list;

typedef struct msi_watcher {
    msi_backward_observer observer;
    bool told; /* `begin` was called */
} msi_watcher;

/* Called when the running backward has passed all nodes made after `place`. */
typedef struct msi_milestone {
    uint64_t place;
    ms_status (*fn)(void *user);
    void *user;
} msi_milestone;

/* A gradient that the running backward returns. */
typedef struct msi_capture {
    msi_node *node; /* retained */
    int32_t out;
    ms_tensor *grad; /* owned; NULL until complete */
} msi_capture;

/* What a backward starts from. */
typedef struct msi_root {
    ms_tensor *tensor; /* retained, as hooks may free it */
    ms_tensor *grad;   /* borrowed; NULL: 1 */
    msi_node *node;    /* retained */
    int32_t out;
    bool by_reference; /* `grad` is not copied, though it has other owners; nothing writes to it */
} msi_root;

enum { MSI_NODE_GRAIN = 64, MSI_NODE_CLASSES = 1024 };

/* State of autograd/ in a context. */
struct msi_tape {
    ms_context *ctx;
    bool recording;
    bool running; /* in a backward */
    bool closed;  /* the context closes; the last record frees the tape */
    bool burying; /* dead nodes are being released */
    uint64_t sequence, walk, mark;
    int64_t hook_id;
    int64_t live; /* nodes and hooks */
    msi_node *free_nodes[MSI_NODE_CLASSES];
    msi_node *dead; /* nodes without owners, not yet released */
    msi_hooks *free_hooks;
    msi_grad *free_grads;
    msi_list ended; /* placeholders for spent nodes, one per op */
    struct msi_chunk *chunks;
    char *chunk_at, *chunk_end;
    /* the running backward */
    bool retains; /* keep the graph */
    bool returns; /* returns gradients, accumulates none */
    msi_capture *captures;
    int32_t n_captures;
    msi_list to_visit, queue /* a heap by sequence */, leaves, hooked /* reached, with pre hooks */;
    msi_list reached; /* reached nodes of ops, if it returns gradients */
    msi_list temps;   /* storages of the running rule */
    msi_view operand[MSI_OP_MAX_IN];
    msi_milestone *milestones; /* ascending by place */
    int32_t n_milestones, milestone_capacity;
    msi_watcher *watchers;
    int32_t n_watchers;
    msi_deferred *deferred; /* calls for its end */
};

/* -- tape.c: records --------------------------------------------------------------------------- */

/* NULL, with the error set, if memory is out. */
msi_tape *msi_tape_of(ms_context *ctx);
ms_status msi_list_push(msi_list *list, void *item);
void msi_list_free(msi_list *list);
/* A zeroed hook. */
ms_status msi_tape_hook(msi_hooks **out, msi_tape *tape);
/* Call its drop(), recycle it. */
void msi_tape_drop_hook(msi_hooks *hook);
void msi_hooks_drop_all(msi_hooks **list);
ms_status msi_tape_grad(msi_grad **out, msi_tape *tape);
/* Release all outputs' gradients. */
void msi_grads_clear(msi_node *node);
msi_node *msi_node_retain(msi_node *node);
/* Not recursive, however long the graph. */
void msi_node_release(msi_node *node);
void msi_node_drop_saved(msi_node *node);
/* Drop saved views, edges, hooks and results after the last run: see [Note: what is left of a
 * graph]. */
void msi_node_spend(msi_node *node);
/* Record `op` over operands (n_in), as msi_op_run() does; NULL if nothing is to be recorded. The
 * caller owns a reference, and calls msi_node_output() for each result. */
ms_status msi_node_record(msi_node **out, const msi_op *op, const void *attrs, ms_tensor *const *in,
                          int32_t n_in, int32_t n_out);
/* The same over copies of other nodes' edges (n), and one to `rest` unless that is NULL. */
ms_status msi_node_of_edges(msi_node **out, msi_tape *tape, const msi_op *op, const void *attrs,
                            msi_edge *const *edges, int32_t n, msi_node *rest, int32_t n_out);
/* Make a tensor output i of the node. */
void msi_node_output(msi_node *node, int32_t i, ms_tensor *t);
/* Call `drop` when the node is spent or freed. */
ms_status msi_node_own(msi_node *node, void *user, void (*drop)(void *user));
/* A leaf's accumulate node; the caller owns a reference. */
ms_status msi_node_of_leaf(msi_node **out, msi_tape *tape, ms_tensor *leaf);

/* -- grad.c: gradients in flight --------------------------------------------------------------- */

/* Where to write the next contribution to an output's gradient; see msi_bwd_dest(). */
ms_status msi_grad_dest(msi_node *node, int32_t out, msi_view *dst, bool *add);
/* Contribute a view, by reference if that cannot be observed. */
ms_status msi_grad_pass(msi_node *node, int32_t out, const msi_view *v);
/* True if msi_grad_pass() would take `v` by reference: nothing was contributed before. */
bool msi_grad_takes(const msi_node *node, int32_t out, const msi_view *v);
/* Store or add a separately summed total, if any, to the leaf's gradient. */
ms_status msi_grad_deliver(msi_node *leaf);

/* -- walk.c ------------------------------------------------------------------------------------ */

/* True if the running backward needs a gradient for it. */
static inline bool msi_edge_needs(const msi_edge *edge)
{
    return edge->node != NULL && !edge->node->idle;
}
bool msi_node_leads_on(const msi_node *node);
/* Fill the tape's lists for a backward from these roots. */
ms_status msi_walk(msi_tape *tape, const msi_root *roots, int32_t n_roots);
/* Reach more nodes in the running backward. Nodes that were reached before stay as they are. */
ms_status msi_walk_on(msi_tape *tape, const msi_root *roots, int32_t n_roots);
/* MS_RUNTIME_ERROR: `user` got a shard of a parameter with whole gradients. */
ms_status msi_refuse_shard(const char *user, const ms_tensor *leaf, int32_t ndim,
                           const int64_t *shape);

/* -- engine.c ---------------------------------------------------------------------------------- */

/* Differentiate: walk, run, notify observers. The caller sets and clears the tape's fields of this
 * backward (captures, retains). */
ms_status msi_backward_run(msi_tape *tape, const msi_root *roots, int32_t n_roots);

/* -- rule.c: interface of backward rules ------------------------------------------------------- */

const msi_node *msi_bwd_node(const msi_bwd *b);
/* MS_RUNTIME_ERROR if the view, number `which`, was written since it was saved. */
ms_status msi_saved_check(const msi_saved *saved, int32_t which);
/* Run the node's rule. */
ms_status msi_rule_run(msi_node *node);

/* -- hooks.c ----------------------------------------------------------------------------------- */

bool msi_hooks_any(const msi_hooks *list, int32_t kind);
/* Run, in order, the hooks of an output on its gradient; they may replace it. Rereads `list` after
 * each, as hooks may add and remove hooks. */
ms_status msi_hooks_run_grad(msi_hooks **list, int32_t out, msi_output *output, msi_tape *tape);
/* Call `expect` of the pre hooks. */
ms_status msi_hooks_expect(const msi_node *node);
/* Run each pre hook once; drop it unless the graph is kept. */
ms_status msi_hooks_run_pre(msi_node *node);

#endif
