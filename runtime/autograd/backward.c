/* What the host asks for: backward(), which adds to leaves' gradients, and grad(), which returns
 * some. */
#include "tape.h"

#include <stdlib.h>

static ms_status check_given(const char *what, const ms_tensor *root, const ms_tensor *grad)
{
    if (grad == NULL && msi_view_numel(&root->v) != 1) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: a tensor of shape %s needs a gradient; only with one element it is 1 "
                       "by default",
                       what, msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !msi_view_same_shape(&grad->v, &root->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: the gradient has shape %s, expected %s", what,
                       msi_shape_text(grad->v.ndim, grad->v.shape),
                       msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !ms_dtype_is_floating(grad->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: the gradient is %s, expected %s", what,
                       ms_dtype_name(grad->v.dtype), ms_dtype_name(root->v.dtype));
    }
    return MS_OK;
}

static ms_status check_root(const char *what, const msi_tape *tape, const ms_tensor *root,
                            const ms_tensor *grad)
{
    if (tape->running) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: another backward is running; hooks cannot start one",
                       what);
    }
    if (!root->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: the tensor does not require grad, and no recorded op made it", what);
    }
    if (root->grad_fn == NULL && msi_tensor_is_shard(root)) {
        return msi_refuse_shard(what, root, root->v.ndim, root->v.shape);
    }
    return check_given(what, root, grad);
}

/* -- roots ------------------------------------------------------------------------------------- */

/* The node whose output `t` is. */
static ms_status node_of(msi_node **out, msi_tape *tape, ms_tensor *t)
{
    if (t->grad_fn == NULL) {
        return msi_node_of_leaf(out, tape, t);
    }
    *out = msi_node_retain(t->grad_fn);
    return MS_OK;
}

static ms_status root_init(msi_root *root, const char *what, msi_tape *tape, ms_tensor *t,
                           ms_tensor *grad)
{
    MS_TRY(check_root(what, tape, t, grad));
    MS_TRY(node_of(&root->node, tape, t));
    root->tensor = ms_tensor_retain(t);
    root->grad = grad;
    root->out = t->grad_fn != NULL ? t->out_index : 0;
    return MS_OK;
}

static void root_dispose(msi_root *root)
{
    ms_tensor_free(root->tensor);
    msi_node_release(root->node);
}

/* -- backward ---------------------------------------------------------------------------------- */

static ms_status check_flags(const char *what, int32_t flags, int32_t known)
{
    return (flags & ~known) == 0
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: 'flags' is %d, expected no more than %d", what,
                         (int)flags, (int)known);
}

ms_status ms_backward_with(ms_tensor *root, ms_tensor *grad, int32_t flags)
{
    msi_tape *tape = msi_tape_of(root->ctx);
    msi_root from;

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(check_flags("backward", flags, MS_RETAIN_GRAPH));
    MS_TRY(root_init(&from, "backward", tape, root, grad));
    tape->retains = (flags & MS_RETAIN_GRAPH) != 0;
    ms_status status = msi_backward_run(tape, &from, 1);

    tape->retains = false;
    root_dispose(&from);
    return status;
}

ms_status ms_backward(ms_tensor *root, ms_tensor *grad)
{
    return ms_backward_with(root, grad, 0);
}
