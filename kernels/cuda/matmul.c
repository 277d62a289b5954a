/* Matrix products by cuBLASLt. A product's algorithm is chosen once per shape, at its first use,
 * and kept for the life of the process, so that equal calls give equal bits. Only reductions that
 * repeat are allowed: none, or in the compute type, in the product's work space.
 *
 * The library's epilogues add a bias, apply GELU and add up A's rows; where it refuses them,
 * kernels of their own follow the product.
 *
 * Its algorithms also differ with the alignment of addresses, which depends on where a parameter
 * lies in its unit. Each is chosen for multiples of 16 bytes; any other operand is copied to the
 * work space, or computed there and copied from it.
 *
 * The library is opened at run time, of either CUDA version: the plug-in itself needs none.
 *
 * cuBLASLt is column-major: C (M, N) row-major is its C^T (N, M), so operands change places. */
#include "cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                                                                                   \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmul)

enum {
    WORK_BYTES = 32 << 20, /* of the library, at most */
    WORK_ALIGNMENT = 256,
    ALIGNMENT = 16, /* bytes; of operands, as algorithms see them */
    BUCKETS = 256
};

/* What an algorithm is chosen for. Compared by bytes: zeroed first. */
typedef struct shape {
    int64_t m, n, k, a_ld, b_ld, c_ld, batch, a_batch, b_batch, c_batch;
    int32_t dtype, c_dtype;
    bool a_trans, b_trans, bias, gelu, before, a_sum;
} shape;

typedef struct plan {
    struct plan *next;
    shape of;
    bool supported;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t work_bytes;
} plan;

struct cuda_matmul {
    CALLS(CUDA_POINTER)
    cublasLtHandle_t handle;
    plan *plans[BUCKETS];
};

static bool find_calls(cuda_matmul *m, char *error)
{
    void *library = cuda_open_library(
        (const char *const[]){"libcublasLt.so.13", "libcublasLt.so.12", NULL}, error);
    bool found = library != NULL;

#define FIND(name) found = found && CUDA_FIND(m, library, name, error);
    CALLS(FIND)
    return found;
}

cuda_matmul *cuda_matmul_open(char *error)
{
    cuda_matmul *m = calloc(1, sizeof(*m));
    cublasStatus_t status;

    if (m == NULL || !find_calls(m, error)) {
        free(m);
        return NULL;
    }
    status = m->cublasLtCreate(&m->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        snprintf(error, MSI_DEVICE_ERROR, "cublasLtCreate() of cuBLASLt %zu returns %d",
                 m->cublasLtGetVersion(), (int)status);
        free(m);
        return NULL;
    }
    return m;
}

size_t cuda_matmul_version(const cuda_matmul *m)
{
    return m->cublasLtGetVersion();
}

static void free_plan(const cuda_matmul *m, plan *p)
{
    if (p->a != NULL) {
        (void)m->cublasLtMatrixLayoutDestroy(p->a);
    }
    if (p->b != NULL) {
        (void)m->cublasLtMatrixLayoutDestroy(p->b);
    }
    if (p->c != NULL) {
        (void)m->cublasLtMatrixLayoutDestroy(p->c);
    }
    if (p->desc != NULL) {
        (void)m->cublasLtMatmulDescDestroy(p->desc);
    }
    free(p);
}

void cuda_matmul_close(cuda_matmul *m)
{
    if (m == NULL) {
        return;
    }
    for (int32_t i = 0; i < BUCKETS; i++) {
        for (plan *p = m->plans[i], *next; p != NULL; p = next) {
            next = p->next;
            free_plan(m, p);
        }
    }
    (void)m->cublasLtDestroy(m->handle);
    free(m);
}

/* -- choosing ---------------------------------------------------------------------------------- */

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == MS_DTYPE_F64    ? CUDA_R_64F
           : dtype == MS_DTYPE_BF16 ? CUDA_R_16BF
           : dtype == MS_DTYPE_F16  ? CUDA_R_16F
                                    : CUDA_R_32F;
}

static int64_t at_least(int64_t x, int64_t least)
{
    return x > least ? x : least;
}

