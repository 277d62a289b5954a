/* What is ours in a folder of checkpoints, by its name. */
#ifndef MSI_NAMES_H
#define MSI_NAMES_H

#include "base.h"

enum { MSI_SHARD_NAME = 64 }; /* bytes of a name, zero included */

/* What is written beside its place has a temporary name there: "<name>.tmp-<nonce>". */
#define MSI_TEMPORARY_MARK ".tmp-"

/* Name of file number `part` (from 0) of a rank. */
void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part);
/* Is `name` one of these names? Of which rank and number of ranks? */
bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world);
/* Are these the hexadecimal digits of a nonce, whatever follows? */
bool msi_begins_with_nonce(const char *text);
/* The temporary name of what goes to `place`, malloced. NULL with the error set. */
char *msi_temporary_path(const char *place, const char *nonce);
/* Is `entry` a temporary name, what a writer leaves behind when it dies? Then `*n_name` of its
 * bytes are the name, and `*nonce` is in it, too. */
bool msi_temporary_name_read(const char *entry, size_t *n_name, const char **nonce);
/* Is `entry` a temporary name of `name`, or (NULL) of any? */
bool msi_is_temporary(const char *entry, const char *name);
/* Of which step is `name` the ms_checkpoint_step_name()? Folders that are named so are ours.
 * @return -1: of none */
int64_t msi_folder_step(const char *name);

#endif
