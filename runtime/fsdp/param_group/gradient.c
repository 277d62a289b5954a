/* The reduced gradient of a unit: its memory, what .grad shows of it, accumulation into it. */
#include "gradient.h"
#include "observed.h"
#include "unshard.h"

/* A parameter's part of the reduced gradient: this rank's elements; NO_SHARD: all. */
static msi_view reduced_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;
    msi_view v = {.storage = p->place};

    if (u->is_sharded && !u->shows_full_grads) {
        msi_unit_shape_shard(u, p, u->grad_dtype, &v);
    } else {
        msi_view_set_contiguous(&v, u->grad_dtype, param->ndim, param->shape);
    }
    return v;
}

void msi_unit_gradient_like(void *unit, int32_t index, msi_view *like)
{
    const ms_fsdp_unit *u = unit;

    *like = reduced_view(u, &u->params[index]);
}

/* [Note: gradients inside a backward] The progress of reductions during a backward depends on
 * timing. Calls that read or scale all gradients are rejected then. Reading one parameter's
 * gradient waits for the reductions announced so far, the same on all ranks. Accumulate hooks run
 * when all reductions of every tree are done, for parameters that any rank's backward reached, in
 * one order on all ranks. */
ms_status msi_unit_check_gradient(void *unit, const char *what)
{
    const ms_fsdp_unit *u = unit;

    if (u->use.expects_grad && u->run->phase != MSI_SETTLED) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "%s during backward, when the gradients of unit '%s' are not all reduced; "
                       "call it after backward, or in an accumulate hook",
                       what, u->name);
    }
    return MS_OK;
}

ms_status msi_unit_await_gradient(void *unit)
{
    ms_fsdp_unit *u = unit;

    if (u->reduction.phase >= MSI_GRAD_READY) {
        return msi_reduction_wait(&u->reduction);
    }
    if (u->reduction.pool != NULL) { /* else the model is unused */
        msi_reduction_join(&u->reduction);
    }
    return MS_OK;
}

static bool shows_reduced(const msi_unit_param *p)
{
    return p->tensor != NULL && p->tensor->grad != NULL && p->tensor->grad->v.storage == p->place;
}

void msi_unit_gradient_trim(ms_fsdp_unit *u)
{
    if (u->grad == NULL || u->reduction.phase != MSI_GRAD_NONE) {
        return;
    }
    for (int32_t i = u->n_params - 1; i >= 0; i--) { /* gradients are dropped in order */
        if (shows_reduced(&u->params[i])) {
            return;
        }
    }
    msi_unit_gradient_free(u);
}

void msi_unit_gradient_free(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_storage_release(u->params[i].place);
        u->params[i].place = NULL;
    }
    msi_storage_release(u->grad);
    u->grad = NULL;
}

void msi_unit_gradient_dropped(void *unit, int32_t index)
{
    ms_fsdp_unit *u = unit;

    if (u->shows_full_grads) { /* the end of summon_full_params may restore it */
        return;
    }
    u->params[index].reduced = false;
    msi_unit_gradient_trim(u);
}

bool msi_unit_has_gradient(void *unit, int32_t index)
{
    return ((const ms_fsdp_unit *)unit)->params[index].reduced;
}

/* A dropped gradient that a script retains keeps its values: they move to new memory, because other
 * gradients of the unit reuse its place. */
static ms_status move_dropped(ms_fsdp_unit *u, msi_unit_param *p)
{
    msi_storage *apart;

    MS_TRY(msi_storage_new(&apart, u->ctx, p->place->nbytes, MS_MEM_GRADIENT));
    MS_TRY(msi_mem_copy(u->ctx, apart->data, p->place->data, p->place->nbytes));
    msi_storage_bind(p->place, apart, apart->data, apart->nbytes);
    msi_storage_release(apart); /* `place` has its own reference */
    msi_storage_release(p->place);
    p->place = NULL;
    return MS_OK;
}

static ms_status keep_dropped(ms_fsdp_unit *u, msi_unit_param *p)
{
    return p->place != NULL && p->place->refcount > 1 && !shows_reduced(p) && p->shown == NULL
               ? move_dropped(u, p)
               : MS_OK;
}

/* -- its layout -------------------------------------------------------------------------------- */

/* [Note: layout of the reduced gradient] Without frozen parameters it is the shard's, so that the
 * flat parameter's .grad shows it. Else it has no elements of frozen parameters and no padding. A
 * parameter that becomes trainable while the gradient exists extends it. One that was frozen
 * meanwhile has its elements until all are dropped. */

