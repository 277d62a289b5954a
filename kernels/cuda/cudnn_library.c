/* cuDNN, opened by the first kernel that it may compute. */
#include "cudnn_graph.h"

#ifdef CUDA_HAS_CUDNN
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTENTION_VERSION = 91000 /* the least */ };

static bool find_calls(cuda_cudnn *c)
{
    char error[MSI_DEVICE_ERROR];
    void *library = cuda_open_library((const char *const[]){"libcudnn.so.9", NULL}, error);
    bool found = library != NULL;

#define FIND(name) found = found && CUDA_FIND(c, library, name, error);
    CUDNN_CALLS(FIND)
    return found;
}

static void open_library(cuda_cudnn *c)
{
    const char *attention = getenv("MS_CUDNN_ATTENTION");

    if (!find_calls(c) || c->cudnnCreate(&c->handle) != CUDNN_STATUS_SUCCESS) {
        c->handle = NULL;
        return;
    }
    const int version = (int)c->cudnnGetVersion();
    const bool old = version < ATTENTION_VERSION;
    const bool disabled = attention != NULL && strcmp(attention, "0") == 0;

    c->no_attention = old || disabled;
    if (old && !disabled) {
        fprintf(stderr,
                "moonshard: cuDNN %d.%d is not used for attention, which needs 9.10 or later; the "
                "plug-in's own kernels are slower\n",
                version / 10000, version / 100 % 100);
    }
}

/* Whether the library may compute this kernel; opens it. */
static bool may_compute(cuda_cudnn **cudnn, int32_t kernel)
{
    const bool is_conv = kernel == MSI_K_conv || kernel == MSI_K_conv_grad;

    if (!is_conv && kernel != MSI_K_attention && kernel != MSI_K_attention_grad) {
        return false;
    }
    if (*cudnn == NULL && (*cudnn = calloc(1, sizeof(**cudnn))) != NULL) {
        open_library(*cudnn);
    }
    return *cudnn != NULL && (*cudnn)->handle != NULL && (is_conv || !(*cudnn)->no_attention);
}

int64_t cuda_cudnn_bytes(cuda_cudnn **cudnn, int32_t kernel, int32_t dtype, const void *args)
{
    return !may_compute(cudnn, kernel) ? 0
           : kernel == MSI_K_conv || kernel == MSI_K_conv_grad
               ? cuda_conv_bytes(*cudnn, args, dtype, kernel == MSI_K_conv_grad)
               : cuda_attention_bytes(*cudnn, args, dtype, kernel == MSI_K_attention_grad);
}

cudaError_t cuda_cudnn_run(cuda_cudnn **cudnn, cudaStream_t stream, int32_t kernel, int32_t dtype,
                           const void *args)
{
    if (!may_compute(cudnn, kernel)) {
        return cudaErrorNotSupported;
    }
    if ((*cudnn)->cudnnSetStream((*cudnn)->handle, stream) != CUDNN_STATUS_SUCCESS) {
        return cudaErrorLaunchFailure;
    }
    return kernel == MSI_K_conv || kernel == MSI_K_conv_grad
               ? cuda_conv_run(*cudnn, stream, args, dtype, kernel == MSI_K_conv_grad)
               : cuda_attention_run(*cudnn, stream, args, dtype, kernel == MSI_K_attention_grad);
}

void cuda_cudnn_close(cuda_cudnn *c)
{
    if (c != NULL && c->handle != NULL) {
        cuda_attention_close(c);
        cuda_conv_close(c);
        (void)c->cudnnDestroy(c->handle);
    }
    free(c);
}

#else /* no headers of cuDNN: own kernels */

int64_t cuda_cudnn_bytes(cuda_cudnn **cudnn, int32_t kernel, int32_t dtype, const void *args)
{
    (void)cudnn, (void)kernel, (void)dtype, (void)args;
    return 0;
}

cudaError_t cuda_cudnn_run(cuda_cudnn **cudnn, cudaStream_t stream, int32_t kernel, int32_t dtype,
                           const void *args)
{
    (void)cudnn, (void)stream, (void)kernel, (void)dtype, (void)args;
    return cudaErrorNotSupported;
}

void cuda_cudnn_close(cuda_cudnn *c)
{
    (void)c;
}

#endif
