/* Units: their parameters, layout and master shard. */
#include "array.h"
#include "gradient.h"
#include "observed.h"
#include "unshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- for lower layers -------------------------------------------------------------------------- */

static void orphan(void *unit, int32_t index)
{
    ms_fsdp_unit *u = unit;

    u->params[index].tensor = NULL;
}

static const msi_param_ops param_ops = {
    .touched = msi_unit_touched,
    .materialize = msi_unit_materialize,
    .check_master = msi_unit_check_master,
    .orphan = orphan,
    .gradient_like = msi_unit_gradient_like,
    .check_gradient = msi_unit_check_gradient,
    .await_gradient = msi_unit_await_gradient,
    .gradient_dropped = msi_unit_gradient_dropped,
    .has_gradient = msi_unit_has_gradient,
    .accumulates = msi_unit_accumulates,
    .accumulated = msi_unit_accumulated,
    .replace_accumulated = msi_unit_replace_accumulated,
    .cast = msi_unit_cast,
    .note = msi_unit_note,
    .model = msi_unit_model_number,
};

/* -- units without a tree ---------------------------------------------------------------------- */

static void close_units(void *first)
{
    for (msi_chained *link = first, *next; link != NULL; link = next) {
        ms_fsdp_unit *u = link->owner;

        next = link->next;
        msi_unit_dispose(u);
    }
}

void msi_unit_delist(ms_fsdp_unit *u)
{
    msi_chain_remove(u->ctx, MSI_ROOM_FSDP_UNITS, &u->chained);
}

/* -- construction ------------------------------------------------------------------------------ */

static ms_status check_params(const char *name, ms_tensor *const *params, int32_t n,
                              const char *const *names)
{
    if (n < 1) {
        return MS_FAIL(
            MS_VALUE_ERROR,
            "Cannot construct a FlatParamHandle with an empty parameter list (unit '%s')", name);
    }
    for (int32_t i = 0; i < n; i++) {
        const ms_tensor *t = params[i];

        if (t->param != NULL && t->param->unit != NULL) {
            return MS_FAIL(MS_VALUE_ERROR, "parameter '%s' of unit '%s' is in unit '%s' already",
                           names[i], name, ((ms_fsdp_unit *)t->param->unit)->name);
        }
        if (!ms_dtype_is_floating(t->v.dtype)) {
            return MS_FAIL(MS_VALUE_ERROR, "Cannot flatten integer dtype tensors");
        }
        if (t->v.dtype != params[0]->v.dtype) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "Must flatten tensors with uniform dtype but got %s and %s",
                           ms_dtype_name(params[0]->v.dtype), ms_dtype_name(t->v.dtype));
        }
        if (t->v.ndim == 0) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "FSDP doesn't support scalar parameters. Change %s to a 1D tensor with "
                           "numel equal to 1.",
                           names[i]);
        }
        for (int32_t j = 0; j < i; j++) {
            if (params[j] == t) {
                return MS_FAIL(MS_VALUE_ERROR, "parameter '%s' of unit '%s' is listed twice",
                               names[i], name);
            }
        }
    }
    return MS_OK;
}

static ms_status new_layout(ms_fsdp_unit *u)
{
    const int64_t align = u->options.use_orig_params ? 16 / ms_dtype_size(u->param_dtype) : 0;
    const int32_t world = u->is_sharded ? u->shard_world : 1;
    const bool by_rows = u->options.layout == MS_FSDP_ROWS && world > 1; /* else all is one row */
    int64_t *numels, *rows;

    MS_TRY(msi_new_array(&numels, 2 * (int64_t)u->n_params, "parameters to lay out"));
    rows = numels + u->n_params;
    for (int32_t i = 0; i < u->n_params; i++) {
        numels[i] = u->params[i].numel;
        rows[i] = u->params[i].row_numel;
        u->numel += numels[i];
    }
    const ms_status status =
        by_rows ? ms_layout_by_rows(&u->layout, numels, rows, u->n_params, align, world)
                : ms_layout_flat(&u->layout, numels, u->n_params, align, world);

    free(numels);
    return status;
}