/* `arrived`: the peers' flags are known. A rank may have frozen a parameter that others train. A
 * communication hook uses no slot, and reduces what requires grad. */
static bool is_wanted(const ms_fsdp_unit *u, int32_t i, bool arrived)
{
    const msi_reduction *r = &u->reduction;

    if (u->params[i].tensor->requires_grad || r->slot == NULL) {
        return u->params[i].tensor->requires_grad;
    }
    return arrived ? msi_reduction_has(r, i) : msi_reduction_flags(r, u->rank)[i];
}

static bool has_place(const ms_fsdp_unit *u, int32_t i)
{
    return u->grad != NULL && u->params[i].in_grad >= 0;
}

static bool lacks_place(const ms_fsdp_unit *u, bool arrived)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].piece.numel > 0 && !has_place(u, i) && is_wanted(u, i, arrived)) {
            return true;
        }
    }
    return u->grad == NULL;
}

/* Elements of the next layout, which may be the shard's. */
static int64_t next_numel(const ms_fsdp_unit *u, bool arrived, bool *is_shard)
{
    int64_t numel = 0;

    *is_shard = u->grad == NULL;
    for (int32_t i = 0; i < u->n_params; i++) {
        const bool kept = has_place(u, i) || is_wanted(u, i, arrived);

        numel += kept ? u->params[i].piece.numel : 0;
        *is_shard = *is_shard && kept;
    }
    return *is_shard ? u->shard_numel : numel;
}

static void use_shard_layout(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].in_grad = u->params[i].piece.offset_in_shard;
    }
    u->reduction.own = u->own;
    u->reduction.n_own = u->n_own;
}

/* In the order of the parameters. */
static void use_trained_layout(ms_fsdp_unit *u, bool arrived)
{
    int64_t next = 0;
    int32_t n = 0;

    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        p->in_grad = has_place(u, i) || is_wanted(u, i, arrived) ? next : -1;
        if (p->in_grad >= 0 && p->piece.numel > 0) {
            u->grad_extent[n++] = (msi_extent){.param = i,
                                               .start = p->piece.start,
                                               .numel = p->piece.numel,
                                               .in_full = p->offset + p->piece.start,
                                               .in_shard = p->piece.offset_in_shard,
                                               .in_grad = next};
            next += p->piece.numel;
        }
    }
    u->reduction.own = u->grad_extent;
    u->reduction.n_own = n;
}

/* Values that .grad shows move along. */
static ms_status move_places(ms_fsdp_unit *u, msi_storage *grad)
{
    ms_status status = MS_OK;

    for (int32_t i = 0; i < u->n_params; i++) {
        const msi_unit_param *p = &u->params[i];

        if (p->place != NULL) {
            char *to = (char *)grad->data + p->in_grad * ms_dtype_size(u->grad_dtype);

            if (status == MS_OK && shows_reduced(p)) {
                status = msi_mem_copy(u->ctx, to, p->place->data, p->place->nbytes);
            }
            msi_storage_bind(p->place, grad, to, p->place->nbytes);
        }
    }
    return status;
}

static ms_status make_grad(ms_fsdp_unit *u, bool arrived)
{
    bool is_shard;
    const int64_t numel = next_numel(u, arrived, &is_shard);
    msi_storage *grad;

    if (!lacks_place(u, arrived)) {
        return MS_OK;
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        MS_TRY(keep_dropped(u, &u->params[i]));
    }
    MS_TRY(msi_unit_storage(u, &grad, numel * ms_dtype_size(u->grad_dtype), MS_MEM_GRADIENT));
    if (is_shard) {
        use_shard_layout(u);
    } else {
        use_trained_layout(u, arrived);
    }
    const ms_status status = move_places(u, grad);

    msi_storage_release(u->grad);
    u->grad = grad;
    return status;
}

static ms_status make_place(ms_fsdp_unit *u, msi_unit_param *p)
{
    const int64_t size = ms_dtype_size(u->grad_dtype);

    MS_TRY(keep_dropped(u, p));
    return p->place != NULL
               ? MS_OK
               : msi_storage_part(&p->place, u->grad, p->in_grad * size, p->piece.numel * size);
}

/* True if this rank's reduced gradient has elements of the parameter. */
static bool has_piece(const msi_unit_param *p)
{
    return p->piece.numel > 0 && p->in_grad >= 0;
}

