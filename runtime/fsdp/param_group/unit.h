/* Parameter groups: parameters that are gathered, used and released together. Units know no
 * schedule; the schedule controls them through msi_model_state only.
 *
 * Glossary
 *     unit          one parameter group (ms_fsdp_unit)
 *     flat          the unit's parameters in a row, with padding
 *     master        this rank's private shard of the flat in full precision; of a replica all of it
 *     replica       a unit that is not sharded (NO_SHARD): all ranks have the same values
 *     extent        a range of a parameter, or of the flat, that one rank owns
 *     full          the unsharded parameters, in the compute dtype
 *     slot          memory shared by the ranks of a host, for one unit's full parameters or for
 *                   all ranks' gradients of it, at a time
 *     ring, home    slots that units use in turn; slots that one unit owns
 *     micro         the gradient of one backward on one rank, in the reduce dtype (in evaluation
 *                   with full precision in the parameters' own)
 *     levels        inner nodes of the tree over a rank's micro-batches (no_sync)
 *     reduced       this rank's shard of the gradient, summed over ranks, in the master's dtype
 *     committed     announced to the peers, which rely on it from then on
 *     published     own extents are cast into the slot, or will be once peers have read it
 *     pass          one forward of one unit, as its graph remembers it
 *     summoned      handles show private full-precision copies */
#ifndef MSI_FSDP_UNIT_H
#define MSI_FSDP_UNIT_H

#include "accumulate.h"
#include "autograd.h"
#include "chain.h"
#include "comm.h"
#include "extent.h"
#include "gather.h"
#include "moonshard/fsdp.h"
#include "op.h"
#include "option_table.h"
#include "reduction.h"

extern const msi_option_table msi_fsdp_unit_options; /* generated from moonshard/fsdp.h */

/* A function of the program for gradients: see ms_fsdp_unit_set_hook(). */
typedef struct msi_unit_hook {
    ms_unit_hook fn; /* NULL: none */
    void *user;
    void (*drop)(void *user);
} msi_unit_hook;

/* What happens to a model, from its first use on. A forward may run in any phase but the first. */
typedef enum msi_phase {
    MSI_UNUSED, /* units have no slots */
    MSI_IDLE,
    MSI_BACKWARD, /* a backward runs, which may reach the model */
    MSI_GIVEN_UP, /* the gradients of that one were dropped */
    MSI_SETTLED   /* that one has no more reductions */
} msi_phase;

/* State shared by the units of one model. The schedule writes it, units read it. */
typedef struct msi_model_state {
    void *owner;   /* the schedule's tree */
    int32_t model; /* number in the group; 0: unused */
    msi_phase phase;
    bool summoned;     /* handles show full copies */
    bool hides_shards; /* a root forward runs */
    bool fp32_slots;   /* gradient slots are wide enough for inner nodes (no_sync) */
    msi_progress progress;
    msi_slot_pool params, gradients;
    /* Calls from units. */
    ms_status (*may_begin_backward)(void *owner);
    /* A unit's gradient of the running backward is complete. */
    ms_status (*gradient_complete)(ms_fsdp_unit *u);
} msi_model_state;

static inline bool msi_in_backward(const msi_model_state *run)
{
    return run->phase >= MSI_BACKWARD;
}

/* One parameter of a unit. */
typedef struct msi_unit_param {
    ms_tensor *tensor; /* retained */
    char *name;
    int64_t numel, row_numel; /* row: along dimension 0 */
    int64_t offset;           /* in the full parameters */
    ms_layout_piece piece;    /* of this rank */
    bool contributed;         /* the running backward has written to its gradient */
    bool reduced;             /* the whole parameter has a gradient, on any rank */
    bool accumulated;         /* the levels have an unreduced gradient of it */
    msi_storage *place;       /* its elements in the unit's reduced gradient, or NULL */
    int64_t in_grad;          /* their position there; -1: it has none. Valid while `grad` exists */
    bool arrived;             /* the running backward reduced its gradient */
    ms_tensor *shown;         /* its future .grad, made before the reduction is announced */
    uint64_t origin;          /* hash of the source of its initial values: equal for equal values */
    bool given;               /* the script set or loaded them before the first use */
    ms_tensor *own_grad;      /* .grad of this rank while .grad shows a full one */
    msi_grad_sink sink;
} msi_unit_param;

/* Versions of the master's values. */
typedef struct msi_values {
    int64_t followed; /* version of the values in `full` */
    bool outdated;    /* written since the latest publish was committed */
} msi_values;

