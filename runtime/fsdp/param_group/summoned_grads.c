/* Full gradients behind .grad while a unit is summoned with_grads. A replica's are full already.
 *
 * Each rank's own gradients are kept aside meanwhile; leaving without a write-back shows them again
 * and needs no memory. */
#include "gradient.h"
#include "unshard.h"

#include <string.h>

/* This rank's gradients in a row, like the master; zeros where it has none. */
static ms_status own_gradients(ms_fsdp_unit *u, msi_storage **out)
{
    MS_TRY(msi_storage_new(out, u->ctx, u->shard_numel * ms_dtype_size(u->orig_dtype),
                           MS_MEM_SCRATCH));
    ms_status status = msi_mem_set(u->ctx, (*out)->data, 0, (*out)->nbytes);

    for (int32_t i = 0; status == MS_OK && i < u->n_params; i++) {
        const msi_unit_param *p = &u->params[i];

        if (p->tensor->grad != NULL && p->piece.numel > 0) {
            msi_view to = msi_piece_view(u, p, *out);

            msi_unit_shape_shard(u, p, u->orig_dtype, &to);
            status = msi_copy(&to, &p->tensor->grad->v, false);
        }
    }
    return status;
}

/* The whole flat gradient, in new memory. */
static ms_status gather_gradients(ms_fsdp_unit *u, msi_storage **out)
{
    const int64_t nbytes = msi_unit_full_numel(u) * ms_dtype_size(u->orig_dtype);
    msi_storage *own = NULL;
    ms_status status;

    MS_TRY(msi_storage_new(out, u->ctx, nbytes, MS_MEM_GRADIENT));
    MS_TRY_GOTO(own_gradients(u, &own), done);
    status = msi_unit_gather_shards(u, "summon_full_params (gradients) of unit", own, *out);
done:
    msi_storage_release(own);
    return status;
}

static ms_status make_full(ms_fsdp_unit *u, const uint64_t *has, ms_tensor **full)
{
    msi_storage *flat = NULL;
    ms_status status = gather_gradients(u, &flat);

    for (int32_t i = 0; status == MS_OK && i < u->n_params; i++) {
        const msi_param *param = u->params[i].tensor->param;
        msi_view v = {.storage = flat, .offset = u->params[i].offset};

        msi_view_set_contiguous(&v, u->orig_dtype, param->ndim, param->shape);
        status = has[i] != 0 ? msi_tensor_new_internal(&full[i], u->ctx, &v) : MS_OK;
    }
    msi_storage_release(flat);
    return status;
}

ms_status msi_unit_summon_gradients(ms_fsdp_unit *u, const uint64_t *has)
{
    msi_mem_block *block;
    bool any = false;

    if (!u->is_sharded) {
        return MS_OK;
    }
    MS_TRY(msi_host_alloc(u->ctx, (int64_t)sizeof(ms_tensor *) * (u->n_params + 1), MS_MEM_SCRATCH,
                          &block));
    ms_tensor **full = block->data;

    for (int32_t i = 0; i < u->n_params; i++) {
        full[i] = NULL;
        any |= has[i] != 0;
    }
    ms_status status = any ? make_full(u, has, full) : MS_OK;

    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (status != MS_OK) {
            ms_tensor_free(full[i]);
            continue;
        }
        p->own_grad = p->tensor->grad;
        p->tensor->grad = full[i];
    }
    u->shows_full_grads = status == MS_OK;
    msi_release(block);
    return status;
}

/* Are all elements zero? */
static ms_status is_zero(const msi_view *v, bool *zero)
{
    const int64_t nbytes = msi_view_numel(v) * ms_dtype_size(v->dtype);
    msi_host_view host;

    MS_TRY(msi_host_view_begin(&host, v, MSI_HOST_READS));
    const char *bytes = host.data;

    *zero = bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)nbytes - 1) == 0;
    return msi_host_view_end(&host, MS_OK);
}

/* Take over what the script left in the full gradient. A rank that had no gradient still has none
 * if its elements are zeros. */
static ms_status keep_gradient(ms_fsdp_unit *u, msi_unit_param *p)
{
    const ms_tensor *full = p->tensor->grad;
    bool zero = false;

    p->reduced = full != NULL;
    if (full == NULL) {
        ms_tensor_free(p->own_grad);
        p->own_grad = NULL;
        return MS_OK;
    }
    if (p->piece.numel == 0) {
        return MS_OK;
    }
    msi_view v = full->v, own;

    v.offset += p->piece.start;
    msi_unit_shape_shard(u, p, u->orig_dtype, &v);
    if (p->own_grad != NULL) {
        MS_TRY(msi_copy(&p->own_grad->v, &v, false));
        p->own_grad->v.storage->version++;
        return MS_OK;
    }
    MS_TRY(is_zero(&v, &zero));
    if (zero) {
        return MS_OK;
    }
    MS_TRY(msi_view_like(&own, u->ctx, &v, u->grad_dtype, MS_MEM_GRADIENT, true));
    ms_status status = msi_tensor_new_internal(&p->own_grad, u->ctx, &own);

    msi_storage_release(own.storage);
    return status;
}

ms_status msi_unit_keep_gradients(ms_fsdp_unit *u)
{
    for (int32_t i = 0; u->shows_full_grads && i < u->n_params; i++) {
        MS_TRY(keep_gradient(u, &u->params[i]));
    }
    return MS_OK;
}

void msi_unit_restore_gradients(ms_fsdp_unit *u)
{
    if (!u->shows_full_grads) {
        return;
    }
    u->shows_full_grads = false;
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        ms_tensor_free(p->tensor->grad);
        p->tensor->grad = p->own_grad;
        p->own_grad = NULL;
    }
    msi_unit_gradient_trim(u);
}
