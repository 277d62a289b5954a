/* .grad while gradients are accumulated and not yet reduced (no_sync). */
#include "gradient.h"

void msi_unit_levels_free(ms_fsdp_unit *u)
{
    msi_accumulator_free_levels(&u->sums);
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].accumulated = false;
    }
}

static void *level_data(const ms_fsdp_unit *u, int32_t j, int32_t index)
{
    const msi_node *level = &u->sums.level[j];

    return (char *)level->block->data + u->params[index].offset * ms_dtype_size(level->dtype);
}

bool msi_unit_accumulates(void *unit, int32_t index)
{
    const ms_fsdp_unit *u = unit;

    return u->params[index].accumulated;
}

/* A handle on the copy; read-only, since writes into it would be lost. */
static ms_status show_copy(ms_tensor **out, ms_context *ctx, const msi_view *copy)
{
    copy->storage->readonly = "is a copy of what no_sync has accumulated; give another value to "
                              "set_grad()";
    return msi_tensor_new(out, ctx, copy);
}

ms_status msi_unit_accumulated(void *unit, int32_t index, ms_tensor **out)
{
    ms_fsdp_unit *u = unit;
    const msi_param *param = u->params[index].tensor->param;
    msi_view sum, like = {.dtype = u->param_dtype}, v = {.storage = NULL};
    ms_status status;

    *out = NULL;
    msi_view_set_contiguous(&like, u->param_dtype, param->ndim, param->shape);
    MS_TRY(msi_view_like(&sum, u->ctx, &like, u->sums.node_dtype, MS_MEM_GRADIENT, false));
    MS_TRY_GOTO(msi_accumulator_sum(&u->sums, u->params[index].offset, u->params[index].numel,
                                    msi_view_ptr(&sum)),
                done);
    if (sum.dtype == like.dtype) {
        status = show_copy(out, u->ctx, &sum);
        goto done;
    }
    MS_TRY_GOTO(msi_view_like(&v, u->ctx, &like, like.dtype, MS_MEM_GRADIENT, false), done);
    MS_TRY_GOTO(msi_copy(&v, &sum, false), done);
    status = show_copy(out, u->ctx, &v);
done:
    msi_storage_release(v.storage);
    msi_storage_release(sum.storage);
    return status;
}

static ms_status write_level(ms_fsdp_unit *u, int32_t j, int32_t index, const msi_view *value)
{
    const int64_t nbytes = u->params[index].numel * ms_dtype_size(u->sums.level[j].dtype);
    const msi_param *param = u->params[index].tensor->param;
    msi_view dst = {.storage = NULL};

    if (value == NULL) {
        return msi_mem_set(u->ctx, level_data(u, j, index), 0, nbytes);
    }
    MS_TRY(msi_storage_wrap(&dst.storage, u->ctx, MS_STORAGE_BORROWED, level_data(u, j, index),
                            nbytes));
    msi_view_set_contiguous(&dst, u->sums.level[j].dtype, param->ndim, param->shape);
    ms_status status = msi_copy(&dst, value, false);

    msi_storage_release(dst.storage);
    return status;
}

/* Write the value to one level and zeros to the others, so that their sum is the value. */
ms_status msi_unit_replace_accumulated(void *unit, int32_t index, const msi_view *value)
{
    ms_fsdp_unit *u = unit;
    const msi_param *param = u->params[index].tensor->param;
    msi_view whole = {.storage = NULL};
    bool any = false;

    msi_view_set_contiguous(&whole, u->param_dtype, param->ndim, param->shape);
    if (value != NULL && !msi_view_same_shape(value, &whole)) {
        return MS_FAIL(MS_VALUE_ERROR, "the accumulated gradient of '%s' has shape %s, expected %s",
                       u->params[index].name, msi_shape_text(value->ndim, value->shape),
                       msi_shape_text(param->ndim, param->shape));
    }
    if (value != NULL && value->dtype != whole.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "the accumulated gradient of '%s' is %s, expected %s",
                       u->params[index].name, ms_dtype_name(value->dtype),
                       ms_dtype_name(whole.dtype));
    }
    u->params[index].accumulated = value != NULL;
    for (int32_t j = 0; j < MSI_MAX_LEVELS; j++) {
        if (u->sums.level[j].block != NULL) {
            MS_TRY(write_level(u, j, index, value));
            value = NULL;
        }
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        any |= u->params[i].accumulated;
    }
    if (!any) {
        msi_unit_levels_free(u);
    }
    return MS_OK;
}
