/* Blocks that enqueued work of other streams than COMPUTE, or of pinned memory, still uses. */
#ifndef MSI_BLOCKS_H
#define MSI_BLOCKS_H

#include "device.h"

/* Release a block that another stream uses until `mark`; it is reused after that. It no longer
 * counts as live. */
void msi_release_after(msi_mem_block *block, msi_mark mark);
/* msi_release_after() what the current stream has enqueued so far. */
static inline void msi_release_later(const ms_context *ctx, msi_mem_block *block)
{
    msi_device *d = ctx->device;

    if (block != NULL) {
        msi_release_after(block, d->ops->mark(d, d->stream));
    }
}

#endif
