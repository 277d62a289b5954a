/* Units: which parameters belong together, their layout and master shard, what their handles show.
 */
#include "fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void (*msi_fsdp_state_changed)(const ms_fsdp_unit *u);

static const ms_fsdp_unit_options defaults = {.struct_size = sizeof(defaults),
                                              .strategy = MS_FSDP_FULL_SHARD,
                                              .param_dtype = MS_DTYPE_NONE,
                                              .reduce_dtype = MS_DTYPE_NONE,
                                              .use_orig_params = true};

void ms_fsdp_unit_options_init(ms_fsdp_unit_options *o, uint32_t struct_size)
{
    msi_struct_give(o, struct_size, &defaults, sizeof(defaults));
}

/* -- what handles show ------------------------------------------------------------------------- */

static msi_view piece_view(const ms_fsdp_unit *u, const msi_unit_param *p, msi_storage *shard)
{
    msi_view v = {.storage = shard, .offset = p->piece.present ? p->piece.offset_in_shard : 0};

    msi_view_set_contiguous(&v, u->orig_dtype, 1, &p->piece.numel);
    return v;
}

static void show_shards(ms_fsdp_unit *u)
{
    const bool hides = u->is_sharded && u->tree != NULL && u->tree->hides_shards;

    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_view v = piece_view(u, p, hides ? u->hidden : u->master);

        if (!u->is_sharded) { /* NO_SHARD keeps the original shapes */
            msi_view_set_contiguous(&v, u->orig_dtype, p->tensor->param->ndim,
                                    p->tensor->param->shape);
        }
        p->tensor->param->shows_shard = u->is_sharded;
        msi_tensor_rebind(p->tensor, &v);
    }
}

static void show_full(ms_fsdp_unit *u, msi_storage *full, int32_t dtype)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_view v = {.storage = full, .offset = p->offset};

        msi_view_set_contiguous(&v, dtype, p->tensor->param->ndim, p->tensor->param->shape);
        p->tensor->param->shows_shard = false;
        msi_tensor_rebind(p->tensor, &v);
    }
}

/* [Note: what handles show] The summoned copy; the full parameters of an unsharded unit while a
 * forward of it runs or a backward reads it, and, unless they were written since, while a root
 * forward runs, the script holds them, or a graph waits for its backward and nothing was evaluated
 * since; else the shards, whatever memory is kept for the next use. A graph that is let go of waits
 * no more. One that a rank's collector lets go of does: when that finds it must not be seen, as
 * ranks would show different things. */
static bool shows_full(const ms_fsdp_unit *u)
{
    const ms_fsdp_tree *tree = u->tree;

    return u->state == MS_UNIT_UNSHARDED &&
           (msi_pass_running(u) != NULL || msi_unit_is_differentiated(u) ||
            (!u->outdated && (tree->hides_shards || u->held || u->n_waiting > 0)));
}

void msi_unit_show(ms_fsdp_unit *u)
{
    if (u->summoned != NULL) {
        show_full(u, u->summoned, u->orig_dtype);
    } else if (shows_full(u)) {
        show_full(u, u->full, u->param_dtype);
    } else {
        show_shards(u);
    }
}

void msi_unit_show_use(ms_fsdp_unit *u)
{
    if (u->state == MS_UNIT_UNSHARDED && u->summoned == NULL &&
        shows_full(u) != (u->params[0].tensor->v.storage == u->full)) {
        msi_unit_show(u);
    }
}

void msi_unit_explain(ms_fsdp_unit *u, const char *cause)
{
    if (cause == NULL) {
        snprintf(u->absent, sizeof(u->absent),
                 u->is_sharded ? "unit '%s' is sharded"
                               : "unit '%s' shows what a forward read until its backward alone",
                 u->name);
        return;
    }
    snprintf(u->absent, sizeof(u->absent),
             "the gradients of unit '%s' were given up when a forward inside this backward failed: "
             "%.*s",
             u->name, (int)strcspn(cause, "\n"), cause); /* a line, the stack comes behind it */
}

void ms_fsdp_tree_hide_shards(ms_fsdp_tree *tree, bool hide)
{
    if (!tree->initialized || tree->hides_shards == hide) {
        return;
    }
    const bool evaluated = !hide && !tree->records;

    tree->hides_shards = hide;
    tree->records = tree->records && !hide;
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (evaluated) {
            u->turn++;
            u->n_waiting = 0;
        }
        msi_unit_show_use(u);
        for (int32_t k = 0; k < u->n_params; k++) {
            ms_tensor *t = u->params[k].tensor;

            if (t->param->shows_shard) { /* the view stays: this is done in every step */
                msi_storage *shown = t->v.storage;

                t->v.storage = msi_storage_retain(hide ? u->hidden : u->master);
                msi_storage_release(shown);
            }
        }
    }
}

