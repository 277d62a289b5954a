/* Private to this room: nodes, gradients on their way, hooks, and what a context keeps of them.
 *
 *   msi_node    one recorded op, or (op NULL) the place where a leaf's gradient arrives. A node
 *               holds its operands' nodes; results hold their node. So a graph lives as long as one
 *               of its results, or until backward has walked it.
 *   msi_grad    the gradient of one output while a backward runs: from its first contribution until
 *               the node has run.
 *   msi_hooks   one hook; hooks of a tensor form a list in order of their ids.
 *
 * Records are cut from chunks and recycled through free lists: after the first steps nothing here
 * calls malloc. */
#ifndef MSI_TAPE_H
#define MSI_TAPE_H

#include "autograd.h"

typedef struct msi_node msi_node;
typedef struct msi_tape msi_tape;
typedef struct msi_hooks msi_hooks;

/* Where the gradient of one operand goes, and the shape and dtype the operand had. */
typedef struct msi_edge {
    msi_node *node; /* retained; NULL when the operand needs no gradient */
    const int64_t *shape;
    int16_t out; /* output of `node` */
    int8_t dtype;
    int8_t ndim; /* -1: the operand was left out */
    bool shard;  /* the operand was this rank's piece of a parameter */
} msi_edge;

typedef struct msi_grad {
    msi_view view; /* storage retained; any strides */
    struct msi_grad *next_free;
} msi_grad;

typedef struct msi_output {
    msi_grad *grad;    /* NULL until something came */
    ms_tensor *tensor; /* the result; borrowed, NULL: none needs it any more */
    int8_t dtype, ndim;
    int64_t shape[MS_MAX_DIMS];
} msi_output;

struct msi_node {
    const msi_op *op; /* NULL: a leaf's */
    msi_tape *tape;
    ms_tensor *leaf;   /* retained; a leaf's node only */
    uint64_t sequence; /* order of creation: operands' nodes have smaller ones */
    uint64_t walk;     /* the backward that reached it last */
    msi_hooks *hooks;  /* on the gradients of its outputs; a leaf's hang on its handle */
    msi_hooks *pre;
    msi_node *next;   /* in a free list, or among the dead */
    int32_t refcount; /* results, edges, the engine */
    int32_t pending;  /* a leaf's: contributions still to come in this backward */
    int16_t n_in, n_out, n_saved, size_class;
    bool spent;        /* differentiated: saved tensors, edges and hooks are gone */
    bool queued;       /* waits for its turn in this backward */
    bool gathers;      /* a leaf's: the total is formed apart before it is stored */
    bool reached;      /* a leaf's: something came in this backward */
    bool newborn;      /* a leaf's: its .grad was made by this backward */
    bool reads_grad;   /* a saved view lies in memory that leaves' .grad are made of */
    bool captured;     /* the running backward returns gradients of its outputs */
    bool idle;         /* the running backward wants nothing behind it */
    msi_edge *edge;    /* (n_in) */
    msi_saved *saved;  /* (n_saved) */
    void *attrs;       /* op->attrs_size bytes */
    msi_output out[1]; /* (n_out) */
};

enum { MSI_HOOK_GRAD, MSI_HOOK_ACCUMULATE, MSI_HOOK_PRE };

struct msi_hooks {
    msi_hooks *next;
    msi_tape *tape;
    int64_t id;
    int16_t kind; /* MSI_HOOK_* */
    int16_t out;  /* which output of the node */
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
    bool told; /* that the running backward began */
} msi_watcher;

/* Called when the running backward has left everything behind that was made after `place`. */
typedef struct msi_milestone {
    uint64_t place;
    ms_status (*fn)(void *user);
    void *user;
} msi_milestone;

/* A gradient that the running backward returns. */
typedef struct msi_capture {
    msi_node *node; /* retained */
    int32_t out;
    ms_tensor *grad; /* owned; NULL until it is there */
} msi_capture;

/* What a backward starts from. */
typedef struct msi_root {
    ms_tensor *tensor; /* retained: hooks may free it */
    ms_tensor *grad;   /* borrowed; NULL: 1 */
    msi_node *node;    /* retained */
    int32_t out;
} msi_root;

enum { MSI_NODE_GRAIN = 64, MSI_NODE_CLASSES = 256 };

