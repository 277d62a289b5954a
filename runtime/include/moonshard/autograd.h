/* The tape: requires_grad, backward, hooks. */
#ifndef MOONSHARD_AUTOGRAD_H
#define MOONSHARD_AUTOGRAD_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Set it on a leaf. MS_RUNTIME_ERROR for an op's result, MS_TYPE_ERROR if not floating. */
MS_API ms_status ms_tensor_set_requires_grad(ms_tensor *t, bool requires_grad);
/** Turn recording of ops on or off in this thread. @return the previous setting */
MS_API bool ms_grad_enabled_set(bool on);
MS_API bool ms_grad_enabled(void);

/**
 * Differentiate `root` with respect to every leaf it depends on.
 * Adds to the leaves' `.grad` (for sharded parameters: after reduction). Frees the graph and the
 * hooks of its results as it proceeds; a second backward over it is MS_RUNTIME_ERROR. After a
 * failure the part not yet reached remains.
 * @param grad  same shape as root; NULL means 1 and requires a root with one element
 */
MS_API ms_status ms_backward(ms_tensor *root, MS_NULLABLE ms_tensor *grad);

enum {
    MS_RETAIN_GRAPH = 1, /* keep the graph and its hooks for another backward */
    MS_ALLOW_UNUSED = 2, /* ms_grad(): an input that no output depends on has no gradient */
};
/** ms_backward() with flags. A backward over a retained graph adds the same gradients again;
 * sharded units are unsharded each time. MS_VALUE_ERROR for invalid flags.
 * @param flags  MS_RETAIN_GRAPH, or 0 */
MS_API ms_status ms_backward_with(ms_tensor *root, MS_NULLABLE ms_tensor *grad, int32_t flags);

/** New handle on the gradient of a leaf, sharing its memory; `*out` is NULL if it has none. The
 * caller owns `*out`.
 * Sharded parameter: the reduced gradient of this rank's elements, 1-D. After no_sync backwards: a
 * read-only copy of this rank's accumulated gradient of the whole parameter, in param_dtype; use
 * ms_tensor_set_grad() to replace it. Inside a backward it includes that backward's gradient if the
 * unit's reduction has started, and waits for it. */
MS_API ms_status ms_tensor_grad(MS_NULLABLE ms_tensor **out, ms_tensor *t);
/** Replace the gradient by a copy (for no_sync: the accumulated one); NULL drops it.
 * MS_ASSERTION_ERROR inside a backward that computes a gradient of `t`.
 * @param grad  shape and dtype of ms_tensor_grad()'s result; if that is NULL, of this rank's
 *              elements */
MS_API ms_status ms_tensor_set_grad(ms_tensor *t, MS_NULLABLE ms_tensor *grad);

#ifndef MS_FFI_CDEF
/** Return the gradients of the sum of `outputs` with respect to `inputs` (leaves or results).
 * Changes no `.grad` and runs no accumulate hooks. Differentiates only the graph between them, and
 * frees it without MS_RETAIN_GRAPH. MS_RUNTIME_ERROR for a graph already freed, and for an unused
 * input without MS_ALLOW_UNUSED. MS_NOT_IMPLEMENTED_ERROR for a parameter of a unit.
 * @param grads         (n_inputs), shape and dtype of each input, own memory. The caller owns them;
 *                      NULL for an unused input, all NULL on failure
 * @param grad_outputs  (n_outputs), each as in ms_backward(); NULL: all NULL */
MS_API ms_status ms_grad(ms_tensor **grads, ms_tensor *const *outputs,
                         ms_tensor *const *grad_outputs, int32_t n_outputs,
                         ms_tensor *const *inputs, int32_t n_inputs, int32_t flags);

/** Receives a gradient; must not write to it, since its memory may be shared. May set
 * `*replacement` to a tensor of the same shape and dtype, which the engine then owns; NULL keeps
 * the gradient. A failure ends the backward. */
