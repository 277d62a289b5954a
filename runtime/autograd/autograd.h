/* Tape and engine: the private part of moonshard/autograd.h.
 *
 * Each recorded op makes a node. Its edges point to the nodes that made its operands, or to a
 * leaf's accumulate node. The engine runs nodes in descending order of creation, which is a
 * topological order, so contributions always add in the same order.
 *
 * A backward rule gets the destination of each operand's gradient from msi_bwd_dest() and writes
 * there: the first contribution stores, later ones add. A leaf's destination is the final memory of
 * its gradient (a unit's gradient slot), so no gradient is copied. */
#ifndef MSI_AUTOGRAD_H
#define MSI_AUTOGRAD_H

#include "moonshard/autograd.h"
#include "op.h"

/* Record the operators of this context. */
void msi_autograd_install(ms_context *ctx);

/* A view saved for backward, and its storage's version then. */
typedef struct msi_saved {
    msi_view view; /* storage retained; NULL when empty */
    int64_t version;
} msi_saved;

/* Called once before a node's backward runs. `drop` (or NULL) follows, or is called when the node
 * is freed without a backward. `expect` (or NULL) is called before a backward that reaches the node
 * runs any node; `fn` is not called if no gradient arrives. */
typedef struct msi_pre_hook {
    ms_status (*fn)(void *user);
    void *user;
    void (*drop)(void *user);
    ms_status (*expect)(void *user);
} msi_pre_hook;

/* Destination of a leaf's gradient, and its notifications. Owned by whoever set it (a unit). Order
 * within one backward: expect (once, before any node runs), dest, done (once, when no contribution
 * can follow, even if there was none). After an error done is not called. The owner runs the leaf's
 * accumulate hooks when its gradient is complete. */
typedef struct msi_grad_sink {
    ms_status (*expect)(void *user, int32_t index);
    /* A view of the leaf's full shape, once per contribution; *add is false for the first one of
     * this backward. */
    ms_status (*dest)(void *user, int32_t index, msi_view *dst, bool *add);
    ms_status (*done)(void *user, int32_t index);
    void *user;
    int32_t index;
} msi_grad_sink;

/* Observer of this context's backwards. Each may be NULL; all but `end` may fail the backward.
 *     begin     the graph was walked; before any expect() and any node
 *     finish    every node has run: complete pending gradients
 *     finished  all observers' gradients are complete; may call the script
 *     end       `status` is the outcome. Called for every observer that had a begin, even if it
 *               had finished when another failed. */
typedef struct msi_backward_observer {
    ms_status (*begin)(void *user);
    ms_status (*finish)(void *user);
    ms_status (*finished)(void *user);
    void (*end)(void *user, ms_status status);
    void *user;
} msi_backward_observer;
ms_status msi_backward_observe(ms_context *ctx, const msi_backward_observer *observer);
/* Not inside a backward: see msi_backward_defer(). */
void msi_backward_unobserve(ms_context *ctx, void *user);

/* True in a backward that adds to leaves' gradients, false in one that returns them. */
bool msi_backward_accumulates(const ms_context *ctx);

/* A deferred call, embedded in what it frees, so that it needs no memory. */
typedef struct msi_deferred {
    void (*fn)(void *user);
    void *user;
    struct msi_deferred *next;
} msi_deferred;
/* Call fn(user) when no backward runs: now, or at the end of the running one, which may still use
 * what a hook frees. */
void msi_backward_defer(ms_context *ctx, msi_deferred *call);

/* -- for operators ----------------------------------------------------------------------------- */

/* True if operand i needs a gradient (while recording). */
bool msi_call_needs(const msi_op_call *c, int32_t i);
/* Save a view as number `which` of the call's node. No-op if not recorded. */
void msi_save(msi_op_call *c, int32_t which, const msi_view *v);

typedef struct msi_bwd msi_bwd;
ms_context *msi_bwd_context(const msi_bwd *b);
/* Name of the operator. */
const char *msi_bwd_name(const msi_bwd *b);
const void *msi_bwd_attrs(const msi_bwd *b);
/* Gradient of output i, of any strides; NULL if none arrived (never NULL with one output, since a
 * rule runs only for some gradient). */
const msi_view *msi_bwd_grad(const msi_bwd *b, int32_t i);
/* Saved view; MS_RUNTIME_ERROR if written since, freed or absent. */
ms_status msi_bwd_saved(msi_bwd *b, int32_t which, const msi_view **v);
/* True if saved view `which` has no other owner, so it may be overwritten and become a gradient.
 * Call after msi_bwd_saved(), which checks its version. */
bool msi_bwd_saved_exclusive(msi_bwd *b, int32_t which);
/* True if operand i's gradient, which must then be passed on, may be written over saved view
 * `which` of its shape: the view is contiguous, or the operator overwrites rows, and has no other
 * owner, and this is the gradient's
 * first contribution. A later one is added by the kernel, with one rounding, whoever owns the view.
 */
bool msi_bwd_overwrites(msi_bwd *b, int32_t i, int32_t which);
/* Shape and dtype of operand i (no storage); NULL if omitted. */
const msi_view *msi_bwd_operand(const msi_bwd *b, int32_t i);
bool msi_bwd_needs(const msi_bwd *b, int32_t i);
/* Destination of operand i's gradient: its shape, contiguous, its dtype, or for a leaf the owner's
 * (f32 for a narrow leaf). *add: add, else store every element. Call once per operand, only if
 * needed. Operands that are one tensor, as in mul(x, x), share the destination: the first call
 * stores, later ones add. So a rule must write destinations in the order in which it got them. */
ms_status msi_bwd_dest(msi_bwd *b, int32_t i, msi_view *dst, bool *add);
/* Pass a view on as operand i's gradient, without a copy if safe. It has the operand's shape, any
 * strides (also 0), any floating dtype, and is a part of the incoming gradient, memory of
 * msi_bwd_temp(), or an exclusively owned saved view. The rule must not write to it later. No-op if
 * the operand needs no gradient. */
ms_status msi_bwd_pass(msi_bwd *b, int32_t i, const msi_view *v);
/* Add `scale * v`, summed over broadcast dimensions, to operand i if it needs a gradient. */
ms_status msi_bwd_reduce_pass(msi_bwd *b, int32_t i, const msi_view *v, double scale);
/* Contiguous scratch, valid until this rule returns, or longer if passed on. */
ms_status msi_bwd_temp(msi_bwd *b, int32_t dtype, int32_t ndim, const int64_t *shape, msi_view *v);

/* -- for units --------------------------------------------------------------------------------- */

/* Run the accumulate hooks of a leaf, inside a backward. */
ms_status msi_hooks_run_accumulate(ms_tensor *leaf);

/* Run `fn` once before the node of `t` is differentiated (before gradient hooks of its results), in
 * order of registration. Dropped at once if the graph was freed. MS_RUNTIME_ERROR if no recorded op
 * made t; then `drop` is not called. */
ms_status msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook hook);
/* Position in the order of creation: later nodes come after it. */
uint64_t msi_autograd_now(ms_context *ctx);
/* In the running backward, call `fn` once, when every reached node made after `place` has run, and
 * before the next older one. Dropped if the backward ends before. */
ms_status msi_backward_when_behind(ms_context *ctx, uint64_t place, ms_status (*fn)(void *user),
                                   void *user);

#endif
