/* What the folder of checkpoints asks of one checkpoint. */
#ifndef MSI_STORE_H
#define MSI_STORE_H

#include "moonshard/checkpoint.h"

/* The manifest's "step", or -1. */
int64_t msi_checkpoint_step(const ms_checkpoint *c);

#endif
