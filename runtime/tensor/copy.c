/* Copies: casting, broadcasting, and between device and host memory. */
#include "blocks.h"
#include "tensor.h"

/* From the first to the last byte. */
static int64_t span_of(const msi_view *v)
{
    int64_t last = 0;

    for (int32_t d = 0; d < v->ndim; d++) {
        last += v->stride[d] * (v->shape[d] - 1);
    }
    return msi_view_numel(v) > 0 ? (last + 1) * ms_dtype_size(v->dtype) : 0;
}

/* [Note: staging] Unpinned host memory up to this size is copied through pinned memory, so that
 * nobody waits for a copy to the device. Larger memory is copied directly, and waited for. */
enum { STAGE_BYTES = 64 << 20 };

static bool is_staged(const msi_view *v)
{
    return v->storage->block == NULL && span_of(v) <= STAGE_BYTES;
}

/* Copy a view of host memory to the device. */
static ms_status upload(void *to, const msi_view *v)
{
    ms_context *ctx = v->storage->ctx;
    const int64_t nbytes = span_of(v);
    const void *from = msi_view_address(v);
    msi_mem_block *stage;

    if (!is_staged(v)) {
        MS_TRY(msi_mem_copy(ctx, to, from, nbytes));
        return v->storage->block != NULL ? MS_OK : msi_settle_stream(ctx);
    }
    MS_TRY(msi_host_alloc(ctx, nbytes, MS_MEM_SCRATCH, &stage));
    memcpy(stage->data, from, (size_t)nbytes);
    const ms_status status = msi_mem_copy(ctx, to, stage->data, nbytes);

    msi_release_later(ctx, stage);
    return status;
}

/* The reverse; finished on return. */
static ms_status download(const msi_view *v, const void *from)
{
    ms_context *ctx = v->storage->ctx;
    const int64_t nbytes = span_of(v);
    void *to = msi_view_address(v);
    msi_mem_block *stage;
    ms_status status;

    if (!is_staged(v)) {
        MS_TRY(msi_mem_copy(ctx, to, from, nbytes));
        return msi_settle_stream(ctx);
    }
    MS_TRY(msi_host_alloc(ctx, nbytes, MS_MEM_SCRATCH, &stage));
    MS_TRY_GOTO(msi_mem_copy(ctx, stage->data, from, nbytes), done);
    MS_TRY_GOTO(msi_settle_stream(ctx), done);
    memcpy(to, stage->data, (size_t)nbytes);
done:
    msi_release_later(ctx, stage);
    return status;
}

/* Device copy of a view of host memory, with its contents if `fetch`; a device view as it is. The
 * caller releases the storage. */
static ms_status bring(const msi_view *v, bool fetch, msi_view *out)
{
    ms_status status = MS_OK;

    *out = *v;
    if (v->storage->host == NULL) {
        msi_storage_retain(v->storage);
        return MS_OK;
    }
    out->offset = 0;
    MS_TRY(msi_storage_new(&out->storage, v->storage->ctx, span_of(v), MS_MEM_SCRATCH));
    if (fetch) {
        status = upload(out->storage->data, v);
    }
    if (status != MS_OK) {
        msi_storage_release(out->storage);
    }
    return status;
}

/* Also rewrites bytes between the elements of `dst`, unchanged. */
static ms_status copy_brought(const char *op, const msi_view *dst, const msi_view *from,
                              bool accumulate)
{
    const bool fetch = accumulate || !msi_view_contiguous(dst);
    msi_view to;

    MS_TRY(bring(dst, fetch, &to));
    ms_status status = msi_ew(op, MSI_K_copy, &to, &from, 1, NULL, accumulate);

    if (status == MS_OK && dst->storage->host != NULL) {
        status = download(dst, to.storage->data);
    }
    msi_storage_release(to.storage);
    return status;
}

static ms_status copy_across(const char *op, const msi_view *dst, const msi_view *src,
                             bool accumulate)
{
    msi_view from;

    MS_TRY(msi_view_present(dst));
    MS_TRY(msi_view_present(src));
    if (msi_view_numel(dst) == 0) {
        return MS_OK;
    }
    MS_TRY(bring(src, true, &from));
    const ms_status status = copy_brought(op, dst, &from, accumulate);

    msi_storage_release(from.storage);
    if (status != MS_OK) {
        msi_drain(dst->storage->ctx); /* the host may use its memory again */
    }
    return status;
}

ms_status msi_copy_of(const char *op, const msi_view *dst, const msi_view *src, bool accumulate)
{
    return MSI_LIKELY(dst->storage->host == NULL && src->storage->host == NULL)
               ? msi_ew(op, MSI_K_copy, dst, &src, 1, NULL, accumulate)
               : copy_across(op, dst, src, accumulate);
}

ms_status msi_copy(const msi_view *dst, const msi_view *src, bool accumulate)
{
    return msi_copy_of("copy", dst, src, accumulate);
}

ms_status msi_view_like(msi_view *out, ms_context *ctx, const msi_view *src, int32_t dtype,
                        int32_t mem_kind, bool copy)
{
    msi_view v = {0};

    msi_view_set_contiguous(&v, dtype, src->ndim, src->shape);
    MS_TRY(msi_storage_new(&v.storage, ctx, msi_view_numel(&v) * ms_dtype_size(dtype), mem_kind));
    if (copy) {
        ms_status status = msi_copy(&v, src, false);

        if (status != MS_OK) {
            msi_storage_release(v.storage);
            return status;
        }
    }
    *out = v;
    return MS_OK;
}
