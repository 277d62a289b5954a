/* Finding and opening the matrix library's plug-in. Nothing is remembered here: dlopen() itself
 * counts, so threads need no lock, and what was found is kept by each context (gemm.c). */
#include "plugin.h"

#include "base.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char file_name[] = "libmoonshard_onednn.so";
static const char symbol[] = "msi_onednn_plugin";

static _Thread_local char why[512];

static void *open_in(const char *folder, size_t folder_len)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%.*s/%s", (int)folder_len, folder, file_name) >=
        (int)sizeof(path)) {
        return NULL;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        snprintf(why, sizeof(why), "%s", dlerror());
    }
    return library;
}

static void *open_library(void)
{
    const char *folder = msi_switch_text("MS_PLUGIN_DIR", NULL);
    void *library = folder != NULL ? open_in(folder, strlen(folder)) : NULL;
    Dl_info self;

    if (library == NULL && dladdr(file_name, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');

        library = slash != NULL ? open_in(self.dli_fname, (size_t)(slash - self.dli_fname)) : NULL;
    }
    if (library == NULL) {
        library = dlopen(file_name, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            snprintf(why, sizeof(why), "%s", dlerror());
        }
    }
    return library;
}

const msi_plugin *msi_plugin_open(const char **reason)
{
    *reason = why;
    if (strcmp(msi_switch_text("MS_ONEDNN", ""), "0") == 0) {
        snprintf(why, sizeof(why), "MS_ONEDNN is 0");
        return NULL;
    }
    void *library = open_library();

    if (library == NULL) {
        return NULL;
    }
    const msi_plugin *plugin = dlsym(library, symbol);

    if (plugin == NULL) {
        snprintf(why, sizeof(why), "%s does not export %s", file_name, symbol);
        return NULL;
    }
    if (plugin->version != MSI_PLUGIN_VERSION) {
        snprintf(why, sizeof(why), "%s has interface version %d, expected %d", file_name,
                 plugin->version, MSI_PLUGIN_VERSION);
        return NULL;
    }
    return plugin;
}