/* Allocate the result. Nothing may fail once peers rely on this rank. */
static ms_status make_shown(ms_fsdp_unit *u, bool arrived)
{
    MS_TRY(make_grad(u, arrived));
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (!has_piece(p)) {
            continue;
        }
        MS_TRY(make_place(u, p));
        if (p->shown == NULL) {
            const msi_view v = reduced_view(u, p);

            MS_TRY(msi_tensor_new_internal(&p->shown, u->ctx, &v));
        }
    }
    return MS_OK;
}

ms_status msi_unit_gradient_make(ms_fsdp_unit *u)
{
    return make_shown(u, false);
}

static void drop_shown(void *unit)
{
    ms_fsdp_unit *u = unit;

    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor_free(u->params[i].shown);
        u->params[i].shown = NULL;
    }
}

/* -- reduction --------------------------------------------------------------------------------- */

/* Set the value that the new gradient is added to: its current one if it is in the shard, a copy of
 * one set from outside, or -0 for none (x + -0 is x for every x). */
static ms_status prepare_piece(ms_fsdp_unit *u, int32_t index)
{
    msi_unit_param *p = &u->params[index];
    msi_view v = reduced_view(u, p);

    if (p->tensor->grad == NULL) {
        return msi_fill(&v, -0.0);
    }
    if (shows_reduced(p) || !msi_reduction_has(&u->reduction, index)) {
        return MS_OK;
    }
    MS_TRY(msi_copy(&v, &p->tensor->grad->v, false));
    ms_tensor_free(p->tensor->grad);
    p->tensor->grad = NULL; /* `shown` replaces it after the sum */
    return MS_OK;
}

/* Set `*add` if any piece has a gradient; then set the shard that the sum is added to. New memory
 * is added to, since REDUCE waits for earlier readers of it only then. */
static ms_status prepare(void *unit, void **out, bool *add)
{
    ms_fsdp_unit *u = unit;
    bool stored = false;

    *add = lacks_place(u, true);
    if (*add) {
        MS_TRY(make_shown(u, true));
    }
    *out = u->grad->data;
    for (int32_t i = 0; i < u->n_params; i++) {
        *add |= has_piece(&u->params[i]) && u->params[i].tensor->grad != NULL;
        stored |= shows_reduced(&u->params[i]);
    }
    if (*add && !stored) { /* padding is added to, too */
        MS_TRY(msi_mem_set(u->ctx, u->grad->data, 0, u->grad->nbytes));
    }
    for (int32_t i = 0; *add && i < u->n_params; i++) {
        if (has_piece(&u->params[i])) {
            MS_TRY(prepare_piece(u, i));
        }
    }
    return MS_OK;
}

/* Its gradient is reduced. */
static void show_gradient(msi_unit_param *p)
{
    p->reduced = p->arrived = true;
    if (p->tensor->grad == NULL) {
        p->tensor->grad = p->shown;
        p->shown = NULL;
    }
}

static void show_gradients(void *unit)
{
    ms_fsdp_unit *u = unit;

    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (p->place != NULL) {
            p->place->version++;
        }
        if (msi_reduction_has(&u->reduction, i)) {
            show_gradient(p);
        }
    }
    drop_shown(u);
}

void msi_unit_gradient_show(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (p->tensor->requires_grad && p->contributed) {
            if (p->place != NULL) {
                p->place->version++;
            }
            show_gradient(p);
        }
        p->contributed = false;
    }
    drop_shown(u);
}

/* Copy each shard's elements of a whole gradient to its position in a row of shards. */
static ms_status pack(void *unit, const void *whole, void *shards)
{
    ms_fsdp_unit *u = unit;

    return msi_unit_pack_shards(u, whole, shards, ms_dtype_size(u->reduction.dtype));
}

static ms_status extents(void *unit, int32_t shard, const msi_extent **list, int32_t *n)
{
    const ms_fsdp_unit *u = unit;

    *list = u->theirs;
    return msi_layout_extents(u->layout, shard, u->theirs, n);
}

static const msi_reduction_user reduction_user = {prepare,        pack,       extents,
                                                  show_gradients, drop_shown, msi_unit_changed};

static ms_status prepare_apart(void *unit, void **out, bool *add)
{
    *out = ((ms_fsdp_unit *)unit)->apart->v.storage->data;
    *add = true; /* to -0: REDUCE waits for its writes then */
    return MS_OK;
}

static void note_contributions(void *unit)
{
    ms_fsdp_unit *u = unit;

    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].contributed = msi_reduction_has(&u->reduction, i);
    }
}

static const msi_reduction_user apart_user = {prepare_apart,      pack,       extents,
                                              note_contributions, drop_shown, msi_unit_changed};

