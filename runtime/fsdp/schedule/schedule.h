/* When units are gathered, prefetched, released and reduced. Only this folder decides it, in
 * program order, never by timing, so that all ranks decide alike. It owns the tree. */
#ifndef MSI_FSDP_SCHEDULE_H
#define MSI_FSDP_SCHEDULE_H

#include "step_plan.h"
#include "unit.h"

extern const msi_option_table msi_fsdp_tree_options; /* generated from moonshard/fsdp.h */

/* Units in an order of events. */
typedef struct msi_unit_list {
    ms_fsdp_unit **units;
    int32_t n;
} msi_unit_list;

/* One forward of a unit: see pass.c. */
typedef struct msi_pass {
    ms_fsdp_unit *unit; /* NULL: freed */
    uint64_t place;     /* tape position at start */
    bool full_use;      /* in the parameters' own dtype: evaluation */
    bool expected;      /* the running backward will reach it */
    bool collected;     /* a garbage collector freed results of it */
    int64_t waits; /* the unit's eval_epoch when it recorded; if older, handles do not show full
                      parameters for its graph */
    msi_scope_place scope;   /* innermost then */
    int32_t refcount;        /* owners: the tree while it runs, hooks, a backward; 0: free */
    struct msi_pass *around; /* the enclosing forward, or NULL */
    struct msi_pass *next;   /* of the unit's records */
} msi_pass;

/* The schedule's state of a unit. */
typedef struct msi_unit_schedule {
    ms_fsdp_unit *unit;
    msi_pass *passes;    /* all records */
    int32_t first_param; /* of the tree's parameters */
    int32_t post_index;  /* index in the tree's post-forward order; -1: none */
    bool needs_backward; /* a result of the iteration's forward may be differentiated */
    msi_unit_list ahead_forward, ahead_backward; /* to prefetch; units NULL: by the options */
} msi_unit_schedule;

/* A parameter of a model; in lists of the script also a plain one, without a unit. */
typedef struct msi_listed_param {
    ms_tensor *tensor;
    ms_fsdp_unit *unit; /* NULL: a plain parameter */
    int32_t index;      /* in `unit` */
} msi_listed_param;

struct ms_fsdp_tree {
    uint32_t magic;
    msi_chained chained;
    ms_context *ctx;
    ms_comm *comm;
    ms_fsdp_tree_options options;
    msi_slots_layout slots_wish; /* msi_pools_wish() at creation */
    msi_slots_layout layout;     /* chosen when the slots are made */
    int32_t rank, world;
    ms_comm *shards; /* of the sharded units: see msi_unit */
    int32_t shard_rank, shard_world;
    int32_t n_units;
    ms_fsdp_unit **units;
    msi_unit_schedule *course; /* (n_units) */
    int32_t n_params;          /* of all units */
    msi_listed_param *params;  /* (n_params) one unit after another */
    msi_model_state run;
    bool same_numerics; /* as reported by every rank's ms_numerics() */

    bool *written;   /* (1 + actual ranks, n_units): exchange of which units were written */
    int32_t n_words; /* summoned parameters */
    uint64_t *words; /* while summoned: room for comparing what was written (summon.c) */

    msi_pass *forward;    /* innermost running one, or NULL */
    ms_fsdp_unit *again;  /* see msi_pass_keep_again() */
    bool records;         /* the running root forward has made results that require grad */
    msi_unit_list post;   /* of this iteration's forward */
    msi_unit_list pre;    /* of the first iteration's forward */
    bool pre_fixed;       /* `pre` is complete */
    int32_t forward_at;   /* next index in `pre` */
    int32_t outer_rank;   /* the context's sample_rank outside its forward */
    bool last_backward;   /* the next one is the last of its forward */
    msi_deferred freeing; /* freed by its owner while a backward ran */
};

/* True if there are other ranks to communicate with. */
static inline bool msi_tree_has_peers(const ms_fsdp_tree *tree)
{
    return tree->world > 1 && !ms_comm_is_fake(tree->comm);
}

static inline msi_unit_param *msi_listed_in_unit(const msi_listed_param *at)
{
    return &at->unit->params[at->index];
}

/* NULL for a unit without a tree. */
static inline ms_fsdp_tree *msi_tree_of(const ms_fsdp_unit *u)
{
    return u->run != NULL ? u->run->owner : NULL;
}

static inline msi_unit_schedule *msi_unit_schedule_of(const ms_fsdp_unit *u)
{
    return &msi_tree_of(u)->course[u->index];
}

/* -- pools.c: the slots of a model ------------------------------------------------------------- */
/* Layout of parameter slots that MS_SLOTS selects. */
msi_slots_layout msi_pools_wish(void);
/* Map slots for all units and connect the units to them. Collective. */
ms_status msi_pools_new(ms_fsdp_tree *tree);
void msi_pools_free(ms_fsdp_tree *tree);
/* Enlarge gradient slots for inner nodes (no_sync). Collective if they grow. After an error there
 * are none: msi_pools_restore(). */
ms_status msi_pools_widen(ms_fsdp_tree *tree);
/* Make slots for gradients of units that were frozen as a whole and are trainable now. Collective
 * if there are such. On failure as msi_pools_widen(). */
