/* The flat parameter as a tensor, which parameters() shows with use_orig_params = false. It has no
 * memory of its own: its elements and its gradient are those of the original parameters. */
#include "gradient.h"
#include "unshard.h"

#include <stdlib.h>

/* -- gradient ---------------------------------------------------------------------------------- */

static bool any_accumulated(const ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].accumulated) {
            return true;
        }
    }
    return false;
}

static bool has_gradient(void *unit, int32_t index)
{
    const ms_fsdp_unit *u = unit;

    (void)index;
    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].accumulated || u->params[i].reduced ||
            (u->params[i].tensor != NULL && u->params[i].tensor->grad != NULL)) {
            return true;
        }
    }
    return false;
}

static void gradient_like(void *unit, int32_t index, msi_view *like)
{
    const ms_fsdp_unit *u = unit;

    (void)index;
    msi_view_set_contiguous(like, u->grad_dtype, 1, &u->shard_numel);
}

/* Elements of parameter `p` in a flat gradient that starts at element 0 of the flat (`whole`) or of
 * the shard. */
static msi_view part_of(const msi_unit_param *p, const msi_view *flat, bool whole)
{
    const int64_t numel = whole ? p->numel : p->piece.numel;
    msi_view v = *flat;

    v.offset += whole ? p->offset : p->piece.offset_in_shard;
    msi_view_set_contiguous(&v, flat->dtype, 1, &numel);
    return v;
}

static ms_status copy_gradients(ms_fsdp_unit *u, const msi_view *flat, bool whole)
{
    MS_TRY(msi_fill(flat, 0));
    for (int32_t i = 0; i < u->n_params; i++) {
        const msi_view part = part_of(&u->params[i], flat, whole);
        ms_tensor *g = NULL;
        msi_view from;

        if (msi_view_numel(&part) == 0) {
            continue;
        }
        MS_TRY(ms_tensor_grad(&g, u->params[i].tensor));
        if (g == NULL) {
            continue;
        }
        from = g->v; /* contiguous: a place, a copy, or what set_grad() made */
        msi_view_set_contiguous(&from, g->v.dtype, 1, part.shape);
        const ms_status status = msi_copy(&part, &from, false);

        ms_tensor_free(g);
        MS_TRY(status);
    }
    return MS_OK;
}

/* A copy that scripts can only read. In no_sync it is unsharded and in the compute dtype. */
static ms_status copied(ms_fsdp_unit *u, ms_tensor **out)
{
    const bool whole = any_accumulated(u);
    msi_view like = {.storage = NULL}, flat;

    msi_view_set_contiguous(&like, whole ? u->param_dtype : u->grad_dtype, 1,
                            whole ? &u->total : &u->shard_numel);
    MS_TRY(msi_view_like(&flat, u->ctx, &like, like.dtype, MS_MEM_GRADIENT, false));
    ms_status status = copy_gradients(u, &flat, whole);

    flat.storage->readonly = "is a copy of the gradients of the original parameters; give another "
                             "value to set_grad()";
    if (status == MS_OK) {
        status = msi_tensor_new(out, u->ctx, &flat);
    }
    msi_storage_release(flat.storage);
    return status;
}

/* The unit's reduced gradient where all its elements are shown, so that writes reach it. */
static ms_status shown(void *unit, int32_t index, ms_tensor **out)
{
    ms_fsdp_unit *u = unit;
    bool all = u->grad != NULL && u->reduction.own == u->own;

    *out = NULL;
    if (!has_gradient(unit, index)) {
        return MS_OK;
    }
    for (int32_t i = 0; i < u->n_params && all; i++) {
        const msi_unit_param *p = &u->params[i];

        all = p->piece.numel == 0 ||
              (p->tensor->grad != NULL && p->tensor->grad->v.storage == p->place);
    }
    if (!all || any_accumulated(u)) {
        return copied(u, out);
    }
    msi_view v = {.storage = u->grad};

    msi_view_set_contiguous(&v, u->grad_dtype, 1, &u->shard_numel);

    return msi_tensor_new(out, u->ctx, &v);
}

