/* Clipping of plain parameters' gradients by their total norm. */
#include "norm.h"
#include "optim.h"

ms_status ms_clip_grad_norm(ms_tensor *const *params, int32_t n_params, double max_norm,
                            double norm_type, double *total)
{
    double folded = 0, norm, coefficient;
    bool largest;

    MS_TRY(msi_clip_check(max_norm, norm_type, &largest));
    for (int32_t i = 0; i < n_params; i++) {
        const ms_tensor *t = params[i];

        if (t->param != NULL && t->param->unit != NULL) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "clip_grad_norm: %s is sharded, its norm needs all ranks; call the "
                           "model's clip_grad_norm_",
                           msi_tensor_label(t));
        }
        if (t->grad != NULL) {
            MS_TRY(msi_norm_fold_view(&folded, &t->grad->v, largest));
        }
    }
    norm = msi_norm_finish(folded, largest);
    coefficient = msi_clip_coefficient(max_norm, norm);
    for (int32_t i = 0; i < n_params; i++) {
        ms_tensor *grad = params[i]->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_scale(&grad->v, coefficient));
        }
    }
    if (total != NULL) {
        *total = msi_plain_nan(norm);
    }
    return MS_OK;
}
