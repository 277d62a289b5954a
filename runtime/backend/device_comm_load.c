/* Opening the plug-in of communicators. */
#include "device_comm.h"
#include "library.h"

#include <string.h>

bool msi_device_communicates(const msi_device *d)
{
    return d->ops->handle != NULL;
}

ms_status msi_device_comm_load(ms_context *ctx, const msi_device_comm_ops **out)
{
    static const msi_library library = {.file = "libmoonshard_nccl.so",
                                        .symbol = "msi_device_comm_plugin",
                                        .what = "the transport between GPUs",
                                        .nbytes = 1 << 20};
    const msi_device_comm_ops *(*plugin)(void);
    const char *why;
    void *symbol;

    if (ctx->device == NULL || !msi_device_communicates(ctx->device)) {
        return MS_FAIL(MS_DEVICE_ERROR, "slots of layout nccl: the device is '%s', expected 'cuda'",
                       ctx->device != NULL ? ctx->device->ops->kind : "cpu");
    }
    MS_TRY(msi_library_open(ctx, &library, &symbol, &why));
    if (symbol == NULL) {
        return MS_FAIL(MS_DEVICE_ERROR, "no transport between GPUs: %s", why);
    }
    memcpy(&plugin, &symbol, sizeof(plugin));
    *out = plugin();
    return (*out)->version == MSI_DEVICE_COMM_VERSION
               ? MS_OK
               : MS_FAIL(MS_DEVICE_ERROR, "%s has interface version %d, expected %d", library.file,
                         (int)(*out)->version, MSI_DEVICE_COMM_VERSION);
}
