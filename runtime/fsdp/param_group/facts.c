/* Queries of a unit, and notes about it. */
#include "unit.h"

#include "device_plan.h"

void (*msi_fsdp_state_changed)(const ms_fsdp_unit *u);

void msi_unit_changed(void *unit)
{
    if (MSI_UNLIKELY(msi_fsdp_state_changed != NULL)) {
        msi_fsdp_state_changed(unit);
    }
}

/* A forward inside a backward (a recomputation) belongs to the backward. */
static int32_t training_of(const ms_fsdp_unit *u)
{
    if (msi_unit_is_differentiated(u)) {
        return MS_UNIT_PRE_BACKWARD;
    }
    return u->use.running > 0      ? MS_UNIT_FORWARD
           : u->use.differentiated ? MS_UNIT_POST_BACKWARD
                                   : MS_UNIT_IDLE;
}

ms_status ms_fsdp_unit_info_get(const ms_fsdp_unit *u, ms_fsdp_unit_info *info)
{
    *info = (ms_fsdp_unit_info){.strategy = u->options.strategy,
                                .n_params = u->n_params,
                                .numel = u->numel,
                                .padded_numel = msi_layout_gathered_numel(u->layout),
                                .shard_numel = u->shard_numel,
                                .param_dtype = u->param_dtype,
                                .reduce_dtype = u->reduce_dtype,
                                .orig_dtype = u->orig_dtype,
                                .state = u->state,
                                .training = training_of(u),
                                .model = msi_unit_model(u),
                                .is_root = u->is_root};
    return MS_OK;
}

msi_group_facts msi_unit_facts(const ms_fsdp_unit *u)
{
    msi_group_facts facts = {.full_numel = msi_unit_full_numel(u),
                             .shard_numel = u->shard_numel,
                             .n_shards = u->is_sharded ? u->shard_world : 0,
                             .n_params = u->n_params,
                             .orig_dtype = u->orig_dtype,
                             .param_dtype = u->param_dtype,
                             .reduce_dtype = u->reduce_dtype,
                             .grad_dtype = u->grad_dtype,
                             .is_sharded = u->is_sharded,
                             .shares = msi_unit_shares(u),
                             .keeps = msi_unit_keeps_after_forward(u),
                             .keeps_after_backward = msi_unit_keeps_after_backward(u, false),
                             .forward_only = u->settings.forward_only,
                             .is_root = u->is_root,
                             .full_precision_in_eval = u->options.full_precision_in_eval,
                             .offloads = u->offloads,
                             .layout =
                                 msi_layout_in_rank_order(u->layout) ? MS_FSDP_FLAT : MS_FSDP_ROWS};

    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].tensor->requires_grad) {
            facts.trains = true;
            facts.trained_numel += u->params[i].piece.numel;
        } else {
            facts.freezes = true;
        }
    }
    return facts;
}

ms_status ms_fsdp_unit_describe(const ms_fsdp_unit *u, ms_fsdp_group *group)
{
    *group = msi_unit_facts(u);
    return MS_OK;
}

const char *ms_fsdp_unit_name(const ms_fsdp_unit *u)
{
    return u->name;
}

const ms_layout *ms_fsdp_unit_layout(const ms_fsdp_unit *u)
{
    return u->layout;
}

void msi_unit_trace(const ms_fsdp_unit *u, const char *event, uint64_t seq)
{
    msi_log(3, "rank %d: %s unit '%s', model %d, collective %llu", u->rank, event, u->name,
            msi_unit_model(u), (unsigned long long)seq);
}

/* The members of a group of planned ranks, and with hybrid sharding where replicas lie. */
static void plan_places(ms_plan_event *event, const ms_fsdp_unit *u)
{
    const ms_comm *shards = u->is_sharded ? u->shards : u->comm;
    const int32_t n = ms_comm_size(shards);
    const int32_t all =
        u->world > 1 ? msi_comm_rank_in_job(u->comm, 1) - msi_comm_rank_in_job(u->comm, 0) : 1;

    event->first = msi_comm_rank_in_job(shards, 0);
    event->step = n > 1 ? msi_comm_rank_in_job(shards, 1) - event->first : all;
    event->across = u->is_sharded && event->step == all ? event->step * n : all;
}

void msi_unit_plan(const ms_fsdp_unit *u, int32_t kind)
{
    const bool reduces = kind == MS_PLAN_REDUCE;
    const int32_t dtype = reduces ? msi_unit_slot_dtype(u) : u->full_dtype;
    ms_plan_event event = {.kind = kind, .slot = -1};

    if (MSI_LIKELY(!msi_device_plans(u->ctx))) {
        return;
    }
    event.name = u->name;
    event.shards = u->is_sharded ? u->shard_world : 1;
    if (reduces) {
        event.ranks = u->world;
    } else if (kind == MS_PLAN_GATHER && msi_unit_shares(u)) {
        event.ranks = u->shard_world;
        event.slot = u->gather.slot != NULL ? u->gather.slot->number : -1;
    }
    if (event.ranks > 0) {
        plan_places(&event, u);
        event.nbytes = (double)(msi_unit_full_numel(u) * ms_dtype_size(dtype));
    }
    msi_plan_event(u->ctx, &event);
}

ms_status msi_masters_check(const msi_model_state *run, const char *what)
{
    return run == NULL || !run->summoned
               ? MS_OK
               : MS_FAIL(MS_ASSERTION_ERROR, "%s inside summon_full_params", what);
}

int64_t msi_unit_model_number(void *unit)
{
    const ms_fsdp_unit *u = unit;

    return msi_unit_model(u) - ((int64_t)u->world << 32);
}

void msi_unit_note(void *unit, const msi_note *note)
{
    const ms_fsdp_unit *u = unit;
    msi_note own = *note;

    own.model = msi_unit_model(u);
    msi_comm_note(u->comm, &own);
}
