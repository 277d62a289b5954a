/* The safetensors format: 8 bytes little-endian length, a JSON object of that length, then data
 * without gaps. Used for single files and in checkpoints. */
#ifndef MSI_SAFETENSORS_H
#define MSI_SAFETENSORS_H

#include "json.h"
#include "moonshard/checkpoint.h"
#include "tensor.h"

enum { MSI_ST_HEADER_MAX = 100000000 };

/* The format's name of a dtype, e.g. "BF16"; the reverse returns MS_DTYPE_NONE if unknown. */
const char *msi_st_dtype_name(int32_t dtype);
int32_t msi_st_dtype(const char *name);

/* A header with metadata format=pt (required by other loaders). NULL with the error set. */
json_t *msi_st_header_new(void);
/* Add an entry. MS_VALUE_ERROR if the name is taken, reserved or not UTF-8. */
ms_status msi_st_header_add(json_t *header, const char *name, int32_t dtype, int32_t ndim,
                            const int64_t *shape, int64_t begin, int64_t end);
/* Length prefix and header, padded with spaces to `room` bytes (0: to a multiple of 8). malloced;
 * `*nbytes` is the total. */
ms_status msi_st_header_text(char **text, int64_t *nbytes, const json_t *header, int64_t room);
/* Read elements at `offset`. Bytes of a bool other than 0 become 1. */
ms_status msi_st_read(int fd, const char *path, int32_t dtype, void *to, int64_t nbytes,
                      int64_t offset);
/* Write the elements of `v` in row-major order at `offset`. */
ms_status msi_st_write_view(int fd, const char *path, ms_context *ctx, const msi_view *v,
                            int64_t offset);

#endif
