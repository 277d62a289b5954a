/* Blocks of memory that several streams use. Only tests do, until offloading comes with CUDA. */
#ifndef MSI_BLOCKS_H
#define MSI_BLOCKS_H

#include "device.h"

/* Release a block that another stream uses until `mark`: it is used again after that. It does not
 * count as live any more. */
void msi_release_after(msi_mem_block *block, msi_mark mark);

#endif
