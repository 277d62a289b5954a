/* Units, slots, gradients, the tree: the inside of moonshard/fsdp.h.
 *
 * A unit's parameters have, on every rank, a private master shard, and while unsharded a full copy
 * in a slot that all ranks of the host share (one rank: private memory; NO_SHARD or a world of one
 * in the master's dtype: the master itself). Gradients of one backward are born in a gradient slot
 * of this rank that its peers can read.
 *
 * [Note: slot protocol] Per slot and rank there is one word each of
 *     filled    generation whose own extents this rank has cast into the slot
 *     dropped   generation whose own extents it will not cast any more
 *     released  generation this rank is done reading
 *     said      hash of all this rank had said when it named the generation it filled
 * and per gradient slot and rank
 *     ready     generation whose gradient of this rank is complete
 *     reduced   generation whose chunk this rank has reduced in place (NO_SHARD only)
 *     dropped   generation whose chunk it will not reduce any more
 *     read      generation this rank has read everything of that it needs
 *     said      as above, of the generation that is ready
 * Slot and generation of every use follow from program order alone: of the free slots the one that
 * was taken longest ago is taken, and its generation is counted up. So ranks agree without
 * talking. A slot is filled with generation g once released[q] >= g - 1 for every rank q, and read
 * once filled[q] >= g for every q that has said the same. A gradient slot is written with g once
 * read[q] >= g - 1 for every q. No barriers. What cannot be done yet is queued, and every wait runs
 * the queue. A publish still queued when the unit is skipped, written or reset is dropped:
 * `dropped` and `released` are stored, the slot is not. Ranks that run one program all drop it, and
 * nobody reads. One that drops alone leaves a reader with dropped[q] >= g and filled[q] < g; that
 * stays so, as q fills nothing later before the reader releases g: the job ends there. The same
 * holds of `reduced`. (One that had filled what it skips is told apart by its note.) The model in
 * slots.pml checks that this neither deadlocks, nor lets a slot change under a reader, nor lets
 * anybody read what was not filled. */
#ifndef MSI_FSDP_H
#define MSI_FSDP_H

#include "autograd.h"
#include "comm.h"
#include "live.h"
#include "moonshard/fsdp.h"

enum { MSI_GRAD_RING = 2, MSI_MAX_LEVELS = 40, MSI_PAGE = 4096 };

typedef struct msi_slot_word {
    _Alignas(64) _Atomic uint64_t filled;
    _Atomic uint64_t dropped;
    _Atomic uint64_t released;
    _Atomic uint64_t said;
} msi_slot_word;

typedef struct msi_grad_word {
    _Alignas(64) _Atomic uint64_t ready;
    _Atomic uint64_t reduced;
    _Atomic uint64_t dropped;
    _Atomic uint64_t read;
    _Atomic uint64_t said;
    _Atomic uint64_t whole; /* not 0: this rank has contributed to every parameter */
} msi_grad_word;

/* Room for the full parameters of one unit at a time. */
typedef struct msi_slot {
    msi_slot_word *words; /* (W) */
    char *rw, *ro;
    int64_t nbytes;
    uint64_t generation; /* of the latest use, in this rank's program order */
    ms_fsdp_unit *holder;
    int64_t taken_at; /* order in which it was taken last */
    bool ring;        /* false: a home slot */
} msi_slot;

/* Room for every rank's gradient of one unit at a time. */
typedef struct msi_grad_slot {
    msi_grad_word *words; /* (W) */
    char *base;           /* rank q's gradient at base + q * stride */
    int64_t stride;       /* bytes of one rank's gradient */
    uint64_t generation;
    uint64_t seq;          /* of the reduction that used it last */
    ms_fsdp_unit *holder;  /* the unit whose gradient is in it and not yet reduced */
    int64_t taken_at;      /* order in which it was taken */
    ms_fsdp_unit *home_of; /* the only unit that uses it; NULL: the ring's */
} msi_grad_slot;

/* All gradient slots of a tree, and their memory. */
typedef struct msi_grad_room {
    msi_segment *segments;
    msi_grad_slot **slots;
    int32_t n_segments, n_slots;
    int64_t ring_bytes; /* of one rank's gradient in a ring slot */
} msi_grad_room;

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
    bool trained;     /* its requires_grad, as far as the other ranks were told */
    bool told_grad;   /* of a replica: it has a gradient, as far as they know ... */
    int64_t told_grad_version; /* ... and which version of the reduced one */
    uint64_t origin;           /* hash of what its first values came from: equal for equal values */
    bool given;                /* ... which the script wrote or loaded, before the first use */
    msi_grad_sink sink;
} msi_unit_param;

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

