/* Convolution by its definition: a thread an element of y or dx, a block an element of dw. Right
 * and slow; no scratch. */
#include "cuda_kernel.h"

static __host__ __device__ inline int64_t volume(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

static __device__ inline void place(int64_t to[3], int64_t e, const int64_t *size)
{
    to[2] = e % size[2];
    to[1] = e / size[2] % size[1];
    to[0] = e / size[2] / size[1];
}

static __device__ inline int64_t offset(const int64_t at[3], const int64_t *size)
{
    return (at[0] * size[1] + at[1]) * size[2] + at[2];
}

/* The input place that output o meets with tap k; false: it is padding. */
static __device__ inline bool input_at(const msi_conv_args &a, int64_t i[3], const int64_t o[3],
                                       const int64_t k[3])
{
    bool inside = true;

    for (int d = 0; d < 3; d++) {
        i[d] = o[d] * a.stride[d] - a.pad[d] + k[d] * a.dilation[d];
        inside = inside && i[d] >= 0 && i[d] < a.in[d];
    }
    return inside;
}

/* The output position whose window has input i at tap k. False if no output uses it there. */
static __device__ inline bool output_at(const msi_conv_args &a, int64_t o[3], const int64_t i[3],
                                        const int64_t k[3])
{
    bool inside = true;

    for (int d = 0; d < 3; d++) {
        const int64_t at = i[d] + a.pad[d] - k[d] * a.dilation[d];

        inside = inside && at >= 0 && at % a.stride[d] == 0 && at / a.stride[d] < a.out[d];
        o[d] = at / a.stride[d];
    }
    return inside;
}

/* Plane p of y is output channel p % (groups out_channels) of a sample; its group: */
static __device__ inline int64_t group_of(const msi_conv_args &a, int64_t p, int64_t channels)
{
    return p / channels % a.groups;
}

template <class T> static __global__ void forward(const msi_conv_args a, int64_t n)
{
    const int64_t taps = volume(a.kernel);

    MS_EACH(e, n)
    {
        const int64_t p = e / volume(a.out), sample = p / (a.groups * a.out_channels);
        const int64_t channel = p % (a.groups * a.out_channels);
        const int64_t group = group_of(a, p, a.out_channels);
        REAL(T) sum = 0;
        int64_t o[3], k[3], i[3];

        place(o, e % volume(a.out), a.out);
        for (int64_t c = 0; c < a.in_channels; c++) {
            const T *x =
                (const T *)a.x + ((sample * a.groups + group) * a.in_channels + c) * volume(a.in);
            const T *w = (const T *)a.w + (channel * a.in_channels + c) * taps;

            for (int64_t t = 0; t < taps; t++) {
                place(k, t, a.kernel);
                if (input_at(a, i, o, k)) {
                    sum += get(x[offset(i, a.in)]) * get(w[t]);
                }
            }
        }
        sum += a.bias != NULL ? get(((const T *)a.bias)[channel]) : (REAL(T))0;
        ((T *)a.y)[e] = element<T>::put(sum);
    }
}

template <class T> static __global__ void backward_input(const msi_conv_args a, int64_t n)
{
    const int64_t taps = volume(a.kernel);

    MS_EACH(e, n)
    {
        const int64_t p = e / volume(a.in), sample = p / (a.groups * a.in_channels);
        const int64_t c = p % a.in_channels, group = group_of(a, p, a.in_channels);
        REAL(T) sum = 0;
        int64_t i[3], k[3], o[3];

        place(i, e % volume(a.in), a.in);
        for (int64_t m = 0; m < a.out_channels; m++) {
            const int64_t channel = group * a.out_channels + m;
            const T *dy =
                (const T *)a.dy + (sample * a.groups * a.out_channels + channel) * volume(a.out);
            const T *w = (const T *)a.w + (channel * a.in_channels + c) * taps;

            for (int64_t t = 0; t < taps; t++) {
                place(k, t, a.kernel);
                if (output_at(a, o, i, k)) {
                    sum += get(dy[offset(o, a.out)]) * get(w[t]);
                }
            }
        }
        store((REAL(T) *)a.dx + e, sum, a.dx_accumulate);
    }
}

template <class T> static __global__ void backward_filter(const msi_conv_args a, int64_t n)
{
    typedef REAL(T) R;
    const int64_t taps = volume(a.kernel), size = volume(a.out);

    for (int64_t e = blockIdx.x; e < n; e += gridDim.x) {
        const int64_t channel = e / taps / a.in_channels, c = e / taps % a.in_channels;
        const int64_t group = channel / a.out_channels;
        R sum = 0;
        int64_t k[3], o[3], i[3];

        place(k, e % taps, a.kernel);
        for (int64_t at = threadIdx.x; at < a.batch * size; at += blockDim.x) {
            const int64_t sample = at / size;

            place(o, at % size, a.out);
            if (input_at(a, i, o, k)) {
                sum +=
                    get(((const T *)
                             a.x)[((sample * a.groups + group) * a.in_channels + c) * volume(a.in) +
                                  offset(i, a.in)]) *
                    get(((const T *)a.dy)[(sample * a.groups * a.out_channels + channel) * size +
                                          at % size]);
            }
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            store((R *)a.dw + e, sum, a.dw_accumulate);
        }
    }
}

/* What kernels read: without the host's pointers. */
static msi_conv_args without_host(const void *args)
{
    msi_conv_args a = *(const msi_conv_args *)args;

    a.ctx = NULL;
    a.status = NULL;
    a.op = NULL;
    return a;
}

template <class T> static cudaError_t conv(cudaStream_t stream, const void *args)
{
    const msi_conv_args device = without_host(args), *a = &device;
    const int64_t n = a->batch * a->groups * a->out_channels * volume(a->out);

    return ms_launch(forward<T>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);
}

template <class T> static cudaError_t conv_grad(cudaStream_t stream, const void *args)
{
    const msi_conv_args device = without_host(args), *a = &device;
    const int64_t n_x = a->batch * a->groups * a->in_channels * volume(a->in);
    const int64_t n_w = a->groups * a->out_channels * a->in_channels * volume(a->kernel);
    cudaError_t e = cudaSuccess;

    if (a->dx != NULL) {
        e = ms_launch(backward_input<T>, ms_grid(n_x), (unsigned)MS_THREADS, 0, stream, *a, n_x);
    }
    return e != cudaSuccess || a->dw == NULL
               ? e
               : ms_launch(backward_filter<T>, ms_blocks(n_w), 128, 0, stream, *a, n_w);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, conv)
MS_FLOATS(ENTER, conv_grad)
