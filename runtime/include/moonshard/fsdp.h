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
enum { MS_FSDP_PREFETCH_NONE = 0, MS_FSDP_PREFETCH_PRE = 1, MS_FSDP_PREFETCH_POST = 2 };

typedef struct ms_fsdp_unit_options {
    uint32_t struct_size;
    int32_t strategy;     /**< MS_FSDP_*, default FULL_SHARD */
    int32_t param_dtype;  /**< gathered and computed in; MS_DTYPE_NONE: the parameters' own */
    int32_t reduce_dtype; /**< gradients reduced in; NONE: param_dtype, else the parameters' own */
    bool use_orig_params; /**< align parameters to 16 bytes in the flat (default true) */
} ms_fsdp_unit_options;

typedef struct ms_fsdp_tree_options {
    uint32_t struct_size;
    int32_t backward_prefetch; /**< MS_FSDP_PREFETCH_*, default PRE */
    bool forward_prefetch;     /**< default false */
    int32_t n_slots; /**< parameter slots in the ring, at most one a unit is made; 0: chosen (two,
                          three with prefetch) */
} ms_fsdp_tree_options;

/** What the plan says of one unit. */
typedef struct ms_fsdp_unit_info {
    int32_t strategy;
    int32_t n_params;
    int64_t numel;        /**< of the parameters, without padding */
    int64_t padded_numel; /**< shard_numel * world size */
    int64_t shard_numel;
    int32_t param_dtype;
    int32_t reduce_dtype;
    int32_t orig_dtype;
    int32_t state; /**< MS_UNIT_* */
    int32_t model; /**< number of its tree among those the ranks have used; 0: not used yet */
    bool is_root;
} ms_fsdp_unit_info;

/** Bytes one rank holds in a step of training, exact, as ms_memory_stats_get() counts them:
 * backwards that reach every trainable parameter, all but the last without sync; step; zero_grad.
 * Trainable is what requires a gradient when the plan is asked for. Of units alone: parameters that
 * no unit holds come on top, with their gradients and states. */
typedef struct ms_fsdp_plan {
    int64_t masters;     /**< full-precision shards, and resident copies of NO_SHARD units */
    int64_t gradients;   /**< the most they take at once, reduced or accumulated without sync, when
                              units end their backwards in reverse order and the root ends last; else
                              it may differ by the gradients that are open at another time */
    int64_t per_state;   /**< one optimizer state buffer for every trainable parameter's shard */
    int64_t arena;       /**< slots for parameters and gradients, shared by the ranks of the host */
    int64_t param_slots; /**< of the arena: for parameters ... */
    int64_t own_slots; /**< ... of these what is this rank's alone, where each rank copies the full
                            parameters into memory of its own ... */
    int64_t gradient_slots; /**< ... and for gradients, with a part for every rank */
    int32_t param_ring;     /**< slots for parameters that units take in turn ... */
    int32_t param_homes;    /**< ... and those that are one unit's */
    int32_t gradient_ring;  /**< the same for gradients */
    int32_t gradient_homes;
    int64_t gathered;   /**< parameters of other ranks that this one reads in a step */
    int64_t reduced;    /**< gradients of other ranks, or sums that they made, that it reads */
    bool same_numerics; /**< all ranks compute alike (ms_numerics()): results have equal bits for
                             every strategy and world size */
} ms_fsdp_plan;

/** What a plan must know of a unit, made or not: numbers alone. */
typedef struct ms_fsdp_group {
    int64_t full_numel;    /**< of the unsharded flat, with all padding */
    int64_t shard_numel;   /**< of this rank's part: all of a replica */
    int64_t trained_numel; /**< of this rank's part, without padding and what is frozen */
    int32_t n_params;
    int32_t orig_dtype;
    int32_t param_dtype;
    int32_t reduce_dtype;
    bool trains;     /**< any parameter of it is trainable */
    bool is_sharded; /**< false: a replica */
    bool shares;     /**< full parameters are gathered in a slot ... */
    bool keeps;      /**< ... which is held after forward */
    bool is_root;    /**< open from the first op of forward to the last of backward */
} ms_fsdp_group;

/** What memory a unit's parameters have now. */
enum {
    MS_UNIT_SHARDED = 0,   /**< the master shard only */
    MS_UNIT_PUBLISHED = 1, /**< own extents are cast into the slot; not yet readable as a whole */
    MS_UNIT_UNSHARDED = 2  /**< the full ones; handles show them while they are used or held */
};

