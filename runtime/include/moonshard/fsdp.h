/* Fully sharded data parallel: units of parameters that are gathered, used and released together,
 * and the tree that runs them. */
#ifndef MOONSHARD_FSDP_H
#define MOONSHARD_FSDP_H

#include "comm.h"
#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One group of parameters that is gathered, used and released together. */
typedef struct ms_fsdp_unit ms_fsdp_unit;
/** All units of one model, in module order, the root's first. */
typedef struct ms_fsdp_tree ms_fsdp_tree;

enum { MS_FSDP_FULL_SHARD = 0, MS_FSDP_SHARD_GRAD_OP = 1, MS_FSDP_NO_SHARD = 2 };
enum { MS_FSDP_FLAT = 0, MS_FSDP_ROWS = 1 };
enum { MS_FSDP_PREFETCH_NONE = 0, MS_FSDP_PREFETCH_PRE = 1, MS_FSDP_PREFETCH_POST = 2 };

/* The options of FSDP are declared below and nowhere else. The comment of a field is the option's
 * documentation, for C hosts and scripts; its tags are
 *   @values    of an int32_t: `NAME = ENUMERATOR, ...`, the first name of a number being the one in
 *              messages; or `floating`, a floating dtype. Without it: a number of 0 or more
 *   @default   a name, or a C expression. Without it: 0
 *   @lua       the option of scripts, or `group.option`, and ` = its default` if it is another one.
 *              Without it scripts do not have the option
 *   @compared  ranks with different values fail at the first use
 * From them bindings/generator/options.lua makes the table that C reads, ms_*_options_init(), the
 * table that Lua reads, and the documentation of the options in Lua. */

typedef struct ms_fsdp_unit_options {
    uint32_t struct_size;
    /** What is divided among ranks, and when full parameters are freed. Hybrid strategies divide
     * parameters among the ranks of a shard group.
     * @values FULL_SHARD = MS_FSDP_FULL_SHARD, SHARD_GRAD_OP = MS_FSDP_SHARD_GRAD_OP,
     *         NO_SHARD = MS_FSDP_NO_SHARD, HYBRID_SHARD = MS_FSDP_FULL_SHARD,
     *         _HYBRID_SHARD_ZERO2 = MS_FSDP_SHARD_GRAD_OP
     * @default FULL_SHARD
     * @lua sharding_strategy
     * @compared */
    int32_t strategy;
    /** Dtype of compute and gather; masters and optimizer state keep the parameters' own, which is
     * the default.
     * @values floating
     * @default MS_DTYPE_NONE
     * @lua mixed_precision.param_dtype
     * @compared */
    int32_t param_dtype;
    /** Dtype of the reduction of gradients; default: param_dtype, else the parameters' own.
     * @values floating
     * @default MS_DTYPE_NONE
     * @lua mixed_precision.reduce_dtype
     * @compared */
    int32_t reduce_dtype;
    /** Align parameters to 16 bytes in the flat parameter, and show scripts the original ones, of
     * which some may be frozen.
     * @default true
     * @lua use_orig_params = false
     * @compared */
    bool use_orig_params;
    /** ms_fsdp_unit_set_full_precision() is allowed, and slots are large enough for it.
     * @compared */
    bool full_precision_in_eval;
    /** Hybrid sharding: parameters are divided among these ranks, a part of the unit's group, and
     * every such part has all of them. Gradients are summed over the unit's group. NULL: that
     * group. Unused with NO_SHARD. */
    ms_comm *shard_group;
    /** Gradients stay in param_dtype, in place of the parameters' own dtype; optimizers widen them.
     * @lua mixed_precision.keep_low_precision_grads
     * @compared */
    bool keep_low_precision_grads;
    /** On a device masters, reduced gradients and optimizer state are in pinned host memory, which
     * kernels access. The CPU has them there in any case.
     * @lua cpu_offload.offload_params
     * @compared */
    bool offload_params;
    /** Without a reduce_dtype gradients are reduced in the parameters' own dtype, whatever
     * param_dtype is. */
    bool reduces_in_own_dtype;
    /** How parameters are divided among ranks: all as one flat parameter, of which each rank has a
     * range, or each by rows (torch.chunk along its first dimension), so that handles show this
     * rank's rows. `rows` needs use_orig_params.
     * @values flat = MS_FSDP_FLAT, rows = MS_FSDP_ROWS
     * @default flat
     * @lua shard_layout
     * @compared */
    int32_t layout;
} ms_fsdp_unit_options;

