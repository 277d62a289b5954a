/* Token files behind tensors. */
#ifndef MSI_TOKEN_FILE_H
#define MSI_TOKEN_FILE_H

#include "tensor.h"

/* Have bytes of the file behind `s` been lost since it was mapped? MS_IO_ERROR names it then. MS_OK
 * for any other storage. */
ms_status msi_token_file_check(const msi_storage *s);

#endif