ms_status msi_pools_extend(ms_fsdp_tree *tree);
/* Before a backward writes gradients: map slots if there are none. Collective then. */
ms_status msi_pools_restore(ms_fsdp_tree *tree);
/* Plan a step of `micro_batches`, without communication, for a tree over `groups` (n). `wide`:
 * gradient slots are already wide enough for inner nodes. */
ms_status msi_groups_plan(const msi_group_facts *groups, int32_t n, ms_comm *comm,
                          const ms_fsdp_tree_options *options, msi_slots_layout wish, bool wide,
                          int64_t micro_batches, ms_fsdp_plan *plan);
/* The same for this tree, whose rings may have grown. */
ms_status msi_pools_plan(const ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan);

/* -- pass.c ------------------------------------------------------------------------------------ */
/* Begin a forward of the unit inside the running ones. */
ms_status msi_pass_begin(ms_fsdp_unit *u);
/* Its innermost running forward, or NULL. */
msi_pass *msi_pass_running(const ms_fsdp_unit *u);
/* It has recorded a graph. */
void msi_pass_recorded(msi_pass *pass);
/* The running backward reaches it. */
void msi_pass_expected(msi_pass *pass);
/* Backward has passed an expected pass, or ended. */
void msi_pass_left(msi_pass *pass);
/* End a running pass, or all of the tree. */
void msi_pass_end(ms_fsdp_tree *tree, msi_pass *pass);
void msi_pass_end_all(ms_fsdp_tree *tree);
msi_pass *msi_pass_retain(msi_pass *pass);
void msi_pass_drop(void *pass);
void msi_passes_free(msi_unit_schedule *course);
/* End its forward: reshard by the strategy. */
void msi_pass_leave(ms_fsdp_tree *tree, msi_pass *pass);
/* Keep `u` (NULL: none) after a forward that a backward recomputed, since its own backward is next;
 * the one kept before is resharded if its backward did not begin. */
void msi_pass_keep_again(ms_fsdp_tree *tree, ms_fsdp_unit *u);
/* Leave those inside `pass` (NULL: all) that an error ended: [Note: forwards that run]. */
void msi_pass_leave_ended(ms_fsdp_tree *tree, const msi_pass *pass);
/* The outermost unit in a forward, or NULL. */
const ms_fsdp_unit *msi_unit_in_forward(ms_fsdp_tree *tree);

/* -- tree.c ------------------------------------------------------------------------------------ */
/* Handles stop showing copies. */
void msi_tree_unsummon(ms_fsdp_tree *tree);

/* -- param_list.c ------------------------------------------------------------------------------ */
typedef struct msi_param_list {
    const msi_listed_param *places; /* (n) */
    int32_t n;
    msi_mem_block *block; /* memory of `places`, or NULL; freed by the caller */
} msi_param_list;

/* Look up `params` (n), the model's parameters with plain ones; NULL: the units', one unit after
 * another. MS_VALUE_ERROR if a parameter is listed twice; with `whole` also unless all parameters
 * of units are listed and none of another tree. */
ms_status msi_param_list_new(const ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                             bool whole, msi_param_list *out);

/* -- agree.c ----------------------------------------------------------------------------------- */
/* Compare the ranks' plans; the error gives the first unit or parameter that differs. */
ms_status msi_plans_agree(ms_fsdp_tree *tree);
/* Compare initial values: error if replicas differ; a warning on rank 0 if shards were cut from
 * different tensors. */
ms_status msi_values_agree(ms_fsdp_tree *tree);
/* Compare ms_numerics(); a difference is a warning on rank 0. */
ms_status msi_numerics_agree(ms_fsdp_tree *tree);

/* -- peers.c ----------------------------------------------------------------------------------- */
/* All-gather of a few bytes for the script's call `what`, over a group: the tree's or its shards'.
 */
ms_status msi_tree_gather_over(ms_fsdp_tree *tree, ms_comm *comm, const char *what, const void *in,
                               int64_t nbytes, void *out);
ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out);
/* The same between the devices of the shard group: memory of the device, in order of stream
 * COMPUTE. `in` may be this rank's part of `out`. */
ms_status msi_tree_gather_devices(ms_fsdp_tree *tree, const char *what, const void *in,
                                  int64_t nbytes, void *out);
/* After a failure with the thread's last error: report to the peers that this rank does not finish
 * what it committed in `what` ("": the error says it). */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what);

/* -- prefetch.c -------------------------------------------------------------------------------- */
/* Publish a unit that is used soon, if no allocation is needed. */
ms_status msi_prefetch(ms_fsdp_unit *u);
/* Discard it unused. */
void msi_skip(ms_fsdp_unit *u);

/* -- backward.c -------------------------------------------------------------------------------- */
ms_status msi_schedule_new(ms_fsdp_tree *tree);
void msi_schedule_free(ms_fsdp_tree *tree);
/* True if the running backward reached a unit. */
bool msi_is_reached(const ms_fsdp_tree *tree);
/* Unshard the unit again before any of the outputs is differentiated. */
ms_status msi_pass_hook_outputs(msi_pass *pass, ms_tensor *const *outputs, int32_t n_outputs);

#endif