typedef struct ms_fsdp_tree_options {
    uint32_t struct_size;
    /** When a backward gathers the next unit's parameters: before or after it computes the current
     * unit's gradients, or when they are needed.
     * @values BACKWARD_PRE = MS_FSDP_PREFETCH_PRE, BACKWARD_POST = MS_FSDP_PREFETCH_POST,
     *         none = MS_FSDP_PREFETCH_NONE
     * @default BACKWARD_PRE
     * @lua backward_prefetch
     * @compared */
    int32_t backward_prefetch;
    /** A forward gathers the next unit's parameters before it computes the current unit.
     * @lua forward_prefetch
     * @compared */
    bool forward_prefetch;
    /** Slots that units gather parameters into in turn, at most one per unit; 0: two, or three with
     * prefetch. More slots take more memory and wait less for other ranks.
     * @lua parameter_slots
     * @compared */
    int32_t n_slots;
} ms_fsdp_tree_options;

/** Layout and state of one unit. */
typedef struct ms_fsdp_unit_info {
    int32_t strategy;
    int32_t n_params;
    int64_t numel;        /**< of the parameters, without padding */
    int64_t padded_numel; /**< shard_numel * world size */
    int64_t shard_numel;
    int32_t param_dtype;
    int32_t reduce_dtype;
    int32_t orig_dtype;
    int32_t state;    /**< MS_UNIT_SHARDED, PUBLISHED or UNSHARDED */
    int32_t training; /**< MS_UNIT_IDLE, FORWARD, PRE_BACKWARD or POST_BACKWARD */
    int32_t model;    /**< number of its tree in the order of first use; 0: not used yet */
    bool is_root;
} ms_fsdp_unit_info;

/** Bytes one rank allocates in a training step, exact, as ms_memory_stats_get() counts them. The
 * step: backwards that reach every trainable parameter, all but the last without sync; step;
 * zero_grad. Trainable: requires grad when the plan is made. Parameters outside units, with their
 * gradients and states, come on top. */
typedef struct ms_fsdp_plan {
    int64_t masters;     /**< full-precision shards, and full copies of NO_SHARD units */
    int64_t gradients;   /**< their maximum, reduced or accumulated without sync, if units end their
                            backwards in reverse order and the root last; otherwise it may differ by
                            the gradients that are open at one time. Reduced ones of a unit with
                            frozen parameters have the trainable elements only */
    int64_t per_state;   /**< one optimizer state buffer for every trainable parameter's shard */
    int64_t arena;       /**< slots for parameters and gradients, shared by the ranks of the host */
    int64_t param_slots; /**< part of arena: parameters */
    int64_t own_slots;   /**< part of param_slots: this rank's private copies of full parameters
                            (layouts pull and nccl) */
    int64_t gradient_slots; /**< part of arena: gradients, one part per rank; none of units that are
                               frozen as a whole */
    int64_t own_gradients;  /**< part of gradient_slots: this rank's private gradients, and the
                               pieces it receives (layout nccl) */
    int32_t param_ring;     /**< slots that units use in turn */
    int32_t param_homes;    /**< slots that one unit owns */
    int32_t gradient_ring;  /**< the same for gradients */
    int32_t gradient_homes;
    int64_t gathered; /**< bytes of other ranks' parameters read in a step */
    int64_t reduced; /**< bytes of other ranks' gradients, or of their sums, read; of NO_SHARD units
                        with frozen parameters at most */
    bool same_numerics; /**< all ranks have equal ms_numerics(): results have equal bits for every
                           strategy and world size */
} ms_fsdp_plan;