static ms_status drop(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        MS_TRY(ms_tensor_set_grad(u->params[i].tensor, NULL));
    }
    return MS_OK;
}

/* Give each original parameter its part. */
static ms_status replace(void *unit, int32_t index, const msi_view *value)
{
    ms_fsdp_unit *u = unit;
    const bool whole = any_accumulated(u);
    const int64_t numel = whole ? u->total : u->shard_numel;
    msi_view flat;

    (void)index;
    if (value == NULL) {
        return drop(u);
    }
    if (value->ndim != 1 || value->shape[0] != numel) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "the gradient of the flat parameter of unit '%s' has shape %s, expected "
                       "(%lld)",
                       u->name, msi_shape_text(value->ndim, value->shape), (long long)numel);
    }
    MS_TRY(msi_view_like(&flat, u->ctx, value, value->dtype, MS_MEM_SCRATCH, true));
    ms_status status = MS_OK;

    for (int32_t i = 0; i < u->n_params && status == MS_OK; i++) {
        const msi_param *param = u->params[i].tensor->param;
        msi_view part = part_of(&u->params[i], &flat, whole);
        ms_tensor *g;

        if (whole || !u->is_sharded) {
            msi_view_set_contiguous(&part, part.dtype, param->ndim, param->shape);
        } else if (u->params[i].piece.numel == 0) {
            continue;
        }
        status = msi_tensor_new_internal(&g, u->ctx, &part);
        if (status == MS_OK) {
            status = ms_tensor_set_grad(u->params[i].tensor, g);
            ms_tensor_free(g);
        }
    }
    msi_storage_release(flat.storage);
    return status;
}

/* -- the tensor -------------------------------------------------------------------------------- */

static void orphan(void *unit, int32_t index)
{
    (void)index;
    ((ms_fsdp_unit *)unit)->flat = NULL;
}

static void set_requires_grad(void *unit, bool on)
{
    ms_fsdp_unit *u = unit;

    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].tensor->requires_grad = on;
    }
}

static const msi_param_ops flat_ops = {
    .touched = msi_unit_touched,
    .materialize = msi_unit_materialize,
    .check_master = msi_unit_check_master,
    .orphan = orphan,
    .gradient_like = gradient_like,
    .check_gradient = msi_unit_check_gradient,
    .await_gradient = msi_unit_await_gradient,
    .has_gradient = has_gradient,
    .accumulates = has_gradient,
    .accumulated = shown,
    .replace_accumulated = replace,
    .set_gradient = replace,
    .set_requires_grad = set_requires_grad,
    .note = msi_unit_note,
    .model = msi_unit_model_number,
};

static ms_status sink_expect(void *user, int32_t index)
{
    const ms_fsdp_unit *u = user;

    (void)index;
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "the flat parameter of unit '%s' is differentiated; a term of the loss over "
                   "parameters belongs in the forward of the wrapped module, where its fields "
                   "are the original parameters",
                   u->name);
}

ms_status ms_fsdp_unit_flat(ms_tensor **out, ms_fsdp_unit *u)
{
    ms_tensor *t;
    bool requires_grad = false;

    *out = NULL;
    if (u->flat != NULL) {
        *out = ms_tensor_retain(u->flat);
        return MS_OK;
    }
    MS_TRY(ms_tensor_parameter(&t, u->orig_dtype, 1, &u->shard_numel, MS_INIT_NONE, 0, 0));
    for (int32_t i = 0; i < u->n_params; i++) {
        requires_grad |= u->params[i].tensor->requires_grad;
    }
    t->requires_grad = requires_grad;
    t->param->unit = u;
    t->param->ops = &flat_ops;
    t->param->unit_index = -1;
    u->flat_sink = (msi_grad_sink){.expect = sink_expect, .user = u};
    t->sink = &u->flat_sink;
    u->flat = t;
    if (u->master != NULL) {
        msi_unit_show(u);
    }
    *out = ms_tensor_retain(t);
    return ms_tensor_set_name(t, u->name);
}
