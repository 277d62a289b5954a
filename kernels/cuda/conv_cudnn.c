/* Convolutions by cuDNN. Algorithms are fixed: products of matrices whose sums repeat, f32 without
 * tf32. Gradients are f32: those of narrow operands are computed from widened ones, which tf32
 * holds exactly. */
#include "cudnn_graph.h"

#ifdef CUDA_HAS_CUDNN
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { N_SIZES = offsetof(msi_conv_args, x) / sizeof(int64_t) };

typedef struct conv_plan plan;

struct conv_plan {
    plan *next;
    int64_t of[N_SIZES]; /* of msi_conv_args, up to x */
    int32_t dtype;
    bool gradient, supported;
    size_t bytes, filter_bytes; /* work space of y or dx; of dw */
    cudnnConvolutionFwdAlgo_t algo;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
};

void cuda_conv_close(cuda_cudnn *c)
{
    for (plan *p = c->convs, *next; p != NULL; p = next) {
        next = p->next;
        (void)c->cudnnDestroyTensorDescriptor(p->x);
        (void)c->cudnnDestroyTensorDescriptor(p->y);
        (void)c->cudnnDestroyFilterDescriptor(p->w);
        (void)c->cudnnDestroyConvolutionDescriptor(p->conv);
        free(p);
    }
}

/* -- planning ---------------------------------------------------------------------------------- */

/* Paddings in front and behind are equal, and sizes fit. */
static bool takes(const msi_conv_args *a, int32_t dtype)
{
    const int64_t n_in = a->batch * a->groups * a->in_channels,
                  n_out = a->batch * a->groups * a->out_channels;
    int64_t in = n_in, out = n_out;

    if (dtype == MS_DTYPE_F64 || n_in == 0 || n_out == 0) {
        return false;
    }
    for (int32_t d = 0; d < 3; d++) {
        const int64_t room = a->in[d] + 2 * a->pad[d] - (a->kernel[d] - 1) * a->dilation[d] - 1;

        if (room < 0 || room / a->stride[d] + 1 != a->out[d]) {
            return false;
        }
        in *= a->in[d];
        out *= a->out[d];
    }
    return in > 0 && in <= INT32_MAX && out <= INT32_MAX;
}

/* Sizes of an operand with `n` spatial dimensions. */
static void sizes_of(int to[5], int64_t first, int64_t second, const int64_t size[3], int n)
{
    to[0] = (int)first;
    to[1] = (int)second;
    for (int d = 0; d < n; d++) {
        to[2 + d] = (int)size[3 - n + d];
    }
}

static bool set_tensor(const cuda_cudnn *c, cudnnTensorDescriptor_t *to, cudnnDataType_t type,
                       const int *size, int n)
{
    int stride[5];

    stride[n - 1] = 1;
    for (int d = n - 1; d > 0; d--) {
        stride[d - 1] = stride[d] * size[d];
    }
    return c->cudnnCreateTensorDescriptor(to) == CUDNN_STATUS_SUCCESS &&
           c->cudnnSetTensorNdDescriptor(*to, type, n, size, stride) == CUDNN_STATUS_SUCCESS;
}

static bool describe(const cuda_cudnn *c, plan *p, const msi_conv_args *a)
{
    const bool flat = a->in[0] * a->out[0] * a->kernel[0] == 1 && a->pad[0] == 0;
    const int n = flat ? 2 : 3;
    const cudnnDataType_t type = p->dtype == MS_DTYPE_F32 || p->gradient ? CUDNN_DATA_FLOAT
                                 : p->dtype == MS_DTYPE_BF16             ? CUDNN_DATA_BFLOAT16
                                                                         : CUDNN_DATA_HALF;
    const cudnnMathType_t math = p->dtype == MS_DTYPE_F32 ? CUDNN_FMA_MATH
                                 : p->gradient            ? CUDNN_DEFAULT_MATH
                                                          : CUDNN_TENSOR_OP_MATH;
    const int64_t in = a->groups * a->in_channels, out = a->groups * a->out_channels;
    int x[5], y[5], w[5], pad[5], stride[5], dilation[5];

    sizes_of(x, a->batch, in, a->in, n);
    sizes_of(y, a->batch, out, a->out, n);
    sizes_of(w, out, a->in_channels, a->kernel, n);
    sizes_of(pad, 0, 0, a->pad, n);
    sizes_of(stride, 0, 0, a->stride, n);
    sizes_of(dilation, 0, 0, a->dilation, n);
    return set_tensor(c, &p->x, type, x, 2 + n) && set_tensor(c, &p->y, type, y, 2 + n) &&
           c->cudnnCreateFilterDescriptor(&p->w) == CUDNN_STATUS_SUCCESS &&
           c->cudnnSetFilterNdDescriptor(p->w, type, CUDNN_TENSOR_NCHW, 2 + n, w) ==
               CUDNN_STATUS_SUCCESS &&
           c->cudnnCreateConvolutionDescriptor(&p->conv) == CUDNN_STATUS_SUCCESS &&
           c->cudnnSetConvolutionNdDescriptor(p->conv, n, pad + 2, stride + 2, dilation + 2,
                                              CUDNN_CROSS_CORRELATION,
                                              CUDNN_DATA_FLOAT) == CUDNN_STATUS_SUCCESS &&
           c->cudnnSetConvolutionGroupCount(p->conv, (int)a->groups) == CUDNN_STATUS_SUCCESS &&
           c->cudnnSetConvolutionMathType(p->conv, math) == CUDNN_STATUS_SUCCESS;
}