/** What a plan needs of a unit, existing or not: numbers only. */
typedef struct ms_fsdp_group {
    int64_t full_numel;    /**< of the unsharded parameters, padded */
    int64_t shard_numel;   /**< of this rank's shard; all of a replica */
    int64_t trained_numel; /**< of this rank's shard, without padding and frozen elements */
    int32_t n_shards; /**< ranks among which parameters are divided; 0: all. Equal in sharded units
                         of a tree */
    int32_t n_params;
    int32_t orig_dtype;
    int32_t param_dtype;
    int32_t reduce_dtype;
    int32_t grad_dtype;          /**< of reduced gradients */
    bool trains;                 /**< any parameter is trainable */
    bool freezes;                /**< any parameter is frozen */
    bool is_sharded;             /**< false: a replica */
    bool shares;                 /**< full parameters are gathered in a slot */
    bool keeps;                  /**< that slot is kept after forward */
    bool keeps_after_backward;   /**< and after backwards that do not reduce */
    bool forward_only;           /**< backwards do not gather them */
    bool is_root;                /**< used from the first op of forward to the last of backward */
    bool full_precision_in_eval; /**< the slot has room for parameters in orig_dtype */
    bool offloads;               /**< masters, gradients and state are not on the device */
    int32_t layout;              /**< MS_FSDP_FLAT or MS_FSDP_ROWS */
} ms_fsdp_group;

/** Which memory of a unit's parameters exists. */
enum {
    MS_UNIT_SHARDED = 0,   /**< the master shard only */
    MS_UNIT_PUBLISHED = 1, /**< own extents are cast into the slot; the whole is not readable yet */
    MS_UNIT_UNSHARDED = 2 /**< the full parameters; handles show them while they are used or held */
};

/** What a unit is used for. */
enum {
    MS_UNIT_IDLE = 0,
    MS_UNIT_FORWARD = 1,      /**< one of its forwards runs */
    MS_UNIT_PRE_BACKWARD = 2, /**< the running backward still needs it */
    MS_UNIT_POST_BACKWARD = 3 /**< the running backward has finished with it */
};

/** Set defaults. @param struct_size  sizeof(*o): bounds what is written; stored in `o->struct_size`
 */
MS_API void ms_fsdp_unit_options_init(ms_fsdp_unit_options *o, uint32_t struct_size);
MS_API void ms_fsdp_tree_options_init(ms_fsdp_tree_options *o, uint32_t struct_size);

/**
 * Make a unit of parameters. Takes its own reference to each. Their handles show the local shard
 * (1-D; this rank's rows with layout rows), and the full parameter while the unit is unsharded.
 * Drops their gradients. No communication. MS_VALUE_ERROR, MS_TYPE_ERROR for invalid options.
 * @param params  (n) distinct floating leaves of one dtype, with at least one dimension; without
 *                elements only if a size in their shape is zero
 * @param names   (n) paths, copied; used in errors, checkpoints and the random stream
 */
MS_API ms_status ms_fsdp_unit_new(ms_fsdp_unit **out, ms_comm *comm, const char *name,
                                  MS_NULLABLE const ms_fsdp_unit_options *options,
                                  ms_tensor *const *params, int32_t n_params,
                                  const char *const *names);
/** Free a unit that is in no tree (a tree frees its own). Its parameters' handles belong to their
 * other owners and show the local shard. NULL is allowed. */
MS_API void ms_fsdp_unit_free(ms_fsdp_unit *unit);
MS_API ms_status ms_fsdp_unit_info_get(const ms_fsdp_unit *unit, ms_fsdp_unit_info *info);
/** The unit's name, for messages and plans. Borrowed from `unit`. */
MS_API const char *ms_fsdp_unit_name(const ms_fsdp_unit *unit);
/** Fill `*group` for a unit. */
MS_API ms_status ms_fsdp_unit_describe(const ms_fsdp_unit *unit, ms_fsdp_group *group);
/** The same for a unit that ms_fsdp_unit_new() would make, with the same errors; makes none and
 * leaves the parameters as they are. Sets `is_root` to false; for a root's unit the caller sets it
 * and `keeps`. */
MS_API ms_status ms_fsdp_group_describe(ms_fsdp_group *group, ms_comm *comm, const char *name,
                                        MS_NULLABLE const ms_fsdp_unit_options *options,
                                        ms_tensor *const *params, int32_t n_params,
                                        const char *const *names);