/* A node of the tree over the micro-batches of this rank. */
typedef struct msi_level {
    void *data; /* NULL: empty */
    int32_t dtype;
} msi_level;

struct ms_fsdp_unit {
    msi_live live;
    ms_context *ctx;
    ms_comm *comm;
    ms_fsdp_tree *tree;
    char *name;
    msi_label label;      /* of the name */
    char absent[512];     /* why views have no memory while sharded ... */
    char hidden_why[200]; /* ... and why shards have none in a forward */
    int32_t index;        /* in the tree */
    ms_fsdp_unit_options options;
    int32_t orig_dtype, param_dtype, reduce_dtype;
    int32_t rank, world;
    bool is_root, is_sharded; /* is_sharded: not NO_SHARD */
    int32_t n_params;
    msi_unit_param *params;
    ms_layout *layout;
    int64_t numel, total, shard_numel; /* total: without the tail padding */
    msi_storage *master;               /* shard_numel elements of orig_dtype; NULL before */
    bool materialized;
    msi_storage *full;   /* what unsharded views read; bound to a slot, the master or `own` */
    msi_storage *hidden; /* what shards show in a forward: nothing */

    int32_t state;        /* MS_UNIT_* */
    msi_slot *home;       /* own slot, or NULL: one of the ring */
    msi_slot *slot;       /* in use while published or unsharded */
    uint64_t generation;  /* of `slot` while published or unsharded */
    uint64_t seq;         /* of the unshard's fingerprint ... */
    uint64_t said;        /* ... and all that this rank had said with it */
    bool publish_queued;  /* depends on how far peers are: nothing may be decided by it */
    bool outdated;        /* the master was written since the program named its latest publish */
    bool held;            /* unsharded by the script, for as long as it stays so */
    int64_t told_version; /* of the master: later ones were written by the script itself ... */
    bool written;         /* ... and so was this, though an optimizer or a load came after it */
    bool gather_aliases;  /* full parameters are the master itself */

    /* forward and backward of the running iteration */
    int32_t post_index; /* place in the tree's post-forward order, -1: none */
    bool needs_pre_backward, ran_pre_backward;
    msi_pass *passes;  /* all records */
    int32_t lingers;   /* passes that this backward reaches and is not past yet */
    int32_t n_waiting; /* graphs that wait for a backward since the turn began */
    int64_t turn;      /* counts evaluations; from 1 */
    int32_t pending;   /* leaves of the running backward still to come */
    bool expecting;    /* has leaves in the running backward */
    msi_grad_slot *grad_home;
    msi_grad_slot *grad_slot;
    uint64_t grad_generation, grad_seq;
    int32_t grad_phase;        /* MSI_GRAD_* */
    int32_t slot_dtype;        /* of the finished gradient in the slot */
    void *leaf;                /* where this backward's gradient is born */
    bool leaf_private;         /* `leaf` is not the slot's */
    msi_storage *leaf_storage; /* wraps `leaf` for views */
    msi_level level[MSI_MAX_LEVELS];
    msi_storage *grad; /* reduced gradient shard, orig_dtype; NULL while no parameter shows any */

    void *resident;           /* private copy in param_dtype of a NO_SHARD unit, or NULL */
    int64_t followed_version; /* of the master, when `full` was last given its values */
    msi_storage *summoned;    /* private full copy while summoned, or NULL */
};

enum {
    MSI_GRAD_NONE,    /* nothing */
    MSI_GRAD_WRITING, /* the running backward writes `leaf` */
    MSI_GRAD_READY,   /* complete in the slot; own extents not reduced yet */
    MSI_GRAD_REDUCED  /* NO_SHARD: own chunk reduced; the others' not copied yet */
};

struct ms_fsdp_tree {
    msi_live live;
    ms_context *ctx;
    ms_comm *comm;
    ms_fsdp_tree_options options;
    int32_t rank, world;
    int32_t model; /* its number in the group; 0: before the first use */
    int32_t n_units;
    ms_fsdp_unit **units;
    bool initialized, sync, summoned;
    bool named;         /* peers count on what runs now: see [Note: giving up] */
    bool *written;      /* (1 + world, n_units) room to agree on kept units that a rank wrote */
    uint64_t *words;    /* while summoned: room to agree on what was written, in summon.c */
    bool hides_shards;  /* a root forward runs ... */
    bool records;       /* ... and has made results that may be differentiated */
    bool same_numerics; /* as far as every rank's ms_numerics() tells */
    double factor;      /* of reduced gradients; 0: 1 / world */

