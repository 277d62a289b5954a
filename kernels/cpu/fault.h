/* Reports of invalid indices. */
#ifndef MSI_KERNEL_FAULT_H
#define MSI_KERNEL_FAULT_H

#include "backend.h"

static inline bool index_is_inside(int64_t index, int64_t end)
{
    return MSI_LIKELY((uint64_t)index < (uint64_t)end);
}

/* Report that indices[position] of n is outside [0, end). */
static inline void fault_found(msi_fault *fault, int32_t kernel, const int64_t *indices,
                               int64_t position, int64_t n, int64_t end)
{
    if (fault->found == 0) {
        *fault = (msi_fault){.found = 1,
                             .kernel = kernel,
                             .index = indices[position],
                             .position = position,
                             .n = n,
                             .end = end};
    }
}

#endif
