/* Normalisation of channels by the statistics of sets of planes, and its gradient, as
 * kernels/cpu/channel_norm.c. Sums of a plane are in the compute type, those over planes f64. */
#include "cuda_kernel.h"

typedef msi_channel_norm_args norm_args;

static __host__ __device__ inline int64_t n_sets(const norm_args &a)
{
    return a.groups == 0 ? a.channels : a.batch * a.groups;
}

static __device__ inline int64_t set_of(const norm_args &a, int64_t i)
{
    const int64_t c = i % a.channels;

    return a.groups == 0 ? c : i / a.channels * a.groups + c / (a.channels / a.groups);
}

/* Plane p of a set, and how many there are. */
static __device__ inline int64_t plane_of(const norm_args &a, int64_t set, int64_t p)
{
    return a.groups == 0 ? set + p * a.channels : set * (a.channels / a.groups) + p;
}

static __device__ inline int64_t planes(const norm_args &a)
{
    return a.groups == 0 ? a.batch : a.channels / a.groups;
}

/* Mean over a set of x - mean, or of its squares; by a block. */
template <class T, class R>
static __device__ inline R set_mean(const norm_args &a, int64_t set, R mean, bool squares)
{
    double total = 0;

    for (int64_t p = 0; p < planes(a); p++) {
        const T *x = (const T *)a.x + plane_of(a, set, p) * a.plane;
        R sum = 0;

        for (int64_t j = threadIdx.x; j < a.plane; j += blockDim.x) {
            const R d = get(x[j]) - mean;

            sum += squares ? d * d : d;
        }
        total += (double)sum;
    }
    return (R)(block_sum(total) / (double)(planes(a) * a.plane));
}

template <class T> static __global__ void channel_stats_kernel(const norm_args a)
{
    typedef REAL(T) R;
    const int64_t set = blockIdx.x;
    const R mean = set_mean<T, R>(a, set, 0, false), variance = set_mean<T, R>(a, set, mean, true);

    if (threadIdx.x == 0) {
        ((R *)a.y)[set] = mean;
        ((R *)a.y)[n_sets(a) + set] = variance;
    }
}

/* 1 / deviation of plane i. */
template <class R> static __device__ inline R deviation(const norm_args &a, int64_t i, R *mean)
{
    const int64_t set = set_of(a, i);
    const R *stats = (const R *)a.stats;

    *mean = stats[set];
    return 1 / root_of(stats[n_sets(a) + set] + (R)a.eps);
}

template <class T>
static __device__ inline REAL(T) factor(const void *w, int64_t c, REAL(T) otherwise)
{
    return w != NULL ? get(((const T *)w)[c]) : otherwise;
}

template <class T> static __global__ void channel_norm_kernel(const norm_args a)
{
    typedef REAL(T) R;

    MS_EACH(e, a.batch * a.channels * a.plane)
    {
        const int64_t i = e / a.plane, c = i % a.channels;
        R mean;
        const R rstd = deviation(a, i, &mean);

        ((T *)a.y)[e] = element<T>::put(
            (get(((const T *)a.x)[e]) - mean) * rstd * factor<T>(a.w, c, 1) + factor<T>(a.b, c, 0));
    }
}

/* Per plane: the sums of dy and of dy xhat. */
template <class T> static __global__ void plane_gradients(const norm_args a)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.batch * a.channels; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.plane, *dy = (const T *)a.dy + i * a.plane;
        R mean, sum = 0, dot = 0;
        const R rstd = deviation(a, i, &mean);

        for (int64_t j = threadIdx.x; j < a.plane; j += blockDim.x) {
            sum += get(dy[j]);
            dot += get(dy[j]) * ((get(x[j]) - mean) * rstd);
        }
        sum = block_sum(sum);
        dot = block_sum(dot);
        if (threadIdx.x == 0) {
            a.work[2 * i] = (double)sum;
            a.work[2 * i + 1] = (double)dot;
        }
    }
}

template <class T> static __global__ void over_samples(const norm_args a)
{
    typedef REAL(T) R;

    MS_EACH(c, a.channels)
    {
        double w = 0, b = 0;

        for (int64_t n = 0; n < a.batch; n++) {
            b += a.work[2 * (n * a.channels + c)];
            w += a.work[2 * (n * a.channels + c) + 1];
        }
        if (a.dw != NULL) {
            R *to = (R *)a.dw + c;

            *to = (R)(w + (a.dw_accumulate ? (double)*to : 0));
        }
        if (a.db != NULL) {
            R *to = (R *)a.db + c;

            *to = (R)(b + (a.db_accumulate ? (double)*to : 0));
        }
    }
}

template <class T> static __global__ void plane_dx(const norm_args a)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.batch * a.channels; i += gridDim.x) {
        const int64_t set = set_of(a, i), first = i * a.plane;
        const double n = (double)(planes(a) * a.plane);
        const R w = factor<T>(a.w, i % a.channels, 1);
        double g = 0, gx = 0;
        R mean;
        const R rstd = deviation(a, i, &mean);

        for (int64_t p = threadIdx.x; a.of_input && p < planes(a); p += blockDim.x) {
            const int64_t k = plane_of(a, set, p);
            const double v = (double)factor<T>(a.w, k % a.channels, 1);

            g += v * a.work[2 * k];
            gx += v * a.work[2 * k + 1];
        }
        const R mean_g = (R)(block_sum(g) / n), mean_gx = (R)(block_sum(gx) / n);

        for (int64_t j = first + threadIdx.x; j < first + a.plane; j += blockDim.x) {
            const R xhat = (get(((const T *)a.x)[j]) - mean) * rstd;

            store((T *)a.dx + j, (get(((const T *)a.dy)[j]) * w - mean_g - xhat * mean_gx) * rstd,
                  a.dx_accumulate);
        }
    }
}

template <class T> static cudaError_t channel_norm_grad(cudaStream_t stream, const void *args)
{
    const norm_args *a = (const norm_args *)args;
    const unsigned blocks = ms_blocks(a->batch * a->channels), threads = ms_row_threads(a->plane);
    cudaError_t e = ms_launch(plane_gradients<T>, blocks, threads, 0, stream, *a);

    if (e == cudaSuccess && (a->dw != NULL || a->db != NULL)) {
        e = ms_launch(over_samples<T>, ms_grid(a->channels), (unsigned)MS_THREADS, 0, stream, *a);
    }
    return e != cudaSuccess || a->dx == NULL
               ? e
               : ms_launch(plane_dx<T>, blocks, threads, 0, stream, *a);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(channel_stats, dtype)                                                                 \
    {                                                                                              \
        const norm_args *a = (const norm_args *)args;                                              \
        return ms_launch(channel_stats_kernel<type>, (unsigned)n_sets(*a), 256, 0, stream, *a);    \
    }                                                                                              \
    MS_ENTRY(channel_norm, dtype)                                                                  \
    {                                                                                              \
        const norm_args *a = (const norm_args *)args;                                              \
        return ms_launch(channel_norm_kernel<type>, ms_grid(a->batch * a->channels * a->plane),    \
                         (unsigned)MS_THREADS, 0, stream, *a);                                     \
    }                                                                                              \
    MS_ENTRY(channel_norm_grad, dtype)                                                             \
    {                                                                                              \
        return channel_norm_grad<type>(stream, args);                                              \
    }
MS_FLOATS(ENTER, channel_norm)
