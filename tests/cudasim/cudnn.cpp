/* cudnn.h: packed tensors, convolutions by their definition with sums in double. */
#include "cudnn.h"

#include <vector>

struct cudnnContext {
    cudaStream_t stream;
};
struct cudasim_tensor {
    cudaDataType type;
    int64_t size[5]; /* ones for missing spatial dimensions, before the others */
};
struct cudasim_conv {
    int64_t pad[3], stride[3], dilation[3], groups;
};
typedef cudasim_tensor tensor;

static void describe(tensor *t, cudnnDataType_t type, int n, const int size[])
{
    t->type = type == CUDNN_DATA_FLOAT  ? CUDA_R_32F
              : type == CUDNN_DATA_HALF ? CUDA_R_16F
                                        : CUDA_R_16BF;
    for (int d = 0; d < 5; d++) {
        t->size[d] = d < 2 ? size[d] : d < 7 - n ? 1 : size[d - 5 + n];
    }
}

static int64_t count(const tensor &t)
{
    return t.size[0] * t.size[1] * t.size[2] * t.size[3] * t.size[4];
}

static int64_t offset(const tensor &t, int64_t i, int64_t j, const int64_t at[3])
{
    return (((i * t.size[1] + j) * t.size[2] + at[0]) * t.size[3] + at[1]) * t.size[4] + at[2];
}

/* Positions of a spatial volume. */
static bool next(int64_t at[3], const int64_t size[3])
{
    for (int d = 2; d >= 0; d--) {
        if (++at[d] < size[d]) {
            return true;
        }
        at[d] = 0;
    }
    return false;
}

enum { X, W, Y };

/* Operand `result` from the two others, and `beta` of itself. */
static void convolve(int result, const cudasim_conv c, const tensor t[3], void *const data[3],
                     double beta)
{
    std::vector<double> sum((size_t)count(t[result]));
    const int64_t each = t[Y].size[1] / c.groups;
    int64_t o[3] = {0}, k[3] = {0}, i[3];

    do {
        do {
            bool inside = true;

            for (int d = 0; d < 3; d++) {
                i[d] = o[d] * c.stride[d] - c.pad[d] + k[d] * c.dilation[d];
                inside = inside && i[d] >= 0 && i[d] < t[X].size[2 + d];
            }
            for (int64_t e = 0; inside && e < t[X].size[0] * t[Y].size[1] * t[W].size[1]; e++) {
                const int64_t in = e % t[W].size[1], out = e / t[W].size[1] % t[Y].size[1];
                const int64_t sample = e / t[W].size[1] / t[Y].size[1];
                const int64_t at[3] = {offset(t[X], sample, out / each * t[W].size[1] + in, i),
                                       offset(t[W], out, in, k), offset(t[Y], sample, out, o)};
                double product = 1;

                for (int p = 0; p < 3; p++) {
                    product *= p == result ? 1 : cudasim::number(data[p], t[p].type, at[p]);
                }
                sum[(size_t)at[result]] += product;
            }
        } while (next(k, t[W].size + 2));
    } while (next(o, t[Y].size + 2));
    for (int64_t e = 0; e < count(t[result]); e++) {
        const double old = beta != 0 ? beta * cudasim::number(data[result], t[result].type, e) : 0;

        cudasim::set_number(data[result], t[result].type, e, sum[(size_t)e] + old);
    }
}

/* Refuses operands that vectors of 16 bytes cannot be loaded from. */
static cudnnStatus_t enqueue(cudnnHandle_t h, int result, const cudasim_conv &c, const tensor &x,
                             const void *px, const tensor &w, const void *pw, const tensor &y,
                             const void *py, const void *beta)
{
    const std::vector<tensor> t = {x, w, y};
    const std::vector<void *> data = {(void *)px, (void *)pw, (void *)py};
    const double old = *(const float *)beta;

    if (((uintptr_t)px | (uintptr_t)pw | (uintptr_t)py) % 16 != 0) {
        return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    }
    cudasim::check_arguments(data.data(), data.size() * sizeof(data[0]));
    cudasim::later(h->stream, [=] { convolve(result, c, t.data(), data.data(), old); });
    return CUDNN_STATUS_SUCCESS;
}

cudaStream_t cudasim_stream_of(cudnnHandle_t h)
{
    return h->stream;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    *out = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
    delete h;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    *out = new tensor();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n,
                                         const int size[], const int stride[])
{
    (void)stride;
    describe(d, type, n, size);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d)
{
    delete d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    return cudnnCreateTensorDescriptor(out);
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int n, const int size[])
{
    (void)format;
    describe(d, type, n, size);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d)
{
    return cudnnDestroyTensorDescriptor(d);
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    *out = new cudasim_conv();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t d, int n,
                                              const int pad[], const int stride[],
                                              const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    (void)mode;
    (void)compute;
    for (int e = 0; e < 3; e++) {
        d->pad[e] = e < 3 - n ? 0 : pad[e - 3 + n];
        d->stride[e] = e < 3 - n ? 1 : stride[e - 3 + n];
        d->dilation[e] = e < 3 - n ? 1 : dilation[e - 3 + n];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
    d->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t)
{
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d)
{
    delete d;
    return CUDNN_STATUS_SUCCESS;
}

/* Some work space, so that its place is seen. */
static cudnnStatus_t size(size_t *bytes, size_t n)
{
    *bytes = n;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                      cudnnFilterDescriptor_t,
                                                      cudnnConvolutionDescriptor_t,
                                                      cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *bytes)
{
    return algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ? size(bytes, 0)
                                                            : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t, size_t *bytes)
{
    return size(bytes, 100);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, size_t *bytes)
{
    return size(bytes, 300);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *, cudnnTensorDescriptor_t x,
                                      const void *px, cudnnFilterDescriptor_t w, const void *pw,
                                      cudnnConvolutionDescriptor_t d, cudnnConvolutionFwdAlgo_t,
                                      void *, size_t, const void *beta, cudnnTensorDescriptor_t y,
                                      void *py)
{
    return enqueue(h, Y, *d, *x, px, *w, pw, *y, py, beta);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *, cudnnFilterDescriptor_t w,
                                           const void *pw, cudnnTensorDescriptor_t dy,
                                           const void *pdy, cudnnConvolutionDescriptor_t d,
                                           cudnnConvolutionBwdDataAlgo_t, void *work, size_t bytes,
                                           const void *beta, cudnnTensorDescriptor_t dx, void *pdx)
{
    (void)cudaMemsetAsync(work, 0xff, bytes, h->stream);
    return enqueue(h, X, *d, *dx, pdx, *w, pw, *dy, pdy, beta);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *,
                                             cudnnTensorDescriptor_t x, const void *px,
                                             cudnnTensorDescriptor_t dy, const void *pdy,
                                             cudnnConvolutionDescriptor_t d,
                                             cudnnConvolutionBwdFilterAlgo_t, void *work,
                                             size_t bytes, const void *beta,
                                             cudnnFilterDescriptor_t dw, void *pdw)
{
    (void)cudaMemsetAsync(work, 0xff, bytes, h->stream);
    return enqueue(h, W, *d, *x, px, *dw, pdw, *dy, pdy, beta);
}
