/* Public calls on leaves: requires_grad, .grad, grad mode. */
#include "tape.h"

#include <string.h>

static ms_status check_leaf(const ms_tensor *t, const char *what)
{
    if (t->grad_fn != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "only leaf tensors can have their %s set; this one is the result of '%s', "
                       "detach() it first",
                       what, t->grad_fn->op->name);
    }
    return MS_OK;
}

ms_status ms_tensor_set_requires_grad(ms_tensor *t, bool requires_grad)
{
    msi_op_host(t->ctx, "requires_grad of a tensor is set");
    MS_TRY(check_leaf(t, "requires_grad"));
    if (requires_grad && !ms_dtype_is_floating(t->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "only floating tensors can require grad, got %s",
                       ms_dtype_name(t->v.dtype));
    }
    t->requires_grad = requires_grad;
    if (t->param != NULL && t->param->ops != NULL && t->param->ops->set_requires_grad != NULL) {
        t->param->ops->set_requires_grad(t->param->unit, requires_grad);
    }
    return MS_OK;
}

bool ms_grad_enabled_set(bool on)
{
    msi_tape *tape = msi_tape_of(msi_context());
    const bool before = tape == NULL || tape->recording;

    if (tape != NULL) {
        tape->recording = on;
    }
    return before;
}

bool ms_grad_enabled(void)
{
    const ms_context *ctx = msi_context_peek();

    return ctx == NULL || ctx->recorder->recording(ctx);
}

ms_status ms_tensor_grad(ms_tensor **out, ms_tensor *t)
{
    msi_op_host(t->ctx, "a gradient is read");
    *out = NULL;
    MS_TRY(msi_param_await_gradient(t));
    if (msi_param_accumulates(t)) {
        return t->param->ops->accumulated(t->param->unit, t->param->unit_index, out);
    }
    return t->grad != NULL ? msi_tensor_new(out, t->ctx, &t->grad->v) : MS_OK;
}

/* Shape and dtype of a gradient of `t`: the current one's, t's, or as t's manager gives. */
static msi_view gradient_like(const ms_tensor *t)
{
    const msi_param *p = t->param;
    msi_view like = t->grad != NULL ? t->grad->v : t->v;

    if (t->grad == NULL && p != NULL && p->ops != NULL && p->ops->gradient_like != NULL) {
        p->ops->gradient_like(p->unit, p->unit_index, &like);
    }
    return like;
}

ms_status ms_tensor_set_grad(ms_tensor *t, ms_tensor *grad)
{
    msi_op_host(t->ctx, "a gradient is replaced");
    MS_TRY(check_leaf(t, "grad"));
    MS_TRY(msi_param_check_gradient(t, "set_grad"));
    if (t->param != NULL && t->param->ops != NULL && t->param->ops->set_gradient != NULL) {
        return t->param->ops->set_gradient(t->param->unit, t->param->unit_index,
                                           grad != NULL ? &grad->v : NULL);
    }
    if (msi_param_accumulates(t)) {
        MS_TRY(t->param->ops->replace_accumulated(t->param->unit, t->param->unit_index,
                                                  grad != NULL ? &grad->v : NULL));
        if (grad != NULL) {
            return MS_OK;
        }
    }
    if (grad == NULL) {
        ms_tensor_free(t->grad);
        t->grad = NULL;
        if (t->param != NULL && t->param->ops != NULL && t->param->ops->gradient_dropped != NULL) {
            t->param->ops->gradient_dropped(t->param->unit, t->param->unit_index);
        }
        return MS_OK;
    }
    if (!ms_dtype_is_floating(t->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "only floating tensors have gradients, got %s",
                       ms_dtype_name(t->v.dtype));
    }
    const msi_view like = gradient_like(t);

    if (!msi_view_same_shape(&grad->v, &like)) {
        return MS_FAIL(MS_VALUE_ERROR, "the gradient of %s has shape %s, expected %s",
                       msi_tensor_label(t), msi_shape_text(grad->v.ndim, grad->v.shape),
                       msi_shape_text(like.ndim, like.shape));
    }
    if (grad->v.dtype != like.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "the gradient of %s is %s, expected %s", msi_tensor_label(t),
                       ms_dtype_name(grad->v.dtype), ms_dtype_name(like.dtype));
    }
    if (t->grad != NULL) {
        MS_TRY(msi_check_source("set_grad", &t->grad->v, &grad->v));
        MS_TRY(msi_copy(&t->grad->v, &grad->v, false));
        t->grad->v.storage->version++;
        return MS_OK;
    }
    msi_view v;

    MS_TRY(msi_view_like(&v, t->ctx, &grad->v, like.dtype, MS_MEM_GRADIENT, true));
    ms_status status = msi_tensor_new_internal(&t->grad, t->ctx, &v);

    msi_storage_release(v.storage);
    return status;
}
