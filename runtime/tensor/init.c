/* Tensors and parameters overwritten by a rule. */
#include "op.h"

ms_status ms_tensor_init(ms_tensor *t, int32_t kind, double a, double b, uint64_t key)
{
    msi_op_host(t->ctx, "random values are drawn");
    MS_TRY(msi_init_check(kind));
    if (!msi_view_contiguous(&t->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "init needs a contiguous tensor, got shape %s with gaps",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    if (t->param != NULL) {
        MS_TRY(ms_tensor_materialize(t));
    }
    /* of a unit's parameter this rank's elements, unless it shows a summoned copy */
    const bool local = t->param != NULL && t->param->unit != NULL &&
                       (msi_tensor_is_shard(t) || t->v.storage->readonly != NULL);
    const msi_view *v = local ? &t->param->master : &t->v;
    msi_init_args args = {.first = local ? t->param->start : 0,
                          .n = msi_view_numel(v),
                          .kind = kind,
                          .a = a,
                          .b = b,
                          .key = key,
                          .seed = t->ctx->seed};

    MS_TRY(local ? MS_OK : msi_tensor_check_write(t, "init"));
    MS_TRY(msi_view_data(v, &args.out));
    MS_TRY(msi_dispatch("init", MSI_K_init, v->dtype, &args));
    v->storage->version++;
    if (t->param != NULL) {
        t->param->drawn = v->storage->version;
        msi_param_touched(t);
    }
    return MS_OK;
}
