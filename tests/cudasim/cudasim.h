/* The part of CUDA that kernels/cuda uses, on the CPU, so that the plug-in runs without a GPU.
 *
 * Runtime, driver and cuBLASLt calls work on host memory. Streams are queues: their items run
 * later, in a random legal order, when the host queries or waits (MS_CUDASIM_SEED). New memory
 * holds NaN. In C++, .cu files compile as ordinary sources: the threads of a block are fibers, and
 * __syncthreads() and shuffles are barriers between them. Threads run in a varying order between
 * barriers; a barrier that some threads never reach aborts. */
#ifndef MS_SIM_H
#define MS_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- runtime ----------------------------------------------------------------------------------- */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801
} cudaError_t;

typedef struct cudasim_stream *cudaStream_t;
typedef struct cudasim_event *cudaEvent_t;
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum { cudaEnableDefault = 0 };

struct cudaDeviceProp {
    char name[256];
    struct {
        char bytes[16];
    } uuid;
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlockOptin;
};

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **out, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags);
cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int index);
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result);

/* -- driver: stream memory operations ---------------------------------------------------------- */

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2
} CUresult;
typedef cudaStream_t CUstream;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef int CUdevice;
typedef int CUdevice_attribute;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
enum {
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122
};

/* -- driver: memory that other processes can map ------------------------------------------------
 */

typedef unsigned long long CUmemGenericAllocationHandle;
typedef enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
} CUmemAllocationHandleType;
typedef enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;
typedef enum {
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;
typedef enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 } CUmemAllocationGranularity_flags;
typedef struct CUmemLocation {
    CUmemLocationType type;
    int id;
} CUmemLocation;
typedef struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    struct {
        unsigned char gpuDirectRDMACapable;
    } allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

/* -- cuBLASLt ---------------------------------------------------------------------------------- */

typedef enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType_t;
typedef cudaDataType_t cudaDataType;
typedef enum cublasComputeType_t {
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;
typedef enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef struct cudasim_lt *cublasLtHandle_t;
typedef struct cudasim_matmul *cublasLtMatmulDesc_t;
typedef struct cudasim_layout *cublasLtMatrixLayout_t;
typedef struct cudasim_preference *cublasLtMatmulPreference_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12
} cublasLtMatmulDescAttributes_t;
typedef enum {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
} cublasLtMatrixLayoutAttribute_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU = 32,
    CUBLASLT_EPILOGUE_GELU_BIAS = 36,
    CUBLASLT_EPILOGUE_GELU_AUX = 160,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
    CUBLASLT_EPILOGUE_BGRADB = 512
} cublasLtEpilogue_t;
typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
} cublasLtReductionScheme_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

size_t cublasLtGetVersion(void);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t n);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t n);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t n);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s);

#ifdef __cplusplus
}

/* -- kernels ----------------------------------------------------------------------------------- */

#include <functional>
#include <math.h>
#include <string.h>

/* Also for ncclsim, a library of its own. */
struct cudasim_stream_base {
    cudaError_t (*enqueue)(cudaStream_t s, std::function<void()> run,
                           std::function<bool()> may_run);
    /* Aborts unless the card can read p. */
    void (*check_reach)(const void *p, const char *what);
    /* Until all streams of its rank have run. */
    void (*synchronize)(cudaStream_t s);
};

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local /* set to NaN before each block */

namespace cudasim
{
struct fiber;
struct place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane;
    char *shared;
};
extern place here; /* of the running thread */
void barrier();
/* Value `mine` of lane `source` of the warp. All 32 lanes take part. */
uint64_t exchange(uint64_t mine, unsigned source);
/* The same in two parts: words of this lane for the others, and those of a lane. */
void offer(const uint32_t mine[6]);
const uint32_t *words_of(unsigned source);
int any(int mine); /* over the block */
void check_arguments(const void *args, size_t n);
cudaError_t enqueue_kernel(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                           std::function<void()> kernel);

/* `kernel` has the arguments as members. */
template <class K>
static inline cudaError_t launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                 const K &kernel)
{
#if __has_builtin(__builtin_clear_padding) /* which may hold addresses from the host's stack */
    K arguments = kernel;

    __builtin_clear_padding(&arguments);
    check_arguments(&arguments, sizeof(arguments));
#endif
    return enqueue_kernel(grid, block, shared, stream, kernel);
}

/* For libraries: an item of a stream, elements of their operands. */
void later(cudaStream_t stream, std::function<void()> run);
double number(const void *p, cudaDataType type, int64_t i);
void set_number(void *p, cudaDataType type, int64_t i, double value);

/* mma.sync.m16n8k16: registers as in kernels/cuda/mma.h. */
template <class T, class G>
static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2], G get)
{
    const unsigned g = here.lane / 4, c = here.lane % 4 * 2;
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    T x[2], y[2];

    offer(mine);
    for (unsigned e = 0; e < 4; e++) {
        const unsigned row = g + e / 2 * 8, column = c + e % 2;

        for (unsigned k = 0; k < 16; k += 2) {
            memcpy(x, &words_of(row % 8 * 4 + k % 8 / 2)[row / 8 + k / 8 * 2], 4);
            memcpy(y, &words_of(column * 4 + k % 8 / 2)[4 + k / 8], 4);
            d[e] += get(x[0]) * get(y[0]) + get(x[1]) * get(y[1]);
        }
    }
}

/* ldmatrix.x4 */
static inline void load_matrices(uint32_t out[4], const void *at, bool transposed)
{
    const unsigned g = here.lane / 4, c = here.lane % 4 * 2;
    const uint16_t *row;
    uint32_t mine[6] = {0};
    uint16_t pair[2];

    memcpy(mine, &at, sizeof(at));
    offer(mine);
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned e = 0; e < 2; e++) {
            memcpy(&row, words_of(i * 8 + (transposed ? c + e : g)), sizeof(row));
            pair[e] = row[transposed ? g : c + e];
        }
        memcpy(&out[i], pair, 4);
    }
}
} // namespace cudasim

#define threadIdx (cudasim::here.thread)
#define blockIdx (cudasim::here.block)
#define blockDim (cudasim::here.block_dim)
#define gridDim (cudasim::here.grid_dim)

static inline void __syncthreads()
{
    cudasim::barrier();
}

static inline int __syncthreads_or(int x)
{
    return cudasim::any(x);
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, unsigned by)
{
    uint64_t bits = 0;

    (void)mask;
    memcpy(&bits, &x, sizeof(x));
    bits = cudasim::exchange(bits, cudasim::here.lane ^ by);
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline void __threadfence_system()
{
}

static inline void __nanosleep(unsigned ns)
{
    (void)ns;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute which, int value)
{
    (void)kernel;
    (void)which;
    (void)value;
    return cudaSuccess;
}

#endif
#endif
