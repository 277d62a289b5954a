/* The only symbol of this build for the runtime: its kernels by (kernel, dtype). */
#include "table.h"

/* Weak: a kernel that is not defined for a dtype is NULL in the table. */
#define DECLARE(kernel, dtype, DTYPE)                                                              \
    void MSI_NAME(kernel##_##dtype)(const void *) __attribute__((weak, visibility("hidden")));
#define DECLARE_ALL(kernel, args) MSI_ALL(DECLARE, kernel)
MSI_KERNELS(DECLARE_ALL)

#define ISA_TEXT_2(isa) "x86-64-v" #isa
#define ISA_TEXT(isa) ISA_TEXT_2(isa)
#define ENTRY(kernel, dtype, DTYPE)                                                                \
    .fn[MSI_K_##kernel][MS_DTYPE_##DTYPE] = MSI_NAME(kernel##_##dtype),
#define ENTER_ALL(kernel, args) MSI_ALL(ENTRY, kernel)

const msi_kernel_table MSI_NAME(table) = {
    .device = "cpu", .isa = ISA_TEXT(MSI_ISA), MSI_KERNELS(ENTER_ALL)};
