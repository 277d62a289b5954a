/* Optimizers: fused update rules over the local shards of parameters. */
#ifndef MOONSHARD_OPTIM_H
#define MOONSHARD_OPTIM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_optim ms_optim;

enum { MS_OPTIM_SGD = 0, MS_OPTIM_ADAM = 1, MS_OPTIM_ADAMW = 2 };

/** Options of one parameter group. Names and defaults are torch.optim's. */
typedef struct ms_optim_options {
    uint32_t struct_size;
    double lr;
    double momentum;     /**< SGD */
    double dampening;    /**< SGD */
    double weight_decay; /**< L2 for SGD and Adam, decoupled for AdamW (arXiv:1711.05101) */
    double beta1;        /**< Adam (arXiv:1412.6980) */
    double beta2;
    double eps;
    bool nesterov; /**< SGD; needs momentum and no dampening */
    bool maximize;
} ms_optim_options;

/** Defaults of `kind`: SGD lr 1e-3; Adam lr 1e-3, betas 0.9 0.999, eps 1e-8; AdamW decay 1e-2.
 * @param struct_size  sizeof(*o): no more is written, and `o->struct_size` says how much was
 * @return MS_VALUE_ERROR when there is no such kind; then nothing is written */
MS_API ms_status ms_optim_options_init(ms_optim_options *o, uint32_t struct_size, int32_t kind);
MS_API ms_status ms_optim_new(ms_optim **out, int32_t kind);
MS_API void ms_optim_free(ms_optim *optim);
/** Append a group. Takes its own references. MS_VALUE_ERROR when a parameter is in a group already,
 * is no leaf, or an option is out of range (message as torch.optim's), one that optimizers of this
 * kind do not use, too.
 * @param options  NULL, and fields that an older host's struct does not have: the defaults
 * @param group    its index */
MS_API ms_status ms_optim_add_group(ms_optim *optim, ms_tensor *const *params, int32_t n_params,
                                    MS_NULLABLE const ms_optim_options *options,
                                    MS_NULLABLE int32_t *group);
MS_API int32_t ms_optim_n_groups(const ms_optim *optim);
/** Options of a group. The caller has set `o->struct_size` to sizeof(*o): no more is written. */
MS_API ms_status ms_optim_options_get(const ms_optim *optim, int32_t group, ms_optim_options *o);
/** Change them, or nothing on failure. Fields that an older host's struct does not have stay as
 * they are: what ms_optim_options_get() gave it may be given back. */
MS_API ms_status ms_optim_options_set(ms_optim *optim, int32_t group, const ms_optim_options *o);
/** Update every parameter that has a gradient, on its local shard, then bump its epoch. On a device
 * nothing is updated when what computed the gradients found its data wrong (ms_op_embedding(),
 * ms_op_cross_entropy()) or had no memory for a product, which the next call that waits tells; the
 * step does not count then. A step that fails leaves all as it was, but one that a device refuses
 * when some parameters have taken it: MS_RUNTIME_ERROR from then on, until ms_optim_steps_set(). */
MS_API ms_status ms_optim_step(ms_optim *optim);
/** Drop all gradients. */
MS_API ms_status ms_optim_zero_grad(ms_optim *optim);
/** Number of parameters over all groups, and of state buffers a parameter may have. */
MS_API int32_t ms_optim_n_params(const ms_optim *optim);
MS_API int32_t ms_optim_n_states(const ms_optim *optim);
/** "momentum_buffer", or "exp_avg" and "exp_avg_sq". Static. */
MS_API const char *ms_optim_state_name(const ms_optim *optim, int32_t state);
/** Handle on parameter `i` in order of addition. The caller owns `*out`. */
MS_API ms_status ms_optim_param(ms_tensor **out, const ms_optim *optim, int32_t i);
/** State buffer of parameter `i`, 1-D over the local shard, so empty where this rank holds nothing
 * of it. Adam's are made zero when they do not exist yet. `*out` is NULL when a parameter of SGD
 * has none: it has taken no step with momentum. Once there, it stays while the momentum is 0, on
 * all ranks that share the parameter alike. The caller owns `*out`. */
MS_API ms_status ms_optim_state(MS_NULLABLE ms_tensor **out, ms_optim *optim, int32_t i,
                                int32_t state);
/** Steps parameter `i` has taken (bias correction). A rank that holds nothing of a sharded
 * parameter counts with its peers. On a device it waits, as ms_optim_state() does, and one that was
 * left out as its data was wrong does not count. */
MS_API ms_status ms_optim_steps(const ms_optim *optim, int32_t i, int64_t *steps);
/** ... and set that, as who loads the optimizer does: a step that failed half way is forgotten. */
MS_API ms_status ms_optim_steps_set(ms_optim *optim, int32_t i, int64_t steps);
/** Shall parameter `i` of SGD have a momentum buffer? One that is made has zeros; without one the
 * next step with momentum begins it. MS_VALUE_ERROR when the optimizer is no SGD. */
MS_API ms_status ms_optim_momentum_set(ms_optim *optim, int32_t i, bool exists);
/** Scale the gradients of plain (unsharded) parameters to a total norm; as
 * ms_fsdp_tree_clip_grad_norm() for one rank. Where a device refuses a part of it some gradients
 * are scaled and others are not: drop them.
 * @param total  (), f64: the norm before, the caller's to free; on a device nobody waits for it */
MS_API ms_status ms_clip_grad_norm(ms_tensor **total, ms_tensor *const *params, int32_t n_params,
                                   double max_norm, double norm_type);

#ifdef __cplusplus
}
#endif

#endif