/** Defaults. @param struct_size  sizeof(*o): no more is written, and `o->struct_size` says how much
 * was */
MS_API void ms_fsdp_unit_options_init(ms_fsdp_unit_options *o, uint32_t struct_size);
MS_API void ms_fsdp_tree_options_init(ms_fsdp_tree_options *o, uint32_t struct_size);

/**
 * Group parameters. Takes its own reference to each; their handles show the local shard from now
 * on (1-D) and the full parameter while the unit is unsharded. Gradients they have are dropped. No
 * communication. MS_VALUE_ERROR, MS_TYPE_ERROR for options that are none.
 * @param params  (n) distinct floating leaves of one dtype, at least one element each unless their
 *                shape has a zero; scalars are refused
 * @param names   (n) paths, copied; used in errors, checkpoints and the random stream
 */
MS_API ms_status ms_fsdp_unit_new(ms_fsdp_unit **out, ms_comm *comm, const char *name,
                                  MS_NULLABLE const ms_fsdp_unit_options *options,
                                  ms_tensor *const *params, int32_t n_params,
                                  const char *const *names);
/** Free a unit that is in no tree (a tree frees its own). Its parameters' handles stay with their
 * other owners and show the local shard. NULL is allowed. */
MS_API void ms_fsdp_unit_free(ms_fsdp_unit *unit);
MS_API ms_status ms_fsdp_unit_info_get(const ms_fsdp_unit *unit, ms_fsdp_unit_info *info);
/** The name it was made with, which messages of ranks and plans show. Borrowed. */
MS_API const char *ms_fsdp_unit_name(const ms_fsdp_unit *unit);
/** What a plan must know of a unit. */
MS_API ms_status ms_fsdp_unit_describe(const ms_fsdp_unit *unit, ms_fsdp_group *group);
/** The same of a unit that ms_fsdp_unit_new() would make of these, and refuses likewise: none is
 * made, and the parameters stay as they are. `is_root` is false, which is the caller's to set. */
MS_API ms_status ms_fsdp_group_describe(ms_fsdp_group *group, ms_comm *comm, const char *name,
                                        MS_NULLABLE const ms_fsdp_unit_options *options,
                                        ms_tensor *const *params, int32_t n_params,
                                        const char *const *names);
/** Fill the master shard: declared parameters by their rule (keyed by name, element by element),
 * others from the values they had. Called by ms_fsdp_tree_init() when nobody did before. */
MS_API ms_status ms_fsdp_unit_materialize(ms_fsdp_unit *unit);
/** The layout; borrowed from `unit`. */
MS_API const ms_layout *ms_fsdp_unit_layout(const ms_fsdp_unit *unit);

/** A tree over `n_units` units, none of them NULL. Takes the units over. The caller owns `*out`.
 * MS_VALUE_ERROR for units that are in a tree already, listed twice, or sharded over another group
 * than `comm`, and for options that are none.
 * @param root_has_unit  units[0] holds the parameters the root module itself owns: it stays whole
 *                       from its first forward to its backward. false where the root owns none;
 *                       MS_VALUE_ERROR for true without units */
MS_API ms_status ms_fsdp_tree_new(ms_fsdp_tree **out, ms_comm *comm,
                                  MS_NULLABLE const ms_fsdp_tree_options *options,
                                  ms_fsdp_unit *const *units, int32_t n_units, bool root_has_unit);
/** In a hook, what the running backward may still use goes when it has ended. NULL is allowed. */
MS_API void ms_fsdp_tree_free(ms_fsdp_tree *tree);
/** Make arenas and slots, agree on the plan. Collective, once; further calls do nothing. */
MS_API ms_status ms_fsdp_tree_init(ms_fsdp_tree *tree);

/** Bytes this rank will hold. Initialises the tree (collective) when nobody has yet.
 * @param micro_batches  backwards of this rank in a step, 1 to 2^40 (MS_VALUE_ERROR): between m of
 *                       them it keeps up to log2(m) whole gradients, as inner nodes in f32 (f64) */
MS_API ms_status ms_fsdp_tree_plan_get(ms_fsdp_tree *tree, int64_t micro_batches,
                                       ms_fsdp_plan *plan);

