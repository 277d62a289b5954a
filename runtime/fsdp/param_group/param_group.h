/* Parameter groups: the parameters that are gathered, used and released together. Knows no
 * schedule: what runs above it tells it by msi_model_state, and by nothing else.
 *
 * Glossary
 *     unit          one parameter group (ms_fsdp_unit)
 *     run           what the units of one model have in common while it is trained
 *     flat          the unit's parameters in a row, with padding
 *     master        this rank's shard of the flat in full precision, private; of a replica all
 *     replica       a unit that is not sharded (NO_SHARD): all ranks hold the same
 *     extent        a stretch of the flat that one rank holds
 *     full          the unsharded parameters, in the dtype that is computed in
 *     slot          memory that the ranks of a host share, for one unit's full parameters or for
 *                   all ranks' gradients of it, at a time
 *     ring, home    slots that units take in turn, and those that are one unit's own
 *     micro         the gradient of one backward on one rank, in the reduce dtype
 *     levels        inner nodes of the tree over a rank's micro-batches (no_sync)
 *     reduced       this rank's shard of the gradient, summed over ranks, in the master's dtype
 *     named         said to the peers, who count on it from then on
 *     published     own extents are cast into the slot, or will be as soon as peers have read it
 *     pass          one forward of one unit, as its graph remembers it
 *     summoned      private full-precision copies stand behind the handles */
#ifndef MSI_FSDP_PARAM_GROUP_H
#define MSI_FSDP_PARAM_GROUP_H

#include "accumulate.h"
#include "autograd.h"
#include "chain.h"
#include "comm.h"
#include "extent.h"
#include "gather.h"
#include "moonshard/fsdp.h"
#include "op.h"
#include "reduction.h"

/* What the units of one model have in common. The schedule writes it, units read it. */
typedef struct msi_model_state {
    void *owner;       /* the schedule's */
    int32_t model;     /* its number in the group; 0: before the first use */
    bool initialized;  /* units have slots */
    bool sync;         /* backwards reduce */
    bool summoned;     /* full-precision copies stand behind the handles */
    bool hides_shards; /* a root forward runs */
    bool settled;      /* all that the running backward reduces is reduced */
    bool given_up;     /* its gradients were, in the middle of it */
    bool fp32_slots;   /* gradient slots hold inner nodes of the tree over micro-batches */
    uint64_t n_kept;   /* backwards of no_sync to be reduced */
    double factor;     /* of reduced gradients; 0: 1 / world */
    msi_progress progress;
    msi_slot_pool params, gradients;
    /* What units ask of it. */
    ms_status (*may_begin_backward)(void *owner);
    /* A unit's gradient of the running backward is complete. */
    ms_status (*gradient_complete)(ms_fsdp_unit *u);
} msi_model_state;

/* One parameter of a unit. */
typedef struct msi_unit_param {
    ms_tensor *tensor; /* retained */
    char *name;
    int64_t numel;
    int64_t offset;        /* in the flat */
    ms_layout_piece piece; /* this rank's */
    bool contributed;      /* the running backward has written to its gradient */
    bool reduced;          /* the whole parameter has a gradient, whoever holds its elements */
    bool accumulated;      /* the levels hold a gradient of it that is not reduced yet */
    msi_storage *place;    /* its elements in the unit's reduced gradient, or NULL */
    bool arrived;          /* the running backward has reduced a gradient of it */
    ms_tensor *shown; /* its .grad to be, made before the reduction that fills it is announced */
    uint64_t origin;  /* hash of what its first values came from: equal for equal values */
    bool given;       /* ... which the script wrote or loaded, before the first use */
    msi_grad_sink sink;
} msi_unit_param;

/* What is known of the master's values. */
typedef struct msi_values {
    int64_t followed; /* version whose values `full` was last given */
    bool outdated;    /* written since the program named its latest publish */
} msi_values;

/* Who uses the full parameters. */
typedef struct msi_use {
    int32_t running;         /* forwards */
    bool differentiated;     /* the running backward has come to results of its forwards */
    int32_t backward_passes; /* passes that it reaches and is not past yet */
    int32_t pending;         /* gradients of its parameters that are still to come */
    bool expects_grad;       /* ... or were, in the running backward */
    int32_t n_waiting;       /* graphs that wait for a backward since the turn began */
    int64_t eval_epoch;      /* counts evaluations; from 1 */
    bool held;               /* the script, for as long as they stay unsharded */
} msi_use;

struct ms_fsdp_unit {
    uint32_t magic;
    msi_chained chained; /* while in no tree */
    ms_context *ctx;
    ms_comm *comm;
    msi_model_state *run; /* NULL: in no tree */
    char *name;
    msi_label label;      /* of the name */
    char absent[512];     /* why views have no memory while sharded ... */
    char hidden_why[200]; /* ... and why shards have none in a forward */
    int32_t index;        /* in the tree */
    int32_t rank, world;

