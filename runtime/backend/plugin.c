/* Opening the matrix library's plug-in. */
#include "plugin.h"

#include "backend.h"
#include "library.h"

#include <stdio.h>

static const msi_library matrix_library = {
    .file = "libmoonshard_onednn.so",
    .symbol = "msi_onednn_plugin",
    .what = "the matrix library (MS_ONEDNN=0 does without)",
    .nbytes = 64 << 20, /* oneDNN 2.6.3 with its libraries: 47 MiB */
};

static _Thread_local char why[160];

ms_status msi_plugin_open(ms_context *ctx, const msi_plugin **out, const char **reason)
{
    static const char *const choices[] = {"0", "1"};
    void *symbol;

    *out = NULL;
    if (msi_switch_choice("MS_ONEDNN", choices, MSI_COUNT(choices), 1) == 0) {
        *reason = "MS_ONEDNN is 0";
        return MS_OK;
    }
    MS_TRY(msi_library_open(ctx, &matrix_library, &symbol, reason));
    const msi_plugin *plugin = symbol;

    if (plugin != NULL && plugin->version != MSI_PLUGIN_VERSION) {
        snprintf(why, sizeof(why), "%s has interface version %d, expected %d", matrix_library.file,
                 plugin->version, MSI_PLUGIN_VERSION);
        *reason = why;
        return MS_OK;
    }
    *out = plugin;
    return MS_OK;
}