static ms_status lay_out(ms_fsdp_unit *u)
{
    MS_TRY(new_layout(u));
    u->total = ms_layout_total(u->layout);
    u->shard_numel = ms_layout_shard_numel(u->layout);
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].offset = ms_layout_offset(u->layout, i);
        MS_TRY(ms_layout_piece_get(u->layout, u->is_sharded ? u->shard_rank : 0, i,
                                   &u->params[i].piece));
    }
    u->own = malloc(sizeof(*u->own) * (size_t)msi_layout_most_extents(u->layout));
    u->theirs = malloc(sizeof(*u->theirs) * (size_t)msi_layout_most_extents(u->layout));
    u->grad_extent = malloc(sizeof(*u->grad_extent) * (size_t)u->n_params);
    if (u->own == NULL || u->theirs == NULL || u->grad_extent == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the extents of unit '%s'", u->name);
    }
    MS_TRY(msi_layout_extents(u->layout, u->is_sharded ? u->shard_rank : 0, u->own, &u->n_own));
    u->sums = (msi_accumulator){.ctx = u->ctx, .numel = msi_unit_full_numel(u)};
    msi_unit_set_sum_dtypes(u);
    return MS_OK;
}

/* Describe the parameters, and lay them out; leaves them unchanged. */
static ms_status outline(ms_fsdp_unit *u, ms_tensor *const *params, int32_t n)
{
    u->params = calloc((size_t)n, sizeof(*u->params));
    if (u->params == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the %d parameters of unit '%s'", (int)n,
                       u->name);
    }
    for (int32_t i = 0; i < n; i++) {
        const msi_view *v = &params[i]->v;

        u->params[i] = (msi_unit_param){.numel = msi_view_numel(v), .row_numel = 1};
        for (int32_t d = 1; d < v->ndim; d++) {
            u->params[i].row_numel *= v->shape[d];
        }
    }
    u->n_params = n;
    return lay_out(u);
}

static ms_status take_params(ms_fsdp_unit *u, ms_tensor *const *params, const char *const *names)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        MS_TRY(ms_tensor_make_parameter(params[i]));
        u->params[i].name = strdup(names[i]);
        if (u->params[i].name == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the name '%s'", names[i]);
        }
        u->params[i].tensor = ms_tensor_retain(params[i]);
    }
    return MS_OK;
}

static ms_status take_options(ms_fsdp_unit_options *o, const ms_fsdp_unit_options *given)
{
    MS_TRY(msi_options_take(o, given, &msi_fsdp_unit_options));
    if (o->layout == MS_FSDP_ROWS && !o->use_orig_params) {
        return MS_FAIL(MS_VALUE_ERROR, "layout rows shards each parameter by itself, so there is "
                                       "no flat parameter; leave use_orig_params true");
    }
    return o->offload_params ? msi_memory_open(msi_context()) /* and the device */ : MS_OK;
}

/* Set what follows from the options, the group and the parameters' dtype. */
static void describe(ms_fsdp_unit *u, ms_comm *comm, const ms_fsdp_unit_options *o,
                     int32_t orig_dtype)
{
    u->comm = comm;
    u->options = *o;
    u->rank = ms_comm_rank(comm);
    u->world = ms_comm_size(comm);
    u->is_sharded = o->strategy != MS_FSDP_NO_SHARD;
    u->shards = u->is_sharded && o->shard_group != NULL ? o->shard_group : comm;
    u->shard_rank = ms_comm_rank(u->shards);
    u->shard_world = ms_comm_size(u->shards);
    u->offloads = o->offload_params && msi_context()->device != NULL;
    msi_unit_set_dtypes(u, orig_dtype);
    u->use.eval_epoch = 1;
    u->settings.sync = true;
}

/* The unit takes over the parameters' masters. */
static ms_status manage_params(ms_fsdp_unit *u)
{
    bool any_values = false;

    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor *t = u->params[i].tensor;
        msi_param *p = t->param;

        any_values |= p->materialized;
        ms_tensor_free(t->grad); /* of the whole parameter; no memory for it here */
        t->grad = NULL;
        p->unit = u;
        p->unit_index = i;
        p->ops = &param_ops;
    }
    msi_unit_sinks_install(u);
    /* shard existing values, so that no full copy remains */
    return any_values ? ms_fsdp_unit_materialize(u) : MS_OK;
}

static ms_status build(ms_fsdp_unit *u, const char *name, ms_tensor *const *params,
                       int32_t n_params, const char *const *names)
{
    u->name = strdup(name);
    msi_label_set(&u->label, name);
    if (u->name == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for unit '%s'", name);
    }
    msi_unit_explain(u, NULL);
    MS_TRY(outline(u, params, n_params));
    MS_TRY(take_params(u, params, names));
    MS_TRY(msi_storage_wrap(&u->full, u->ctx, MS_STORAGE_FULL, NULL, 0));
    u->full->unit = u->name;
    u->full->absent = u->absent;
    u->full->readonly = "is a view of unsharded parameters that other ranks share; write to it "
                        "inside summon_full_params";
    MS_TRY(msi_storage_wrap(&u->hidden, u->ctx, MS_STORAGE_FULL, NULL, 0));
    snprintf(u->hidden_why, sizeof(u->hidden_why),
             "unit '%s' is sharded, and a forward reads no shards", name);
    u->hidden->absent = u->hidden_why;
    MS_TRY(manage_params(u));
    msi_chain_add(u->ctx, MSI_ROOM_FSDP_UNITS, &u->chained, u, close_units);
    return MS_OK;
}

