/* softmax and log_softmax of rows, and their gradients. A block a row. */
#include "rows.h"

enum { LOG_SOFTMAX, SOFTMAX };

template <class T, int KIND> static __global__ void forward(const msi_softmax_args a)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols;
        T *y = (T *)a.out + i * a.cols;
        R sum;
        const R m = row_sum_exp(x, a.cols, &sum), log_sum = log_of(sum);

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            const R d = get(x[j]) - m;

            store(y + j, KIND == SOFTMAX ? exp_of(d) / sum : d - log_sum, a.accumulate);
        }
    }
}

/* dx = dy - exp(y) sum(dy); dx = y (dy - sum(y dy)). */
template <class T, int KIND> static __global__ void backward(const msi_softmax_args a)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *y = (const T *)a.y + i * a.cols, *dy = (const T *)a.dy + i * a.cols;
        T *dx = (T *)a.out + i * a.cols;
        R sum = 0;

        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            sum += KIND == SOFTMAX ? get(y[j]) * get(dy[j]) : get(dy[j]);
        }
        sum = block_sum(sum);
        for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
            store(dx + j,
                  KIND == SOFTMAX ? get(y[j]) * (get(dy[j]) - sum)
                                  : get(dy[j]) - exp_of(get(y[j])) * sum,
                  a.accumulate);
        }
    }
}

#define ENTER(name, kernel, KIND, dtype, type)                                                     \
    MS_ENTRY(name, dtype)                                                                          \
    {                                                                                              \
        const msi_softmax_args *a = (const msi_softmax_args *)args;                                \
        return ms_launch(kernel<type, KIND>, ms_blocks(a->rows), ms_row_threads(a->cols), 0,       \
                         stream, *a);                                                              \
    }
#define ENTER_ALL(op, dtype, type)                                                                 \
    ENTER(softmax, forward, SOFTMAX, dtype, type)                                                  \
    ENTER(softmax_grad, backward, SOFTMAX, dtype, type)                                            \
    ENTER(log_softmax, forward, LOG_SOFTMAX, dtype, type)                                          \
    ENTER(log_softmax_grad, backward, LOG_SOFTMAX, dtype, type)
MS_FLOATS(ENTER_ALL, softmax)
