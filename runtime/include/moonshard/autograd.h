/* The tape: who requires gradients, backward, hooks. */
#ifndef MOONSHARD_AUTOGRAD_H
#define MOONSHARD_AUTOGRAD_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Mark a leaf. MS_RUNTIME_ERROR on a result of an op, MS_TYPE_ERROR when not floating. */
MS_API ms_status ms_tensor_set_requires_grad(ms_tensor *t, bool requires_grad);
/** Record ops from now on in this thread, or not. @return the previous setting */
MS_API bool ms_grad_enabled_set(bool on);
MS_API bool ms_grad_enabled(void);

/**
 * Differentiate `root` with respect to every leaf it came from.
 * Gradients are added to the leaves' `.grad` (for sharded parameters: reduced first). The graph is
 * freed as it is walked, with the hooks of its results; a second backward over it is
 * MS_RUNTIME_ERROR. Where it fails, what it has not come to stays.
 * @param grad  same shape as root; NULL means 1 and needs a root with one element
 */
MS_API ms_status ms_backward(ms_tensor *root, MS_NULLABLE ms_tensor *grad);

enum {
    MS_RETAIN_GRAPH = 1, /* the graph stays, with its hooks, for another backward */
    MS_ALLOW_UNUSED = 2, /* of ms_grad(): an input that no output came from has no gradient */
};
/** ms_backward() with flags. A backward over a graph that an earlier one has retained gives what a
 * first one would, and adds it; units of sharded parameters are unsharded for each.
 * MS_VALUE_ERROR for flags that are none.
 * @param flags  MS_RETAIN_GRAPH, or 0 */
MS_API ms_status ms_backward_with(ms_tensor *root, MS_NULLABLE ms_tensor *grad, int32_t flags);

/** New handle on the gradient of a leaf; `*out` is NULL when it has none. The caller owns `*out`.
 * The gradient shares memory with the leaf's: writing into it changes it. For a sharded parameter
 * it is the reduced gradient of this rank's elements, 1-D; after backwards that reduced nothing
 * (no_sync) a copy of what this rank has accumulated for the whole parameter, in param_dtype, which
 * cannot be written: ms_tensor_set_grad() replaces it. Inside a backward: with that backward's part
 * where its unit has handed it on, for which it then waits. */
MS_API ms_status ms_tensor_grad(MS_NULLABLE ms_tensor **out, ms_tensor *t);
/** Replace the gradient (copied into the leaf's own memory, or into what no_sync accumulates); NULL
 * drops it. MS_ASSERTION_ERROR inside a backward that makes a gradient of it, as for a step and for
 * clipping. @param grad  shaped like what ms_tensor_grad() gives, and of its dtype; without one,
 * like this rank's elements */
MS_API ms_status ms_tensor_set_grad(ms_tensor *t, MS_NULLABLE ms_tensor *grad);

#ifndef MS_FFI_CDEF
/** Gradients of the sum of `outputs` with respect to `inputs`, leaves or results, returned: no
 * `.grad` changes, and accumulate hooks do not run. Only what lies between is differentiated, and
 * freed unless the flags say MS_RETAIN_GRAPH; graphs that were used up are MS_RUNTIME_ERROR as for
 * ms_backward(), and so is an input that no output came from, without MS_ALLOW_UNUSED.
 * MS_NOT_IMPLEMENTED_ERROR for a parameter of a unit, whose gradient ranks sum.
 * @param grads         (n_inputs) of each input's shape and dtype, memory of their own. The caller
 *                      owns them; NULL for an unused input, all NULL on failure
 * @param grad_outputs  (n_outputs), each as ms_backward() takes it; NULL: none is given */
MS_API ms_status ms_grad(ms_tensor **grads, ms_tensor *const *outputs,
                         ms_tensor *const *grad_outputs, int32_t n_outputs,
                         ms_tensor *const *inputs, int32_t n_inputs, int32_t flags);

/** Sees a gradient; must not write to it, as others may share its memory. May put a replacement of
 * the same shape and dtype (owned by the engine from then on) into `*replacement`; leaves it NULL
 * to keep the gradient. A failure ends the backward. */
typedef ms_status (*ms_grad_hook)(void *user, ms_tensor *grad, ms_tensor **replacement);
/** Called after a leaf's gradient of this backward is complete. */
typedef ms_status (*ms_accumulate_hook)(void *user, ms_tensor *leaf);
/** Call `fn` with the gradient of `t` when it is complete, before it is used. Hooks of one tensor
 * run in the order they came. `drop(user)` (may be NULL) is called when the hook goes: when it is
 * removed, or with the leaf, or with the graph that made `t`, which backward uses up.
 * MS_RUNTIME_ERROR when `t` does not require grad, or its graph is used up.
 * @param id  for ms_hook_remove(), may be NULL */
MS_API ms_status ms_tensor_hook(ms_tensor *t, ms_grad_hook fn, void *user, void (*drop)(void *),
                                int64_t *id);
/** Call `fn` after each backward has accumulated into leaf `t`. For a parameter that a unit holds
 * that is the end of the backward that has reduced its gradient (inside no_sync none does): on
 * every rank when any rank's backward reached it, units and their parameters in order. */
MS_API ms_status ms_tensor_accumulate_hook(ms_tensor *t, ms_accumulate_hook fn, void *user,
                                           void (*drop)(void *), int64_t *id);
#endif
/** Remove a hook of `t`. MS_KEY_ERROR when there is none with this id. */
MS_API ms_status ms_hook_remove(ms_tensor *t, int64_t id);

#ifdef __cplusplus
}
#endif

#endif