typedef ms_status (*ms_grad_hook)(void *user, ms_tensor *grad, ms_tensor **replacement);
/** Called when a leaf's gradient of this backward is complete. */
typedef ms_status (*ms_accumulate_hook)(void *user, ms_tensor *leaf);
/** Call `fn` with the complete gradient of `t`, before it is used. Hooks of a tensor run in the
 * order of registration. `drop(user)` (may be NULL) is called when the hook is removed, or its leaf
 * or the graph that made `t` is freed. MS_RUNTIME_ERROR if `t` does not require grad or its graph
 * was freed.
 * @param id  for ms_hook_remove(), may be NULL */
MS_API ms_status ms_tensor_hook(ms_tensor *t, ms_grad_hook fn, void *user, void (*drop)(void *),
                                int64_t *id);
/** Call `fn` after each backward has accumulated into leaf `t`. For a parameter of a unit: at the
 * end of a backward that reduced its gradient (none does inside no_sync), on every rank if any
 * rank's backward reached it, in order of units and parameters. */
MS_API ms_status ms_tensor_accumulate_hook(ms_tensor *t, ms_accumulate_hook fn, void *user,
                                           void (*drop)(void *), int64_t *id);

enum { MS_CUSTOM_MAX = 64 }; /* results, and inputs, of a custom function */

/** Backward of a custom function. grads_out (n_out): gradients of its results, NULL where none
 * arrived, borrowed. grads_in (n_in), NULL before: those of its inputs, of the inputs' shapes and
 * any floating dtype, which the caller then owns; those left NULL are none. */
typedef ms_status (*ms_custom_backward)(void *user, ms_tensor *const *grads_out, int32_t n_out,
                                        ms_tensor **grads_in, int32_t n_in);
/** Record a function that the program has computed: `out` (n_out) are new handles on the memory of
 * `results`, differentiable by `backward` if grad mode is on and an input requires grad. Compute
 * `results` without recording. MS_VALUE_ERROR for more than MS_CUSTOM_MAX of either.
 * @param inputs  (n_in), NULL for none
 * @param drop    called with `user` when the graph is freed, or at once if nothing is recorded or
 *                after an error; may be NULL */
MS_API ms_status ms_custom(ms_tensor **out, ms_tensor *const *results, int32_t n_out,
                           ms_tensor *const *inputs, int32_t n_in, ms_custom_backward backward,
                           void *user, void (*drop)(void *user));
/** Called in backward: compute the results of ms_checkpoint_graph() again, recording, and pass them
 * with `grads` (n_out, NULL where none arrived) to ms_backward_extend(). */
typedef ms_status (*ms_recompute)(void *user, ms_tensor *const *grads, int32_t n_out);
/** Replace what was recorded since ms_graph_now() gave `since` by one node that computes it again:
 * `out` (n_out) are new handles on the memory of `results`. The graph is freed with the program's
 * handles on what it computed. `drop` as in ms_custom(). MS_VALUE_ERROR for a result that is an
 * operand. */
MS_API ms_status ms_checkpoint_graph(ms_tensor **out, ms_tensor *const *results, int32_t n_out,
                                     uint64_t since, ms_recompute recompute, void *user,
                                     void (*drop)(void *user));
/** In an ms_recompute: go on with the graphs of `outputs` (n), whose gradients are `grads` (NULL:
 * none). MS_RUNTIME_ERROR outside a backward, in ms_grad(), and if they use a leaf that the forward
 * did not. */
MS_API ms_status ms_backward_extend(ms_tensor *const *outputs, ms_tensor *const *grads, int32_t n);
#endif
/** Position on the tape: what is recorded later is younger. */
MS_API uint64_t ms_graph_now(void);
/** True inside a backward that keeps its graph. */
MS_API bool ms_graph_retained(void);
/** A new handle on the same memory and at the same place in the graph. The caller owns `*out`. */
MS_API ms_status ms_tensor_alias(ms_tensor **out, const ms_tensor *t);
/** Remove a hook of `t`. MS_KEY_ERROR if it has none with this id. */
MS_API ms_status ms_hook_remove(ms_tensor *t, int64_t id);

#ifdef __cplusplus
}
#endif

#endif
