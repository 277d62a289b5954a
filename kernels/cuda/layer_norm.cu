/* Layer norm of rows and its gradient. A block a row; dw and db: 32 columns a block, 8 threads
 * each. */
#include "cuda_kernel.h"

#include <float.h>

/* Mean of the squared distances from `mean`. */
template <class T, class R> static __device__ inline R variance_of(const T *x, int64_t cols, R mean)
{
    R sum = 0;

    for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
        const R d = get(x[j]) - mean;

        sum += d * d;
    }
    return block_sum(sum) / (R)cols;
}

/* The mean lies between the least and the greatest of its row, where rounding may not have left
 * it. */
template <class T, class R> static __device__ inline R mean_within(const T *x, int64_t cols, R mean)
{
    R low = (R)INFINITY, high = -(R)INFINITY;

    for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
        const R v = get(x[j]);

        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    low = block_fold<fold_min>(low, (R)INFINITY);
    high = block_fold<fold_max>(high, -(R)INFINITY);
    return mean < low ? low : mean > high ? high : mean;
}

template <class T> static __global__ void layer_norm_kernel(const msi_layer_norm_args a)
{
    typedef REAL(T) R;
    const R epsilon = sizeof(R) == sizeof(float) ? (R)FLT_EPSILON : (R)DBL_EPSILON;
    const T *w = (const T *)a.w, *b = (const T *)a.b;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols;
        T *y = (T *)a.y + i * a.cols;
        R sum = 0;

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            sum += get(x[j]);
        }
        R mean = block_sum(sum) / (R)a.cols, variance = variance_of(x, a.cols, mean);
        const R rounding = epsilon * ((R)a.cols / 64 + 8) * mean;

        if (variance <= rounding * rounding) { /* as good as equal elements */
            const R within = mean_within(x, a.cols, mean);

            variance = variance_of(x, a.cols, within);
            mean = isfinite(mean) || variance == 0 ? within : mean;
        }
        const R rstd = 1 / root_of(variance + (R)a.eps);

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            R v = (get(x[j]) - mean) * rstd;

            v = w != NULL ? v * get(w[j]) : v;
            v = b != NULL ? v + get(b[j]) : v;
            y[j] = element<T>::put(v);
        }
        if (threadIdx.x == 0) {
            ((R *)a.mean)[i] = mean;
            ((R *)a.rstd)[i] = rstd;
        }
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy w. */
template <class T> static __global__ void layer_norm_dx(const msi_layer_norm_grad_args a)
{
    typedef REAL(T) R;
    const T *w = (const T *)a.w;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols, *dy = (const T *)a.dy + i * a.cols;
        T *dx = (T *)a.dx + i * a.cols;
        const R mean = ((const R *)a.mean)[i], rstd = ((const R *)a.rstd)[i];
        R sum = 0, dot = 0;

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            const R g = w != NULL ? get(dy[j]) * get(w[j]) : get(dy[j]);

            sum += g;
            dot += g * ((get(x[j]) - mean) * rstd);
        }
        const R mean_g = block_sum(sum) / (R)a.cols, mean_gx = block_sum(dot) / (R)a.cols;

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            const R g = w != NULL ? get(dy[j]) * get(w[j]) : get(dy[j]);

            store(dx + j, (g - mean_g - (get(x[j]) - mean) * rstd * mean_gx) * rstd,
                  a.dx_accumulate);
        }
    }
}

enum { ROWS = 8 };

template <class T, class Out> static __global__ void layer_norm_dw(const msi_layer_norm_grad_args a)
{
    typedef REAL(T) R;
    __shared__ R parts[2][ROWS][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    R w = 0, b = 0;

    for (int64_t i = threadIdx.y; j < a.cols && i < a.rows; i += ROWS) {
        const R g = get(((const T *)a.dy)[i * a.cols + j]);

        w += g * ((get(((const T *)a.x)[i * a.cols + j]) - ((const R *)a.mean)[i]) *
                  ((const R *)a.rstd)[i]);
        b += g;
    }
    parts[0][threadIdx.y][threadIdx.x] = w;
    parts[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y != 0 || j >= a.cols) {
        return;
    }
    for (int k = 1; k < ROWS; k++) {
        w += parts[0][k][threadIdx.x];
        b += parts[1][k][threadIdx.x];
    }
    if (a.dw != NULL) {
        store((Out *)a.dw + j, w, a.dw_accumulate);
    }
    if (a.db != NULL) {
        store((Out *)a.db + j, b, a.db_accumulate);
    }
}

template <class T> static cudaError_t layer_norm(cudaStream_t stream, const void *args)
{
    const msi_layer_norm_args *a = (const msi_layer_norm_args *)args;

    return ms_launch(layer_norm_kernel<T>, ms_blocks(a->rows), ms_row_threads(a->cols), 0, stream,
                     *a);
}

template <class T> static cudaError_t layer_norm_grad(cudaStream_t stream, const void *args)
{
    const msi_layer_norm_grad_args *a = (const msi_layer_norm_grad_args *)args;
    cudaError_t e = cudaSuccess;

    if (a->dw != NULL || a->db != NULL) { /* before dx, which may lie on dy */
        e = ms_launch(a->dw_dtype == dtype_of<T>::value ? layer_norm_dw<T, T>
                                                        : layer_norm_dw<T, REAL(T)>,
                      (unsigned)((a->cols + 31) / 32), dim3(32, ROWS), 0, stream, *a);
    }
    return e != cudaSuccess || a->dx == NULL ? e
                                             : ms_launch(layer_norm_dx<T>, ms_blocks(a->rows),
                                                         ms_row_threads(a->cols), 0, stream, *a);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, layer_norm)
MS_FLOATS(ENTER, layer_norm_grad)