/** The same from numbers alone: nothing is initialised, takes memory or asks another rank, so a
 * model of any size can be planned over a fake group of any (ms_comm_fake()). `same_numerics` is
 * false where no rank was asked before. Where the layout of slots depends on it, this rank's device
 * is opened, as by the first memory; the other ranks' are taken to be as it is.
 * @return MS_VALUE_ERROR as above; MS_OUT_OF_MEMORY for the list of units; MS_DEVICE_ERROR when the
 *         device does not open */
MS_API ms_status ms_fsdp_tree_dry_run(ms_fsdp_tree *tree, int64_t micro_batches,
                                      ms_fsdp_plan *plan);
/** The same of a tree that ms_fsdp_tree_new() would make over units like these.
 * @param groups  (n_groups) in the tree's order, the first of them at most with `is_root` */
MS_API ms_status ms_fsdp_dry_run(ms_fsdp_plan *plan, ms_comm *comm,
                                 MS_NULLABLE const ms_fsdp_tree_options *options,
                                 const ms_fsdp_group *groups, int32_t n_groups,
                                 int64_t micro_batches);

/** Start of a root forward: lazy init, the optimizer's writes become visible to prefetch. What is
 * kept unsharded and was written since, by any rank, is to be gathered anew: collective. */
MS_API ms_status ms_fsdp_tree_pre_forward(ms_fsdp_tree *tree);
/** End of a root forward: the order of units is known from the first on. What a unit's strategy
 * keeps unsharded stays so, after a forward without gradients too (what handles show then:
 * ms_fsdp_tree_hide_shards()). */
MS_API ms_status ms_fsdp_tree_post_forward(ms_fsdp_tree *tree);
/** Shall parameters of units that are sharded have no memory? On while a root's forward runs: what
 * is computed there from a shard, without a gradient too, would differ between ranks and with the
 * wrapping. Turned off it lets handles show the masters as if all were resharded, whatever memory
 * is kept: until the unit's next use, and not those of units that ms_fsdp_unit_unshard() holds,
 * that a running backward reads or that, if this forward has recorded any, a graph waits for. While
 * it is on, the samples that random operators number, unless ms_samples_begin() did, are those of
 * this rank in the tree's group. Needs neither memory nor peers. */
MS_API void ms_fsdp_tree_hide_shards(ms_fsdp_tree *tree, bool hide);
/** Unshard, wait, prefetch the next. Forwards of units nest. When the scope that is innermost now
 * is closed before ms_fsdp_unit_post_forward(), as after an error that the program catches inside a
 * forward around this one, this forward has ended: its unit is resharded as the strategy says, and
 * the one around it goes on. */
MS_API ms_status ms_fsdp_unit_pre_forward(ms_fsdp_unit *unit);
/** Reshard as the strategy says; arrange for the unshard before `outputs` are differentiated.
 * MS_RUNTIME_ERROR when no forward of the unit runs. */
MS_API ms_status ms_fsdp_unit_post_forward(ms_fsdp_unit *unit, ms_tensor *const *outputs,
                                           int32_t n_outputs);
/** After an error between the tree's pre_forward and post_forward that the program does not catch
 * inside: reshard everything, states to idle. Inside a backward that is still to reduce gradients
 * of this tree they are given up, and it fails. Ranks that all fail go on; when one fails alone the
 * next collective is an error on all of them, whatever the strategy. */
MS_API void ms_fsdp_tree_reset(ms_fsdp_tree *tree);
/** false: backwards accumulate unsharded gradients and reduce nothing (no_sync). */
MS_API ms_status ms_fsdp_tree_set_sync(ms_fsdp_tree *tree, bool sync);
/** What was set last; true at first. */
MS_API bool ms_fsdp_tree_sync(const ms_fsdp_tree *tree);
/** Multiply reduced gradients by this instead of 1 / world size (with m micro-batches a rank whose
 * losses are means: 1 / (m * world size)); 0 restores the default. Finite (MS_VALUE_ERROR).
 * MS_ASSERTION_ERROR inside a backward, until it has reduced all gradients. */
MS_API ms_status ms_fsdp_tree_set_gradient_factor(ms_fsdp_tree *tree, double factor);

/** Gather a unit's full parameters, for the script to see until ms_fsdp_unit_reshard(), a forward
 * or backward that uses the unit and reshards it, or a write to it by an optimizer, a load or
 * ms_fsdp_tree_unsummon(): handles show the shards then. Collective. */
