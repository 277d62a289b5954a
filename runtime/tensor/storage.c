/* Storage: reference-counted bytes. */
#include "blocks.h"
#include "pool.h"

static ms_status new_record(msi_storage **out, ms_context *ctx)
{
    msi_tensor_state *state = msi_tensor_state_of(ctx);

    *out = state != NULL ? msi_pool_take_storage(state) : NULL;
    return *out != NULL ? MS_OK : MS_OUT_OF_MEMORY;
}

/* Take `status`' block, or give the record back. */
static ms_status own(msi_storage **out, msi_storage *s, int64_t nbytes, int32_t mem_kind,
                     ms_status status)
{
    if (status != MS_OK) {
        msi_pool_give_storage(msi_tensor_state_of(s->ctx), s);
        *out = NULL;
        return status;
    }
    s->kind = MS_STORAGE_OWNED;
    s->mem_kind = (uint8_t)mem_kind;
    s->nbytes = nbytes;
    s->data = s->block->data;
    *out = s;
    return MS_OK;
}

ms_status msi_storage_new(msi_storage **out, ms_context *ctx, int64_t nbytes, int32_t mem_kind)
{
    msi_storage *s;

    MS_TRY(new_record(&s, ctx));
    return own(out, s, nbytes, mem_kind, msi_alloc(ctx, nbytes, mem_kind, &s->block));
}

/* The host may reuse pinned memory at once, so it waits for kernels. */
static void release_pinned(msi_storage *s, void *user)
{
    msi_device *d = s->ctx->device;

    (void)user;
    if (d != NULL) {
        msi_release_after(s->block, d->ops->mark(d, MSI_STREAM_COMPUTE));
        s->block = NULL;
    }
}

ms_status msi_storage_new_pinned(msi_storage **out, ms_context *ctx, int64_t nbytes,
                                 int32_t mem_kind)
{
    msi_storage *s;

    MS_TRY(new_record(&s, ctx));
    MS_TRY(own(out, s, nbytes, mem_kind, msi_host_alloc(ctx, nbytes, mem_kind, &s->block)));
    s->dispose = ctx->device != NULL ? release_pinned : NULL;
    return MS_OK;
}

ms_status msi_storage_new_host(msi_storage **out, ms_context *ctx, int64_t nbytes)
{
    MS_TRY(msi_storage_new_pinned(out, ctx, nbytes, MS_MEM_ACTIVATION));
    if (ctx->device != NULL) {
        (*out)->host = (*out)->data;
        (*out)->data = NULL;
    }
    return MS_OK;
}

ms_status msi_storage_new_beside(msi_storage **out, const msi_storage *like, int64_t nbytes,
                                 int32_t mem_kind)
{
    while (like->base != NULL) {
        like = like->base;
    }
    return like->dispose == release_pinned
               ? msi_storage_new_pinned(out, like->ctx, nbytes, mem_kind)
               : msi_storage_new(out, like->ctx, nbytes, mem_kind);
}

ms_status msi_storage_wrap(msi_storage **out, ms_context *ctx, int32_t kind, void *data,
                           int64_t nbytes)
{
    MS_TRY(new_record(out, ctx));
    (*out)->kind = (uint8_t)kind;
    (*out)->data = data;
    (*out)->nbytes = nbytes;
    return MS_OK;
}

ms_status msi_storage_of_host(msi_storage **out, ms_context *ctx, void *data, int64_t nbytes)
{
    MS_TRY(msi_memory_open(ctx)); /* and the device */
    MS_TRY(msi_storage_wrap(out, ctx, MS_STORAGE_BORROWED, data, nbytes));
    if (ctx->device != NULL) {
        (*out)->host = data;
        (*out)->data = NULL;
    }
    return MS_OK;
}

ms_status msi_storage_part(msi_storage **out, msi_storage *base, int64_t offset, int64_t nbytes)
{
    MS_TRY(msi_storage_wrap(out, base->ctx, MS_STORAGE_BORROWED, NULL, nbytes));
    msi_storage_bind(*out, base, (char *)base->data + offset, nbytes);
    return MS_OK;
}

void msi_storage_bind(msi_storage *s, msi_storage *base, void *data, int64_t nbytes)
{
    msi_storage *before = s->base;

    s->base = base != NULL ? msi_storage_retain(base) : NULL;
    s->data = data;
    s->nbytes = nbytes;
    msi_storage_release(before);
}

void msi_storage_unbind(msi_storage *s)
{
    msi_storage_bind(s, NULL, NULL, s->nbytes);
}

msi_storage *msi_storage_retain(msi_storage *s)
{
    s->refcount++;
    return s;
}

void msi_storage_release(msi_storage *s)
{
    if (s == NULL || --s->refcount > 0) {
        return;
    }
    msi_storage *base = s->base;

    if (s->dispose != NULL) {
        s->dispose(s, s->user);
    }
    msi_release(s->block);
    msi_pool_give_storage(msi_tensor_state_of(s->ctx), s);
    msi_storage_release(base);
}
