/* The kernels of this folder by (kernel, dtype), and names of dtypes. */
#include "cuda_device.h"

/* X(op, dtype, DTYPE) for every dtype. */
#define ALL(X, op)                                                                                 \
    X(op, f32, F32)                                                                                \
    X(op, f64, F64)                                                                                \
    X(op, bf16, BF16)                                                                              \
    X(op, f16, F16)                                                                                \
    X(op, i64, I64)                                                                                \
    X(op, i32, I32)                                                                                \
    X(op, u8, U8)                                                                                  \
    X(op, bool, BOOL)

/* Weak: a kernel that no file defines for a dtype is NULL in the table. */
#define DECLARE(kernel, dtype, DTYPE)                                                              \
    cudaError_t msi_cuda_##kernel##_##dtype(cudaStream_t, const void *)                            \
        __attribute__((weak, visibility("hidden")));
#define DECLARE_ALL(kernel, args) ALL(DECLARE, kernel)
MSI_KERNELS(DECLARE_ALL)

#define ENTRY(kernel, dtype, DTYPE)                                                                \
    [MSI_K_##kernel][MS_DTYPE_##DTYPE] = msi_cuda_##kernel##_##dtype,
#define ENTER_ALL(kernel, args) ALL(ENTRY, kernel)

const cuda_kernel_fn cuda_kernels[MSI_K_COUNT][MS_DTYPE_COUNT] = {MSI_KERNELS(ENTER_ALL)};

#define NAME(op, dtype, DTYPE) [MS_DTYPE_##DTYPE] = #dtype,
const char *const cuda_dtype_names[MS_DTYPE_COUNT] = {ALL(NAME, )};