MS_API ms_status ms_fsdp_unit_unshard(ms_fsdp_unit *unit);
MS_API ms_status ms_fsdp_unit_reshard(ms_fsdp_unit *unit);

/** Private full-precision copies of all parameters behind their handles until
 * ms_fsdp_tree_unsummon(); with `writeback` each rank then stores its own extents where they
 * changed. MS_RUNTIME_ERROR on all ranks, and nothing stored, when they leave a parameter with
 * different values. One that no rank changed counts as not written: backward over it stays
 * possible. Until then MS_ASSERTION_ERROR for whatever would read or write the shards behind the
 * copies: forward, backward, a step, load, gather, hash, ms_param_local(). Collective. */
MS_API ms_status ms_fsdp_tree_summon(ms_fsdp_tree *tree);
MS_API ms_status ms_fsdp_tree_unsummon(ms_fsdp_tree *tree, bool writeback);
/** Between the two? */
MS_API bool ms_fsdp_tree_summoned(const ms_fsdp_tree *tree);
/** Full-precision copy of parameter `index` of `unit`, original shape. Collective. MS_COMM_ERROR on
 * all ranks where replicas (NO_SHARD) differ, as in ms_fsdp_unit_gather_all(), ms_fsdp_tree_hash()
 * and ms_fsdp_tree_summon(). */
MS_API ms_status ms_fsdp_unit_gather(ms_tensor **out, ms_fsdp_unit *unit, int32_t index);
/**
 * Full-precision copies of all parameters of `unit`, in one collective.
 * @param out      1-D; parameter i stands at elements [offsets[i], offsets[i] + its numel)
 * @param unit     unit to gather, not NULL
 * @param offsets  room for one number per parameter
 */
MS_API ms_status ms_fsdp_unit_gather_all(ms_tensor **out, ms_fsdp_unit *unit, int64_t *offsets);
/** Store this rank's extents of a full tensor into the master shard. The next collective is an
 * error when a rank was given other values, or none. */
MS_API ms_status ms_fsdp_unit_load(ms_fsdp_unit *unit, int32_t index, const ms_tensor *full);

/**
 * Scale all gradients by min(1, max_norm / (total + 1e-6)), the same on every rank.
 * Total: fp64 sums over blocks of 4,096 elements of each parameter, folded parameter by parameter
 * in the order given: equal for every strategy, wrapping and world size. Gradients of plain
 * parameters count once where all ranks have equal ones, else with the mean of their squares over
 * the ranks (for HUGE_VAL the largest). Collective. Where a device refuses a part of it some
 * gradients are scaled and others are not: drop them.
 * @param params     (n) every parameter of the model once, plain ones among them, in an order that
 *                   all ranks share; NULL: those of the units, one unit after another
 * @param norm_type  2, or HUGE_VAL (largest element)
 * @param total      (), f64: the norm before, the caller's to free. On a device nobody has waited
 *                   for it, unless ranks send each other parts of it
 */
MS_API ms_status ms_fsdp_tree_clip_grad_norm(ms_tensor **total, ms_fsdp_tree *tree,
                                             ms_tensor *const *params, int32_t n_params,
                                             double max_norm, double norm_type);
/** Hash over all full parameters, in the order of `params` (n) as above: equal on all ranks and for
 * all strategies and wrappings, and ms_params_hash() of the same unsharded. A plain parameter
 * counts once where all ranks have equal values, else with every rank's. Collective. */
MS_API ms_status ms_fsdp_tree_hash(ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                                   uint64_t *hash);

/** Where this rank's part of a parameter lies. Any parameter, sharded or not. */
typedef struct ms_param_extent {
    int64_t start; /**< first element held, in the parameter */
    int64_t numel; /**< elements held */
    int32_t ndim;
    int64_t shape[8]; /**< of the whole parameter */
    int32_t dtype;    /**< of the master copy */
} ms_param_extent;

/** Local master values of a parameter as a 1-D view, and where they belong. `*out` is NULL when
 * this rank holds none of it. The caller owns `*out`. */
MS_API ms_status ms_param_local(MS_NULLABLE ms_tensor **out, ms_tensor *param,
                                ms_param_extent *extent);
/** Tell everyone who caches a parameter's values that the master copy was written from outside. */
MS_API ms_status ms_param_touch(ms_tensor *param);

#ifdef __cplusplus
}
#endif

#endif