void msi_unit_connect_gradients(ms_fsdp_unit *u, msi_slot *home)
{
    msi_reduction *r = &u->reduction;
    const msi_group_facts facts = msi_unit_facts(u);

    r->progress = &u->run->progress;
    r->user = &reduction_user;
    r->unit = u;
    r->fp = (msi_fingerprint){.kind = u->is_sharded ? MSI_COLL_REDUCE_UNIT : MSI_COLL_REDUCE_FULL,
                              .ndim = -1,
                              .count = msi_unit_full_numel(u),
                              .model = u->run->model,
                              .name = u->label};
    r->rank = u->rank;
    r->world = u->world;
    r->replicated = !u->is_sharded;
    r->total = u->total;
    r->full = msi_unit_full_numel(u);
    r->root_at = r->full * ms_dtype_size(msi_gradient_slot_dtype(&facts, u->run->fp32_slots));
    r->shard = u->shard_numel;
    r->n_shards = u->is_sharded ? u->shard_world : u->world;
    r->packs = u->is_sharded && !msi_layout_in_rank_order(u->layout);
    r->sum_dtype = u->grad_dtype;
    r->node_dtype = u->sums.node_dtype;
    r->home = home;
    msi_reduction_connect(r, &u->run->gradients);
}

/* Publish which parameters have a gradient; true if all. */
static bool publish_flags(ms_fsdp_unit *u)
{
    bool *used = msi_reduction_flags(&u->reduction, u->rank), whole = true;

    for (int32_t i = 0; i < u->n_params; i++) {
        used[i] = u->params[i].contributed || u->params[i].accumulated;
        u->params[i].contributed = u->params[i].accumulated = false;
        whole = whole && used[i];
    }
    return whole;
}

static ms_status close_slot(ms_fsdp_unit *u, bool whole)
{
    u->reduction.round_dtype = u->sums.micro_dtype;
    return msi_reduction_close(&u->reduction, msi_unit_slot_dtype(u),
                               u->settings.factor != 0 ? u->settings.factor : 1.0 / u->world,
                               whole);
}

/* This rank's gradient (W n) -> its part of the sum over ranks, in the layout of the reduced
 * gradient; of a replica all. When the sum completes depends on timing; the operator is observed
 * when it is committed, in program order. */
static ms_status reduce_meta(const msi_meta *m)
{
    const ms_fsdp_unit *u = ((const msi_unit_attrs *)m->attrs)->unit;
    const int64_t numel = u->grad->nbytes / ms_dtype_size(u->grad_dtype);

    return msi_result(m->out, u->grad_dtype, 1, &numel);
}

static ms_status reduce_forward(msi_op_call *c)
{
    const msi_unit_attrs *attrs = c->attrs;

    MS_TRY(close_slot(attrs->unit, attrs->whole));
    msi_reduction_join(&attrs->unit->reduction); /* observers compute with the result */
    return MS_OK;
}

static const msi_op reduce_op = {
    .name = "fsdp.reduce", .meta = reduce_meta, .forward = reduce_forward};

static ms_status fold_into_slot(ms_fsdp_unit *u)
{
    if (u->reduction.slot == NULL) {
        MS_TRY(msi_reduction_open(&u->reduction));
    }
    return msi_accumulator_fold(&u->sums, msi_reduction_part(&u->reduction, u->rank),
                                msi_unit_slot_dtype(u));
}

ms_status msi_gradient_announce(ms_fsdp_unit *u)
{
    MS_TRY(fold_into_slot(u));
    const bool whole = publish_flags(u);

    MS_TRY(make_shown(u, false));
    return MSI_UNLIKELY(msi_op_is_observed(u->ctx)) ? msi_observed_reduce(u, &reduce_op, whole)
                                                    : close_slot(u, whole);
}

ms_status msi_gradient_reduce_apart(ms_fsdp_unit *u, ms_tensor *out)
{
    msi_reduction *r = &u->reduction;
    const msi_extent *own = r->own;
    const int32_t n_own = r->n_own;

    MS_TRY(fold_into_slot(u));
    u->apart = out;
    r->user = &apart_user;
    r->own = u->own;
    r->n_own = u->n_own;
    r->sum_dtype = out->v.dtype;
    ms_status status = close_slot(u, publish_flags(u));

    if (status == MS_OK) {
        status = msi_reductions_finish(r->progress, r->pool);
    }
    u->apart = NULL;
    r->user = &reduction_user;
    r->own = own;
    r->n_own = n_own;
    r->sum_dtype = u->grad_dtype;
    return status;
}
