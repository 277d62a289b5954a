/* Plug-ins: libraries opened on demand. */
#ifndef MSI_LIBRARY_H
#define MSI_LIBRARY_H

#include "base.h"

typedef struct msi_library {
    const char *file;   /* "libmoonshard_onednn.so" */
    const char *symbol; /* exported symbol */
    const char *what;   /* for messages, with the alternative */
    int64_t nbytes;     /* maximum address space to open it */
} msi_library;

/**
 * Open a plug-in: from the folder MS_PLUGIN_DIR, else next to the runtime's object, else by its
 * plain name. `*symbol` is NULL if it or a library it needs is missing, with the `*reason` (valid
 * until the thread's next call). Never unloaded.
 * @return MS_OUT_OF_MEMORY or MS_DEVICE_ERROR if it exists but cannot be opened: a job must not
 *         fall back to kernels with other bits for lack of memory or files
 */
ms_status msi_library_open(ms_context *ctx, const msi_library *which, void **symbol,
                           const char **reason);

#endif
