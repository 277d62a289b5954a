/* What is ours in a folder of checkpoints, by its name. */
#ifndef MSI_NAMES_H
#define MSI_NAMES_H

#include "base.h"

enum { MSI_SHARD_NAME = 64 }; /* bytes of a name, zero included */

/* Name of file number `part` (from 0) of a rank. */
void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part);
/* Is `name` one of these names? Of which rank and number of ranks? */
bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world);
/* Is `name` what a writer leaves behind when it dies: <anything>.tmp-<16 hexadecimal digits>? */
bool msi_folder_is_leftover(const char *name);
/* Of which step is `name` the ms_checkpoint_step_name()? Folders that are named so are ours.
 * @return -1: of none */
int64_t msi_folder_step(const char *name);

#endif
