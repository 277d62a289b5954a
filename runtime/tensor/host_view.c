/* Host access to tensors. tensor.h: [Note: host views]. */
#include "blocks.h"
#include "tensor.h"

static int64_t bytes_of(const msi_view *v)
{
    return msi_view_numel(v) * ms_dtype_size(v->dtype);
}

ms_status msi_host_view_begin_on(msi_host_view *h, const msi_view *v, int32_t use)
{
    ms_context *ctx = v->storage->ctx;
    const int64_t nbytes = bytes_of(v);
    ms_status status;

    MS_TRY(msi_view_present(v));
    if (v->storage->host != NULL || nbytes == 0) {
        h->data = msi_view_address(v);
        /* copies into it have finished; copies from own memory may be pending */
        return (use & MSI_HOST_WRITES) != 0 && v->storage->block != NULL ? msi_settle_stream(ctx)
                                                                         : MS_OK;
    }
    MS_TRY(msi_host_alloc(ctx, nbytes, MS_MEM_SCRATCH, &h->copy));
    h->ctx = ctx;
    h->data = h->copy->data;
    h->to = (use & MSI_HOST_WRITES) != 0 ? msi_view_ptr(v) : NULL;
    if ((use & MSI_HOST_READS) != 0) {
        MS_TRY_GOTO(msi_mem_copy(ctx, h->data, msi_view_ptr(v), nbytes), failed);
        MS_TRY_GOTO(msi_settle_stream(ctx), failed);
    }
    return MS_OK;
failed:
    return msi_host_view_end_on(h, status);
}

/* The copy is freed after the work that uses it. */
ms_status msi_host_view_end_on(msi_host_view *h, ms_status status)
{
    if (status == MS_OK && h->to != NULL) {
        status = msi_mem_copy(h->ctx, h->to, h->data, h->copy->nbytes);
    }
    msi_release_later(h->ctx, h->copy);
    h->copy = NULL;
    return status;
}

ms_status msi_view_hash(const msi_view *v, uint64_t *hash)
{
    msi_host_view host = {0};
    msi_view whole = *v;
    ms_status status;

    MS_TRY(msi_view_present(v));
    if (!msi_view_contiguous(v)) {
        MS_TRY(msi_view_like(&whole, v->storage->ctx, v, v->dtype, MS_MEM_SCRATCH, true));
    }
    MS_TRY_GOTO(msi_host_view_begin(&host, &whole, MSI_HOST_READS), done);
    *hash = ms_hash_bytes(host.data, bytes_of(v));
    status = msi_host_view_end(&host, MS_OK);
done:
    if (whole.storage != v->storage) {
        msi_storage_release(whole.storage);
    }
    return status;
}
