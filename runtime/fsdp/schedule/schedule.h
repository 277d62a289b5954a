/* When units are gathered, prefetched, released and reduced: the only room that decides it.
 * Decisions follow program order, never timing: a rank's peers decide the same. It owns the tree.
 */
#ifndef MSI_FSDP_SCHEDULE_H
#define MSI_FSDP_SCHEDULE_H

#include "param_group.h"
#include "step_plan.h"

/* One forward of a unit: see pass.c. */
typedef struct msi_pass {
    ms_fsdp_unit *unit;      /* NULL: freed since */
    uint64_t place;          /* the tape's, when it began */
    bool expected;           /* the running backward reaches it, and is not past it yet */
    bool collected;          /* a collector has let go of results of it */
    int64_t waits;           /* the unit's `turn` when it recorded; another one: its graph does not
                                wait for a backward, as far as handles show */
    msi_scope_place scope;   /* innermost then */
    int32_t refcount;        /* the tree while it runs, hooks on its results, a backward; 0: free */
    struct msi_pass *around; /* the forward that runs around it, or NULL */
    struct msi_pass *next;   /* of the unit's records */
} msi_pass;

/* What the schedule knows of a unit. */
typedef struct msi_unit_schedule {
    ms_fsdp_unit *unit;
    msi_pass *passes;    /* all records */
    int32_t post_index;  /* place in the tree's post-forward order, -1: none */
    bool needs_backward; /* a result of the iteration's forward may be differentiated */
} msi_unit_schedule;

/* Units in the order in which something comes to them. */
typedef struct msi_unit_list {
    ms_fsdp_unit **units;
    int32_t n;
} msi_unit_list;

struct ms_fsdp_tree {
    uint32_t magic;
    msi_chained chained;
    ms_context *ctx;
    ms_comm *comm;
    ms_fsdp_tree_options options;
    msi_slots_layout slots_wish; /* msi_pools_wish() when it was made */
    int32_t rank, world;
    int32_t n_units;
    ms_fsdp_unit **units;
    msi_unit_schedule *course; /* (n_units) */
    msi_model_state run;
    bool same_numerics; /* as far as every rank's ms_numerics() tells */

    bool *written;   /* (1 + ranks there are, n_units) to agree on kept units that a rank wrote */
    uint64_t *words; /* while summoned: room to agree on what was written, in summon.c */

    msi_pass *forward;  /* the innermost that runs, or NULL */
    bool records;       /* the root forward that runs has made results that may be differentiated */
    msi_unit_list post; /* of this iteration's forward */
    msi_unit_list pre;  /* of the first iteration's forward ... */
    bool pre_fixed;     /* ... which has ended */
    int32_t forward_at; /* next place in it this iteration */
    int32_t outer_rank; /* the context's sample_rank outside its forward */
    bool in_backward;
    msi_deferred freeing; /* its owner let go of it while a backward ran */
};

/* Is any other rank there, to be asked or told? */
static inline bool msi_tree_has_peers(const ms_fsdp_tree *tree)
{
    return tree->world > 1 && !ms_comm_is_fake(tree->comm);
}

/* NULL: of a unit in none. */
static inline ms_fsdp_tree *msi_tree_of(const ms_fsdp_unit *u)
{
    return u->run != NULL ? u->run->owner : NULL;
}

static inline msi_unit_schedule *msi_unit_schedule_of(const ms_fsdp_unit *u)
{
    return &msi_tree_of(u)->course[u->index];
}

/* -- pools.c: the slots of a model ------------------------------------------------------------- */
/* Where MS_SLOTS wants full parameters to be gathered. */
msi_slots_layout msi_pools_wish(void);
/* Map slots for all units and connect these to them. Collective. */
ms_status msi_pools_new(ms_fsdp_tree *tree);
void msi_pools_free(ms_fsdp_tree *tree);
/* Gradient slots must hold inner nodes of the tree over micro-batches, too (no_sync). Collective
 * when they grow. After an error there are none: msi_pools_restore(). */
ms_status msi_pools_widen(ms_fsdp_tree *tree);
/* Before a backward writes gradients: make slots again where there are none. Collective then. */
ms_status msi_pools_restore(ms_fsdp_tree *tree);
/* What a step of `micro_batches` comes to, in all of `plan` that takes no asking: of a tree over
 * `groups` (n) with that wish and, if they are `wide` already, wide gradient slots. */
