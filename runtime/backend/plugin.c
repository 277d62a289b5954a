/* Finding and opening the matrix library's plug-in. Nothing is remembered here: dlopen() itself
 * counts, so threads need no lock, and what was found is kept by each context (gemm.c). */
#include "plugin.h"

#include "backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char file_name[] = "libmoonshard_onednn.so";
static const char symbol[] = "msi_onednn_plugin";

enum { LIBRARY_BYTES = 64 << 20 }; /* oneDNN 2.6.3 and what it links take 47 MiB */

static _Thread_local char why[512];

/* dlopen(), where a file that is not there (this one or one it needs) is no failure: NULL then.
 * What dlerror() says is made with strerror(), in whatever language. */
static ms_status open_file(const char *path, void **library)
{
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL) {
        return MS_OK;
    }
    const char *text = dlerror();

    snprintf(why, sizeof(why), "%s", text != NULL ? text : "out of memory");
    if (strstr(why, strerror(ENOENT)) != NULL) {
        return MS_OK;
    }
    bool memory = strstr(why, strerror(ENOMEM)) != NULL || strstr(why, "out of memory") != NULL;

    return MS_FAIL(memory ? MS_OUT_OF_MEMORY : MS_DEVICE_ERROR,
                   "cannot open the matrix library (MS_ONEDNN=0 does without): %s", why);
}

static ms_status open_in(const char *folder, size_t folder_len, void **library)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%.*s/%s", (int)folder_len, folder, file_name) >=
        (int)sizeof(path)) {
        snprintf(why, sizeof(why), "the path of %s would be too long", file_name);
        return MS_OK;
    }
    return open_file(path, library);
}

static ms_status open_library(void **library)
{
    const char *folder = msi_switch_text("MS_PLUGIN_DIR", NULL);
    Dl_info self;

    *library = NULL;
    if (folder != NULL) {
        MS_TRY(open_in(folder, strlen(folder), library));
        if (*library == NULL) {
            msi_switch_warn("MS_PLUGIN_DIR is '%s': %s; it is ignored", folder, why);
        }
    }
    if (*library == NULL && dladdr(file_name, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');

        if (slash != NULL) {
            MS_TRY(open_in(self.dli_fname, (size_t)(slash - self.dli_fname), library));
        }
    }
    return *library != NULL ? MS_OK : open_file(file_name, library);
}

ms_status msi_plugin_open(ms_context *ctx, const msi_plugin **out, const char **reason)
{
    static const char *const choices[] = {"0", "1"};

    *out = NULL;
    *reason = why;
    if (msi_switch_choice("MS_ONEDNN", choices, MSI_COUNT(choices), 1) == 0) {
        snprintf(why, sizeof(why), "MS_ONEDNN is 0");
        return MS_OK;
    }
    MS_TRY(msi_alloc_probe(ctx, LIBRARY_BYTES,
                           "opening the matrix library (MS_ONEDNN=0 does without)"));
    void *library;

    MS_TRY(open_library(&library));
    if (library == NULL) {
        return MS_OK;
    }
    const msi_plugin *plugin = dlsym(library, symbol);

    if (plugin == NULL) {
        snprintf(why, sizeof(why), "%s does not export %s", file_name, symbol);
    } else if (plugin->version != MSI_PLUGIN_VERSION) {
        snprintf(why, sizeof(why), "%s has interface version %d, expected %d", file_name,
                 plugin->version, MSI_PLUGIN_VERSION);
    } else {
        *out = plugin;
    }
    return MS_OK;
}
