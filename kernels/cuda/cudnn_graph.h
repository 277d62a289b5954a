/* cuDNN: one opening of the library (cudnn_library.c), and its operation graphs (cudnn_graph.c). */
#ifndef MS_CUDA_CUDNN_GRAPH_H
#define MS_CUDA_CUDNN_GRAPH_H

#include "cuda_device.h"

#if defined(MS_CUDASIM) || __has_include(<cudnn.h>)
#define CUDA_HAS_CUDNN /* else own kernels compute everything */
#include <cudnn.h>

#define CUDNN_CALLS(X)                                                                             \
    X(cudnnGetVersion)                                                                             \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnCreateTensorDescriptor)                                                                 \
    X(cudnnSetTensorNdDescriptor)                                                                  \
    X(cudnnDestroyTensorDescriptor)                                                                \
    X(cudnnCreateFilterDescriptor)                                                                 \
    X(cudnnSetFilterNdDescriptor)                                                                  \
    X(cudnnDestroyFilterDescriptor)                                                                \
    X(cudnnCreateConvolutionDescriptor)                                                            \
    X(cudnnSetConvolutionNdDescriptor)                                                             \
    X(cudnnSetConvolutionGroupCount)                                                               \
    X(cudnnSetConvolutionMathType)                                                                 \
    X(cudnnDestroyConvolutionDescriptor)                                                           \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                     \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                                                \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                                              \
    X(cudnnConvolutionForward)                                                                     \
    X(cudnnConvolutionBackwardData)                                                                \
    X(cudnnConvolutionBackwardFilter)                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

struct cuda_cudnn {
    CUDNN_CALLS(CUDA_POINTER)
    cudnnHandle_t handle; /* NULL: there is no cuDNN */
    bool no_attention;
    struct conv_plan *convs;
    struct attention_plan *attentions;
};

/* Parts of cuda_cudnn_bytes(), _run() and _close(); there is a handle, whose stream is `stream`. */
int64_t cuda_conv_bytes(cuda_cudnn *c, const msi_conv_args *a, int32_t dtype, bool gradient);
cudaError_t cuda_conv_run(cuda_cudnn *c, cudaStream_t stream, const msi_conv_args *a, int32_t dtype,
                          bool gradient);
void cuda_conv_close(cuda_cudnn *c);
int64_t cuda_attention_bytes(cuda_cudnn *c, const msi_attention_args *a, int32_t dtype,
                             bool gradient);
cudaError_t cuda_attention_run(cuda_cudnn *c, cudaStream_t stream, const msi_attention_args *a,
                               int32_t dtype, bool gradient);
void cuda_attention_close(cuda_cudnn *c);

/* -- cudnn_graph.c ----------------------------------------------------------------------------- */

enum { DNN_TENSORS = 64, DNN_STEPS = 32 /* at most */ };

typedef enum dnn_kind { DNN_VIRTUAL, DNN_MEMORY, DNN_NUMBER } dnn_kind;

/* Of the card's memory, an intermediate result, or an f32 of the host that dnn_run() reads. */
typedef struct dnn_tensor {
    dnn_kind kind;
    cudnnDataType_t type;
    int64_t alignment, size[4], stride[4]; /* in bytes; in elements */
} dnn_tensor;

typedef enum dnn_op {
    DNN_MATMUL,
    DNN_TRANSPOSE,
    DNN_SUM, /* over the dimensions in which `to` has the size 1, or groups of heads */
    DNN_MAX,
    DNN_ADD,
    DNN_SUB,
    DNN_MUL,
    DNN_DIV,
    DNN_EXP,
    DNN_LOG,
    DNN_ROW, /* the element's position */
    DNN_COL,
    DNN_GE,
    DNN_SELECT /* x where z, else y */
} dnn_op;

/* A graph that is built, planned and run. Starts with the first two. Owns its descriptors. */
typedef struct dnn_graph {
    const cuda_cudnn *c;
    const dnn_tensor *described; /* by id, which is above 0; read by dnn_add() */
    cudnnBackendDescriptor_t all[2 * DNN_TENSORS], tensors[DNN_TENSORS], steps[DNN_STEPS];
    int32_t n, n_steps;
    bool failed;                   /* calls do nothing */
    cudnnBackendDescriptor_t plan; /* NULL: refused */
    int64_t work_bytes;            /* of the plan */
} dnn_graph;

/* Tensor `to` = op(x, y, z), in f32; by id, 0 where the operation has no such operand. */
void dnn_add(dnn_graph *g, dnn_op op, int32_t to, int32_t x, int32_t y, int32_t z);
/* The library's first choice of an engine whose sums repeat. */
void dnn_plan(dnn_graph *g);
/* Enqueue the plan. `data`: by id, of n tensors; NULL: not of this graph. False: refused. */
bool dnn_run(const dnn_graph *g, int64_t n, const void *const *data, const void *work);
void dnn_destroy(dnn_graph *g);

#endif
#endif
