/* The driver's calls, and the size of the card. */
#include "cuda_device.h"

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
