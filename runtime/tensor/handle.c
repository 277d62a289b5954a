/* Handles: making, freeing, rebinding, queries. */
#include "op.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static ms_status enter_scope(msi_tensor_state *s, ms_tensor *t)
{
    return s->depth > 0 ? msi_scope_enlist(s, t, s->depth) : MS_OK;
}

ms_status msi_tensor_new_internal(ms_tensor **out, ms_context *ctx, const msi_view *v)
{
    msi_tensor_state *s = msi_tensor_state_of(ctx);

    *out = s != NULL ? msi_pool_take_tensor(s) : NULL;
    if (MSI_UNLIKELY(*out == NULL)) {
        return MS_OUT_OF_MEMORY;
    }
    (*out)->v = *v;
    msi_storage_retain(v->storage);
    return MS_OK;
}

ms_status msi_tensor_new(ms_tensor **out, ms_context *ctx, const msi_view *v)
{
    MS_TRY(msi_tensor_new_internal(out, ctx, v));
    ms_status status = enter_scope(msi_tensor_state_of(ctx), *out);

    if (MSI_UNLIKELY(status != MS_OK)) {
        msi_tensor_destroy(*out, NULL);
        *out = NULL;
    }
    return status;
}

ms_status msi_tensor_make(ms_tensor **out, ms_context *ctx, int32_t dtype, int32_t ndim,
                          const int64_t *shape, int32_t mem_kind)
{
    msi_view v;

    *out = NULL;
    MS_TRY(msi_view_make(&v, dtype, ndim, shape));
    v.offset = 0;
    MS_TRY(msi_storage_new(&v.storage, ctx, msi_view_numel(&v) * ms_dtype_size(dtype), mem_kind));
    ms_status status = msi_tensor_new(out, ctx, &v);

    msi_storage_release(v.storage); /* the handle has its own */
    return status;
}

/* Drop the name from an unmaterialized parameter's storage before it is freed. */
static void unlabel(ms_tensor *t)
{
    if (t->param != NULL && t->v.storage->kind == MS_STORAGE_NONE) {
        t->v.storage->absent = NULL;
    }
}

void msi_tensor_rebind(ms_tensor *t, const msi_view *v)
{
    msi_storage *old = t->v.storage;

    unlabel(t);
    msi_storage_retain(v->storage);
    t->v = *v;
    msi_storage_release(old);
}

static void free_param(msi_param *p)
{
    if (p->unit != NULL) {
        p->ops->orphan(p->unit, p->unit_index);
    }
    msi_storage_release(p->master.storage);
    free(p->name);
    free(p);
}

void msi_tensor_destroy(ms_tensor *t, const char *released_by)
{
    msi_tensor_state *s = msi_tensor_state_of(t->ctx);

    if (t->scope > 0) {
        s->scope[t->scope - 1].list[t->scope_index] = NULL;
        t->scope = 0;
    }
    if (t->grad_fn != NULL || t->grad != NULL || t->hooks != NULL || t->leaf_node != NULL) {
        t->ctx->recorder->drop(t);
    }
    if (t->param != NULL) {
        unlabel(t);
        free_param(t->param);
        t->param = NULL;
    }
    msi_storage_release(t->v.storage);
    t->v.storage = NULL;
    t->released_by = released_by;
    msi_pool_give_tensor(s, t);
}

void ms_tensor_free(ms_tensor *t)
{
    if (t != NULL && t->refcount > 0 && --t->refcount == 0) {
        msi_tensor_destroy(t, NULL);
    }
}

ms_tensor *ms_tensor_retain(ms_tensor *t)
{
    t->refcount++;
    return t;
}

const char *msi_tensor_label(const ms_tensor *t)
{
    return t->param != NULL && t->param->name != NULL ? t->param->name : "tensor";
}

ms_status msi_tensor_check_write(const ms_tensor *t, const char *what)
{
    if (t->v.storage->readonly != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: %s %s", what, msi_tensor_label(t),
                       t->v.storage->readonly);
    }
    if (t->grad_fn != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: in-place writes to the result of a recorded op are not differentiable; "
                       "write to a detached tensor",
                       what);
    }
    MS_TRY(msi_check_expanded(what, &t->v));
    return msi_view_present(&t->v);
}

ms_status msi_tensor_begin_write(ms_tensor *t, const char *what)
{
    MS_TRY(msi_tensor_check_write(t, what));
    t->v.storage->version++;
    return MS_OK;
}

ms_status ms_tensor_describe(const ms_tensor *t, ms_tensor_info *info)
{
    memset(info, 0, sizeof(*info));
    info->dtype = t->v.dtype;
    info->ndim = t->v.ndim;
    for (int32_t i = 0; i < t->v.ndim; i++) {
        info->shape[i] = t->v.shape[i];
        info->stride[i] = t->v.stride[i];
    }
    info->numel = msi_view_numel(&t->v);
    info->offset = t->v.offset;
    info->version = t->v.storage->version;
    info->data = msi_view_address(&t->v);
    info->storage_kind = t->v.storage->kind;
    info->requires_grad = t->requires_grad;
    info->is_leaf = t->grad_fn == NULL;
    info->is_parameter = t->param != NULL;
    info->has_grad = t->grad != NULL || msi_param_accumulates(t);
    info->contiguous = msi_view_contiguous(&t->v);
    info->on_host = t->v.storage->host != NULL;
    info->readonly = t->v.storage->readonly != NULL;
    return MS_OK;
}