static bool choose(const cuda_cudnn *c, plan *p)
{
    static const cudnnConvolutionFwdAlgo_t algos[] = {
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};

    if (p->gradient) {
        return c->cudnnGetConvolutionBackwardDataWorkspaceSize(c->handle, p->w, p->y, p->conv, p->x,
                                                               CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                                               &p->bytes) == CUDNN_STATUS_SUCCESS &&
               c->cudnnGetConvolutionBackwardFilterWorkspaceSize(
                   c->handle, p->x, p->y, p->conv, p->w, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                   &p->filter_bytes) == CUDNN_STATUS_SUCCESS;
    }
    for (int32_t i = 0; i < MSI_COUNT(algos); i++) {
        p->algo = algos[i];
        if (c->cudnnGetConvolutionForwardWorkspaceSize(
                c->handle, p->x, p->w, p->conv, p->y, p->algo, &p->bytes) == CUDNN_STATUS_SUCCESS) {
            return true;
        }
    }
    return false;
}

/* NULL: not by cuDNN. */
static const plan *plan_of(cuda_cudnn *c, const msi_conv_args *a, int32_t dtype, bool gradient)
{
    plan *p;

    if (!takes(a, dtype)) {
        return NULL;
    }
    for (p = c->convs; p != NULL; p = p->next) {
        if (p->dtype == dtype && p->gradient == gradient && memcmp(p->of, a, sizeof(p->of)) == 0) {
            break;
        }
    }
    if (p == NULL && (p = calloc(1, sizeof(*p))) != NULL) {
        memcpy(p->of, a, sizeof(p->of));
        p->dtype = dtype;
        p->gradient = gradient;
        p->supported = describe(c, p, a) && choose(c, p);
        p->next = c->convs;
        c->convs = p;
    }
    return p != NULL && p->supported ? p : NULL;
}

/* -- running ----------------------------------------------------------------------------------- */

static size_t rounded_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

static int64_t volume(const int64_t size[3])
{
    return size[0] * size[1] * size[2];
}

static int64_t n_of_x(const msi_conv_args *a)
{
    return a->batch * a->groups * a->in_channels * volume(a->in);
}

static int64_t n_of_w(const msi_conv_args *a)
{
    return a->groups * a->out_channels * a->in_channels * volume(a->kernel);
}

static int64_t n_of_y(const msi_conv_args *a)
{
    return a->batch * a->groups * a->out_channels * volume(a->out);
}

/* The library's, in front of the widened operands. */
static size_t work_bytes(const plan *p)
{
    return rounded_up(p->bytes > p->filter_bytes ? p->bytes : p->filter_bytes);
}

int64_t cuda_conv_bytes(cuda_cudnn *c, const msi_conv_args *a, int32_t dtype, bool gradient)
{
    const plan *p = plan_of(c, a, dtype, gradient);

    if (p == NULL) {
        return 0;
    }
    return (int64_t)(work_bytes(p) +
                     (gradient && dtype != MS_DTYPE_F32
                          ? rounded_up(4 * (size_t)n_of_x(a)) + rounded_up(4 * (size_t)n_of_w(a)) +
                                rounded_up(4 * (size_t)n_of_y(a))
                          : 0));
}