/* -- what lower rooms may ask ------------------------------------------------------------------ */

static void touched(void *unit, int32_t index)
{
    (void)index;
    msi_unit_written(unit);
    msi_unit_note_touch(unit);
}

static ms_status materialize(void *unit)
{
    return ms_fsdp_unit_materialize(unit);
}

static ms_status check_master(void *unit, const char *what)
{
    return msi_masters_check(((const ms_fsdp_unit *)unit)->tree, what);
}

static void orphan(void *unit, int32_t index)
{
    ms_fsdp_unit *u = unit;

    u->params[index].tensor = NULL;
}

static const msi_param_ops param_ops = {
    .touched = touched,
    .materialize = materialize,
    .check_master = check_master,
    .orphan = orphan,
    .gradient_like = msi_unit_gradient_like,
    .check_gradient = msi_unit_check_gradient,
    .await_gradient = msi_unit_await_gradient,
    .gradient_dropped = msi_unit_gradient_dropped,
    .has_gradient = msi_unit_has_gradient,
    .accumulates = msi_unit_accumulates,
    .accumulated = msi_unit_accumulated,
    .replace_accumulated = msi_unit_replace_accumulated,
    .note = msi_unit_note,
    .note_gradient = msi_unit_note_gradient,
};

/* -- construction ------------------------------------------------------------------------------ */

static ms_status check_params(const char *name, ms_tensor *const *params, int32_t n,
                              const char *const *names)
{
    if (n < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "unit '%s' has no parameters, expected at least one", name);
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

static ms_status lay_out(ms_fsdp_unit *u)
{
    int64_t *numels = malloc(sizeof(*numels) * (size_t)u->n_params);
    int32_t forward_dtype = u->param_dtype;
    int64_t align = u->options.use_orig_params ? 16 / ms_dtype_size(forward_dtype) : 0;

    if (numels == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to lay out %d parameters", (int)u->n_params);
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        numels[i] = u->params[i].numel;
        u->numel += numels[i];
    }
    ms_status status =
        ms_layout_flat(&u->layout, numels, u->n_params, align, u->is_sharded ? u->world : 1);

    free(numels);
    MS_TRY(status);
    u->total = ms_layout_total(u->layout);
    u->shard_numel = ms_layout_shard_numel(u->layout);
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].offset = ms_layout_offset(u->layout, i);
        MS_TRY(ms_layout_piece_get(u->layout, u->is_sharded ? u->rank : 0, i, &u->params[i].piece));
        if (!u->params[i].piece.present) {
            u->params[i].piece.numel = u->params[i].piece.start = 0;
        }
    }
    return MS_OK;
}

static ms_status take_params(ms_fsdp_unit *u, ms_tensor *const *params, int32_t n,
                             const char *const *names)
{
    u->params = calloc((size_t)n, sizeof(*u->params));
    if (u->params == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the %d parameters of unit '%s'", (int)n,
                       u->name);
    }
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(ms_tensor_make_parameter(params[i]));
        u->params[i].name = strdup(names[i]);
        if (u->params[i].name == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the name '%s'", names[i]);
        }
        u->params[i].tensor = ms_tensor_retain(params[i]);
        u->params[i].numel = msi_view_numel(&params[i]->v);
        u->n_params = i + 1;
    }
    return MS_OK;
}

static const msi_field option_fields[] = {
    MSI_FIELD(ms_fsdp_unit_options, struct_size),     MSI_FIELD(ms_fsdp_unit_options, strategy),
    MSI_FIELD(ms_fsdp_unit_options, param_dtype),     MSI_FIELD(ms_fsdp_unit_options, reduce_dtype),
    MSI_FIELD(ms_fsdp_unit_options, use_orig_params),
};

static ms_status check_dtype(const char *option, int32_t dtype)
{
    return dtype == MS_DTYPE_NONE || ms_dtype_is_floating(dtype)
               ? MS_OK
               : MS_FAIL(MS_TYPE_ERROR, "%s is %s (%d), expected a floating dtype", option,
                         ms_dtype_name(dtype), (int)dtype);
}

static ms_status take_options(ms_fsdp_unit_options *o, const ms_fsdp_unit_options *given)
{
    *o = defaults;
    if (given != NULL) {
        MS_TRY(msi_struct_take(o, given, "ms_fsdp_unit_options", option_fields,
                               MSI_COUNT(option_fields)));
    }
    if (o->strategy < MS_FSDP_FULL_SHARD || o->strategy > MS_FSDP_NO_SHARD) {
        return MS_FAIL(MS_VALUE_ERROR, "sharding strategy %d is none, expected 0 to %d",
                       (int)o->strategy, MS_FSDP_NO_SHARD);
    }
    MS_TRY(check_dtype("param_dtype", o->param_dtype));
    return check_dtype("reduce_dtype", o->reduce_dtype);
}