ms_status msi_groups_plan(const msi_group_facts *groups, int32_t n, ms_comm *comm,
                          const ms_fsdp_tree_options *options, msi_slots_layout wish, bool wide,
                          int64_t micro_batches, ms_fsdp_plan *plan);
/* The same of this tree, whose rings may have grown since. */
ms_status msi_pools_plan(const ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan);

/* -- pass.c ------------------------------------------------------------------------------------ */
/* A forward of the unit begins, inside those that run. */
ms_status msi_pass_begin(ms_fsdp_unit *u);
/* The innermost one of the unit, or NULL. */
msi_pass *msi_pass_running(const ms_fsdp_unit *u);
/* It has recorded a graph. */
void msi_pass_recorded(msi_pass *pass);
/* The running backward reaches it. */
void msi_pass_expected(msi_pass *pass);
/* Expected: backward has left it behind, or has ended. */
void msi_pass_left(msi_pass *pass);
/* It does not run any more; no forward of the tree does. */
void msi_pass_end(ms_fsdp_tree *tree, msi_pass *pass);
void msi_pass_end_all(ms_fsdp_tree *tree);
msi_pass *msi_pass_retain(msi_pass *pass);
void msi_pass_drop(void *pass);
void msi_passes_free(msi_unit_schedule *course);
/* Its forward has come to its end: reshard as the strategy says. */
void msi_pass_leave(ms_fsdp_tree *tree, msi_pass *pass);
/* Leave those inside `pass` (NULL: all) that an error has ended: [Note: forwards that run]. */
void msi_pass_leave_ended(ms_fsdp_tree *tree, const msi_pass *pass);
/* The outermost unit that is in its forward, or NULL. */
const ms_fsdp_unit *msi_unit_in_forward(ms_fsdp_tree *tree);

/* -- tree.c ------------------------------------------------------------------------------------ */
/* Handles show no copies any more. */
void msi_tree_unsummon(ms_fsdp_tree *tree);

/* -- param_list.c ---------------------------------------------------------------------------------
 */
typedef struct msi_listed_param {
    ms_tensor *tensor;
    ms_fsdp_unit *unit; /* NULL: a plain parameter */
    int32_t index;      /* there */
} msi_listed_param;

typedef struct msi_param_list {
    msi_listed_param *places; /* (n) */
    int32_t n;
    msi_mem_block *block; /* where they lie; released by who made it */
} msi_param_list;

/* The model's parameters as `params` (n) lists them, plain ones among them; NULL: the units', one
 * after another. MS_VALUE_ERROR unless all of the units' are listed once. */
ms_status msi_param_list_new(const ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                             msi_param_list *out);

/* -- agree.c ----------------------------------------------------------------------------------- */
/* Is every rank's plan this one's? Else an error that names the first unit or parameter that
 * differs. */
ms_status msi_plans_agree(ms_fsdp_tree *tree);
/* Do all ranks begin with the same values? An error when replicas differ; when shards were cut from
 * different wholes rank 0 warns. */
ms_status msi_values_agree(ms_fsdp_tree *tree);
/* Do all ranks compute alike? Else rank 0 warns, and the plan says so. */
ms_status msi_numerics_agree(ms_fsdp_tree *tree);

/* -- peers.c ----------------------------------------------------------------------------------- */
void msi_tree_note(const ms_fsdp_tree *tree, const msi_note *note);
void msi_tree_note_options(const ms_fsdp_tree *tree);
/* All-gather of a few bytes that a call of the script, `what`, takes for this tree. */
ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out);
/* After a failure, of which the thread's last error is the reason: tell the peers that this rank
 * does not finish what it has named in `what` ("": the reason says it). */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what);

/* -- prefetch.c ---------------------------------------------------------------------------------
 */
/* Publish a unit that comes soon, if no more memory is needed for it. */
ms_status msi_prefetch(ms_fsdp_unit *u);
/* It was not used. */
void msi_skip(ms_fsdp_unit *u);

/* -- backward.c -------------------------------------------------------------------------------- */
ms_status msi_schedule_new(ms_fsdp_tree *tree);
void msi_schedule_free(ms_fsdp_tree *tree);
/* Did the running backward reach any unit? */
bool msi_is_reached(const ms_fsdp_tree *tree);
/* Before any of the outputs is differentiated the unit must be unsharded again. */
ms_status msi_pass_hook_outputs(msi_pass *pass, ms_tensor *const *outputs, int32_t n_outputs);

#endif
