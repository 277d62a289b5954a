/* Blocks used by several streams. Only tests do, until CUDA offloading. */
#ifndef MSI_BLOCKS_H
#define MSI_BLOCKS_H

#include "device.h"

/* Release a block that another stream uses until `mark`; it is reused after that. It no longer
 * counts as live. */
void msi_release_after(msi_mem_block *block, msi_mark mark);

#endif
