/* The dtypes of a unit. Its parameters can be cast before its first use. */
#include "unshard.h"

void msi_unit_set_dtypes(ms_fsdp_unit *u, int32_t orig_dtype)
{
    const ms_fsdp_unit_options *o = &u->options;

    u->orig_dtype = orig_dtype;
    u->param_dtype = o->param_dtype != MS_DTYPE_NONE ? o->param_dtype : orig_dtype;
    u->reduce_dtype = o->reduce_dtype != MS_DTYPE_NONE ? o->reduce_dtype
                      : o->reduces_in_own_dtype        ? orig_dtype
                                                       : u->param_dtype;
    u->grad_dtype = o->keep_low_precision_grads ? u->param_dtype : orig_dtype;
}

void msi_unit_set_sum_dtypes(ms_fsdp_unit *u)
{
    const msi_group_facts facts = {.reduce_dtype = u->reduce_dtype,
                                   .orig_dtype = u->orig_dtype,
                                   .full_precision_in_eval = u->options.full_precision_in_eval};

    u->sums.micro_dtype = u->reduce_dtype;
    u->sums.node_dtype = msi_node_dtype(&facts);
}

static ms_status cast_storage(const ms_fsdp_unit *u, int32_t dtype, msi_storage **out)
{
    const msi_view from = msi_flat_view(u, u->master, 0, u->shard_numel);
    msi_view to = from;

    MS_TRY(msi_unit_storage(u, out, u->shard_numel * ms_dtype_size(dtype), MS_MEM_PARAMETER));
    to.storage = *out;
    to.dtype = (int8_t)dtype;
    const ms_status status = msi_copy(&to, &from, false);

    if (status != MS_OK) {
        msi_storage_release(*out);
        *out = NULL;
    }
    return status;
}

/* The layout stays: its alignment is of the dtype that the unit was made for. */
ms_status msi_unit_cast(void *unit, int32_t dtype)
{
    ms_fsdp_unit *u = unit;
    msi_storage *master = NULL;

    if (u->run != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cast: unit '%s' was used already; cast the model before its first use",
                       u->name);
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        if (u->params[i].tensor->grad != NULL) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "cast: parameter '%s' of unit '%s' has a gradient; drop it first",
                           u->params[i].name, u->name);
        }
    }
    if (u->master != NULL) {
        MS_TRY(cast_storage(u, dtype, &master));
    }
    msi_unit_set_dtypes(u, dtype);
    msi_unit_set_sum_dtypes(u);
    for (int32_t i = 0; i < u->n_params; i++) {
        ms_tensor *t = u->params[i].tensor;

        t->param->dtype = dtype;
        if (master == NULL) {
            t->v.dtype = (int8_t)dtype;
            continue;
        }
        msi_storage_release(t->param->master.storage);
        t->param->master.storage = msi_storage_retain(master);
        t->param->master.dtype = (int8_t)dtype;
        t->param->drawn = -1; /* rounded values follow no rule */
    }
    if (u->flat != NULL) {
        u->flat->v.dtype = (int8_t)dtype;
        u->flat->param->dtype = dtype;
    }
    if (master != NULL) {
        msi_storage_release(u->master);
        u->master = master;
        msi_unit_show(u);
    }
    return MS_OK;
}
