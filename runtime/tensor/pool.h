/* Recycling of records: handles and storages.
 *
 * Records are cut from slabs and never freed singly. Slabs outlive the context (a process-wide pool
 * reuses them), so a stale ref always points to a record whose generation differs. */
#ifndef MSI_POOL_H
#define MSI_POOL_H

#include "tensor.h"

enum {
    MSI_SCOPE_MAX = 256,
    MSI_SLAB_TENSORS = 256,
    MSI_SLAB_STORAGES = MSI_SLAB_TENSORS * sizeof(ms_tensor) / sizeof(msi_storage)
};

typedef struct msi_scope {
    const char *name;
    uint64_t serial;  /* unique among opened scopes */
    ms_tensor **list; /* its handles; NULL where freed or kept */
    int32_t count, capacity;
} msi_scope;

/* Holds either handles or storages. */
typedef struct msi_slab {
    struct msi_slab *next;
    union {
        ms_tensor tensor[MSI_SLAB_TENSORS];
        msi_storage storage[MSI_SLAB_STORAGES];
    } u;
} msi_slab;

/* State of tensor/ in a context. */
typedef struct msi_tensor_state {
    ms_context *ctx;
    ms_tensor *free_tensors;
    msi_storage *free_storages;
    msi_slab *tensor_slabs, *storage_slabs;
    uint64_t n_storages;      /* made so far */
    int32_t depth;            /* of open scopes */
    uint64_t n_scopes_opened; /* so far */
    msi_scope scope[MSI_SCOPE_MAX];
    const struct msi_op_observer *observer;
} msi_tensor_state;

/* NULL, with the error set, if memory is out. */
msi_tensor_state *msi_tensor_state_of(ms_context *ctx);
/* Its unused records go to the next context. */
void msi_tensor_state_free(msi_tensor_state *s);
/* A zeroed record (a handle keeps its generation and released_by). NULL with the error set. */
ms_tensor *msi_pool_take_tensor(msi_tensor_state *s);
void msi_pool_give_tensor(msi_tensor_state *s, ms_tensor *t);
msi_storage *msi_pool_take_storage(msi_tensor_state *s);
void msi_pool_give_storage(msi_tensor_state *s, msi_storage *storage);
/* Put a handle into the list of the scope at `depth` (>= 1). */
ms_status msi_scope_enlist(msi_tensor_state *s, ms_tensor *t, int32_t depth);
/* Release what a handle owns, increment its generation, recycle it. */
void msi_tensor_destroy(ms_tensor *t, const char *released_by);

#endif
