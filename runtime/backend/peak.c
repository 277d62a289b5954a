/* The measured matrix peak, the reference for speeds. */
#include "backend.h"

#include <string.h>
#include <unistd.h>

#include "moonshard/tensor.h"

enum { LONGEST = 60 /* seconds */ };

/* The library's best shape depends on the processor. */
static const struct peak_shape {
    int64_t m, n, k;
    bool transposed; /* b is dense along k */
} shapes[] = {
    {1024, 1024, 1024, true}, {512, 512, 512, true},  {256, 256, 256, false},
    {1024, 1536, 384, true},  {2048, 768, 768, true}, {4096, 512, 256, false},
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* All shapes in turns, each at least once (the first call makes the primitive). */
static ms_status measure(ms_context *ctx, msi_gemm_args *args, double seconds, double *flops)
{
    const double begun = ms_time();

    for (size_t i = 0; i < MSI_COUNT(shapes) || ms_time() - begun < seconds; i++) {
        const struct peak_shape *s = &shapes[i % MSI_COUNT(shapes)];

        args->m = s->m;
        args->n = args->c_row = s->n;
        args->k = args->a_row = s->k;
        args->b_row = s->transposed ? 1 : s->n;
        args->b_col = s->transposed ? s->k : 1;
        const double t = ms_time();

        MS_TRY(msi_gemm(ctx, args));
        MS_TRY(msi_settle(ctx));
        const double rate = 2.0 * (double)s->m * (double)s->n * (double)s->k / (ms_time() - t);

        *flops = rate > *flops ? rate : *flops;
    }
    return MS_OK;
}

ms_status ms_matmul_peak(int32_t dtype, double seconds, double *flops)
{
    ms_context *ctx = msi_context();
    int64_t a = 0, b = 0, c = 0;
    msi_mem_block *memory;

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
    for (size_t i = 0; i < MSI_COUNT(shapes); i++) {
        a = most(a, shapes[i].m * shapes[i].k * ms_dtype_size(dtype));
        b = most(b, shapes[i].k * shapes[i].n * ms_dtype_size(dtype));
        c = most(c, shapes[i].m * shapes[i].n * ms_dtype_size(dtype));
    }
    MS_TRY(msi_alloc(ctx, a + b + c, MS_MEM_SCRATCH, &memory));
    char *bytes = memory->data;
    msi_gemm_args args = {.a = bytes,
                          .a_col = 1,
                          .b = bytes + a,
                          .c = bytes + a + b,
                          .batch = 1,
                          .dtype = dtype,
                          .c_dtype = dtype};
    ms_status status = msi_mem_set(ctx, bytes, 0, a + b + c); /* values do not affect speed */

    if (status == MS_OK) {
        status = measure(ctx, &args, seconds, flops);
    }
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
