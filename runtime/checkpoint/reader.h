/* What the rest of this room asks of an open checkpoint. */
#ifndef MSI_READER_H
#define MSI_READER_H

#include "manifest.h"
#include "moonshard/checkpoint.h"

/* Borrowed from `c`. */
const msi_manifest *msi_checkpoint_manifest(const ms_checkpoint *c);
/* For a checkpoint that was listed and whose opening or verifying has ended with `status`: a
 * missing file is damage, MS_FORMAT_ERROR. What cannot be read now stays MS_IO_ERROR, as it may be
 * whole. Uses the thread's error and errno. */
ms_status msi_checkpoint_missing(ms_status status);
/* Verify the hash of every file whose number is `first` modulo `stride`. */
ms_status msi_checkpoint_verify(ms_checkpoint *c, int32_t first, int32_t stride);
/* Do `extent` and `local` (NULL: this rank holds nothing) fit what the checkpoint has as `key`?
 * MS_KEY_ERROR, MS_VALUE_ERROR. */
ms_status msi_checkpoint_check(const ms_checkpoint *c, const char *key,
                               const ms_param_extent *extent, const ms_tensor *local);
/* Verify the files that hold the elements of `extent`, and read these into `to` unless that is
 * NULL. The caller has checked. */
ms_status msi_checkpoint_fetch(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                               void *to);

#endif
