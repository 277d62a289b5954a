/* Gradients between nodes, and into leaves.
 *
 * [Note: aliases] The first contribution to an output may be kept by reference: a part of another
 * gradient, an expanded scalar, memory a rule no longer needs. The storage's reference count
 * decides whether it may be added to: memory with another owner is copied first. So z = x + x,
 * views of views and handles kept by hooks are safe, without care in the rules. */
#include "tape.h"

#include <string.h>

static ms_status check_shape(const msi_node *node, const msi_view *v, const char *what)
{
    const msi_output *out = &node->out[0];

    if (MSI_UNLIKELY(v->ndim != out->ndim ||
                     memcmp(v->shape, out->shape, sizeof(int64_t) * (size_t)out->ndim) != 0)) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s of %s has shape %s, expected %s as in forward", what,
                       msi_tensor_label(node->leaf), msi_shape_text(v->ndim, v->shape),
                       msi_shape_text(out->ndim, out->shape));
    }
    return MS_OK;
}

/* A leaf's own .grad. */
static ms_status own_grad_dest(msi_node *node, msi_view *dst, bool *add)
{
    ms_tensor *leaf = node->leaf;

    *add = leaf->grad != NULL;
    if (*add) {
        *dst = leaf->grad->v;
        MS_TRY(check_shape(node, dst, ".grad"));
        dst->storage->version++;
        return MS_OK;
    }
    msi_view v = {0};

    msi_view_set_contiguous(&v, leaf->v.dtype, node->out[0].ndim, node->out[0].shape);
    MS_TRY(msi_storage_new(&v.storage, leaf->ctx, msi_view_numel(&v) * ms_dtype_size(v.dtype),
                           MS_MEM_GRADIENT));
    ms_status status = msi_tensor_new_internal(&leaf->grad, leaf->ctx, &v);

    msi_storage_release(v.storage); /* the handle has its own */
    node->newborn = status == MS_OK;
    *dst = v;
    return status;
}

static ms_status leaf_dest(msi_node *node, msi_view *dst, bool *add)
{
    const msi_grad_sink *sink = node->leaf->sink;

    node->reached = true;
    if (sink == NULL) {
        return own_grad_dest(node, dst, add);
    }
    MS_TRY(sink->dest(sink->user, sink->index, dst, add));
    return check_shape(node, dst, "the gradient's place");
}

static bool goes_straight(const msi_node *node)
{
    return node->op == NULL && !node->gathers;
}

static ms_status take(msi_output *out, msi_tape *tape, const msi_view *v)
{
    MS_TRY(msi_tape_grad(&out->grad, tape));
    out->grad->view = *v;
    msi_storage_retain(v->storage);
    return MS_OK;
}

/* New contiguous memory for a gradient; `copy`: with its value. */
static ms_status renew(msi_output *out, msi_tape *tape, bool copy)
{
    msi_view v = {0};

    msi_view_set_contiguous(&v, out->dtype, out->ndim, out->shape);
    MS_TRY(msi_storage_new(&v.storage, tape->ctx, msi_view_numel(&v) * ms_dtype_size(v.dtype),
                           MS_MEM_ACTIVATION));
    ms_status status = MS_OK;

    if (copy) {
        status = msi_copy(&v, &out->grad->view, false);
        if (status == MS_OK) {
            msi_storage_release(out->grad->view.storage);
            msi_storage_retain(v.storage);
            out->grad->view = v;
        }
    } else {
        status = take(out, tape, &v);
    }
    msi_storage_release(v.storage);
    return status;
}

/* See [Note: aliases]. */
static bool ours_alone(const msi_view *v)
{
    return msi_storage_is_private(v->storage) && msi_view_contiguous(v);
}

ms_status msi_grad_dest(msi_node *node, int32_t out, msi_view *dst, bool *add)
{
    msi_output *output = &node->out[out];

    if (goes_straight(node)) {
        return leaf_dest(node, dst, add);
    }
    *add = output->grad != NULL;
    if (!*add || !ours_alone(&output->grad->view)) {
        MS_TRY(renew(output, node->tape, *add));
    }
    node->reached = true;
    *dst = output->grad->view;
    return MS_OK;
}

/* Only owned memory is kept by reference: a unit's may be unbound during backward. */
bool msi_grad_takes(const msi_node *node, int32_t out, const msi_view *v)
{
    const msi_output *output = &node->out[out];

    return !goes_straight(node) && output->grad == NULL && v->dtype == output->dtype &&
           v->storage->kind == MS_STORAGE_OWNED;
}

ms_status msi_grad_pass(msi_node *node, int32_t out, const msi_view *v)
{
    msi_output *output = &node->out[out];
    msi_view dst;
    bool add;

    if (msi_grad_takes(node, out, v)) {
        node->reached = true;
        return take(output, node->tape, v);
    }
    MS_TRY(msi_grad_dest(node, out, &dst, &add));
    return msi_copy(&dst, v, add);
}

ms_status msi_grad_deliver(msi_node *leaf)
{
    msi_view dst;
    bool add;

    if (leaf->out[0].grad == NULL) {
        return MS_OK;
    }
    MS_TRY(leaf_dest(leaf, &dst, &add));
    MS_TRY(msi_copy(&dst, &leaf->out[0].grad->view, add));
    msi_grads_clear(leaf);
    return MS_OK;
}
