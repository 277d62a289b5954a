/* The measured matrix peak, the reference for speeds. Operands are zeros: those of a GPU, which its
 * power limits, run about a tenth faster than others. */
#include "backend.h"

#include <string.h>
#include <unistd.h>

#include "moonshard/tensor.h"

enum {
    LONGEST = 60,   /* seconds */
    LARGEST = 8192, /* side of a cube */
    REPEATS = 4
};

/* The library's best shape depends on the processor. */
static const struct peak_shape {
    int64_t m, n, k;
    bool transposed; /* b is dense along k */
} shapes[] = {
    {1024, 1024, 1024, true}, {512, 512, 512, true},  {256, 256, 256, false},
    {1024, 1536, 384, true},  {2048, 768, 768, true}, {4096, 512, 256, false},
};

static ms_status run(ms_context *ctx, const struct peak_shape *s, int32_t dtype, char *bytes,
                     double *flops)
{
    const int64_t size = ms_dtype_size(dtype);
    const msi_gemm_args args = {.a = bytes,
                                .a_row = s->k,
                                .a_col = 1,
                                .b = bytes + s->m * s->k * size,
                                .b_row = s->transposed ? 1 : s->n,
                                .b_col = s->transposed ? s->k : 1,
                                .c = bytes + (s->m * s->k + s->k * s->n) * size,
                                .c_row = s->n,
                                .batch = 1,
                                .m = s->m,
                                .n = s->n,
                                .k = s->k,
                                .dtype = dtype,
                                .c_dtype = dtype};
    const double begun = ms_time();

    MS_TRY(msi_gemm(ctx, &args));
    MS_TRY(msi_settle(ctx));
    const double rate = 2.0 * (double)s->m * (double)s->n * (double)s->k / (ms_time() - begun);

    *flops = rate > *flops ? rate : *flops;
    return MS_OK;
}

static int64_t bytes_of(const struct peak_shape *s, int32_t dtype)
{
    return (s->m * s->k + s->k * s->n + s->m * s->n) * ms_dtype_size(dtype);
}

static ms_status take_zeros(ms_context *ctx, int64_t nbytes, msi_mem_block **memory)
{
    MS_TRY(msi_alloc(ctx, nbytes, MS_MEM_SCRATCH, memory));
    return msi_mem_set(ctx, (*memory)->data, 0, nbytes);
}

/* All shapes in turns, each at least once (the first call makes the primitive). */
static ms_status measure(ms_context *ctx, int32_t dtype, double seconds, double *flops)
{
    const double begun = ms_time();
    msi_mem_block *memory = NULL;
    int64_t most = 0;

    for (int32_t i = 0; i < MSI_COUNT(shapes); i++) {
        const int64_t nbytes = bytes_of(&shapes[i], dtype);

        most = nbytes > most ? nbytes : most;
    }
    ms_status status = take_zeros(ctx, most, &memory);

    for (int32_t i = 0; status == MS_OK && (i < MSI_COUNT(shapes) || ms_time() - begun < seconds);
         i++) {
        status = run(ctx, &shapes[i % MSI_COUNT(shapes)], dtype, memory->data, flops);
    }
    msi_release(memory);
    return status;
}

/* A GPU needs larger ones: cubes that double until one takes a tenth of the time. */
static ms_status measure_cubes(ms_context *ctx, int32_t dtype, double seconds, double *flops)
{
    double took = 0;
    ms_status status = MS_OK;

    for (int64_t n = 512; n <= LARGEST && took < seconds / 10 && status == MS_OK; n *= 2) {
        const struct peak_shape cube = {n, n, n, false};
        msi_mem_block *memory = NULL;

        status = take_zeros(ctx, bytes_of(&cube, dtype), &memory);
        for (int32_t i = 0; i < REPEATS && status == MS_OK; i++) { /* the first chooses */
            const double begun = ms_time();

            status = run(ctx, &cube, dtype, memory->data, flops);
            took = ms_time() - begun;
        }
        msi_release(memory);
    }
    return status;
}

ms_status ms_matmul_peak(int32_t dtype, double seconds, double *flops)
{
    ms_context *ctx = msi_context();

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
    MS_TRY(msi_memory_open(ctx));
    ms_status status = ctx->device != NULL ? measure_cubes(ctx, dtype, seconds, flops)
                                           : measure(ctx, dtype, seconds, flops);

    msi_gemm_trim(ctx);
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