    /* what was planned */
    ms_fsdp_unit_options options;
    int32_t orig_dtype, param_dtype, reduce_dtype;
    bool is_root, is_sharded; /* is_sharded: not NO_SHARD */
    int32_t n_params, n_own;
    msi_unit_param *params;
    ms_layout *layout;
    msi_extent *own;                   /* (n_own) this rank's extents */
    msi_extent *theirs;                /* room for those of another */
    int64_t numel, total, shard_numel; /* total: without the tail padding */

    /* parameters */
    int32_t state;       /* MS_UNIT_* */
    msi_storage *master; /* shard_numel elements of orig_dtype; NULL before */
    bool materialized;
    msi_values values;
    msi_gather gather;
    msi_storage *full;     /* what unsharded views read; bound to what is gathered */
    msi_storage *hidden;   /* what shards show in a forward: nothing */
    msi_storage *summoned; /* private full copy while summoned, or NULL */
    msi_use use;
    ms_tensor **observed; /* (1 + n_params), once watched: the shard, the unsharded parameters */

    /* gradients */
    msi_accumulator sums;
    msi_storage *micro_view; /* wraps the running micro-batch's gradient for views */
    msi_reduction reduction;
    msi_storage *grad; /* reduced, orig_dtype; NULL while no parameter shows any */
};

/* Elements of the unsharded flat, with all padding. */
static inline int64_t msi_unit_full_numel(const ms_fsdp_unit *u)
{
    return msi_layout_gathered_numel(u->layout);
}

/* Does it gather in a slot? (Else the master or a private copy is read.) */
static inline bool msi_unit_shares(const ms_fsdp_unit *u)
{
    return u->is_sharded && (u->world > 1 || u->param_dtype != u->orig_dtype);
}

/* dtype of a whole gradient in the slot, the same on all ranks, also where one rank's backwards
 * have reached the unit only once. */
static inline int32_t msi_unit_slot_dtype(const ms_fsdp_unit *u)
{
    return u->run->n_kept > 0 ? u->sums.node_dtype : u->reduce_dtype;
}

/* Elements [offset, offset + numel) of a storage in the unit's own dtype. */
static inline msi_view msi_flat_view(const ms_fsdp_unit *u, msi_storage *s, int64_t offset,
                                     int64_t numel)
{
    msi_view v = {.storage = s, .offset = offset};

    msi_view_set_contiguous(&v, u->orig_dtype, 1, &numel);
    return v;
}

/* 0 for a unit in no tree. */
static inline int32_t msi_unit_model(const ms_fsdp_unit *u)
{
    return u->run != NULL ? u->run->model : 0;
}

/* -- facts.c ----------------------------------------------------------------------------------- */
msi_group_facts msi_unit_facts(const ms_fsdp_unit *u);
/* Hash of the values of a parameter of a replica. */
ms_status msi_replica_hash(const ms_fsdp_unit *u, int32_t index, uint64_t *hash);
/* May `what` the script has called read or write the masters now? While they are summoned the
 * copies are the values, and what went to the masters would be stale, or lost when the copies are
 * written back: MS_ASSERTION_ERROR. `run` NULL: of a unit in none. */
ms_status msi_masters_check(const msi_model_state *run, const char *what);

/* -- unit.c ------------------------------------------------------------------------------------ */
/* Free what a unit holds; the struct stays. */
void msi_unit_dispose(ms_fsdp_unit *u);
/* A unit of a tree is that's to close, one of none its context's. */
void msi_unit_delist(ms_fsdp_unit *u);

/* -- show.c: what handles show ----------------------------------------------------------------- */
/* Let them show what they should now: [Note: what handles show]. */
void msi_unit_show(ms_fsdp_unit *u);
/* The same, where nothing but what uses the unit may have changed: cheap when they do already. */
void msi_unit_show_use(ms_fsdp_unit *u);
/* Of what shows shards: have they memory? (run->hides_shards has changed) */
void msi_unit_hide_shards(ms_fsdp_unit *u);
/* Views without memory say that the unit is sharded; or, not NULL, that the running backward's
 * gradients were given up by a forward that failed with `cause`. */
void msi_unit_explain(ms_fsdp_unit *u, const char *cause);
/* Will ops of the running backward still read its parameters? (After a forward that a hook ran.) */
static inline bool msi_unit_is_differentiated(const ms_fsdp_unit *u)
{
    return u->use.differentiated && (u->use.pending > 0 || u->use.backward_passes > 0);
}

/* -- unshard.c: parameters --------------------------------------------------------------------- */
/* Choose how full parameters come about; `home` slot, or NULL. The unit is materialized. */
void msi_unit_connect_params(ms_fsdp_unit *u, msi_slot *home);
/* SHARDED -> PUBLISHED: name the use, cast own extents into the slot as soon as it may be written.
 */