    msi_segment *segments; /* parameter slots' memory: the arena and what it grew by */
    int32_t n_segments;
    msi_slot **slots;
    int32_t n_slots;
    int64_t ring_bytes; /* of one ring slot; 0: no unit uses the ring */
    int64_t n_taken;    /* slots, so far */
    msi_grad_room grads;
    int64_t grad_taken; /* counts gradient slots being taken */
    bool wide;          /* gradient slots hold inner nodes of the micro-batch tree */

    ms_fsdp_unit **publishing; /* queued publishes, in order */
    int32_t n_publishing;
    ms_fsdp_unit **reducing; /* gradients to reduce, in order */
    int32_t n_reducing;
    uint64_t n_kept; /* backwards of no_sync to be reduced; once they are, the next sets it to 0 */
    ms_fsdp_unit **post_order; /* of this iteration's forward */
    int32_t n_post;
    ms_fsdp_unit **pre_order; /* of the first iteration's forward */
    int32_t n_pre;
    int32_t forward_at; /* next place in pre_order this iteration */
    msi_pass *forward;  /* the innermost that runs, or NULL */
    bool pre_order_fixed;
    bool in_backward;
    bool settled;         /* all that the backward reduces is reduced */
    bool given_up;        /* its gradients were, in the middle of it */
    msi_deferred freeing; /* its owner let go of it while a backward ran */
};

/* 0 for a unit in no tree. */
static inline int32_t msi_unit_model(const ms_fsdp_unit *u)
{
    return u->tree != NULL ? u->tree->model : 0;
}

/* -- slots.c: parameters ----------------------------------------------------------------------- */
/* Make arena and slots for all units. Collective. */
ms_status msi_slots_new(ms_fsdp_tree *tree);
void msi_slots_free(ms_fsdp_tree *tree);
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
/* Reshard those of `units` (n of the tree's) that are kept unsharded with values from before the
 * last write, whichever rank made it. Collective when one is kept. */
ms_status msi_units_renew(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, int32_t n);
/* Could this unit be published without more memory? (prefetch asks) */
bool msi_slot_available(const ms_fsdp_unit *u);
/* Units that get memory of their own instead of sharing a ring: `keeps` says which must; those with
 * more than twice the median of the rest are added. Marks them in `own` (n_units); gives the
 * largest of the rest. */
ms_status msi_ring_plan(ms_fsdp_tree *tree, int64_t (*bytes)(const ms_fsdp_unit *u),
                        bool (*keeps)(const ms_fsdp_unit *u), bool *own, int64_t *ring_bytes,
                        int32_t *n_ringed);

/* -- queue.c: what could not be done at once --------------------------------------------------- */
/* Do all that can be done now. */
ms_status msi_queue_run(ms_fsdp_tree *tree);
/* Run the queue until `ready(user)`; `seq` names what is waited for. */
ms_status msi_queue_wait(ms_fsdp_tree *tree, uint64_t seq, bool (*ready)(void *user), void *user);
/* Take a publish out of the queue. */
void msi_queue_drop_publish(ms_fsdp_unit *u);
/* Take a reduction out of the queue, if it is there. */
void msi_queue_drop_reduction(ms_fsdp_unit *u);

/* slots.c's part of the queue: may this publish be filled now, and filling it. */
bool msi_publish_possible(ms_fsdp_unit *u);
ms_status msi_publish_fill(ms_fsdp_unit *u);
/* reduce.c's part: is there a step of this unit's reduction to do now, and doing it. `*finished`
 * tells whether the unit leaves the queue. */
bool msi_reduce_possible(ms_fsdp_unit *u);
ms_status msi_reduce_step(ms_fsdp_unit *u, bool *finished);

