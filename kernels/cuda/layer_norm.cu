/* Layer norm of rows and its gradient. A block a row. The gradient reads x and dy once: a thread
 * has the same columns of all its rows and adds their dw and db in registers, a block leaves its
 * sums in `work`, and a second kernel adds those. Rows too wide for a block's threads: dx a block
 * a row, dw and db a block a group of columns. */
#include "rows.h"

#include <float.h>

/* Mean of the squared distances from `mean`. */
template <class T, class R>
static __device__ inline R variance_of(const T *x, int64_t cols, bool whole, R mean)
{
    R sum = 0;

    EACH_GROUP(T, j, cols)
    {
        const group<T> g = load_group(x, j, cols, whole);

        EACH_ELEMENT(T, e, j, cols)
        {
            const R d = get(g.at[e]) - mean;

            sum += d * d;
        }
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

template <class T> static __global__ void layer_norm_kernel(const msi_layer_norm_args a, bool whole)
{
    typedef REAL(T) R;
    const R epsilon = sizeof(R) == sizeof(float) ? (R)FLT_EPSILON : (R)DBL_EPSILON;
    const T *w = (const T *)a.w, *b = (const T *)a.b;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols;
        T *y = (T *)a.y + i * a.cols;
        R sum = 0;

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> g = load_group(x, j, a.cols, whole);

            EACH_ELEMENT(T, e, j, a.cols)
            {
                sum += get(g.at[e]);
            }
        }
        R mean = block_sum(sum) / (R)a.cols, variance = variance_of(x, a.cols, whole, mean);
        const R rounding = epsilon * ((R)a.cols / 64 + 8) * mean;

        if (variance <= rounding * rounding) { /* as good as equal elements */
            const R within = mean_within(x, a.cols, mean);

            variance = variance_of(x, a.cols, whole, within);
            mean = isfinite(mean) || variance == 0 ? within : mean;
        }
        const R rstd = 1 / root_of(variance + (R)a.eps);

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> g = load_group(x, j, a.cols, whole);
            const group<T> by = w != NULL ? load_group(w, j, a.cols, whole) : g;
            const group<T> plus = b != NULL ? load_group(b, j, a.cols, whole) : g;
            group<T> out;

            EACH_ELEMENT(T, e, j, a.cols)
            {
                R v = (get(g.at[e]) - mean) * rstd;

                v = w != NULL ? v * get(by.at[e]) : v;
                v = b != NULL ? v + get(plus.at[e]) : v;
                out.at[e] = element<T>::put(v);
            }
            store_group(y, j, a.cols, whole, out);
        }
        if (threadIdx.x == 0) {
            ((R *)a.mean)[i] = mean;
            ((R *)a.rstd)[i] = rstd;
        }
    }
}

/* Elements of row i from column j on: dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy w. */
template <class T, class R>
static __device__ inline void store_dx(const msi_layer_norm_grad_args &a, int64_t i, int64_t j,
                                       bool whole, const group<T> &v, const group<T> &d,
                                       const group<T> &by, R mean_g, R mean_gx)
{
    const R mean = ((const R *)a.mean)[i], rstd = ((const R *)a.rstd)[i];
    T *dx = (T *)a.dx + i * a.cols;
    group<T> out = a.dx_accumulate ? load_group(dx, j, a.cols, whole) : d;

    EACH_ELEMENT(T, e, j, a.cols)
    {
        const R g = a.w != NULL ? get(d.at[e]) * get(by.at[e]) : get(d.at[e]);

        store(&out.at[e], (g - mean_g - (get(v.at[e]) - mean) * rstd * mean_gx) * rstd,
              a.dx_accumulate);
    }
    store_group(dx, j, a.cols, whole, out);
}

template <class T>
static __global__ void layer_norm_dx(const msi_layer_norm_grad_args a, bool whole)
{
    typedef REAL(T) R;
    const T *w = (const T *)a.w;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols, *dy = (const T *)a.dy + i * a.cols;
        const R mean = ((const R *)a.mean)[i], rstd = ((const R *)a.rstd)[i];
        R sum = 0, dot = 0;

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> v = load_group(x, j, a.cols, whole),
                           d = load_group(dy, j, a.cols, whole);
            const group<T> by = w != NULL ? load_group(w, j, a.cols, whole) : d;

            EACH_ELEMENT(T, e, j, a.cols)
            {
                const R g = w != NULL ? get(d.at[e]) * get(by.at[e]) : get(d.at[e]);

                sum += g;
                dot += g * ((get(v.at[e]) - mean) * rstd);
            }
        }
        const R mean_g = block_sum(sum) / (R)a.cols, mean_gx = block_sum(dot) / (R)a.cols;

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> v = load_group(x, j, a.cols, whole),
                           d = load_group(dy, j, a.cols, whole);
            const group<T> by = w != NULL ? load_group(w, j, a.cols, whole) : d;
            store_dx<T>(a, i, j, whole, v, d, by, mean_g, mean_gx);
        }
    }
}

