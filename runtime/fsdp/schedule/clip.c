/* Clipping by the total gradient norm, with the same bits for every strategy, policy and world
 * size.
 *
 * If ranks exchange messages by the host (norm_messages.h), it waits once, to read its own.
 * Otherwise kernels compute norm and factor, and nothing waits. */
#include "gradient.h"
#include "norm_messages.h"

/* From this rank's gradients. */
static ms_status norm_of_own(const msi_param_list *o, double max_norm, msi_norm *norm)
{
    for (int32_t i = 0; i < o->n; i++) {
        const ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_norm_add(norm, &grad->v));
        }
    }
    return msi_norm_fold_blocks(norm, max_norm);
}

static bool any_is_sent(const ms_fsdp_tree *tree, const msi_param_list *o)
{
    bool any = false;

    for (int32_t i = 0; i < o->n; i++) {
        any |= msi_norm_is_sent(tree, &o->places[i]);
    }
    return any;
}

/* dtype of a parameter's gradient, on whatever rank; MS_DTYPE_NONE without one. */
static int32_t grad_dtype(const msi_listed_param *at)
{
    if (at->tensor->grad != NULL) {
        return at->tensor->grad->v.dtype;
    }
    return at->unit != NULL && at->unit->params[at->index].reduced ? at->unit->grad_dtype
                                                                   : MS_DTYPE_NONE;
}

/* The caller releases `norm`, in any case. */
static ms_status total_norm(ms_fsdp_tree *tree, const msi_param_list *o, double max_norm,
                            double order, msi_norm *norm)
{
    const bool sent = any_is_sent(tree, o), by_host = sent && !msi_norm_on_devices(tree, o, order);
    int64_t n_blocks = 0;
    int32_t dtype = MS_DTYPE_NONE;
    double value;

    for (int32_t i = 0; i < o->n; i++) {
        dtype = msi_norm_dtype(dtype, grad_dtype(&o->places[i]));
    }
    for (int32_t i = 0; i < o->n && !by_host; i++) {
        n_blocks += msi_norm_blocks_of(tree, &o->places[i]);
    }
    MS_TRY(msi_norm_open(norm, tree->ctx, n_blocks, order, dtype));
    if (!sent) {
        return norm_of_own(o, max_norm, norm);
    }
    if (!by_host) {
        return msi_norm_of_devices(tree, o, max_norm, norm);
    }
    MS_TRY(msi_norm_of_ranks(tree, o, order, &value));
    return msi_norm_set(norm, max_norm, value);
}

/* Errors of one unit whose gradients are not all reduced. */
static ms_status check_unit(ms_fsdp_unit *u)
{
    MS_TRY(msi_unit_check_gradient(u, "clip_grad_norm_"));
    if (u->shows_full_grads) {
        return msi_masters_check(u->run, "clip_grad_norm_");
    }
    if (msi_accumulator_holds(&u->sums)) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "clip_grad_norm: gradients of unit '%s' were accumulated inside no_sync "
                       "and are not reduced yet; run the last backward outside no_sync, or with "
                       "set_requires_gradient_sync(true)",
                       u->name);
    }
    return MS_OK;
}

/* The listed parameters may be of several trees over one group of ranks. */
static ms_status check_units(const ms_fsdp_tree *tree, const msi_param_list *o)
{
    const ms_fsdp_unit *checked = NULL;

    for (int32_t i = 0; i < o->n; i++) {
        ms_fsdp_unit *u = o->places[i].unit;

        if (u == NULL || u == checked) {
            continue;
        }
        if (msi_tree_of(u) == NULL || u->comm != tree->comm ||
            (u->is_sharded && u->shards != tree->shards)) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "clip_grad_norm: parameter '%s' is sharded over another group of ranks",
                           msi_tensor_label(o->places[i].tensor));
        }
        MS_TRY(ms_fsdp_tree_init(msi_tree_of(u)));
        MS_TRY(check_unit(u));
        checked = u;
    }
    return MS_OK;
}

static ms_status clip_by(msi_norm *norm, const msi_param_list *o)
{
    for (int32_t i = 0; i < o->n; i++) {
        ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_norm_clip(norm, &grad->v));
        }
    }
    return msi_norm_clip_end(norm);
}

static ms_status clip(ms_tensor **total, ms_fsdp_tree *tree, const msi_param_list *o,
                      double max_norm, double order, bool error_if_nonfinite)
{
    msi_norm norm = {0};
    ms_status status = total_norm(tree, o, max_norm, order, &norm);

    if (status == MS_OK && error_if_nonfinite) {
        status = msi_norm_check_finite(&norm);
    }
    if (status == MS_OK) {
        status = clip_by(&norm, o);
    }
    if (status == MS_OK) {
        status = msi_norm_take(&norm, total);
    }
    msi_norm_release(&norm);
    return status;
}

ms_status ms_fsdp_tree_clip_grad_norm(ms_tensor **total, ms_fsdp_tree *tree,
                                      ms_tensor *const *params, int32_t n_params, double max_norm,
                                      double norm_type, bool error_if_nonfinite)
{
    msi_param_list o;

    *total = NULL;
    MS_TRY(msi_clip_check(max_norm, norm_type));
    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(msi_param_list_new(tree, params, n_params, false, &o));
    ms_status status = check_units(tree, &o);

    if (status == MS_OK) {
        status = clip(total, tree, &o, max_norm, norm_type, error_if_nonfinite);
    }
    msi_release(o.block);
    return status;
}
