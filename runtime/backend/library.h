/* Plug-ins: libraries that are opened when they are first asked for. */
#ifndef MSI_LIBRARY_H
#define MSI_LIBRARY_H

#include "base.h"

typedef struct msi_library {
    const char *file;   /* "libmoonshard_onednn.so" */
    const char *symbol; /* what it exports */
    const char *what;   /* for messages, with how to do without it */
    int64_t nbytes;     /* address space that opening it may take */
} msi_library;

/**
 * From the folder MS_PLUGIN_DIR, else from beside the object that holds the runtime, else by its
 * plain name. `*symbol` is NULL when there is none or a library it needs is not there; `*reason`
 * then says why (valid until the thread's next call). It is never unloaded.
 * @return MS_OUT_OF_MEMORY or MS_DEVICE_ERROR when it is there and cannot be opened: a job must not
 *         run on other kernels, to other bits, because memory or files are short
 */
ms_status msi_library_open(ms_context *ctx, const msi_library *which, void **symbol,
                           const char **reason);

#endif