/* A row-major operand with rows `ld` apart is its transpose to the library. */
static shape shape_of(const msi_gemm_args *g)
{
    shape s;

    memset(&s, 0, sizeof(s));
    s.m = g->m;
    s.n = g->n;
    s.k = g->k;
    s.a_trans = g->a_col != 1;
    s.b_trans = g->b_col != 1;
    s.a_ld = s.a_trans ? at_least(g->a_col, g->m) : at_least(g->a_row, g->k);
    s.b_ld = s.b_trans ? at_least(g->b_col, g->k) : at_least(g->b_row, g->n);
    s.c_ld = at_least(g->c_row, g->n);
    s.batch = g->batch;
    if (g->batch > 1) {
        s.a_batch = g->a_batch;
        s.b_batch = g->b_batch;
        s.c_batch = g->c_batch;
    }
    s.dtype = g->dtype;
    s.c_dtype = g->c_dtype;
    s.bias = g->bias != NULL && g->dtype != MS_DTYPE_F64 && g->c_dtype == g->dtype;
    s.gelu = g->gelu;
    s.before = g->before != NULL;
    s.a_sum = g->a_sum != NULL;
    return s;
}

static bool layout(const cuda_matmul *m, cublasLtMatrixLayout_t *out, int32_t dtype, int64_t rows,
                   int64_t cols, int64_t ld, int64_t batch, int64_t offset)
{
    const int32_t count = (int32_t)batch;

    return m->cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           m->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof(count)) == CUBLAS_STATUS_SUCCESS &&
           m->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &offset, sizeof(offset)) == CUBLAS_STATUS_SUCCESS;
}

static bool has_epilogue(const msi_gemm_args *g)
{
    return g->gelu || g->a_sum != NULL;
}

/* GELU in the library's arithmetic only where the result is narrow; one of two epilogues. */
static bool may_fuse(const shape *s)
{
    const bool narrow = s->dtype == MS_DTYPE_BF16 || s->dtype == MS_DTYPE_F16;

    return s->gelu    ? narrow && s->c_dtype == s->dtype && !s->a_sum
           : s->a_sum ? s->dtype != MS_DTYPE_F64 && !s->bias && s->batch == 1
                      : true;
}

static cublasLtEpilogue_t epilogue_of(const shape *s)
{
    return s->a_sum    ? CUBLASLT_EPILOGUE_BGRADB /* the library's B is A */
           : !s->gelu  ? (s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT)
           : s->before ? (s->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                       : (s->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
}

/* Set the addresses that epilogues use. */
static bool point(const cuda_matmul *m, const plan *p, const void *bias, const void *before)
{
    return m->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                             sizeof(bias)) == CUBLAS_STATUS_SUCCESS &&
           (!p->of.before ||
            m->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                              &before, sizeof(before)) == CUBLAS_STATUS_SUCCESS);
}

/* The choice of an algorithm reads the alignment of these addresses. */
static bool describe_epilogue(const cuda_matmul *m, const plan *p)
{
    const shape *s = &p->of;
    const cublasLtEpilogue_t epilogue = epilogue_of(s);
    const void *aligned = (const void *)(uintptr_t)ALIGNMENT;

    return m->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                             sizeof(epilogue)) == CUBLAS_STATUS_SUCCESS &&
           (!s->before || m->cublasLtMatmulDescSetAttribute(
                              p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &s->c_ld,
                              sizeof(s->c_ld)) == CUBLAS_STATUS_SUCCESS) &&
           (!(s->bias || s->a_sum) || point(m, p, aligned, aligned));
}

