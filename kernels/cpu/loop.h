/* Offsets in nested loops, for kernels that iterate over one dimension themselves. */
#ifndef MSI_KERNEL_LOOP_H
#define MSI_KERNEL_LOOP_H

#include "kernel_args.h"

/* Elements of the first `ndim` dimensions. */
static inline int64_t loop_count(const msi_loop *loop, int32_t ndim)
{
    int64_t n = 1;

    for (int32_t d = 0; d < ndim; d++) {
        n *= loop->shape[d];
    }
    return n;
}

/* Offset of operand `k` at row-major position `i` of the first `ndim` dimensions. */
static inline int64_t loop_offset(const msi_loop *loop, int32_t k, int32_t ndim, int64_t i)
{
    int64_t offset = 0;

    for (int32_t d = ndim - 1; d > 0; d--) {
        offset += i % loop->shape[d] * loop->stride[k][d];
        i /= loop->shape[d];
    }
    return ndim > 0 ? offset + i * loop->stride[k][0] : 0;
}

/* Size of the last dimension, and the stride of operand `k` there; 1 and 0 without dimensions. */
static inline int64_t loop_width(const msi_loop *loop)
{
    return loop->ndim > 0 ? loop->shape[loop->ndim - 1] : 1;
}

static inline int64_t loop_step(const msi_loop *loop, int32_t k)
{
    return loop->ndim > 0 ? loop->stride[k][loop->ndim - 1] : 0;
}

#endif
