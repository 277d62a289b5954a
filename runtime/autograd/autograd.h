/* Tape and engine: the inside of moonshard/autograd.h.
 *
 * A node is made per recorded op; its edges point at the nodes its operands came from, or at the
 * leaf's accumulate node. The engine walks nodes in descending sequence (creation) order, which is
 * a topological order, so contributions always add in the same order.
 *
 * A backward rule asks for the destination of each operand's gradient with msi_bwd_dest() and
 * writes there: the first contribution stores, later ones add. For a leaf the destination is where
 * the gradient lives for good (a unit's gradient slot), so no gradient is copied. */
#ifndef MSI_AUTOGRAD_H
#define MSI_AUTOGRAD_H

#include "moonshard/autograd.h"
#include "op.h"

/* Operators of this context are recorded from now on. */
void msi_autograd_install(ms_context *ctx);

/* A view saved for backward, with the storage's version at that time. */
typedef struct msi_saved {
    msi_view view; /* storage retained; NULL when empty */
    int64_t version;
} msi_saved;

/* Called before a node's backward runs; once. `drop` (or NULL) follows, or comes when the node dies
 * without a backward. `expect` (or NULL) comes before any node of a backward that reaches this one
 * runs; `fn` does not come then when no gradient does. */
typedef struct msi_pre_hook {
    ms_status (*fn)(void *user);
    void *user;
    void (*drop)(void *user);
    ms_status (*expect)(void *user);
} msi_pre_hook;

/* Where a leaf's gradient is born, and who is told. Owned by whoever set it (a unit). Within one
 * backward calls come in the order: expect (once, before any node runs), dest, done (once, when
 * nothing more will come; also when nothing came at all). An error ends the backward, and then done
 * does not come. The owner runs the leaf's accumulate hooks when its gradient is there. */
typedef struct msi_grad_sink {
    ms_status (*expect)(void *user, int32_t index);
    /* A view of the leaf's full shape; *add tells whether this backward (false on its first
     * contribution) must add. Called once per contribution. */
    ms_status (*dest)(void *user, int32_t index, msi_view *dst, bool *add);
    ms_status (*done)(void *user, int32_t index);
    void *user;
    int32_t index;
} msi_grad_sink;

/* Told how a backward of this context goes. Any but `end` may fail it, and any may be NULL.
 *     begin     the graph is walked; no sink expects anything yet, no node has run
 *     finish    every node has run: what gradients still lack is done now
 *     finished  every observer's gradients are there, so whatever the script wants may be run
 *     end       `status` is the outcome. Who was told of the beginning is told of the end, whatever
 *               happened: also who had finished, when another could not. */
typedef struct msi_backward_observer {
    ms_status (*begin)(void *user);
    ms_status (*finish)(void *user);
    ms_status (*finished)(void *user);
    void (*end)(void *user, ms_status status);
    void *user;
} msi_backward_observer;
ms_status msi_backward_observe(ms_context *ctx, const msi_backward_observer *observer);
/* Not while a backward runs: see msi_backward_defer(). */
void msi_backward_unobserve(ms_context *ctx, void *user);

/* Does a backward run that adds to leaves' gradients, and not one that returns them? */
bool msi_backward_accumulates(const ms_context *ctx);

/* A call put off; part of what it frees, so that it takes no memory. */
typedef struct msi_deferred {
    void (*fn)(void *user);
    void *user;
    struct msi_deferred *next;
} msi_deferred;
/* Call fn(user) once no backward runs: now, or when the running one, which may still use what a
 * hook lets go of, has left everything behind. */
void msi_backward_defer(ms_context *ctx, msi_deferred *call);

/* -- for operators ----------------------------------------------------------------------------- */

/* Does operand i need a gradient (while recording)? */
bool msi_call_needs(const msi_op_call *c, int32_t i);
/* Save a view as the call's node's saved view `which`. No-op when nothing is recorded. */
void msi_save(msi_op_call *c, int32_t which, const msi_view *v);

typedef struct msi_bwd msi_bwd;
ms_context *msi_bwd_context(const msi_bwd *b);
/* Name of the operator. */
const char *msi_bwd_name(const msi_bwd *b);
const void *msi_bwd_attrs(const msi_bwd *b);
/* Gradient of output i, of any strides; NULL when nothing came (a rule runs when something came for
 * one of its outputs, so with one output it is there). */
const msi_view *msi_bwd_grad(const msi_bwd *b, int32_t i);
/* Saved view; MS_RUNTIME_ERROR when it was written in place since, or is freed or absent. */
ms_status msi_bwd_saved(msi_bwd *b, int32_t which, const msi_view **v);
/* Is the memory of saved view `which` held by nobody else, so that it may be overwritten and become
 * a gradient? Asked after msi_bwd_saved(), which checks its version. */
bool msi_bwd_saved_exclusive(msi_bwd *b, int32_t which);
/* Shape and dtype operand i had (no storage); NULL when the operand was left out. */
const msi_view *msi_bwd_operand(const msi_bwd *b, int32_t i);
bool msi_bwd_needs(const msi_bwd *b, int32_t i);
/* Destination of operand i's gradient: operand's shape, contiguous. Its dtype is the operand's, or
 * for a leaf what its owner wants (f32 for a narrow leaf). *add: add to it, else store every
 * element. Ask once per operand, and only when needed. When operands are one tensor, as in mul(x,
 * x), they have one destination: the first to ask is told to store, the others to add. So a rule
 * that asks for several destinations before it writes must write them in the order in which it
 * asked. */
ms_status msi_bwd_dest(msi_bwd *b, int32_t i, msi_view *dst, bool *add);
/* Hand a view on as operand i's gradient, without a copy where that is safe. It has the operand's
 * shape, any strides (0 too), any floating dtype, and shows a part of the incoming gradient, memory
 * from msi_bwd_temp(), or a saved view that is held exclusively. The rule must not write to it
 * afterwards. Does nothing when the operand needs no gradient. */
ms_status msi_bwd_pass(msi_bwd *b, int32_t i, const msi_view *v);
/* Contribute `scale * v` summed over broadcast dimensions to operand i, if it needs a gradient. */
ms_status msi_bwd_reduce_pass(msi_bwd *b, int32_t i, const msi_view *v, double scale);
/* Contiguous scratch that lives until this rule returns, or longer when it is passed on. */
ms_status msi_bwd_temp(msi_bwd *b, int32_t dtype, int32_t ndim, const int64_t *shape, msi_view *v);

/* -- for units --------------------------------------------------------------------------------- */

/* Run the accumulate hooks of a leaf, inside a backward. */
ms_status msi_hooks_run_accumulate(ms_tensor *leaf);

/* Run `fn` once before the node that made `t` is differentiated (and before gradient hooks of its
 * results). A node takes several; they run in the order they came. One of a graph that is used up
 * goes at once. MS_RUNTIME_ERROR when no recorded op made t; after a failure `drop` is not called.
 */
ms_status msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook hook);
/* Place in the order in which nodes are made: those made from now on come after it. */
uint64_t msi_autograd_now(ms_context *ctx);
/* In the running backward, call `fn` once when every node made after `place` that this backward
 * reaches has run, and older ones are left: before the next of these. Dropped when the backward
 * ends before. */
ms_status msi_backward_when_behind(ms_context *ctx, uint64_t place, ms_status (*fn)(void *user),
                                   void *user);

#endif