/** Fill the master shard: declared parameters by their rule (keyed by name, element by element),
 * others from their values. ms_fsdp_tree_init() calls it if needed. */
MS_API ms_status ms_fsdp_unit_materialize(ms_fsdp_unit *unit);
/** The flat parameter: 1-D, this rank's shard with its padding (NO_SHARD: all of it), or the
 * unsharded one while the original parameters are. Reads, writes, the gradient and requires_grad
 * are those of the original parameters, which optimizers take. Every call gives the same tensor;
 * the caller owns a reference. Its gradient is the unit's own memory when all parameters that have
 * elements here have one, else a copy, with zeros for the others. */
MS_API ms_status ms_fsdp_unit_flat(ms_tensor **out, ms_fsdp_unit *unit);
/** The layout; borrowed from `unit`. */
MS_API const ms_layout *ms_fsdp_unit_layout(const ms_fsdp_unit *unit);

/** Make a tree of `n_units` units and take ownership of them. The caller owns `*out`.
 * MS_VALUE_ERROR for invalid options, and for a unit that is already in a tree, listed twice, or
 * sharded over another group than `comm`.
 * @param root_has_unit  units[0] has the root module's own parameters and stays unsharded from the
 *                       root's forward to its backward. MS_VALUE_ERROR for true without units */
MS_API ms_status ms_fsdp_tree_new(ms_fsdp_tree **out, ms_comm *comm,
                                  MS_NULLABLE const ms_fsdp_tree_options *options,
                                  ms_fsdp_unit *const *units, int32_t n_units, bool root_has_unit);
/** Free a tree. Memory that a running backward uses is freed at its end. NULL is allowed. */
MS_API void ms_fsdp_tree_free(ms_fsdp_tree *tree);
/** Map slots and compare plans. Collective, once; does nothing the second time. */
MS_API ms_status ms_fsdp_tree_init(ms_fsdp_tree *tree);

/** Plan of this rank's bytes. Initialises the tree (collective) if needed.
 * @param micro_batches  backwards of this rank in a step, 1 to 2^40 (MS_VALUE_ERROR); for m of them
 *                       up to log2(m) whole gradients are kept, in f32 (f64) */
MS_API ms_status ms_fsdp_tree_plan_get(ms_fsdp_tree *tree, int64_t micro_batches,
                                       ms_fsdp_plan *plan);

/** The same plan, computed without initialising the tree, allocating, or communicating: any model
 * can be planned over a fake group of any size (ms_comm_fake()). `same_numerics` is false unless
 * ranks were compared before. If the slot layout depends on the device, this rank's device is
 * opened; other ranks' are assumed equal.
 * @return MS_VALUE_ERROR as above; MS_OUT_OF_MEMORY; MS_DEVICE_ERROR if the device does not open */
MS_API ms_status ms_fsdp_tree_dry_run(ms_fsdp_tree *tree, int64_t micro_batches,
                                      ms_fsdp_plan *plan);
/** The same for a tree that ms_fsdp_tree_new() would make of units like these.
 * @param groups  (n_groups) in the tree's order; only the first may have `is_root` */
MS_API ms_status ms_fsdp_dry_run(ms_fsdp_plan *plan, ms_comm *comm,
                                 MS_NULLABLE const ms_fsdp_tree_options *options,
                                 const ms_fsdp_group *groups, int32_t n_groups,
                                 int64_t micro_batches);

/** Begin a root forward: initialise on first use, make the optimizer's writes visible to prefetch.
 * Kept units that any rank wrote since will be gathered again. Collective. */
MS_API ms_status ms_fsdp_tree_pre_forward(ms_fsdp_tree *tree);
/** End a root forward. The first one fixes the order of units. Units that their strategy keeps
 * unsharded remain so, also without gradients (ms_fsdp_tree_hide_shards() decides what handles
 * show). */
