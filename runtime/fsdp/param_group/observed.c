/* Units at the one observable point (op.h): unshard, reshard and reduce are operators on tensors.
 * These tensors are made only if there is an observer. */
#include "observed.h"

#include <stdlib.h>

/* -- the shard and the unsharded parameters ---------------------------------------------------- */

static ms_status make_shard(ms_fsdp_unit *u)
{
    msi_view v = {.storage = u->master};

    msi_view_set_contiguous(&v, u->orig_dtype, 1, &u->shard_numel);
    return msi_tensor_new_internal(&u->observed[0], u->ctx, &v);
}

/* Of the shapes that `unshard` gives; bound later, like all unsharded views. */
static ms_status make_params(ms_fsdp_unit *u, const msi_op *unshard)
{
    const msi_unit_attrs attrs = {.unit = u};
    const msi_view *const in[1] = {&u->observed[0]->v};
    msi_view *form = calloc((size_t)u->n_params, sizeof(*form));
    const msi_meta m = {unshard, &attrs, in, 1, form};
    ms_status status = form != NULL ? unshard->meta(&m) : MS_OUT_OF_MEMORY;

    for (int32_t i = 0; status == MS_OK && i < u->n_params; i++) {
        form[i].storage = u->full;
        form[i].offset = u->params[i].offset;
        status = msi_tensor_new_internal(&u->observed[1 + i], u->ctx, &form[i]);
    }
    free(form);
    return status;
}

ms_status msi_observed_params(ms_fsdp_unit *u, const msi_op *unshard)
{
    if (u->observed != NULL) {
        return MS_OK;
    }
    u->observed = calloc((size_t)u->n_params + 1, sizeof(*u->observed));
    ms_status status = u->observed != NULL ? make_shard(u) : MS_OUT_OF_MEMORY;

    if (status == MS_OK) {
        status = make_params(u, unshard);
    }
    if (status != MS_OK) {
        msi_observed_free(u);
        return MS_FAIL(status, "no memory to watch unit '%s'", u->name);
    }
    return MS_OK;
}

void msi_observed_free(ms_fsdp_unit *u)
{
    for (int32_t i = 0; u->observed != NULL && i <= u->n_params; i++) {
        ms_tensor_free(u->observed[i]);
    }
    free(u->observed);
    u->observed = NULL;
}

/* -- gradients --------------------------------------------------------------------------------- */

/* This rank's gradient in the unit's slot, with all padding. */
static ms_status make_gradient(const ms_fsdp_unit *u, msi_view *v)
{
    const int64_t numel = msi_unit_full_numel(u);
    const int32_t dtype = msi_unit_slot_dtype(u);

    *v = (msi_view){.storage = NULL};
    msi_view_set_contiguous(v, dtype, 1, &numel);
    MS_TRY(msi_storage_wrap(&v->storage, u->ctx, MS_STORAGE_BORROWED,
                            msi_reduction_part(&u->reduction, u->rank),
                            numel * ms_dtype_size(dtype)));
    v->storage->absent = "the unit's gradient was handed on";
    return MS_OK;
}

ms_status msi_observed_reduce(ms_fsdp_unit *u, const msi_op *reduce, bool whole)
{
    const msi_unit_attrs attrs = {u, whole};
    ms_tensor *in = NULL, *out = NULL;
    msi_view gradient, reduced;
    const msi_view *const forms[1] = {&gradient};
    const msi_meta m = {reduce, &attrs, forms, 1, &reduced};
    ms_status status;

    MS_TRY(make_gradient(u, &gradient));
    MS_TRY_GOTO(msi_tensor_new_internal(&in, u->ctx, &gradient), done);
    MS_TRY_GOTO(reduce->meta(&m), done);
    reduced.storage = u->grad;
    MS_TRY_GOTO(msi_tensor_new_internal(&out, u->ctx, &reduced), done);
    status = msi_op_run_into(u->ctx, reduce, &attrs, &in, 1, &out, 1);
done:
    ms_tensor_free(out);
    ms_tensor_free(in);
    msi_storage_unbind(gradient.storage);
    msi_storage_release(gradient.storage);
    return status;
}
