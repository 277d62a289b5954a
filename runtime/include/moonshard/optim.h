/* Optimizers: fused update rules over the local shards of parameters. */
#ifndef MOONSHARD_OPTIM_H
#define MOONSHARD_OPTIM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_optim ms_optim;

enum {
    MS_OPTIM_SGD = 0,
    MS_OPTIM_ADAM = 1,
    MS_OPTIM_ADAMW = 2,
    MS_OPTIM_RMSPROP = 3,
    MS_OPTIM_ADAGRAD = 4,
    MS_OPTIM_LION = 5,
    MS_OPTIM_ADAMAX = 6,
    MS_OPTIM_COUNT
};

/** Options of one parameter group. Names and defaults are torch.optim's. */
typedef struct ms_optim_options {
    uint32_t struct_size;
    double lr;
    double momentum;     /**< SGD, RMSprop */
    double dampening;    /**< SGD */
    double weight_decay; /**< L2, but decoupled for AdamW (arXiv:1711.05101) and Lion */
    double beta1;        /**< Adam, Adamax (arXiv:1412.6980), Lion (arXiv:2302.06675) */
    double beta2;
    double eps;
    bool nesterov; /**< SGD; needs momentum and no dampening */
    bool maximize;
    bool amsgrad;                     /**< Adam, AdamW (arXiv:1904.09237) */
    bool centered;                    /**< RMSprop: divide by an estimate of the variance */
    double alpha;                     /**< RMSprop: smoothing of squares */
    double lr_decay;                  /**< Adagrad: lr / (1 + (steps - 1) lr_decay) */
    double initial_accumulator_value; /**< Adagrad: first value of `sum` */
} ms_optim_options;

/** Names of an optimizer, as in torch.optim; those it lacks are NULL. Static. */
typedef struct ms_optim_rule {
    const char *name;      /**< "Adam" */
    const char *option[7]; /**< beta1 and beta2 are "betas[1]" and "betas[2]" */
    const char *state[3];  /**< "exp_avg" */
    const char *needs[3];  /**< the option without which a parameter may lack the state */
    const char *first[3];  /**< the option that is the state's first value, else 0 */
} ms_optim_rule;

/** @return MS_VALUE_ERROR for an unknown kind, and nothing is written */
MS_API ms_status ms_optim_rule_get(ms_optim_rule *out, int32_t kind);
/** Set the defaults of `kind`: torch.optim's; of Lion its paper's.
 * @param struct_size  sizeof(*o): bounds what is written; stored in `o->struct_size`
 * @return MS_VALUE_ERROR for an unknown kind, and nothing is written */
MS_API ms_status ms_optim_options_init(ms_optim_options *o, uint32_t struct_size, int32_t kind);
MS_API ms_status ms_optim_new(ms_optim **out, int32_t kind);
MS_API void ms_optim_free(ms_optim *optim);
/** Append a group. Takes its own references. MS_VALUE_ERROR if a parameter is already in a group or
 * is not a leaf, or an option is out of range (message as torch.optim's), even if this kind does
 * not use it.
 * @param options  NULL, or fields missing in an older host's struct: defaults
 * @param group    its index */
MS_API ms_status ms_optim_add_group(ms_optim *optim, ms_tensor *const *params, int32_t n_params,
                                    MS_NULLABLE const ms_optim_options *options,
                                    MS_NULLABLE int32_t *group);
MS_API int32_t ms_optim_n_groups(const ms_optim *optim);
/** Options of a group. `o->struct_size`, set by the caller, bounds what is written. */
MS_API ms_status ms_optim_options_get(const ms_optim *optim, int32_t group, ms_optim_options *o);
/** Change them; on failure none. Fields missing in an older host's struct stay as they are, so that
 * a result of ms_optim_options_get() can be passed. */
MS_API ms_status ms_optim_options_set(ms_optim *optim, int32_t group, const ms_optim_options *o);
/** Update every parameter that has a gradient, on its local shard, and its version. On a device: if
 * computing the gradients met invalid data (ms_op_embedding(), ms_op_cross_entropy()) or a product
 * had no memory, parameters and states become wrong, and the next call that waits returns the
 * error: load a checkpoint. A failed step changes nothing, unless a device fails midway: then
 * MS_RUNTIME_ERROR until ms_optim_steps_set(). */
MS_API ms_status ms_optim_step(ms_optim *optim);
/** Drop all gradients. */
MS_API ms_status ms_optim_zero_grad(ms_optim *optim);
/** Number of parameters in all groups, and of state buffers per parameter, optional ones too. */
MS_API int32_t ms_optim_n_params(const ms_optim *optim);
MS_API int32_t ms_optim_n_states(const ms_optim *optim);
/** torch.optim's, as "exp_avg". Static. */
MS_API const char *ms_optim_state_name(const ms_optim *optim, int32_t state);
/** Handle of parameter `i` in order of addition. The caller owns `*out`. */
MS_API ms_status ms_optim_param(ms_tensor **out, const ms_optim *optim, int32_t i);
/** State buffer of parameter `i`, 1-D over the local shard (empty if this rank has no elements).
 * It is created with its first value if missing. `*out` is NULL for an optional state that the
 * group's options do not need and no step has made, and for SGD's "momentum_buffer" before a step
 * with momentum. A state remains when the options no longer need it, on all ranks that share the
 * parameter. Optional: "momentum_buffer", "max_exp_avg_sq" (amsgrad), "grad_avg" (centered). The
 * caller owns `*out`. */
MS_API ms_status ms_optim_state(MS_NULLABLE ms_tensor **out, ms_optim *optim, int32_t i,
                                int32_t state);
/** Steps of parameter `i` (for bias correction). Ranks without elements of it count too. Waits for
 * a device, as ms_optim_state() does. */
MS_API ms_status ms_optim_steps(const ms_optim *optim, int32_t i, int64_t *steps);
/** Set the step count, as loading does; clears the error of a step that failed midway. */
MS_API ms_status ms_optim_steps_set(ms_optim *optim, int32_t i, int64_t steps);
/** Create (zeros) or remove an optional state of parameter `i`, see ms_optim_state();
 * MS_VALUE_ERROR for another state. Without SGD's momentum buffer the next step with momentum
 * initialises it. */
MS_API ms_status ms_optim_state_set(ms_optim *optim, int32_t i, int32_t state, bool exists);
/** Scale the gradients of plain (unsharded) parameters to a total norm, as
 * ms_fsdp_tree_clip_grad_norm() does for one rank. If a device fails midway some are scaled: drop
 * all gradients.
 * @param total  (), norm before scaling in the gradients' dtype; the caller owns it. May be pending
 * on a device */
MS_API ms_status ms_clip_grad_norm(ms_tensor **total, ms_tensor *const *params, int32_t n_params,
                                   double max_norm, double norm_type, bool error_if_nonfinite);

#ifdef __cplusplus
}
#endif

#endif
