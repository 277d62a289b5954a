/* Giving back what lies idle: first the work space of matrix products, which is the allocator's. */
#include "backend.h"

void ms_memory_trim(void)
{
    ms_context *ctx = msi_context();

    if (ctx != NULL) {
        msi_gemm_trim(ctx);
        msi_alloc_trim(ctx);
    }
}