MS_API ms_status ms_fsdp_tree_post_forward(ms_fsdp_tree *tree);
/** true, while a root forward runs: handles of sharded units show no memory, since results computed
 * from a shard would differ between ranks and wrappings. Random operators number samples by this
 * rank in the tree's group, unless ms_samples_begin() set them.
 * false: handles show the masters until the unit's next use, whatever memory is kept. Exceptions:
 * units held by ms_fsdp_unit_unshard(), read by a running backward, or needed by a graph, if this
 * forward recorded any. Needs neither memory nor peers. */
MS_API void ms_fsdp_tree_hide_shards(ms_fsdp_tree *tree, bool hide);
/** Unshard, wait, prefetch the next unit. Forwards of units nest. If the current innermost scope
 * closes before ms_fsdp_unit_post_forward() (an error that the program caught inside an outer
 * forward), this forward has ended: the unit is resharded by its strategy and the outer forward
 * goes on. */
MS_API ms_status ms_fsdp_unit_pre_forward(ms_fsdp_unit *unit);
/** true: the unit's next forwards gather and compute in the parameters' own dtype, not in
 * param_dtype, and so do their backwards. Equal on all ranks. MS_VALUE_ERROR without the option
 * full_precision_in_eval. */
MS_API ms_status ms_fsdp_unit_set_full_precision(ms_fsdp_unit *unit, bool on);
/** Reshard by the strategy, and unshard again before `outputs` are differentiated. MS_RUNTIME_ERROR
 * if no forward of the unit is running. */
MS_API ms_status ms_fsdp_unit_post_forward(ms_fsdp_unit *unit, ms_tensor *const *outputs,
                                           int32_t n_outputs);
/** Call after an uncaught error between the tree's pre_forward and post_forward: reshards all units
 * and makes them idle. A running backward with unreduced gradients of this tree drops them and
 * fails. Ranks that all fail can continue. If one fails alone, the next collective is an error on
 * all ranks, for every strategy. */
MS_API void ms_fsdp_tree_reset(ms_fsdp_tree *tree);

/* Settings of units, equal on all ranks: the next collective after a rank alone changes one is
 * MS_COMM_ERROR on all. A tree's setter sets those of all its units. Units have them before they
 * are in a tree. */

/** false: backwards accumulate the unit's whole gradient and do not reduce it (no_sync); the next
 * one with true reduces the sum. MS_ASSERTION_ERROR during backward. Collective in an initialised
 * tree if its gradient slots grow. */
MS_API ms_status ms_fsdp_unit_set_sync(ms_fsdp_unit *unit, bool sync);
MS_API ms_status ms_fsdp_tree_set_sync(ms_fsdp_tree *tree, bool sync);
/** Initially true. */
MS_API bool ms_fsdp_unit_sync(const ms_fsdp_unit *unit);
/** Factor of reduced gradients in place of 1 / world size (m micro-batches per rank with mean
 * losses: 1 / (m * world size)). 0 restores the default. Finite (MS_VALUE_ERROR).
 * MS_ASSERTION_ERROR inside a backward that has not reduced all gradients. */
MS_API ms_status ms_fsdp_unit_set_gradient_factor(ms_fsdp_unit *unit, double factor);
MS_API ms_status ms_fsdp_tree_set_gradient_factor(ms_fsdp_tree *tree, double factor);
/** true: free full parameters after each forward, and gather them again before the backward; false:
 * keep them until after the backward. Initially by the strategy: true for FULL_SHARD except in the
 * root's unit. Plans count the setting. Set false after the first use, the unit occupies one of the
 * slots that units use in turn, and one is added when all are occupied. */
MS_API ms_status ms_fsdp_unit_set_reshard_after_forward(ms_fsdp_unit *unit, bool reshard);
/** false: keep full parameters after each backward; a forward still frees them if it does so. A
 * write to the parameters, as an optimizer's step, makes the next use gather them again. Initially
 * by the strategy: false if it is not FULL_SHARD and the backward does not reduce. */
MS_API ms_status ms_fsdp_unit_set_reshard_after_backward(ms_fsdp_unit *unit, bool reshard);
/** false: backwards do not gather the unit, as they do not read its parameters (an embedding's).
 * Initially true. One that reads them is MS_RUNTIME_ERROR if they were freed. */
