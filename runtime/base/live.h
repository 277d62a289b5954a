/* Which of the objects hosts hold are alive. Tensors are recycled and say so themselves; everything
 * else comes from malloc, so a stale pointer to it may not be followed: it is looked up. */
#ifndef MSI_LIVE_H
#define MSI_LIVE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MSI_LIVE_NONE,
    MSI_LIVE_OPTIM,
    MSI_LIVE_FSDP_UNIT,
    MSI_LIVE_FSDP_TREE,
    MSI_LIVE_COMM,
    MSI_LIVE_LAUNCH,
    MSI_LIVE_LAYOUT,
    MSI_LIVE_CHECKPOINT_WRITER,
    MSI_LIVE_CHECKPOINT,
    MSI_LIVE_CHECKPOINT_LOADER,
    MSI_LIVE_SAFETENSORS,
    MSI_LIVE_KINDS
};

/* Part of the object; all zero while it is not listed. */
typedef struct msi_live {
    struct msi_live *next;
    const void *object;
    uint64_t serial; /* no other object of this process has it */
    int32_t kind;    /* MSI_LIVE_* */
    bool closed;     /* its context is gone; only freeing is left */
} msi_live;

void msi_live_add(msi_live *node, int32_t kind, const void *object);
/* Does nothing to a node that is not listed. */
void msi_live_remove(msi_live *node);
/* The object stays to be freed, and may not be used. */
void msi_live_close(msi_live *node);

/* Is `object` listed as one of this kind? Any pointer may be asked about.
 * @param closed  whether it was closed; may be NULL */
bool msi_live_is(int32_t kind, const void *object, bool *closed);
/* What tells the object that is listed there, as one of this kind and open, from all that were or
 * will be at its address; 0: none is. */
uint64_t msi_live_serial(int32_t kind, const void *object);

#endif