/* -- grad_slots.c ------------------------------------------------------------------------------ */
/* Make the gradient slots. Collective. */
ms_status msi_gradients_new(ms_fsdp_tree *tree);
void msi_gradients_free(ms_fsdp_tree *tree);
/* Bytes of the gradient slots, as they are or (`wide`) after msi_gradients_widen(). */
ms_status msi_gradients_bytes(ms_fsdp_tree *tree, bool wide, int64_t *nbytes);
/* Slots must hold inner nodes of the micro-batch tree too (no_sync). Collective when it grows. */
ms_status msi_gradients_widen(ms_fsdp_tree *tree);
/* Give the unit a slot that every peer has read. */
ms_status msi_grad_slot_take(ms_fsdp_unit *u);
/* Rank's gradient in the unit's slot. */
char *msi_grad_slot_data(const ms_fsdp_unit *u, int32_t rank);
/* Which parameters (n_params) the rank has contributed to. */
bool *msi_grad_slot_used(const ms_fsdp_unit *u, int32_t rank);
/* dtype of inner nodes of the gradient tree. */
int32_t msi_node_dtype(const ms_fsdp_unit *u);
/* Elements of one rank's whole gradient: the flat with all padding. */
int64_t msi_leaf_numel(const ms_fsdp_unit *u);

/* -- leaf.c ------------------------------------------------------------------------------------ */
void msi_unit_sinks_install(ms_fsdp_unit *u);
/* All leaves of this backward are in: hand the gradient on. */
ms_status msi_unit_gradient_complete(ms_fsdp_unit *u);
/* Drop the running backward's gradient after an error, announced or not; `all`: and what earlier
 * ones have reduced or accumulated. Needs neither memory nor peers. */
void msi_unit_gradient_drop(ms_fsdp_unit *u, bool all);
/* An error when it was dropped in the middle of the running backward: a forward that a hook ran and
 * caught has failed. */
ms_status msi_unit_check_kept(const ms_fsdp_unit *u);

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
void msi_unit_passes_free(ms_fsdp_unit *u);

/* -- levels.c ---------------------------------------------------------------------------------- */
bool msi_unit_has_levels(const ms_fsdp_unit *u);
void msi_unit_levels_free(ms_fsdp_unit *u);
/* no_sync: the leaf joins the binary counter; an empty one (NULL) too. */
ms_status msi_unit_keep_leaf(ms_fsdp_unit *u);
/* dtype of a whole gradient in the slot, the same on all ranks, also where one rank's backwards
 * have reached the unit only once. */
int32_t msi_slot_dtype(const ms_fsdp_unit *u);
/* The last leaf, if there is one: fold every level, smallest first; the root ends in the slot. */
ms_status msi_unit_fold_into_slot(ms_fsdp_unit *u);
/* The unit's part of msi_param_ops. */
bool msi_unit_accumulates(void *unit, int32_t index);
ms_status msi_unit_accumulated(void *unit, int32_t index, ms_tensor **out);
ms_status msi_unit_replace_accumulated(void *unit, int32_t index, const msi_view *value);

/* -- reduce.c ---------------------------------------------------------------------------------- */
/* The gradient in the unit's slot is complete: make what its reduction needs, tell the peers, queue
 * it. */
ms_status msi_gradient_announce(ms_fsdp_unit *u);
/* Give up the slot, the reduction of what is in it, and what was made to show its outcome. */
void msi_gradient_abandon(ms_fsdp_unit *u);
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
/* Wait until the unit's announced gradient is reduced. */
ms_status msi_reduction_wait(ms_fsdp_unit *u);
/* Reduce everything that is queued; waits. */
ms_status msi_gradients_finish(ms_fsdp_tree *tree);

/* -- unit.c ------------------------------------------------------------------------------------ */
/* Let the handles show what they should now: [Note: what handles show]. */
void msi_unit_show(ms_fsdp_unit *u);
/* The same, where nothing but what uses the unit may have changed: cheap when they do already. */
void msi_unit_show_use(ms_fsdp_unit *u);
/* Views without memory say that the unit is sharded; or, not NULL, that the running backward's
 * gradients were given up by a forward that failed with `cause`. */
void msi_unit_explain(ms_fsdp_unit *u, const char *cause);
/* Free what a unit holds; the struct stays. */
void msi_unit_dispose(ms_fsdp_unit *u);

/* -- full.c ------------------------------------------------------------------------------------ */
/* The whole flat parameter in the master's dtype, in new memory. Collective. MS_COMM_ERROR on all
 * ranks when replicas differ. `what` the script has called, for those that wait: "hash of unit". */
ms_status msi_unit_gather_flat(ms_fsdp_unit *u, const char *what, msi_storage **out);

