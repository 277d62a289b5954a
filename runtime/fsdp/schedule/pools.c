/* The slots of a model: which units need which, and mapping them. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"
#include "unshard.h"

#include "device_comm.h"

#include <stdlib.h>
#include <string.h>

/* A plan and its slots. */
typedef struct mapping {
    msi_group_facts *facts; /* (n_units) */
    msi_slot_wish *wish;    /* (n_units) */
    msi_slot **home;        /* (n_units) */
    msi_slots_plan plan;
} mapping;

static void mapping_free(mapping *m)
{
    free(m->facts);
    free(m->wish);
    free(m->home);
}

/* The caller frees it, in any case. */
static ms_status mapping_new(mapping *m, const ms_fsdp_tree *tree)
{
    *m = (mapping){.facts = NULL};
    MS_TRY(msi_new_array(&m->facts, tree->n_units, "units to plan"));
    MS_TRY(msi_new_array(&m->wish, tree->n_units, "units to plan"));
    MS_TRY(msi_new_array(&m->home, tree->n_units, "units to plan"));
    for (int32_t i = 0; i < tree->n_units; i++) {
        m->facts[i] = msi_unit_facts(tree->units[i]);
    }
    return MS_OK;
}

static int32_t ring_of_params(const ms_fsdp_tree_options *o)
{
    const bool prefetches = o->backward_prefetch != MS_FSDP_PREFETCH_NONE || o->forward_prefetch;

    return o->n_slots > 0 ? o->n_slots : prefetches ? 3 : 2;
}

/* False: all share the host's. */
static bool has_own_memory(const ms_context *ctx, int32_t world)
{
    msi_device *d = ctx->device;
    msi_device_info info = {.uuid = ""};

    if (world > 1 && d != NULL) {
        d->ops->info(d, &info);
    }
    return msi_device_has_memory(&info);
}

/* True if ranks' devices have separate memories. */
static ms_status are_apart(const ms_fsdp_tree *tree, bool *apart)
{
    *apart = has_own_memory(tree->ctx, tree->world);
    return !*apart || ms_comm_is_fake(tree->comm) ? MS_OK /* fake ranks have one each */
                                                  : msi_comm_are_apart(tree->comm, apart);
}

static const char *const layouts[] = {[MSI_SLOTS_AUTO] = "auto",
                                      [MSI_SLOTS_SHARED] = "shared",
                                      [MSI_SLOTS_PULL] = "pull",
                                      [MSI_SLOTS_NCCL] = "nccl"};

msi_slots_layout msi_pools_wish(void)
{
    return (msi_slots_layout)msi_switch_choice("MS_SLOTS", layouts, MSI_COUNT(layouts),
                                               MSI_SLOTS_AUTO);
}

static msi_slots_layout layout_of(const ms_context *ctx, msi_slots_layout wish, bool apart)
{
    return wish != MSI_SLOTS_AUTO                 ? wish
           : !apart                               ? MSI_SLOTS_SHARED
           : msi_device_communicates(ctx->device) ? MSI_SLOTS_NCCL
                                                  : MSI_SLOTS_PULL;
}

/* Known once there are slots. */
static msi_slots_layout wish_of(const ms_fsdp_tree *tree)
{
    return tree->run.phase != MSI_UNUSED ? tree->layout : tree->slots_wish;
}

/* Between hosts, slots are in host memory, with the same parts on each, or devices exchange them.
 */
static ms_status check_hosts(const ms_fsdp_tree *tree, msi_slots_layout layout)
{
    const msi_hosts *hosts = msi_comm_hosts(tree->comm);

    if (hosts->n == 1 || layout == MSI_SLOTS_NCCL ||
        (layout == MSI_SLOTS_SHARED && tree->ctx->device == NULL && hosts->per_host > 0 &&
         msi_comm_hosts(tree->shards)->per_host > 0)) {
        return MS_OK;
    }
    return MS_FAIL(
        MS_NOT_IMPLEMENTED_ERROR,
        "a model on several hosts: its ranks have GPUs connected by NCCL (MS_SLOTS=nccl), "
        "or are on the CPU, share slots and are equally many on each host, in a row");
}