/* When full parameters are freed after a use. */
enum { MSI_BY_STRATEGY, MSI_KEEP, MSI_RESHARD };

/* Settings of a unit, which may change between steps, equal on all ranks. */
typedef struct msi_settings {
    bool sync;             /* backwards reduce */
    double factor;         /* of reduced gradients; 0: 1 / world */
    int32_t after_forward; /* MSI_BY_STRATEGY, ... */
    int32_t after_backward;
    bool forward_only; /* backwards do not gather it */
} msi_settings;

/* Users of the full parameters. */
typedef struct msi_use {
    int32_t running;         /* forwards */
    bool differentiated;     /* the running backward has reached results of its forwards */
    int32_t backward_passes; /* passes it reaches and has not finished */
    int32_t pending;         /* gradients of its parameters still expected */
    bool expects_grad;       /* the running backward expected some */
    int32_t n_waiting;       /* graphs of this eval_epoch that wait for a backward */
    int64_t eval_epoch;      /* number of evaluations, from 1 */
    bool held;               /* by the script's unshard(), until resharded */
} msi_use;

struct ms_fsdp_unit {
    uint32_t magic;
    msi_chained chained; /* while in no tree */
    ms_context *ctx;
    ms_comm *comm;
    msi_model_state *run; /* NULL: not in a tree */
    char *name;
    msi_label label;      /* of the name */
    char absent[512];     /* error of views without memory while sharded */
    char hidden_why[200]; /* error of shards without memory in a forward */
    int32_t index;        /* in the tree */
    int32_t rank, world;
    /* The ranks among which parameters are divided: `comm`, or with hybrid sharding a part of it.
     * Gradients are summed over `comm`; each rank sums the elements that it owns. */
    ms_comm *shards;
    int32_t shard_rank, shard_world;

    /* plan */
    ms_fsdp_unit_options options;
    int32_t orig_dtype, param_dtype, reduce_dtype;
    int32_t grad_dtype;       /* of reduced gradients: orig_dtype, or kept in param_dtype */
    bool full_forward;        /* the next forward is in orig_dtype: evaluation */
    bool full_use;            /* so was the latest one, or the one that a backward has reached */
    int32_t full_dtype;       /* of `full`: that of the latest use */
    bool is_root, is_sharded; /* is_sharded: not NO_SHARD */
    bool offloads; /* masters, reduced gradients and optimizer state are in the device's host memory
                    */
    int32_t n_params, n_own;
    msi_unit_param *params;
    ms_layout *layout;
    msi_extent *own;                   /* (n_own) this rank's extents */
    msi_extent *theirs;                /* room for another rank's */
    int64_t numel, total, shard_numel; /* total: without the tail padding */

    /* parameters */
    int32_t state;       /* MS_UNIT_* */
    msi_storage *master; /* shard_numel elements of orig_dtype; NULL before it has values */
    msi_values values;
    msi_gather gather;
    msi_storage *full;     /* storage of unsharded views; bound to the gathered memory */
    msi_storage *hidden;   /* storage of shards in a forward: no memory */
    msi_storage *summoned; /* private full copy, or NULL */
    bool is_summoned;      /* one of the units that the running summon is about */
    ms_tensor *flat;       /* retained; NULL before ms_fsdp_unit_flat() */
    msi_grad_sink flat_sink;
    msi_use use;
    msi_settings settings;
    ms_tensor **observed; /* (1 + n_params) or NULL: the shard, the full parameters */

    /* gradients */
    msi_accumulator sums;
    uint64_t n_kept;         /* the model's unreduced backwards while `sync` was false */
    msi_storage *micro_view; /* storage of views of the running micro-batch's gradient */
    msi_reduction reduction;
    bool has_slot;     /* of gradients: it was trainable when the model's slots were made */
    msi_storage *grad; /* reduced, grad_dtype; NULL if no .grad shows it. Its layout is that of
                          reduction.own: the shard's, or the trained elements in a row */
    msi_extent *grad_extent; /* (n_params) those of the trained elements */
    bool shows_full_grads;   /* summoned with its gradients */
    msi_unit_hook hooks[2];  /* by moment: MS_HOOK_* */
    ms_tensor *apart;        /* where the running reduction stores the sum; NULL: `grad` */
};

/* Elements of the unsharded parameters, with all padding. */
static inline int64_t msi_unit_full_numel(const ms_fsdp_unit *u)
{
    return msi_layout_full_numel(u->layout);
}

/* True if it gathers in a slot; else the master or a private copy is used. */
static inline bool msi_unit_shares(const ms_fsdp_unit *u)
{
    return u->is_sharded && (u->shard_world > 1 || u->param_dtype != u->orig_dtype || u->offloads);
}

