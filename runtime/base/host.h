/* Calling functions of the host. */
#ifndef MSI_HOST_H
#define MSI_HOST_H

#include "base.h"

/* A function of the host is called between the two. The thread's last error, which is not its
 * reason, is put aside meanwhile, and comes back unless another has taken its place.
 * @return what msi_host_end() wants */
char msi_host_begin(ms_context *ctx);
/* @param what  see msi_status_of_host(), whose result this returns */
ms_status msi_host_end(ms_context *ctx, char aside, ms_status status, const char *what);

#endif