/* -- summon.c ---------------------------------------------------------------------------------- */
/* May `what` the script has called read or write the masters now? While they are summoned the
 * copies are the values, and what went to the masters would be stale, or lost when the copies are
 * written back: MS_ASSERTION_ERROR. `tree` NULL: of a unit in none. */
ms_status msi_masters_check(const ms_fsdp_tree *tree, const char *what);

/* -- tree.c ------------------------------------------------------------------------------------ */
/* Units in no tree, so that closing their context finds them. */
ms_status msi_unit_enlist(ms_fsdp_unit *u);
void msi_unit_delist(ms_fsdp_unit *u);

/* After a failure, of which the thread's last error is the reason: tell the peers that this rank
 * does not finish what it has named in `what` ("": the reason says it). */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what);

/* All-gather of a few bytes that a call of the script, `what`, takes for this tree. */
ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out);

/* -- order.c ----------------------------------------------------------------------------------- */
typedef struct msi_place {
    ms_tensor *tensor;
    ms_fsdp_unit *unit; /* NULL: a plain parameter */
    int32_t index;      /* there */
} msi_place;

/* The model's parameters as `params` (n) lists them, plain ones among them; NULL: the units', one
 * after another. MS_VALUE_ERROR unless all of the units' are listed once. The caller releases
 * `*out` to the tree's heap.
 */
ms_status msi_order_new(const ms_fsdp_tree *tree, ms_tensor *const *params, int32_t n_params,
                        msi_place **out, int32_t *n);
/* Over the names: equal on ranks with equal orders. */
uint64_t msi_order_hash(const msi_place *places, int32_t n);

/* -- agree.c ----------------------------------------------------------------------------------- */
/* Is every rank's plan this one's? Else an error that names the first unit or parameter that
 * differs. */
ms_status msi_plans_agree(ms_fsdp_tree *tree);
/* Do all ranks begin with the same values? An error when replicas differ; when shards were cut from
 * different wholes rank 0 warns. */
ms_status msi_values_agree(ms_fsdp_tree *tree);
/* Hash of the values of a parameter of a unit that is not sharded. */
uint64_t msi_replica_hash(const ms_fsdp_unit *u, int32_t index);
/* Do all ranks compute alike? Else rank 0 warns, and the plan says so. */
ms_status msi_numerics_agree(ms_fsdp_tree *tree);

/* -- notes.c: what the running program should do alike on all ranks ---------------------------- */
void msi_tree_note_options(const ms_fsdp_tree *tree);
/* requires_grad flags that changed, replicated values that the script wrote. */
void msi_tree_note_changes(ms_fsdp_tree *tree);
/* The unit's part of msi_param_ops: say what comes; a replica's gradient that the script changed
 * since it was reduced. */
void msi_unit_note(void *unit, const msi_note *note);
void msi_tree_note(const ms_fsdp_tree *tree, const msi_note *note);
ms_status msi_unit_note_gradient(void *unit, int32_t index);
/* Those of a unit that the next reduction adds to. */
ms_status msi_unit_note_kept_gradients(ms_fsdp_unit *u);
/* A parameter's gradient is now what all ranks have made of it alike. */
void msi_unit_told_gradient(ms_fsdp_unit *u, int32_t index);
/* The master was written by one who calls touched(): tell it from a script's own writes. */
void msi_unit_note_touch(ms_fsdp_unit *u);

/* -- schedule.c -------------------------------------------------------------------------------- */
ms_status msi_schedule_new(ms_fsdp_tree *tree);
void msi_schedule_free(ms_fsdp_tree *tree);
/* The outermost unit that is in its forward, or NULL. */
const ms_fsdp_unit *msi_unit_in_forward(ms_fsdp_tree *tree);
/* An error while any unit is. */
ms_status msi_backward_may_begin(ms_fsdp_tree *tree);
/* A unit's backward is done with its parameters, perhaps: reshard, prefetch. */
ms_status msi_unit_post_backward(ms_fsdp_unit *u);
/* Will ops of the running backward still read its parameters? (After a forward that a hook ran.) */
bool msi_unit_is_differentiated(const ms_fsdp_unit *u);

/* Test hook: called at every change of state of a unit or its gradient. */
extern void (*msi_fsdp_state_changed)(const ms_fsdp_unit *u);
static inline void msi_unit_changed(const ms_fsdp_unit *u)
{
    if (MSI_UNLIKELY(msi_fsdp_state_changed != NULL)) {
        msi_fsdp_state_changed(u);
    }
}

#endif
