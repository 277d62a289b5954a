#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Slabs that no context uses; nothing in them is shared. */
static struct {
    pthread_mutex_t lock;
    msi_slab *tensor, *storage;
} retired = {.lock = PTHREAD_MUTEX_INITIALIZER};

static msi_slab *slab_new(msi_slab **pool, msi_slab **list)
{
    pthread_mutex_lock(&retired.lock);
    msi_slab *slab = *pool;

    if (slab != NULL) {
        *pool = slab->next;
    }
    pthread_mutex_unlock(&retired.lock);
    if (slab == NULL) {
        slab = msi_take_touched(sizeof(*slab));
        if (slab == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for records of tensors (%zu bytes)",
                     sizeof(*slab));
            return NULL;
        }
        memset(slab, 0, sizeof(*slab));
    }
    slab->next = *list;
    *list = slab;
    return slab;
}

ms_tensor *msi_pool_take_tensor(msi_tensor_state *s)
{
    if (MSI_UNLIKELY(s->free_tensors == NULL)) {
        msi_slab *slab = slab_new(&retired.tensor, &s->tensor_slabs);

        if (slab == NULL) {
            return NULL;
        }
        for (int32_t i = MSI_SLAB_TENSORS - 1; i >= 0; i--) {
            slab->u.tensor[i].next_free = s->free_tensors;
            s->free_tensors = &slab->u.tensor[i];
        }
    }
    ms_tensor *t = s->free_tensors;
    uint64_t generation = t->generation;
    const char *released_by = t->released_by;

    s->free_tensors = t->next_free;
    memset(t, 0, sizeof(*t));
    t->generation = generation;
    t->released_by = released_by;
    t->refcount = 1;
    t->ctx = s->ctx;
    s->ctx->live_handles++;
    return t;
}

void msi_pool_give_tensor(msi_tensor_state *s, ms_tensor *t)
{
    t->generation++;
    t->refcount = 0;
    t->next_free = s->free_tensors;
    s->free_tensors = t;
    s->ctx->live_handles--;
}

msi_storage *msi_pool_take_storage(msi_tensor_state *s)
{
    if (MSI_UNLIKELY(s->free_storages == NULL)) {
        msi_slab *slab = slab_new(&retired.storage, &s->storage_slabs);

        if (slab == NULL) {
            return NULL;
        }
        for (int32_t i = MSI_SLAB_STORAGES - 1; i >= 0; i--) {
            slab->u.storage[i].next_free = s->free_storages;
            s->free_storages = &slab->u.storage[i];
        }
    }
    msi_storage *storage = s->free_storages;

    s->free_storages = storage->next_free;
    memset(storage, 0, sizeof(*storage));
    storage->refcount = 1;
    storage->serial = ++s->n_storages;
    storage->ctx = s->ctx;
    return storage;
}

void msi_pool_give_storage(msi_tensor_state *s, msi_storage *storage)
{
    storage->refcount = 0;
    storage->next_free = s->free_storages;
    s->free_storages = storage;
}

ms_status msi_scope_enlist(msi_tensor_state *s, ms_tensor *t, int32_t depth)
{
    msi_scope *scope = &s->scope[depth - 1];

    if (scope->count == scope->capacity) {
        int32_t capacity = scope->capacity > 0 ? scope->capacity * 2 : 64;
        ms_tensor **list = realloc(scope->list, sizeof(*list) * (size_t)capacity);

        if (list == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a scope of %d handles", (int)capacity);
        }
        scope->list = list;
        scope->capacity = capacity;
    }
    t->scope = depth;
    t->scope_index = scope->count;
    scope->list[scope->count++] = t;
    return MS_OK;
}

static void slabs_retire(msi_slab **pool, msi_slab *list)
{
    pthread_mutex_lock(&retired.lock);
    while (list != NULL) {
        msi_slab *next = list->next;

        list->next = *pool;
        *pool = list;
        list = next;
    }
    pthread_mutex_unlock(&retired.lock);
}

void msi_tensor_state_free(msi_tensor_state *s)
{
    for (int32_t i = 0; i < MSI_SCOPE_MAX; i++) {
        free(s->scope[i].list);
    }
    slabs_retire(&retired.tensor, s->tensor_slabs);
    slabs_retire(&retired.storage, s->storage_slabs);
    free(s);
}

msi_tensor_state *msi_tensor_state_of(ms_context *ctx)
{
    if (MSI_UNLIKELY(ctx == NULL)) {
        return NULL;
    }
    if (MSI_UNLIKELY(ctx->room[MSI_ROOM_TENSOR] == NULL)) {
        msi_tensor_state *s = calloc(1, sizeof(*s));

        if (s == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the tensor room (%zu bytes)", sizeof(*s));
            return NULL;
        }
        s->ctx = ctx;
        ctx->room[MSI_ROOM_TENSOR] = s;
    }
    return ctx->room[MSI_ROOM_TENSOR];
}