enum { ROWS = 256 };

/* A block a group of columns, with ROWS threads one below another. */
template <class T, class Out>
static __global__ void layer_norm_dw(const msi_layer_norm_grad_args a, bool whole)
{
    typedef REAL(T) R;
    const int64_t j = blockIdx.x * EACH(T);
    R w[EACH(T)] = {0}, b[EACH(T)] = {0};

    for (int64_t i = threadIdx.x; i < a.rows; i += ROWS) {
        const group<T> g = load_group((const T *)a.dy + i * a.cols, j, a.cols, whole);
        const group<T> x = load_group((const T *)a.x + i * a.cols, j, a.cols, whole);
        const R mean = ((const R *)a.mean)[i], rstd = ((const R *)a.rstd)[i];

        MS_UNROLL
        for (int e = 0; e < EACH(T); e++) {
            w[e] += get(g.at[e]) * ((get(x.at[e]) - mean) * rstd);
            b[e] += get(g.at[e]);
        }
    }
    MS_UNROLL
    for (int e = 0; e < EACH(T); e++) {
        const R sum_w = block_sum(w[e]), sum_b = block_sum(b[e]);

        if (threadIdx.x == 0 && j + e < a.cols && a.dw != NULL) {
            store((Out *)a.dw + j + e, sum_w, a.dw_accumulate);
        }
        if (threadIdx.x == 0 && j + e < a.cols && a.db != NULL) {
            store((Out *)a.db + j + e, sum_b, a.db_accumulate);
        }
    }
}

/* Threads of a block, one a group of a row, at most MOST, and blocks, which share the rows: WARM
 * threads a processor. 0: the rows are too wide. */
enum { MOST = 512, WARM = 640 };

template <class T> static inline int64_t one_pass_threads(int64_t cols)
{
    return (cols + 32 * EACH(T) - 1) / (32 * EACH(T)) * 32;
}

template <class T> static inline int64_t one_pass_blocks(const msi_layer_norm_grad_args &a)
{
    const int64_t threads = one_pass_threads<T>(a.cols);
    const int64_t most = msi_cuda_processors * (threads > 0 && threads < WARM ? WARM / threads : 1);

    return threads == 0 || threads > MOST ? 0 : a.rows < most ? a.rows : most;
}

/* dx, and a block's sums of dw and then db. dx may lie on dy. The next row is loaded while this one
 * is computed. */
template <class T>
static __global__ void __launch_bounds__(MOST)
    layer_norm_one_pass(const msi_layer_norm_grad_args a, bool whole)
{
    typedef REAL(T) R;
    const int64_t j = threadIdx.x * EACH(T);
    const bool mine = j < a.cols;
    const T *w = (const T *)a.w, *x = (const T *)a.x, *dy = (const T *)a.dy;
    const group<T> by = w != NULL && mine ? load_group(w, j, a.cols, whole) : group<T>();
    R dw[EACH(T)] = {0}, db[EACH(T)] = {0};
    group<T> next_v = {}, next_d = {};
    int64_t i = blockIdx.x;

    if (mine && i < a.rows) {
        next_v = load_group(x + i * a.cols, j, a.cols, whole);
        next_d = load_group(dy + i * a.cols, j, a.cols, whole);
    }
    for (; i < a.rows; i += gridDim.x) {
        const group<T> v = next_v, d = next_d;
        const int64_t next = i + gridDim.x;
        const R mean = ((const R *)a.mean)[i], rstd = ((const R *)a.rstd)[i];
        R sum = 0, dot = 0;

        if (mine && next < a.rows) {
            next_v = load_group(x + next * a.cols, j, a.cols, whole);
            next_d = load_group(dy + next * a.cols, j, a.cols, whole);
        }
        EACH_ELEMENT(T, e, j, a.cols)
        {
            const R g = w != NULL ? get(d.at[e]) * get(by.at[e]) : get(d.at[e]);
            const R normal = (get(v.at[e]) - mean) * rstd;

            sum += g;
            dot += g * normal;
            dw[e] += get(d.at[e]) * normal;
            db[e] += get(d.at[e]);
        }
        if (a.dx == NULL) {
            continue;
        }
        const R mean_g = block_sum(sum) / (R)a.cols, mean_gx = block_sum(dot) / (R)a.cols;

        if (mine) {
            store_dx<T>(a, i, j, whole, v, d, by, mean_g, mean_gx);
        }
    }
    R *to = (R *)a.work + (int64_t)blockIdx.x * 2 * a.cols;

    EACH_ELEMENT(T, e, j, a.cols)
    {
        to[j + e] = dw[e];
        to[a.cols + j + e] = db[e];
    }
}

