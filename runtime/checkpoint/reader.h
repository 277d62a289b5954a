/* Private interface of an open checkpoint. */
#ifndef MSI_READER_H
#define MSI_READER_H

#include "manifest.h"
#include "moonshard/checkpoint.h"

#include <stdbool.h>

/* Borrowed from `c`. */
const msi_manifest *msi_checkpoint_manifest(const ms_checkpoint *c);
/* After a listed checkpoint failed to open or verify with `status`: a missing file is damage,
 * MS_FORMAT_ERROR. An unreadable one stays MS_IO_ERROR, as it may be intact. Uses the thread's
 * error and errno. */
ms_status msi_checkpoint_missing(ms_status status);
/* Verify every file whose number is `first` modulo `stride`. */
ms_status msi_checkpoint_verify(ms_checkpoint *c, int32_t first, int32_t stride);
/* Compare `extent` and `local` (NULL: no elements) with the checkpoint's `key`. MS_KEY_ERROR,
 * MS_VALUE_ERROR. */
ms_status msi_checkpoint_check(const ms_checkpoint *c, const char *key,
                               const ms_param_extent *extent, const ms_tensor *local);
/* Verify the files with the elements of `extent`, and read these to `to` unless NULL. The caller
 * has checked the extent. */
ms_status msi_checkpoint_fetch(ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                               void *to);

/* [Note: files of other hosts] A checkpoint that was saved in folders of several hosts has files
 * that are not in this one. */
bool msi_checkpoint_has_file(const ms_checkpoint *c, int32_t file);
/* Mark the files with elements of `extent` that are not here. False: none. */
bool msi_checkpoint_lacks(const ms_checkpoint *c, const char *key, const ms_param_extent *extent,
                          bool *files);
/* Use a copy of a file that is not here: takes over `fd`. */
void msi_checkpoint_take_file(ms_checkpoint *c, int32_t file, int fd);
/* Bytes of a file that is here. */
ms_status msi_checkpoint_file_bytes(const ms_checkpoint *c, int32_t file, void *to, int64_t nbytes,
                                    int64_t offset);

#endif
