/* The one symbol of this build that the runtime sees: its kernels by (op, dtype). */
#include "table.h"

/* Weak, so that an op whose file is absent is a missing kernel at run time, not a failed link. */
#define DECLARE(op, dtype, DTYPE) void MSI_NAME(op##_##dtype)(const void *) __attribute__((weak));
MSI_CPU_KERNELS(DECLARE)

#define ISA_TEXT_2(isa) "x86-64-v" #isa
#define ISA_TEXT(isa) ISA_TEXT_2(isa)
#define ENTRY(op, dtype, DTYPE) .fn[MSI_K_##op][MS_DTYPE_##DTYPE] = MSI_NAME(op##_##dtype),

const msi_kernel_table MSI_NAME(table) = {
    .device = "cpu", .isa = ISA_TEXT(MSI_ISA), MSI_CPU_KERNELS(ENTRY)};