/* What the room keeps in a context. */
struct msi_tape {
    ms_context *ctx;
    bool recording;
    bool running; /* a backward */
    bool closed;  /* the context lets go; the last record frees the tape */
    bool burying; /* the dead are being released */
    uint64_t sequence, walk;
    int64_t hook_id;
    int64_t live; /* nodes and hooks */
    msi_node *free_nodes[MSI_NODE_CLASSES];
    msi_node *dead; /* nodes without owners, not yet released */
    msi_hooks *free_hooks;
    msi_grad *free_grads;
    msi_list ended; /* nodes that stand for spent ones, one for each op */
    struct msi_chunk *chunks;
    char *chunk_at, *chunk_end;
    /* the running backward */
    bool retains; /* the graph stays as it is */
    bool returns; /* gradients are captured, none accumulates */
    msi_capture *captures;
    int32_t n_captures;
    msi_list to_visit, queue /* a heap by sequence */, leaves, hooked /* reached, with pre hooks */;
    msi_list reached; /* nodes of ops, where it returns gradients */
    msi_list temps;   /* storages of the running rule */
    msi_view operand[MSI_OP_MAX_IN];
    msi_milestone *milestones; /* the latest place last */
    int32_t n_milestones, milestone_capacity;
    msi_watcher *watchers;
    int32_t n_watchers;
    msi_deferred *deferred; /* until it has ended */
};

/* -- tape.c: records --------------------------------------------------------------------------- */

/* NULL with the error set when memory is out. */
msi_tape *msi_tape_of(ms_context *ctx);
ms_status msi_list_push(msi_list *list, void *item);
/* A zeroed hook. */
ms_status msi_tape_hook(msi_hooks **out, msi_tape *tape);
/* Call its drop(), recycle it. */
void msi_tape_drop_hook(msi_hooks *hook);
void msi_hooks_drop_all(msi_hooks **list);
ms_status msi_tape_grad(msi_grad **out, msi_tape *tape);
/* Those of all outputs go. */
void msi_grads_clear(msi_node *node);
msi_node *msi_node_retain(msi_node *node);
/* However long the graph behind it is, this does not recurse. */
void msi_node_release(msi_node *node);
void msi_node_drop_saved(msi_node *node);
/* Give up saved tensors, edges, hooks, which can never run again, and results: see [Note: what is
 * left of a graph]. */
void msi_node_spend(msi_node *node);
/* The node where a leaf's gradient arrives; the caller owns a reference. */
ms_status msi_node_of_leaf(msi_node **out, msi_tape *tape, ms_tensor *leaf);

/* -- grad.c: gradients on their way ------------------------------------------------------------ */

/* Where to write the next contribution to an output's gradient; see msi_bwd_dest(). */
ms_status msi_grad_dest(msi_node *node, int32_t out, msi_view *dst, bool *add);
/* Contribute a view, by reference where nobody could tell the difference. */
ms_status msi_grad_pass(msi_node *node, int32_t out, const msi_view *v);
/* Store or add a gathered total (or none) where the leaf's gradient lives. */
ms_status msi_grad_deliver(msi_node *leaf);

/* -- walk.c ------------------------------------------------------------------------------------ */

/* Is there a node that the running backward wants a gradient for? */
static inline bool msi_edge_needs(const msi_edge *edge)
{
    return edge->node != NULL && !edge->node->idle;
}
bool msi_node_leads_on(const msi_node *node);
/* Fill the tape's lists for a backward from these roots. */
ms_status msi_walk(msi_tape *tape, const msi_root *roots, int32_t n_roots);
/* RuntimeError: `user` was given a shard of a parameter that takes whole gradients. */
ms_status msi_refuse_shard(const char *user, const ms_tensor *leaf, int32_t ndim,
                           const int64_t *shape);

/* -- engine.c ---------------------------------------------------------------------------------- */

/* Differentiate: walk, run, tell those who watch. What the tape says of this backward (captures,
 * retains) is set, and its caller's to take back. */
ms_status msi_backward_run(msi_tape *tape, const msi_root *roots, int32_t n_roots);

/* -- rule.c: what a backward rule sees --------------------------------------------------------- */

/* Run the node's rule. */
ms_status msi_rule_run(msi_node *node);

/* -- hooks.c ----------------------------------------------------------------------------------- */

bool msi_hooks_any(const msi_hooks *list, int32_t kind);
/* Run, in order, the hooks of an output on its gradient; they may replace it. `list` is read again
 * after each hook, as hooks may add and remove hooks. */
ms_status msi_hooks_run_grad(msi_hooks **list, int32_t out, msi_output *output, msi_tape *tape);
/* Tell the pre hooks that a backward comes here. */
ms_status msi_hooks_expect(const msi_node *node);
/* Run each pre hook once, and drop it unless the graph stays. */
ms_status msi_hooks_run_pre(msi_node *node);

#endif
