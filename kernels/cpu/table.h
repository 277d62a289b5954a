/* Names of the kernels of this build. kernels/cpu is compiled once for each instruction set, with
 * MSI_ISA 2, 3 or 4, which is the suffix of every external name.
 *
 * A kernel file defines `void MSI_NAME(<kernel>_<dtype>)(const void *args)` for each dtype that it
 * supports. table.c enters the defined ones of MSI_KERNELS. */
#ifndef MSI_TABLE_H
#define MSI_TABLE_H

#include "backend.h"
#include "moonshard/tensor.h"

#define MSI_NAME_3(name, isa) msi_cpu_##name##_v##isa
#define MSI_NAME_2(name, isa) MSI_NAME_3(name, isa)
#define MSI_NAME(name) MSI_NAME_2(name, MSI_ISA)

/* X(op, dtype, DTYPE) for every dtype. */
#define MSI_ALL(X, op)                                                                             \
    X(op, f32, F32)                                                                                \
    X(op, f64, F64)                                                                                \
    X(op, bf16, BF16)                                                                              \
    X(op, f16, F16)                                                                                \
    X(op, i64, I64)                                                                                \
    X(op, i32, I32)                                                                                \
    X(op, u8, U8)                                                                                  \
    X(op, bool, BOOL)

#endif