/* Equal on all ranks, else the next collective reports it. */
static ms_status choose_layout(const ms_fsdp_tree *tree, msi_slots_layout *layout)
{
    const msi_note note = {{.text = "devices"},
                           {.text = "MS_SLOTS MS_DEVICE memories MS_NCCL_DETERMINISTIC"},
                           {tree->slots_wish, tree->ctx->device != NULL,
                            has_own_memory(tree->ctx, tree->world), msi_slots_sum_in_order()},
                           .n_numbers = 4};
    bool apart;

    msi_comm_note(tree->comm, &note);
    MS_TRY(are_apart(tree, &apart));
    *layout = layout_of(tree->ctx, tree->slots_wish, apart);
    msi_log(2, "slots: layout %s", layouts[*layout]);
    return check_hosts(tree, *layout);
}

static ms_status new_params(ms_fsdp_tree *tree)
{
    ms_status status;
    mapping m;

    MS_TRY(choose_layout(tree, &tree->layout));
    MS_TRY_GOTO(mapping_new(&m, tree), done);
    MS_TRY_GOTO(msi_plan_param_slots(m.facts, tree->n_units, ring_of_params(&tree->options),
                                     tree->shard_world, tree->layout, m.wish, &m.plan),
                done);
    MS_TRY_GOTO(msi_slot_pool_new(&tree->run.params, tree->ctx, tree->shards, &m.plan, m.wish,
                                  tree->n_units, m.home),
                done);
    MS_TRY_GOTO(msi_slot_pool_connect(&tree->run.params, -1), done);
    for (int32_t i = 0; i < tree->n_units; i++) {
        msi_unit_connect_params(tree->units[i], m.home[i]);
    }
done:
    mapping_free(&m);
    return status;
}

static ms_status new_gradients(ms_fsdp_tree *tree)
{
    ms_status status;
    mapping m;

    MS_TRY_GOTO(mapping_new(&m, tree), done);
    for (int32_t i = 0; i < tree->n_units; i++) { /* a graph may wait from before it was frozen */
        m.facts[i].trains |= tree->units[i]->has_slot;
    }
    MS_TRY_GOTO(msi_plan_gradient_slots(m.facts, tree->n_units, tree->run.fp32_slots, tree->world,
                                        msi_comm_hosts(tree->comm)->n, tree->layout, m.wish,
                                        &m.plan),
                done);
    MS_TRY_GOTO(msi_slot_pool_new(&tree->run.gradients, tree->ctx, tree->comm, &m.plan, m.wish,
                                  tree->n_units, m.home),
                done);
    MS_TRY_GOTO(msi_slot_pool_connect(&tree->run.gradients, tree->shard_rank), done);
    for (int32_t i = 0; i < tree->n_units; i++) {
        msi_unit_connect_gradients(tree->units[i], m.home[i]);
        tree->units[i]->has_slot = m.facts[i].trains;
    }
done:
    mapping_free(&m);
    return status;
}

/* True if gradient slots are, or will be, wide enough for inner nodes. */
static bool is_wide(const ms_fsdp_tree *tree)
{
    bool wide = tree->run.fp32_slots;

    for (int32_t i = 0; i < tree->n_units; i++) {
        wide |= !tree->units[i]->settings.sync;
    }
    return wide;
}

/* True if slots are too small for inner nodes. */
static bool is_narrow(const ms_fsdp_tree *tree)
{
    bool narrow = false;

    for (int32_t i = 0; i < tree->n_units; i++) {
        narrow |= tree->units[i]->reduce_dtype != tree->units[i]->sums.node_dtype;
    }
    return narrow && !tree->run.fp32_slots;
}

static bool has_gradients(const ms_fsdp_tree *tree)
{
    return tree->run.gradients.comm != NULL;
}