/* y starts as the bias, so that the result is rounded once. */
static cudnnStatus_t forward(const cuda_cudnn *c, cudaStream_t stream, const plan *p,
                             const msi_conv_args *a)
{
    const int64_t channels = a->groups * a->out_channels, each = volume(a->out);
    const msi_ew_args args = {.loop = {.ndim = 3,
                                       .shape = {a->batch, channels, each},
                                       .stride = {{channels * each, each, 1}, {0, 1, 0}}},
                              .out = a->y,
                              .in = {a->bias},
                              .in_dtype = p->dtype};
    const float one = 1, old = a->bias != NULL;

    if (a->bias != NULL && cuda_kernels[MSI_K_copy][p->dtype](stream, &args) != cudaSuccess) {
        return CUDNN_STATUS_EXECUTION_FAILED;
    }
    return c->cudnnConvolutionForward(c->handle, &one, p->x, a->x, p->w, a->w, p->conv, p->algo,
                                      a->work, p->bytes, &old, p->y, a->y);
}

/* Operand `*x` as f32, in the work space at `*to`. */
static bool widen(cudaStream_t stream, const void **x, char **to, int64_t n, int32_t dtype)
{
    const msi_ew_args args = {.loop = {.ndim = 1, .shape = {n}, .stride = {{1}, {1}}},
                              .out = *to,
                              .in = {*x},
                              .in_dtype = dtype};

    if (dtype == MS_DTYPE_F32) {
        return true;
    }
    *x = *to;
    *to += rounded_up(4 * (size_t)n);
    return cuda_kernels[MSI_K_copy][MS_DTYPE_F32](stream, &args) == cudaSuccess;
}

/* cudaErrorNotSupported: the library refused before it enqueued anything. */
static cudaError_t outcome(cudnnStatus_t status)
{
    const int kind = (int)status / 1000; /* of version 9: 2 parameters, 3 not supported */

    return status == CUDNN_STATUS_SUCCESS ? cudaSuccess
           : kind == 2 || kind == 3       ? cudaErrorNotSupported
                                          : cudaErrorLaunchFailure;
}

/* A gradient by its own kernel if the library refused it. */
static cudaError_t or_own(cudaError_t e, cudaStream_t stream, int32_t dtype, msi_conv_args one)
{
    return e != cudaErrorNotSupported ? e : cuda_kernels[MSI_K_conv_grad][dtype](stream, &one);
}

static cudaError_t backward(const cuda_cudnn *c, cudaStream_t stream, const plan *p,
                            const msi_conv_args *a)
{
    const float one = 1, old_x = a->dx_accumulate, old_w = a->dw_accumulate;
    const void *x = a->x, *w = a->w, *dy = a->dy;
    char *room = (char *)a->work + work_bytes(p);
    msi_conv_args only_dx = *a, only_dw = *a;
    cudaError_t e = cudaSuccess;

    only_dx.dw = only_dw.dx = NULL;
    if (!widen(stream, &dy, &room, n_of_y(a), p->dtype) ||
        (a->dx != NULL && !widen(stream, &w, &room, n_of_w(a), p->dtype)) ||
        (a->dw != NULL && !widen(stream, &x, &room, n_of_x(a), p->dtype))) {
        return cudaErrorLaunchFailure;
    }
    if (a->dx != NULL) {
        e = or_own(outcome(c->cudnnConvolutionBackwardData(
                       c->handle, &one, p->w, w, p->y, dy, p->conv,
                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, a->work, p->bytes, &old_x, p->x, a->dx)),
                   stream, p->dtype, only_dx);
    }
    if (e == cudaSuccess && a->dw != NULL) {
        e = or_own(
            outcome(c->cudnnConvolutionBackwardFilter(c->handle, &one, p->x, x, p->y, dy, p->conv,
                                                      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, a->work,
                                                      p->filter_bytes, &old_w, p->w, a->dw)),
            stream, p->dtype, only_dw);
    }
    return e;
}

cudaError_t cuda_conv_run(cuda_cudnn *c, cudaStream_t stream, const msi_conv_args *a, int32_t dtype,
                          bool gradient)
{
    const plan *p = plan_of(c, a, dtype, gradient);

    if (p == NULL) {
        return cudaErrorNotSupported;
    }
    return gradient ? backward(c, stream, p, a) : outcome(forward(c, stream, p, a));
}

#endif