/* Add the blocks' sums: 32 columns a block, 8 threads each, in f64. */
template <class T, class Out>
static __global__ void layer_norm_add(const msi_layer_norm_grad_args a, int64_t n)
{
    enum { LANES = 8 };
    typedef REAL(T) R;
    __shared__ double parts[LANES][32];
    const int64_t at = (int64_t)blockIdx.x * 32 + threadIdx.x, j = at % a.cols;
    double sum = 0;

    for (int64_t i = threadIdx.y; at < 2 * a.cols && i < n; i += LANES) {
        sum += (double)((const R *)a.work)[i * 2 * a.cols + at];
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    Out *to = (Out *)(at < a.cols ? a.dw : a.db);

    if (threadIdx.y == 0 && at < 2 * a.cols && to != NULL) {
        sum = 0;
        for (int k = 0; k < LANES; k++) {
            sum += parts[k][threadIdx.x];
        }
        store(to + j, (R)sum, at < a.cols ? a.dw_accumulate : a.db_accumulate);
    }
}

template <class T>
static cudaError_t one_pass(cudaStream_t stream, const msi_layer_norm_grad_args *a, int64_t blocks)
{
    const bool narrow = a->dw_dtype == dtype_of<T>::value;
    const cudaError_t e =
        ms_launch(layer_norm_one_pass<T>, (unsigned)blocks, (unsigned)one_pass_threads<T>(a->cols),
                  0, stream, *a, whole_rows<T>(a->cols, a->dy, a->x, a->w, a->dx));

    return e != cudaSuccess
               ? e
               : ms_launch(narrow ? layer_norm_add<T, T> : layer_norm_add<T, REAL(T)>,
                           (unsigned)((2 * a->cols + 31) / 32), dim3(32, 8), 0, stream, *a, blocks);
}

template <class T> static cudaError_t layer_norm(cudaStream_t stream, const void *args)
{
    const msi_layer_norm_args *a = (const msi_layer_norm_args *)args;

    return ms_launch(layer_norm_kernel<T>, ms_blocks(a->rows), row_threads<T>(a->cols), 0, stream,
                     *a, whole_rows<T>(a->cols, a->x, a->w, a->b, a->y));
}

template <class T> static cudaError_t layer_norm_grad(cudaStream_t stream, const void *args)
{
    const msi_layer_norm_grad_args *a = (const msi_layer_norm_grad_args *)args;
    const bool sums = a->dw != NULL || a->db != NULL;
    const int64_t blocks = sums && a->work != NULL ? one_pass_blocks<T>(*a) : 0;
    cudaError_t e = cudaSuccess;

    if (blocks > 0) {
        return one_pass<T>(stream, a, blocks);
    }
    if (sums) { /* before dx, which may lie on dy */
        e = ms_launch(a->dw_dtype == dtype_of<T>::value ? layer_norm_dw<T, T>
                                                        : layer_norm_dw<T, REAL(T)>,
                      (unsigned)((a->cols + EACH(T) - 1) / EACH(T)), ROWS, 0, stream, *a,
                      whole_rows<T>(a->cols, a->dy, a->x));
    }
    return e != cudaSuccess || a->dx == NULL
               ? e
               : ms_launch(layer_norm_dx<T>, ms_blocks(a->rows), row_threads<T>(a->cols), 0, stream,
                           *a, whole_rows<T>(a->cols, a->dy, a->x, a->w, a->dx));
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, layer_norm)
MS_FLOATS(ENTER, layer_norm_grad)

/* Bytes of `work`. */
extern "C" int64_t msi_cuda_layer_norm_grad_work(int32_t dtype,
                                                 const msi_layer_norm_grad_args *args)
{
    const msi_layer_norm_grad_args &a = *args;
    const int64_t sums = 2 * a.cols;

    if (a.dw == NULL && a.db == NULL) {
        return 0;
    }
    switch (dtype) {
    case MS_DTYPE_F64:
        return one_pass_blocks<double>(a) * sums * 8;
    case MS_DTYPE_F32:
        return one_pass_blocks<float>(a) * sums * 4;
    default:
        return one_pass_blocks<bf16>(a) * sums * 4;
    }
}
