/* The driver's calls, those of libraries that are opened at run time, and the size of the card. */
#include "cuda_device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int32_t msi_cuda_processors = 1, msi_cuda_shared;

void *cuda_driver_call(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *fn = NULL;

    return cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found) ==
                       cudaSuccess &&
                   found == cudaDriverEntryPointSuccess
               ? fn
               : NULL;
}

#ifdef MS_CUDASIM
void *cuda_open_library(const char *const *files, char *error)
{
    (void)files;
    (void)error;
    return dlopen(NULL, RTLD_NOW);
}
#else
void *cuda_open_library(const char *const *files, char *error)
{
    size_t n = 0;

    error[0] = '\0';
    for (; *files != NULL; files++) {
        void *library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);

        if (library != NULL) {
            return library;
        }
        n += (size_t)snprintf(error + n, MSI_DEVICE_ERROR - n, "%s%.120s", n > 0 ? "; " : "",
                              dlerror());
    }
    return NULL;
}

bool cuda_symbol(void *library, const char *name, void *to, char *error)
{
    void *symbol = dlsym(library, name);

    if (symbol == NULL) {
        snprintf(error, MSI_DEVICE_ERROR, "%.200s", dlerror());
        return false;
    }
    memcpy(to, &symbol, sizeof(symbol));
    return true;
}
#endif