static inline ms_status msi_unit_storage(const ms_fsdp_unit *u, msi_storage **out, int64_t nbytes,
                                         int32_t mem_kind)
{
    return u->offloads ? msi_storage_new_pinned(out, u->ctx, nbytes, mem_kind)
                       : msi_storage_new(out, u->ctx, nbytes, mem_kind);
}

/* dtype in which the next forward computes. */
static inline int32_t msi_unit_forward_dtype(const ms_fsdp_unit *u)
{
    return u->full_forward ? u->orig_dtype : u->param_dtype;
}

/* dtype of a whole gradient in the slot. Equal on all ranks, even if one rank's backwards reached
 * the unit only once. */
static inline int32_t msi_unit_slot_dtype(const ms_fsdp_unit *u)
{
    return u->n_kept > 0 ? u->sums.node_dtype : u->sums.micro_dtype;
}

/* Full parameters are kept after a forward. */
static inline bool msi_unit_keeps_after_forward(const ms_fsdp_unit *u)
{
    return u->settings.after_forward == MSI_BY_STRATEGY
               ? u->options.strategy != MS_FSDP_FULL_SHARD || u->is_root
               : u->settings.after_forward == MSI_KEEP;
}

/* They are kept after a backward; by the strategy only if it does not reduce, which saves the next
 * forward's gather. */
static inline bool msi_unit_keeps_after_backward(const ms_fsdp_unit *u, bool reduces)
{
    return u->settings.after_backward == MSI_BY_STRATEGY
               ? u->options.strategy != MS_FSDP_FULL_SHARD && !reduces
               : u->settings.after_backward == MSI_KEEP;
}

/* Elements [offset, offset + numel) of a storage in the unit's own dtype. */
static inline msi_view msi_flat_view(const ms_fsdp_unit *u, msi_storage *s, int64_t offset,
                                     int64_t numel)
{
    msi_view v = {.storage = s, .offset = offset};

    msi_view_set_contiguous(&v, u->orig_dtype, 1, &numel);
    return v;
}

/* This rank's elements of a parameter in a storage laid out like the master. */
static inline msi_view msi_piece_view(const ms_fsdp_unit *u, const msi_unit_param *p,
                                      msi_storage *shard)
{
    return msi_flat_view(u, shard, p->piece.offset_in_shard, p->piece.numel);
}

/* True if ops of the running backward will still read its parameters. */
static inline bool msi_unit_is_differentiated(const ms_fsdp_unit *u)
{
    return u->use.differentiated && (u->use.pending > 0 || u->use.backward_passes > 0);
}

/* 0 for a unit without a tree. */
static inline int32_t msi_unit_model(const ms_fsdp_unit *u)
{
    return u->run != NULL ? u->run->model : 0;
}

/* -- facts.c ----------------------------------------------------------------------------------- */
msi_group_facts msi_unit_facts(const ms_fsdp_unit *u);
/* Compare a note (note.h) over the ranks of the unit's group; for msi_param_ops. */
void msi_unit_note(void *unit, const msi_note *note);
int64_t msi_unit_model_number(void *unit);
/* Log an event of a unit for MS_LOG=trace; `seq`: of its collective, 0 without one. */
void msi_unit_trace(const ms_fsdp_unit *u, const char *event, uint64_t seq);
/* Add an event (MS_PLAN_*) to the trace of the device that plans, if the unit is on it. */
void msi_unit_plan(const ms_fsdp_unit *u, int32_t kind);
/* MS_ASSERTION_ERROR if the masters are summoned: then the copies are the values, and masters would
 * be stale, or overwritten by the write-back. `what`: the script's call. `run` may be NULL. */
ms_status msi_masters_check(const msi_model_state *run, const char *what);

/* -- unit.c ------------------------------------------------------------------------------------ */
/* Free what a unit owns, but not the struct. */
void msi_unit_dispose(ms_fsdp_unit *u);
/* Remove a unit without a tree from its context's list. */
void msi_unit_delist(ms_fsdp_unit *u);

/* -- param_ops.c ------------------------------------------------------------------------------- */
/* For msi_param_ops. */
void msi_unit_touched(void *unit, int32_t index);
ms_status msi_unit_materialize(void *unit);
ms_status msi_unit_check_master(void *unit, const char *what);

/* Test hook: called whenever the state of a unit or its gradient changes. */
extern void (*msi_fsdp_state_changed)(const ms_fsdp_unit *u);
void msi_unit_changed(void *unit);

#endif