MS_API ms_status ms_fsdp_unit_set_unshard_in_backward(ms_fsdp_unit *unit, bool unshard);
/** Units to gather ahead, in this order, once this one is unsharded in forward, or with `backward`
 * in backward, there if their backward is still to come. As many are gathered as slots are free
 * (ms_fsdp_tree_options.n_slots). A list replaces the tree's option, also an empty one; NULL
 * restores it. MS_VALUE_ERROR for units of no tree or of different ones.
 * @param next  (n) copied */
MS_API ms_status ms_fsdp_unit_set_prefetch(ms_fsdp_unit *unit,
                                           MS_NULLABLE ms_fsdp_unit *const *next, int32_t n,
                                           bool backward);
/** false: another backward through the latest forward follows the next one, so it keeps the order
 * in which units are prefetched. Reductions are complete at the end of each backward in any case.
 * Initially true. */
MS_API ms_status ms_fsdp_tree_set_last_backward(ms_fsdp_tree *tree, bool last);

/** When a hook of a unit is called: in each backward that reduces, when the unit's gradient on this
 * rank is complete, in the same order on all ranks. */
enum {
    MS_HOOK_REDUCE = 0, /**< it reduces the gradient, in place of the runtime */
    MS_HOOK_REDUCED = 1 /**< the gradient is reduced over all ranks, and in no .grad yet */
};

#ifndef MS_FFI_CDEF
/** A function of the program for the gradient of a unit.
 * @param unit  name, for messages
 * @param grad  1-D, padded, in the reduce dtype.
 *              REDUCE: the unit's whole gradient on this rank; of a replica (NO_SHARD) to be
 *              overwritten with the result.
 *              REDUCED: this rank's shard of the sum, multiplied by the gradient factor; of a
 *              replica all. It may be changed
 * @param out   REDUCE: this rank's shard of the result, to be written; NULL for a replica.
 *              REDUCED: NULL */
typedef ms_status (*ms_unit_hook)(void *user, const char *unit, ms_tensor *grad, ms_tensor *out);
/** Set the unit's hook of a moment. With REDUCE the gradient factor does not apply. `drop(user)` is
 * called when the unit is freed, or the hook replaced. After an error it is not called:
 * MS_ASSERTION_ERROR for a second REDUCE, and inside a backward that has not reduced the unit's
 * gradient; MS_NOT_IMPLEMENTED_ERROR for REDUCE with hybrid sharding; MS_VALUE_ERROR for another
 * moment. */
MS_API ms_status ms_fsdp_unit_set_hook(ms_fsdp_unit *unit, int32_t moment, ms_unit_hook fn,
                                       void *user, void (*drop)(void *user));
#endif

/** Gather a unit's full parameters and show them until ms_fsdp_unit_reshard(), until a forward or
 * backward of the unit reshards it, or until an optimizer, a load or ms_fsdp_tree_unsummon() writes
 * to it. Collective. */
MS_API ms_status ms_fsdp_unit_unshard(ms_fsdp_unit *unit);
/** Begin to gather a unit's full parameters and do not wait for other ranks. The unit's next use
 * waits, as does ms_fsdp_unit_unshard(). They are freed unused at the end of the next forward or
 * backward. Handles show shards until then; what is written to them is gathered again. Collective.
 */
MS_API ms_status ms_fsdp_unit_begin_unshard(ms_fsdp_unit *unit);
MS_API ms_status ms_fsdp_unit_reshard(ms_fsdp_unit *unit);

/** Show private full-precision copies of all parameters until ms_fsdp_tree_unsummon(). With
 * `writeback` each rank then stores its own extents of parameters that changed on any rank. An
 * unchanged parameter counts as unwritten:
 * its backward stays possible. Meanwhile any access to the shards is MS_ASSERTION_ERROR: forward,
 * backward, step, load, gather, hash, ms_param_local(). Collective.
 * @param with_grads  .grad shows full gradients, too: zeros for elements of ranks without one; none
 *                    if no rank has one. `writeback` stores each rank's own elements of them */
MS_API ms_status ms_fsdp_tree_summon(ms_fsdp_tree *tree, bool with_grads);
/** The same for some units alone: only they are gathered. Handles of others show what they showed.
 * MS_VALUE_ERROR for a unit of another tree.
 * @param units  (n_units), equal on all ranks */
