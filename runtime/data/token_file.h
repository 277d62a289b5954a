/* Token files of tensors. */
#ifndef MSI_TOKEN_FILE_H
#define MSI_TOKEN_FILE_H

#include "tensor.h"

/* MS_IO_ERROR, with the path, if the mapped file of `s` has lost bytes; else MS_OK. */
ms_status msi_token_file_check(const msi_storage *s);

#endif