/* Everything that follows from the options, the group and the parameters' dtype. */
static void describe(ms_fsdp_unit *u, ms_comm *comm, const ms_fsdp_unit_options *o,
                     int32_t orig_dtype)
{
    u->comm = comm;
    u->options = *o;
    u->rank = ms_comm_rank(comm);
    u->world = ms_comm_size(comm);
    u->is_sharded = o->strategy != MS_FSDP_NO_SHARD;
    u->orig_dtype = orig_dtype;
    u->param_dtype = o->param_dtype != MS_DTYPE_NONE ? o->param_dtype : orig_dtype;
    u->reduce_dtype = o->reduce_dtype != MS_DTYPE_NONE  ? o->reduce_dtype
                      : o->param_dtype != MS_DTYPE_NONE ? o->param_dtype
                                                        : orig_dtype;
    u->gather_aliases = u->param_dtype == orig_dtype && (!u->is_sharded || u->world == 1);
    u->post_index = -1;
    u->turn = 1;
}

/* From now on the parameters' masters are this unit's. */
static ms_status manage_params(ms_fsdp_unit *u)
{
    bool any_values = false;

    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor *t = u->params[i].tensor;
        msi_param *p = t->param;

        any_values |= p->materialized;
        ms_tensor_free(t->grad); /* of the whole parameter: no place for it here */
        t->grad = NULL;
        p->unit = u;
        p->unit_index = i;
        p->ops = &param_ops;
    }
    msi_unit_sinks_install(u);
    /* shard what exists now, so that no full copy stays behind */
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
    MS_TRY(take_params(u, params, n_params, names));
    MS_TRY(lay_out(u));
    MS_TRY(msi_storage_wrap(&u->full, u->ctx, MS_STORAGE_SLOT, NULL, 0));
    u->full->unit = u->name;
    u->full->absent = u->absent;
    u->full->readonly = "is a view of unsharded parameters that other ranks share; write to it "
                        "inside summon_full_params";
    MS_TRY(msi_storage_wrap(&u->hidden, u->ctx, MS_STORAGE_SLOT, NULL, 0));
    snprintf(u->hidden_why, sizeof(u->hidden_why),
             "unit '%s' is sharded, and a forward reads no shards", name);
    u->hidden->absent = u->hidden_why;
    MS_TRY(manage_params(u));
    return msi_unit_enlist(u);
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
    ms_status status = build(u, name, params, n_params, names);

    if (status != MS_OK) {
        ms_fsdp_unit_free(u);
        return status;
    }
    msi_live_add(&u->live, MSI_LIVE_FSDP_UNIT, u);
    *out = u;
    return MS_OK;
}

/* All that decides the values a rule makes, and which of them. */
static msi_init_args rule_of(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;

    return (msi_init_args){.first = p->piece.start,
                           .n = p->piece.numel,
                           .kind = param->init,
                           .a = param->a,
                           .b = param->b,
                           .seed = u->ctx->seed,
                           .key = msi_param_key(param, p->name)};
}

/* What a parameter's first values come from: its own, or the rule they are made by. */
static uint64_t origin_of(const ms_fsdp_unit *u, const msi_param *param, const msi_init_args *rule)
{
    if (param->materialized) {
        return ms_hash_bytes(msi_view_ptr(&param->master),
                             param->master.shape[0] * ms_dtype_size(u->orig_dtype));
    }
    if (rule->kind == MS_INIT_NONE) {
        return 0;
    }
    const double numbers[] = {rule->kind, rule->a, rule->b};
    const bool random = rule->kind != MS_INIT_CONSTANT;

    return msi_mix64(ms_hash_bytes(numbers, sizeof(numbers)) ^
                     (random ? msi_mix64(rule->seed ^ msi_mix64(rule->key)) : 0));
}

/* Own elements of one parameter, into its place in the shard. */
static ms_status fill_piece(ms_fsdp_unit *u, msi_unit_param *p)
{
    msi_param *param = p->tensor->param;
    msi_view shard = piece_view(u, p, u->master);
    msi_init_args rule = rule_of(u, p);

    p->origin = u->world > 1 ? origin_of(u, param, &rule) : 0;
    p->given = param->materialized && param->master.storage->version != param->drawn;
    if (p->piece.numel == 0) {
        return MS_OK;
    }
    if (param->materialized) {
        msi_view src = param->master;

        src.offset += p->piece.start - param->start;
        src.shape[0] = p->piece.numel;
        return msi_copy(&shard, &src, false);
    }
    if (rule.kind == MS_INIT_NONE) {
        return MS_OK; /* zeros already */
    }
    rule.out = msi_view_ptr(&shard);
    return msi_dispatch("init", MSI_K_init, u->orig_dtype, &rule);
}