ms_status ms_fsdp_unit_new(ms_fsdp_unit **out, ms_comm *comm, const char *name,
                           const ms_fsdp_unit_options *options, ms_tensor *const *params,
                           int32_t n_params, const char *const *names)
{
    ms_fsdp_unit_options o;

    *out = NULL;
    MS_TRY(take_options(&o, options));
    MS_TRY(check_params(name, params, n_params, names));
    ms_fsdp_unit *u = calloc(1, sizeof(*u));

    if (u == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for unit '%s'", name);
    }
    u->ctx = params[0]->ctx;
    describe(u, comm, &o, params[0]->v.dtype);
    ms_comm_retain(comm);
    ms_comm_retain(u->shards);
    ms_status status = build(u, name, params, n_params, names);

    if (status != MS_OK) {
        ms_fsdp_unit_free(u);
        return status;
    }
    u->magic = MSI_MAGIC_FSDP_UNIT;
    *out = u;
    return MS_OK;
}

static void free_outline(ms_fsdp_unit *u)
{
    ms_layout_free(u->layout);
    free(u->own);
    free(u->theirs);
    free(u->grad_extent);
    free(u->params);
}

ms_status ms_fsdp_group_describe(ms_fsdp_group *group, ms_comm *comm, const char *name,
                                 const ms_fsdp_unit_options *options, ms_tensor *const *params,
                                 int32_t n_params, const char *const *names)
{
    char text[sizeof(((msi_label *)0)->text)];
    ms_fsdp_unit u = {.name = text};
    ms_fsdp_unit_options o;

    *group = (ms_fsdp_group){0};
    MS_TRY(take_options(&o, options));
    MS_TRY(check_params(name, params, n_params, names));
    snprintf(text, sizeof(text), "%s", name);
    describe(&u, comm, &o, params[0]->v.dtype);
    ms_status status = outline(&u, params, n_params);

    for (int32_t i = 0; status == MS_OK && i < n_params; i++) {
        u.params[i].tensor = params[i];
    }
    if (status == MS_OK) {
        *group = msi_unit_facts(&u);
    }
    free_outline(&u);
    return status;
}

void ms_fsdp_unit_free(ms_fsdp_unit *u)
{
    if (u == NULL || u->run != NULL) {
        return;
    }
    if (u->ctx != NULL) { /* else closed with its context */
        msi_unit_delist(u);
        msi_unit_dispose(u);
    }
    free(u);
}

/* Release a parameter, which belongs to no unit any more; NULL: it was freed before. */
static void release_param(ms_tensor *t)
{
    if (t == NULL) {
        return;
    }
    t->sink = NULL;
    if (t->param != NULL) {
        t->param->unit = NULL;
        t->param->ops = NULL;
    }
    ms_tensor_free(t);
}

void msi_unit_dispose(ms_fsdp_unit *u)
{
    msi_unit_levels_free(u);
    msi_unit_gradient_free(u);
    msi_micro_drop(&u->sums);
    msi_observed_free(u);
    msi_unit_hook_drop(&u->hooks[MS_HOOK_REDUCE]);
    msi_unit_hook_drop(&u->hooks[MS_HOOK_REDUCED]);
    for (int32_t i = 0; i < u->n_params; i++) {
        free(u->params[i].name);
        release_param(u->params[i].tensor);
    }
    release_param(u->flat);
    free_outline(u);
    msi_storage_release(u->summoned);
    msi_gather_dispose(&u->gather);
    if (u->full != NULL) {
        msi_storage_unbind(u->full);
        u->full->absent = "its unit was freed";
        u->full->unit = NULL;
        msi_storage_release(u->full);
    }
    if (u->hidden != NULL) {
        u->hidden->absent = "its unit was freed";
        msi_storage_release(u->hidden);
    }
    msi_storage_release(u->micro_view);
    msi_storage_release(u->master);
    free(u->name);
    ms_comm_release(u->shards);
    ms_comm_release(u->comm);
    u->ctx = NULL;
}
