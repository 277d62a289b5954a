/* Clipping of plain parameters' gradients by their total norm. */
#include "norm.h"
#include "op.h"
#include "optim.h"

/* Number of blocks of all gradients, and the dtype of their norm. */
static ms_status measure(ms_tensor *const *params, int32_t n_params, int64_t *n_blocks,
                         int32_t *dtype)
{
    *n_blocks = 0;
    *dtype = MS_DTYPE_NONE;
    for (int32_t i = 0; i < n_params; i++) {
        const ms_tensor *t = params[i];

        if (t->param != NULL && t->param->unit != NULL) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "clip_grad_norm: %s is sharded, its norm needs all ranks; call the "
                           "model's clip_grad_norm_",
                           msi_tensor_label(t));
        }
        if (t->grad != NULL) {
            *n_blocks += msi_norm_n_blocks(msi_view_numel(&t->grad->v));
            *dtype = msi_norm_dtype(*dtype, t->grad->v.dtype);
        }
    }
    return MS_OK;
}

static ms_status norm_of(msi_norm *norm, ms_tensor *const *params, int32_t n_params,
                         double max_norm)
{
    for (int32_t i = 0; i < n_params; i++) {
        if (params[i]->grad != NULL) {
            MS_TRY(msi_norm_add(norm, &params[i]->grad->v));
        }
    }
    return msi_norm_fold_blocks(norm, max_norm);
}

static ms_status clip_by(msi_norm *norm, ms_tensor *const *params, int32_t n_params)
{
    for (int32_t i = 0; i < n_params; i++) {
        ms_tensor *grad = params[i]->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_norm_clip(norm, &grad->v));
        }
    }
    return msi_norm_clip_end(norm);
}

ms_status ms_clip_grad_norm(ms_tensor **total, ms_tensor *const *params, int32_t n_params,
                            double max_norm, double norm_type, bool error_if_nonfinite)
{
    int64_t n_blocks;
    int32_t dtype;
    msi_norm norm = {.storage = NULL};

    *total = NULL;
    msi_op_host(msi_context(), "gradients are clipped");
    MS_TRY(msi_clip_check(max_norm, norm_type));
    MS_TRY(measure(params, n_params, &n_blocks, &dtype));
    ms_status status = msi_norm_open(&norm, msi_context(), n_blocks, norm_type, dtype);

    if (status == MS_OK) {
        status = norm_of(&norm, params, n_params, max_norm);
    }
    if (status == MS_OK && error_if_nonfinite) {
        status = msi_norm_check_finite(&norm);
    }
    if (status == MS_OK) {
        status = clip_by(&norm, params, n_params);
    }
    if (status == MS_OK) {
        status = msi_norm_take(&norm, total);
    }
    msi_norm_release(&norm);
    return status;
}
