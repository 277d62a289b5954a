/* Returning idle memory, first the matrix work space, which is in heap blocks. */
#include "backend.h"

void ms_memory_trim(void)
{
    ms_context *ctx = msi_context();

    if (ctx != NULL) {
        msi_gemm_trim(ctx);
        msi_alloc_trim(ctx);
    }
}
