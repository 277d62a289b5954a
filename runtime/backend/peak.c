/* The measured matrix peak, the reference for speeds. */
#include "backend.h"

#include <string.h>
#include <unistd.h>

#include "moonshard/tensor.h"

enum { SIDE = 1024, LONGEST = 60 /* seconds */ };

ms_status ms_matmul_peak(int32_t dtype, double seconds, double *flops)
{
    ms_context *ctx = msi_context();
    int64_t nbytes = (int64_t)SIDE * SIDE *
                     (dtype == MS_DTYPE_F64   ? 8
                      : dtype == MS_DTYPE_F32 ? 4
                                              : 2);
    msi_gemm_args args = {.m = SIDE,
                          .n = SIDE,
                          .k = SIDE,
                          .a_row = SIDE,
                          .a_col = 1,
                          .b_row = SIDE,
                          .b_col = 1,
                          .c_row = SIDE,
                          .batch = 1,
                          .dtype = dtype,
                          .c_dtype = dtype};
    msi_mem_block *memory;
    ms_status status;

    *flops = 0;
    if (!ms_dtype_is_floating(dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "matmul_peak: dtype %d, expected f32, f64, bf16 or f16",
                       (int)dtype);
    }
    if (!(seconds > 0 && seconds <= LONGEST)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "matmul_peak: 'seconds' is %g, expected more than 0 and at most %d", seconds,
                       LONGEST);
    }
    MS_TRY(msi_alloc(ctx, 3 * nbytes, MS_MEM_SCRATCH, &memory));
    char *bytes = memory->data;

    MS_TRY_GOTO(msi_mem_set(ctx, bytes, 0, 3 * nbytes), done); /* values do not affect speed */
    args.a = bytes;
    args.b = bytes + nbytes;
    args.c = bytes + 2 * nbytes;
    MS_TRY_GOTO(msi_gemm(ctx, &args), done); /* the first call makes the primitive */
    MS_TRY_GOTO(msi_settle(ctx), done);
    double begun = ms_time();

    do {
        double t = ms_time();

        MS_TRY_GOTO(msi_gemm(ctx, &args), done);
        MS_TRY_GOTO(msi_settle(ctx), done);
        double rate = 2.0 * SIDE * SIDE * SIDE / (ms_time() - t);

        *flops = rate > *flops ? rate : *flops;
    } while (ms_time() - begun < seconds);
done:
    msi_gemm_trim(ctx);
    msi_release(memory);
    return status;
}

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

bool ms_is_terminal(int32_t fd)
{
    return isatty(fd) == 1;
}
