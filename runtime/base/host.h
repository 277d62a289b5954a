/* Calling functions of the host. */
#ifndef MSI_HOST_H
#define MSI_HOST_H

#include "base.h"

/* Call a host's function between the two. The thread's last error is saved meanwhile, and restored
 * unless the function set another.
 * @return argument of msi_host_end() */
char msi_host_begin(ms_context *ctx);
/* @param what  see msi_status_of_host(), whose result this returns */
ms_status msi_host_end(ms_context *ctx, char aside, ms_status status, const char *what);

#endif