/* Frees the old slots first: both together would exceed the plan. */
static ms_status renew_gradients(ms_fsdp_tree *tree, const char *what)
{
    MS_ASSERT(msi_progress_first(&tree->run.progress, MSI_TASK_REDUCE) == NULL);
    msi_progress_commit(&tree->run.progress);
    msi_slot_pool_free(&tree->run.gradients); /* peers have their own mappings of the old words */
    ms_status status = new_gradients(tree);

    if (status != MS_OK) {
        msi_tree_give_up(tree, what);
    }
    return status;
}

ms_status msi_pools_widen(ms_fsdp_tree *tree)
{
    const bool narrow = is_narrow(tree);

    tree->run.fp32_slots = true;
    ms_status status = narrow ? renew_gradients(tree, "no_sync") : MS_OK;

    tree->run.fp32_slots = status == MS_OK;
    return status;
}

/* True if a unit that was frozen when the slots were made is trainable. */
static bool lacks_slots(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (!tree->units[i]->has_slot && msi_unit_facts(tree->units[i]).trains) {
            return true;
        }
    }
    return false;
}

ms_status msi_pools_extend(ms_fsdp_tree *tree)
{
    return MSI_UNLIKELY(lacks_slots(tree)) && !msi_in_backward(&tree->run)
               ? renew_gradients(tree, "requires_grad")
               : MS_OK;
}

ms_status msi_pools_restore(ms_fsdp_tree *tree)
{
    return MSI_LIKELY(has_gradients(tree)) ? MS_OK : new_gradients(tree);
}

ms_status msi_pools_new(ms_fsdp_tree *tree)
{
    MS_TRY(new_params(tree));
    tree->run.fp32_slots = is_wide(tree);
    return new_gradients(tree);
}

void msi_pools_free(ms_fsdp_tree *tree)
{
    msi_slot_pool_free(&tree->run.params);
    msi_slot_pool_free(&tree->run.gradients);
}

/* -- plans ------------------------------------------------------------------------------------- */

/* Without communication: assumes that ranks with separate memories have one each. Uses the device
 * of the masters, once it is open. */
static ms_status guess_layout(ms_context *ctx, msi_slots_layout wish, int32_t world,
                              msi_slots_layout *layout)
{
    if (wish == MSI_SLOTS_AUTO && world > 1) {
        MS_TRY(msi_memory_open(ctx));
    }
    *layout = layout_of(ctx, wish, has_own_memory(ctx, world));
    return MS_OK;
}

ms_status msi_groups_plan(const msi_group_facts *groups, int32_t n, ms_comm *comm,
                          const ms_fsdp_tree_options *o, msi_slots_layout wish, bool wide,
                          int64_t micro_batches, ms_fsdp_plan *plan)
{
    msi_step step = {.rank = ms_comm_rank(comm),
                     .world = ms_comm_size(comm),
                     .hosts = msi_comm_hosts(comm)->n,
                     .n_ring = ring_of_params(o),
                     .wide = wide,
                     .micro_batches = micro_batches};

    MS_TRY(guess_layout(msi_context(), wish, step.world, &step.layout));
    return msi_plan_step(groups, n, &step, plan);
}

ms_status msi_pools_plan(const ms_fsdp_tree *tree, int64_t micro_batches, ms_fsdp_plan *plan)
{
    ms_status status;
    mapping m;

    MS_TRY_GOTO(mapping_new(&m, tree), done);
    MS_TRY_GOTO(msi_groups_plan(m.facts, tree->n_units, tree->comm, &tree->options, wish_of(tree),
                                is_wide(tree), micro_batches, plan),
                done);
    if (tree->run.phase != MSI_UNUSED) { /* rings may have grown */
        plan->param_slots = msi_slot_pool_bytes(&tree->run.params);
        plan->own_slots = plan->param_slots - tree->run.params.nbytes;
        if (has_gradients(tree) && !lacks_slots(tree) && (micro_batches == 1 || !is_narrow(tree))) {
            plan->gradient_slots = msi_slot_pool_bytes(&tree->run.gradients);
            plan->own_gradients = plan->gradient_slots - tree->run.gradients.nbytes;
        }
        plan->arena = plan->param_slots + plan->gradient_slots;
    }
done:
    mapping_free(&m);
    return status;
}