static bool describe(const cuda_matmul *m, plan *p)
{
    const shape *s = &p->of;
    const bool wide = s->dtype == MS_DTYPE_F64;
    const cublasOperation_t first = s->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = s->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N;

    return m->cublasLtMatmulDescCreate(&p->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                       wide ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           m->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                             sizeof(first)) == CUBLAS_STATUS_SUCCESS &&
           m->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                             sizeof(second)) == CUBLAS_STATUS_SUCCESS &&
           describe_epilogue(m, p) &&
           layout(m, &p->a, s->dtype, s->b_trans ? s->k : s->n, s->b_trans ? s->n : s->k, s->b_ld,
                  s->batch, s->b_batch) &&
           layout(m, &p->b, s->dtype, s->a_trans ? s->m : s->k, s->a_trans ? s->k : s->m, s->a_ld,
                  s->batch, s->a_batch) &&
           layout(m, &p->c, s->c_dtype, s->n, s->m, s->c_ld, s->batch, s->c_batch);
}

/* The library's first choice. */
static bool choose(const cuda_matmul *m, plan *p)
{
    const uint64_t work = WORK_BYTES;
    const uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t alignment = ALIGNMENT;
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int n = 0;

    if (m->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    bool ok =
        m->cublasLtMatmulPreferenceSetAttribute(preference,
                                                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work,
                                                sizeof(work)) == CUBLAS_STATUS_SUCCESS &&
        m->cublasLtMatmulPreferenceSetAttribute(preference,
                                                CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &schemes, sizeof(schemes)) == CUBLAS_STATUS_SUCCESS;

    for (int32_t i = 0; i < MSI_COUNT(aligned); i++) {
        ok = ok &&
             m->cublasLtMatmulPreferenceSetAttribute(preference, aligned[i], &alignment,
                                                     sizeof(alignment)) == CUBLAS_STATUS_SUCCESS;
    }
    ok = ok &&
         m->cublasLtMatmulAlgoGetHeuristic(m->handle, p->desc, p->a, p->b, p->c, p->c, preference,
                                           1, &best, &n) == CUBLAS_STATUS_SUCCESS &&
         n > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (ok) {
        p->algo = best.algo;
        p->work_bytes = best.workspaceSize;
    }
    (void)m->cublasLtMatmulPreferenceDestroy(preference);
    return ok;
}

static uint32_t bucket_of(const shape *s)
{
    const unsigned char *bytes = (const unsigned char *)s;
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < sizeof(*s); i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    return hash % BUCKETS;
}

/* On stderr, once a shape: the own kernel that takes its place is far slower. */
static void report_refusal(const shape *s)
{
    fprintf(
        stderr,
        "moonshard: cuBLASLt refuses the product m=%lld n=%lld k=%lld, %lld in a batch, leading "
        "dimensions %lld %lld %lld, dtypes %s to %s: computed by the own kernel, slowly\n",
        (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->batch, (long long)s->a_ld,
        (long long)s->b_ld, (long long)s->c_ld, cuda_dtype_names[s->dtype],
        cuda_dtype_names[s->c_dtype]);
}

/* NULL: no memory. */
static plan *plan_of(cuda_matmul *m, const msi_gemm_args *g)
{
    const shape s = shape_of(g);
    plan **at = &m->plans[bucket_of(&s)], *p = *at;

    while (p != NULL && memcmp(&p->of, &s, sizeof(s)) != 0) {
        p = p->next;
    }
    if (p == NULL && (p = calloc(1, sizeof(*p))) != NULL) {
        memcpy(&p->of, &s, sizeof(s));
        p->supported = may_fuse(&s) && describe(m, p) && choose(m, p);
        if (!p->supported && !has_epilogue(g)) {
            report_refusal(&s);
        }
        p->next = *at;
        *at = p;
    }
    return p;
}

static msi_gemm_args without_epilogue(const msi_gemm_args *g)
{
    msi_gemm_args plain = *g;

    plain.c = g->before != NULL ? g->before : g->c;
    plain.gelu = false;
    plain.before = plain.a_sum = NULL;
    return plain;
}

/* -- operands off 16 bytes --------------------------------------------------------------------- */

enum { A, B, BIAS, C, BEFORE, A_SUM, OPERANDS }; /* from C on: results */

/* `batch` matrices of rows whose elements are neighbours; distances in elements. */
typedef struct operand {
    void *at; /* NULL: not the library's */
    int32_t dtype;
    int64_t batch, rows, cols, batch_step, row_step;
} operand;

static void operands_of(operand to[OPERANDS], const msi_gemm_args *g, const shape *s)
{
    const int64_t a_count = s->a_batch != 0 ? s->batch : 1,
                  b_count = s->b_batch != 0 ? s->batch : 1;
    const int64_t m = s->m, n = s->n, k = s->k;
    const int32_t in = s->dtype, out = s->c_dtype;
    void *a = (void *)(uintptr_t)g->a, *b = (void *)(uintptr_t)g->b;
    void *bias = s->bias ? (void *)(uintptr_t)g->bias : NULL;

    to[A] = (operand){a, in, a_count, s->a_trans ? k : m, s->a_trans ? m : k, s->a_batch, s->a_ld};
    to[B] = (operand){b, in, b_count, s->b_trans ? n : k, s->b_trans ? k : n, s->b_batch, s->b_ld};
    to[BIAS] = (operand){bias, in, 1, 1, n, 0, n};
    to[C] = (operand){g->c, out, s->batch, m, n, s->c_batch, s->c_ld};
    to[BEFORE] = (operand){g->before, out, 1, m, n, 0, s->c_ld};
    to[A_SUM] = (operand){g->a_sum, out, 1, 1, m, 0, m};
}

/* Bytes of an operand's copy, 0 if it needs none. Distances stay: algorithms are chosen by them. */
static int64_t copy_bytes(const operand *o)
{
    const int64_t n = (o->batch - 1) * o->batch_step + (o->rows - 1) * o->row_step + o->cols;
    const int64_t each = o->dtype == MS_DTYPE_F64 ? 8 : o->dtype == MS_DTYPE_F32 ? 4 : 2;

    return (uintptr_t)o->at % ALIGNMENT != 0 ? msi_round_up(n * each, WORK_ALIGNMENT) : 0;
}

/* An operand's elements, at the same distances. */
static cudaError_t copy(cudaStream_t stream, const operand *o, void *to, const void *from)
{
    msi_ew_args args = {.out = to, .in = {from}, .in_dtype = o->dtype};
    const int64_t counts[] = {o->batch, o->rows, o->cols};
    const int64_t steps[] = {o->batch_step, o->row_step, 1};

    args.loop.ndim = MSI_COUNT(counts);
    for (int32_t d = 0; d < args.loop.ndim; d++) {
        args.loop.shape[d] = counts[d];
        args.loop.stride[0][d] = args.loop.stride[1][d] = steps[d];
    }
    return cuda_kernels[MSI_K_copy][o->dtype](stream, &args);
}

int64_t cuda_matmul_work_bytes(cuda_matmul *m, const msi_gemm_args *g)
{
    const plan *p = g->m > 0 && g->n > 0 && g->k > 0 && g->batch > 0 ? plan_of(m, g) : NULL;
    const msi_gemm_args plain = without_epilogue(g);

    if (p != NULL && !p->supported && has_epilogue(g)) {
        g = &plain;
        p = plan_of(m, g);
    }
    if (p == NULL || !p->supported) {
        return 0;
    }
    operand of[OPERANDS];
    int64_t nbytes = msi_round_up((int64_t)p->work_bytes, WORK_ALIGNMENT);

    operands_of(of, g, &p->of);
    for (int32_t i = 0; i < OPERANDS; i++) {
        nbytes += copy_bytes(&of[i]);
    }
    return nbytes > 0 ? nbytes + WORK_ALIGNMENT : 0;
}

/* -- running ----------------------------------------------------------------------------------- */

/* cudaErrorNotSupported: the library has no algorithm, no operand was changed. */
static cudaError_t by_library(cuda_matmul *m, cudaStream_t stream, const msi_gemm_args *g)
{
    plan *p = g->k > 0 ? plan_of(m, g) : NULL;
    char *work = (char *)(uintptr_t)msi_round_up((int64_t)(uintptr_t)g->work, WORK_ALIGNMENT);
    const float one = 1, old = g->accumulate ? 1 : 0;
    const double one_wide = 1, old_wide = old;
    const bool wide = g->dtype == MS_DTYPE_F64;
    operand of[OPERANDS];
    void *at[OPERANDS];
    cudaError_t e = cudaSuccess;

    if (p == NULL || !p->supported) {
        return p == NULL && g->k > 0 ? cudaErrorMemoryAllocation : cudaErrorNotSupported;
    }
    char *room = work + msi_round_up((int64_t)p->work_bytes, WORK_ALIGNMENT);

    operands_of(of, g, &p->of);
    for (int32_t i = 0; i < OPERANDS; i++) {
        const int64_t nbytes = copy_bytes(&of[i]);

        at[i] = nbytes > 0 ? room : of[i].at;
        room += nbytes;
        if (nbytes > 0 && e == cudaSuccess && (i < C || (i == C && g->accumulate))) {
            e = copy(stream, &of[i], at[i], of[i].at);
        }
    }
    if (e != cudaSuccess) {
        return e;
    }
    if (p->of.bias || p->of.before || p->of.a_sum) {
        (void)point(m, p, at[p->of.a_sum ? A_SUM : BIAS], at[BEFORE]);
    }
    const cublasStatus_t status =
        m->cublasLtMatmul(m->handle, p->desc, wide ? (const void *)&one_wide : &one, at[B], p->a,
                          at[A], p->b, wide ? (const void *)&old_wide : &old, at[C], p->c, at[C],
                          p->c, &p->algo, work, p->work_bytes, stream);

    if (status != CUBLAS_STATUS_SUCCESS) {
        return status == CUBLAS_STATUS_NOT_SUPPORTED ? cudaErrorNotSupported
                                                     : cudaErrorInvalidValue;
    }
    for (int32_t i = C; i < OPERANDS && e == cudaSuccess; i++) {
        e = at[i] != of[i].at ? copy(stream, &of[i], of[i].at, at[i]) : cudaSuccess;
    }
    return e == cudaSuccess && g->bias != NULL && !p->of.bias ? msi_cuda_add_bias(stream, g) : e;
}

/* By the library, else by the own kernel. */
static cudaError_t product(cuda_matmul *m, cudaStream_t stream, const msi_gemm_args *g)
{
    const cudaError_t e = by_library(m, stream, g);
    const cuda_kernel_fn own = cuda_kernels[MSI_K_gemm][g->dtype];

    return e == cudaErrorNotSupported && own != NULL ? own(stream, g) : e;
}

/* One matrix, whose rows follow each other. */
static cudaError_t apply_gelu(cudaStream_t stream, const msi_gemm_args *g)
{
    msi_ew_args args = {.out = g->c, .in = {g->before != NULL ? g->before : g->c}};

    args.loop.ndim = 1;
    args.loop.shape[0] = g->m * g->n;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    args.in_dtype = g->c_dtype;
    return cuda_kernels[MSI_K_gelu_tanh][g->c_dtype](stream, &args);
}

static cudaError_t add_rows(cudaStream_t stream, const msi_gemm_args *g)
{
    msi_sum_args args = {.in = g->a, .out = g->a_sum, .out_dtype = g->c_dtype, .scale = 1};

    args.kept.ndim = args.reduced.ndim = 1;
    args.kept.shape[0] = g->m;
    args.kept.stride[0][0] = 1;
    args.kept.stride[1][0] = g->a_row;
    args.reduced.shape[0] = g->k;
    args.reduced.stride[1][0] = g->a_col;
    return cuda_kernels[MSI_K_sum][g->dtype](stream, &args);
}

cudaError_t cuda_matmul_run(cuda_matmul *m, cudaStream_t stream, const msi_gemm_args *g)
{
    if (!has_epilogue(g)) {
        return product(m, stream, g);
    }
    cudaError_t e = by_library(m, stream, g);

    if (e != cudaErrorNotSupported) {
        return e;
    }
    const msi_gemm_args plain = without_epilogue(g);

    e = product(m, stream, &plain);
    e = e == cudaSuccess && g->gelu ? apply_gelu(stream, g) : e;
    return e == cudaSuccess && g->a_sum != NULL ? add_rows(stream, g) : e;
}
