/* Public properties of matrix products, and returning idle memory: first the products' work space,
 * which is in heap blocks. */
#include "backend.h"

const char *ms_matmul_name(int32_t dtype)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? msi_gemm_name(ctx, dtype) : "none";
}

int64_t ms_matmul_scratch(int32_t dtype, int64_t m, int64_t n, int64_t k)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? msi_gemm_scratch(ctx, dtype, m, n, k) : 0;
}

int64_t ms_matmul_created(void)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? msi_gemm_created(ctx) : 0;
}

int64_t ms_matmul_kept(void)
{
    ms_context *ctx = msi_context();

    return ctx != NULL ? msi_gemm_kept(ctx) : 0;
}

void ms_memory_trim(void)
{
    ms_context *ctx = msi_context();

    if (ctx != NULL) {
        msi_gemm_trim(ctx);
        msi_alloc_trim(ctx);
    }
}
