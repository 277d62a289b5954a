/* Closing the tensors of a context. */
#include "pool.h"

/* Make every handle stale and free every storage. */
static void close_state(void *state)
{
    msi_tensor_state *s = state;

    for (msi_slab *slab = s->tensor_slabs; slab != NULL; slab = slab->next) {
        for (int32_t i = 0; i < MSI_SLAB_TENSORS; i++) {
            if (slab->u.tensor[i].refcount > 0) {
                msi_tensor_destroy(&slab->u.tensor[i], "ms.close");
            }
        }
    }
    for (msi_slab *slab = s->storage_slabs; slab != NULL; slab = slab->next) {
        for (int32_t i = 0; i < MSI_SLAB_STORAGES; i++) {
            if (slab->u.storage[i].refcount > 0) {
                slab->u.storage[i].refcount = 1;
                slab->u.storage[i].base = NULL; /* freed by this loop itself */
                msi_storage_release(&slab->u.storage[i]);
            }
        }
    }
    msi_tensor_state_free(s);
}

void msi_tensor_install(ms_context *ctx)
{
    ctx->close[MSI_ROOM_TENSOR] = close_state;
}