ms_status ms_fsdp_unit_materialize(ms_fsdp_unit *u)
{
    int64_t nbytes = u->shard_numel * ms_dtype_size(u->orig_dtype);
    msi_storage *master;
    ms_status status = MS_OK;

    if (u->materialized) {
        return MS_OK;
    }
    MS_TRY(msi_storage_new(&master, u->ctx, nbytes, MS_MEM_PARAMETER));
    memset(master->data, 0, (size_t)nbytes); /* padding stays zero for good */
    u->master = master;
    for (int32_t i = 0; i < u->n_params && status == MS_OK; i++) {
        status = fill_piece(u, &u->params[i]);
    }
    if (status != MS_OK) {
        u->master = NULL;
        msi_storage_release(master);
        return status;
    }
    u->materialized = true;
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_param *param = p->tensor->param;
        msi_storage *old = param->master.storage;

        param->master = piece_view(u, p, master);
        msi_storage_retain(master);
        param->start = p->piece.start;
        param->materialized = true;
        msi_storage_release(old);
    }
    msi_unit_show(u);
    return MS_OK;
}

void ms_fsdp_unit_free(ms_fsdp_unit *u)
{
    if (u == NULL || u->tree != NULL) {
        return;
    }
    if (u->ctx != NULL) { /* else closed with its context */
        msi_unit_delist(u);
        msi_unit_dispose(u);
    }
    msi_live_remove(&u->live);
    free(u);
}

void msi_unit_dispose(ms_fsdp_unit *u)
{
    msi_unit_passes_free(u);
    msi_unit_levels_free(u);
    msi_unit_gradient_free(u);
    if (u->leaf_private) {
        msi_release(u->ctx, u->leaf);
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor *t = u->params[i].tensor;

        free(u->params[i].name);
        if (t == NULL) {
            continue;
        }
        t->sink = NULL;
        if (t->param != NULL) {
            t->param->unit = NULL;
            t->param->ops = NULL;
        }
        ms_tensor_free(t);
    }
    free(u->params);
    msi_storage_release(u->summoned);
    msi_release(u->ctx, u->resident);
    ms_layout_free(u->layout);
    if (u->full != NULL) {
        u->full->data = NULL;
        u->full->absent = "its unit was freed";
        u->full->unit = NULL;
        msi_storage_release(u->full);
    }
    if (u->hidden != NULL) {
        u->hidden->absent = "its unit was freed";
        msi_storage_release(u->hidden);
    }
    msi_storage_release(u->leaf_storage);
    msi_storage_release(u->master);
    free(u->name);
    u->ctx = NULL;
}

/* -- what a unit tells ------------------------------------------------------------------------- */

ms_status ms_fsdp_unit_info_get(const ms_fsdp_unit *u, ms_fsdp_unit_info *info)
{
    *info = (ms_fsdp_unit_info){.strategy = u->options.strategy,
                                .n_params = u->n_params,
                                .numel = u->numel,
                                .padded_numel = u->shard_numel * (u->is_sharded ? u->world : 1),
                                .shard_numel = u->shard_numel,
                                .param_dtype = u->param_dtype,
                                .reduce_dtype = u->reduce_dtype,
                                .orig_dtype = u->orig_dtype,
                                .state = u->state,
                                .model = msi_unit_model(u),
                                .is_root = u->is_root};
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

ms_status ms_param_local(ms_tensor **out, ms_tensor *t, ms_param_extent *extent)
{
    msi_param *p = t->param;

    *out = NULL;
    if (p == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "a tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    MS_TRY(msi_param_check_master(t, "use of the shards"));
    MS_TRY(ms_tensor_materialize(t));
    memset(extent, 0, sizeof(*extent));
    extent->start = p->start;
    extent->numel = p->master.shape[0];
    extent->ndim = p->ndim;
    memcpy(extent->shape, p->shape, sizeof(extent->shape));
    extent->dtype = p->dtype;
    return extent->numel > 0 ? msi_tensor_new(out, t->ctx, &p->master) : MS_OK;
}

ms_status ms_param_touch(ms_tensor *t)
{
    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "a tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    if (t->param->master.storage != NULL) {
        t->param->master.storage->version++;
    }
    if (t->param->unit != NULL) {
        t->param->ops->touched(t->param->unit, t->param->unit_index);
    }
    return MS_OK;
}

ms_status ms_param_same(ms_tensor *t, const char *label)
{
    msi_note note = {.n_numbers = 0};

    if (t->param != NULL && t->param->unit != NULL) {
        msi_label_set(&note.label, label);
        t->param->ops->note(t->param->unit, &note);
    }
    return MS_OK;
}