MS_API ms_status ms_fsdp_tree_summon_units(ms_fsdp_tree *tree, ms_fsdp_unit *const *units,
                                           int32_t n_units, bool with_grads);
MS_API ms_status ms_fsdp_tree_unsummon(ms_fsdp_tree *tree, bool writeback);
/** True between the two. */
MS_API bool ms_fsdp_tree_summoned(const ms_fsdp_tree *tree);
/** Full-precision copy of parameter `index` of `unit`, original shape. The caller owns `*out`.
 * Collective. MS_COMM_ERROR on all ranks if replicas (NO_SHARD) differ; so in gather_all, hash and
 * summon. */
MS_API ms_status ms_fsdp_unit_gather(ms_tensor **out, ms_fsdp_unit *unit, int32_t index);
/**
 * Full-precision copies of all parameters of `unit`, in one collective.
 * @param out      1-D, owned by the caller; parameter i is at [offsets[i], offsets[i] + its numel)
 * @param offsets  room for one number per parameter
 */
MS_API ms_status ms_fsdp_unit_gather_all(ms_tensor **out, ms_fsdp_unit *unit, int64_t *offsets);
/** Copy this rank's extents of a full tensor into the master shard. The next collective fails if
 * ranks passed different values, or one passed none. */
MS_API ms_status ms_fsdp_unit_load(ms_fsdp_unit *unit, int32_t index, const ms_tensor *full);

/**
 * Scale all gradients by min(1, max_norm / (total + 1e-6)), the same on every rank. Collective.
 * Total: f64 sums of powers over blocks of 4,096 elements of each parameter, folded in the order of
 * `params`, so equal for every strategy, wrapping and world size. A plain parameter's gradient
 * counts once if ranks have equal ones, else with the mean of its powers over ranks (HUGE_VAL: the
 * maximum). If a device fails midway some gradients are scaled: drop all of them.
 * @param params     (n) distinct parameters in the same order on all ranks: of this model, of
 *                   other models over the same group, plain ones; NULL: those of the units, unit
 *                   by unit
 * @param norm_type  0 (number of gradients that are not all zeros) or more, HUGE_VAL: largest
 *                   element; other MS_VALUE_ERROR
 * @param error_if_nonfinite  MS_RUNTIME_ERROR on all ranks, before anything is scaled, if the norm
 *                   is not finite; waits for the device
 * @param total      (), norm before scaling, computed in f64 and rounded to the promoted dtype of
 *                   the gradients (f32 without any); the caller owns it. On a device it may be
 *                   pending, unless ranks exchange parts of it
 */
MS_API ms_status ms_fsdp_tree_clip_grad_norm(ms_tensor **total, ms_fsdp_tree *tree,
                                             ms_tensor *const *params, int32_t n_params,
                                             double max_norm, double norm_type,
                                             bool error_if_nonfinite);
/** Hash of all full parameters in the order of `params` (n), as above. Equal on all ranks, for all
 * strategies and wrappings, and to ms_params_hash() of the unsharded model. A plain parameter
 * counts once if ranks have equal values, else once per rank. Collective. */
MS_API ms_status ms_fsdp_tree_hash(ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                                   uint64_t *hash);

/** This rank's part of a parameter, sharded or not. */
typedef struct ms_param_extent {
    int64_t start; /**< first element, counted in the parameter */
    int64_t numel; /**< number of elements */
    int32_t ndim;
    int64_t shape[8]; /**< of the whole parameter */
    int32_t dtype;    /**< of the master */
} ms_param_extent;

/** This rank's master values of a parameter as a 1-D view, and their extent. `*out` is NULL if this
 * rank has none. The caller owns `*out`. */
MS_API ms_status ms_param_local(MS_NULLABLE ms_tensor **out, ms_tensor *param,
                                ms_param_extent *extent);
/** Mark the master as written from outside, so that cached copies of it become stale. */
MS_API ms_status ms_param_touch(ms_tensor *param);

#ifdef __cplusplus
}
#endif

#endif