ms_status msi_unit_publish(ms_fsdp_unit *u);
/* -> UNSHARDED: wait for the others' extents, bind the views. */
ms_status msi_unit_unshard(ms_fsdp_unit *u);
/* -> SHARDED: unbind, tell the others. Needs neither memory nor peers. */
void msi_unit_reshard(ms_fsdp_unit *u);
/* The master was written, on this rank or another: a publish named before is void, so that no slot
 * mixes old and new. */
void msi_unit_written(ms_fsdp_unit *u);
/* Kept in a slot with other values than this rank's shard has now? */
bool msi_unit_differs(const ms_fsdp_unit *u);

/* -- observed.c: units at the one observable point --------------------------------------------- */
/* What the rows of units are asked for. */
typedef struct msi_unit_attrs {
    ms_fsdp_unit *unit;
    bool whole; /* of a reduction: see msi_reduction_close() */
} msi_unit_attrs;
/* Make `observed`, unless it is there. `unshard`: the row that says what it makes of a shard. */
ms_status msi_observed_params(ms_fsdp_unit *u, const msi_op *unshard);
void msi_observed_free(ms_fsdp_unit *u);
/* Run `reduce` on tensors: the gradient in the slot, the reduced one to be. */
ms_status msi_observed_reduce(ms_fsdp_unit *u, const msi_op *reduce, bool whole);

/* -- micro.c: gradients of one rank ------------------------------------------------------------ */
void msi_unit_sinks_install(ms_fsdp_unit *u);
/* Drop the running backward's gradient after an error, announced or not; `all`: and what earlier
 * ones have reduced or accumulated. Needs neither memory nor peers. */
void msi_unit_gradient_drop(ms_fsdp_unit *u, bool all);
/* An error when it was dropped in the middle of the running backward: a forward that a hook ran and
 * caught has failed. */
ms_status msi_unit_check_kept(const ms_fsdp_unit *u);
/* no_sync: the backward's gradient joins the levels; an empty one, too. */
ms_status msi_unit_accumulate(ms_fsdp_unit *u);
/* The last backward's, if there is one, and all levels: into the slot. */
ms_status msi_unit_fold_into_slot(ms_fsdp_unit *u);

/* -- accumulated.c: what .grad tells of the levels --------------------------------------------- */
void msi_unit_levels_free(ms_fsdp_unit *u);
/* The unit's part of msi_param_ops. */
bool msi_unit_accumulates(void *unit, int32_t index);
ms_status msi_unit_accumulated(void *unit, int32_t index, ms_tensor **out);
ms_status msi_unit_replace_accumulated(void *unit, int32_t index, const msi_view *value);

/* -- gradient.c: the reduced gradient ---------------------------------------------------------- */
/* `home` slot, or NULL. The run's gradient slots are there. */
void msi_unit_connect_gradients(ms_fsdp_unit *u, msi_slot *home);
/* The gradient in the unit's slot is complete: make what its reduction needs, tell the peers. */
ms_status msi_gradient_announce(ms_fsdp_unit *u);
/* The unit's part of msi_param_ops: [Note: gradients inside a backward]. */
ms_status msi_unit_check_gradient(void *unit, const char *what);
ms_status msi_unit_await_gradient(void *unit);
/* The unit's part of msi_param_ops: set to none; does the whole parameter have one? */
void msi_unit_gradient_dropped(void *unit, int32_t index);
bool msi_unit_has_gradient(void *unit, int32_t index);
/* Give the reduced gradient's memory back when nothing shows it any more. */
void msi_unit_gradient_trim(ms_fsdp_unit *u);
void msi_unit_gradient_free(ms_fsdp_unit *u);
/* The unit's part of msi_param_ops: the place of parameter `index` in the reduced gradient. */
void msi_unit_gradient_like(void *unit, int32_t index, msi_view *like);

/* -- full.c ------------------------------------------------------------------------------------ */
/* The whole flat parameter in the master's dtype, in new memory. Collective. MS_COMM_ERROR on all
 * ranks when replicas differ. `what` the script has called, for those that wait: "hash of unit". */
ms_status msi_unit_gather_flat(ms_fsdp_unit *u, const char *what, msi_storage **out);

/* -- notes.c ----------------------------------------------------------------------------------- */
/* Compare a note (note.h) over the ranks of the unit's group; part of msi_param_ops. */
void msi_unit_note(void *unit, const msi_note *note);
void msi_model_note(ms_comm *comm, int32_t model, const msi_note *note);

/* Test hook: called at every change of state of a unit or its gradient. */
extern void (*msi_fsdp_state_changed)(const ms_fsdp_unit *u);
static inline void msi_unit_changed(const ms_fsdp_unit *u)
{
    if (MSI_UNLIKELY(msi_fsdp_state_changed != NULL)) {
        msi_fsdp_state_changed(u);
    }
}

#endif
