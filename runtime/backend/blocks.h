/* Blocks of memory for who orders streams: offloading, which comes with CUDA, and until then tests.
 * What all others need stands in backend.h. */
#ifndef MSI_BLOCKS_H
#define MSI_BLOCKS_H

#include "device.h"

/* A block as msi_alloc() gives, for use in the order of `stream` (MSI_STREAM_*). */
ms_status msi_alloc_on(ms_context *ctx, int32_t stream, int64_t nbytes, int32_t kind,
                       msi_mem_block **out);
/* Give a block back that is used until `mark`, beside what its own stream does with it: that is
 * when it may be used again. It does not count as live any more. */
void msi_release_after(msi_mem_block *block, msi_mark mark);

#endif
