/* The CUDA device's own parts: attention_cudnn.c, conv_cudnn.c, cudnn_graph.c, cudnn_library.c,
 * device.c, driver.c, matmul.c, memory.c, table.c, timing.c. */
#ifndef MS_CUDA_DEVICE_H
#define MS_CUDA_DEVICE_H

#ifdef MS_CUDASIM
#include "cudasim.h"
#else
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

#include "device.h"

#include "moonshard/tensor.h"

__attribute__((visibility("default"))) const msi_device_ops *msi_device_plugin(void);

/* Enqueue a kernel. cudaErrorNotSupported: not for these arguments. */
typedef cudaError_t (*cuda_kernel_fn)(cudaStream_t stream, const void *args);

/* NULL where the device has no such kernel. */
extern const cuda_kernel_fn cuda_kernels[MSI_K_COUNT][MS_DTYPE_COUNT];
extern const char *const cuda_dtype_names[MS_DTYPE_COUNT];

/* Updates of n <= MSI_RUN_ALL parameters by an optimizer's kernel. */
cudaError_t msi_cuda_update_all(cudaStream_t stream, int32_t kernel, int32_t dtype,
                                const void *args, int64_t stride, int32_t n);
/* The same of norm, and of scale in place by one factor, without gaps. */
cudaError_t msi_cuda_norm_all(cudaStream_t stream, int32_t dtype, const void *args, int64_t stride,
                              int32_t n);
cudaError_t msi_cuda_scale_all(cudaStream_t stream, int32_t dtype, const void *args, int64_t stride,
                               int32_t n);
/* c += bias, where the library cannot add it: f64, and wide results of narrow operands. */
cudaError_t msi_cuda_add_bias(cudaStream_t stream, const msi_gemm_args *g);
/* Bytes of `work` of these kernels. */
int64_t msi_cuda_layer_norm_grad_work(int32_t dtype, const msi_layer_norm_grad_args *args);
int64_t msi_cuda_embedding_grad_work(int32_t dtype, const msi_embedding_args *args);
/* One thread that waits until *word >= value, as signed numbers. */
cudaError_t msi_cuda_await_word(cudaStream_t stream, const uint64_t *word, uint64_t value);
/* One thread that stores a word, behind everything before it. */
cudaError_t msi_cuda_post_word(cudaStream_t stream, uint64_t *word, uint64_t value);

/* -- driver.c --------------------------------------------------------------------------------- */

/* Multiprocessors of the card: grids follow it. */
extern int32_t msi_cuda_processors;
/* Bytes of shared memory that a block may have. */
extern int32_t msi_cuda_shared;

/* A driver call; NULL: this driver has none. */
void *cuda_driver_call(const char *name);

/* The first of these files, up to NULL, that opens; else NULL, with the reasons in `error`
 * (MSI_DEVICE_ERROR bytes). It is never closed. */
void *cuda_open_library(const char *const *files, char *error);
/* A function of it, stored in the pointer at `to`. False, with the reason, if it has none. */
bool cuda_symbol(void *library, const char *name, void *to, char *error);

/* For lists of a library's functions: a member of the struct that has their pointers, and setting
 * it, which is false if there is no such function. */
#define CUDA_POINTER(name) __typeof__(&(name)) name;
#ifdef MS_CUDASIM /* has them itself */
#define CUDA_FIND(to, library, name, error) ((to)->name = (name), true)
#else
#define CUDA_FIND(to, library, name, error) cuda_symbol(library, #name, &(to)->name, error)
#endif

/* -- memory.c --------------------------------------------------------------------------------- */

/* Memory of a card, freed by cuda_memory_free(). With `fd`, other processes can map it by that
 * descriptor. MSI_DEV_*, of which MSI_DEV_FAILED sets `text` (MSI_DEVICE_ERROR bytes);
 * MSI_DEV_UNSUPPORTED: this driver has none. */
int32_t cuda_memory_new(int index, int64_t nbytes, void **out, int32_t *fd, char *text);
int32_t cuda_memory_attach(int index, int32_t fd, int64_t nbytes, bool readonly, void **out,
                           char *text);
void cuda_memory_free(int index, void *p, int64_t nbytes);

/* -- matmul.c ---------------------------------------------------------------------------------- */

typedef struct cuda_matmul cuda_matmul;

/* NULL: no memory, or the library does not open (text in `error`). */
cuda_matmul *cuda_matmul_open(char *error);
size_t cuda_matmul_version(const cuda_matmul *m);
void cuda_matmul_close(cuda_matmul *m);
/* m, n and batch are at least 1. Own kernels compute what the library has no algorithm for.
 * cudaErrorNotSupported: neither has this dtype. */
cudaError_t cuda_matmul_run(cuda_matmul *m, cudaStream_t stream, const msi_gemm_args *g);
/* Bytes of `work`. */
int64_t cuda_matmul_work_bytes(cuda_matmul *m, const msi_gemm_args *g);

/* -- timing.c ---------------------------------------------------------------------------------- */

enum { CUDA_TIMED_COPY = MSI_K_COUNT, CUDA_TIMED_SET };

/* What calls are summed by. Compared by bytes: it has no padding. */
typedef struct cuda_timed {
    int32_t kernel, dtype, c_dtype; /* MSI_K_* or CUDA_TIMED_* */
    int16_t many, library;          /* bools: of run_all(), by cuDNN */
    int64_t m, n, k, batch;         /* of products */
} cuda_timed;

typedef struct cuda_timing cuda_timing;

/* NULL: no memory. */
cuda_timing *cuda_timing_open(void);
/* Around one call that enqueues work to the stream. */
void cuda_timing_begin(cuda_timing *t, cudaStream_t stream);
void cuda_timing_end(cuda_timing *t, cudaStream_t stream, const cuda_timed *what);
/* All work has run. Prints the table on stderr. NULL is accepted. */
void cuda_timing_close(cuda_timing *t, int card, const char *(*kernel_name)(int32_t));

/* -- cudnn_library.c --------------------------------------------------------------------------- */

/* Opened on demand. Computes convolutions and attention. */
typedef struct cuda_cudnn cuda_cudnn;

/* NULL is accepted. */
void cuda_cudnn_close(cuda_cudnn *c);
/* Scratch of cuda_cudnn_run(). */
int64_t cuda_cudnn_bytes(cuda_cudnn **c, int32_t kernel, int32_t dtype, const void *args);
/* cudaErrorNotSupported: not by cuDNN, own kernels must write all results. */
cudaError_t cuda_cudnn_run(cuda_cudnn **c, cudaStream_t stream, int32_t kernel, int32_t dtype,
                           const void *args);

#endif
