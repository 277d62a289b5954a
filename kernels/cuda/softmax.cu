/* softmax and log_softmax of rows, and their gradients. A block a row. */
#include "rows.h"

enum { LOG_SOFTMAX, SOFTMAX };

template <class T, int KIND> static __global__ void forward(const msi_softmax_args a, bool whole)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * a.cols;
        T *y = (T *)a.out + i * a.cols;
        R sum;
        const R m = row_sum_exp(x, a.cols, whole, &sum), log_sum = log_of(sum);

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> g = load_group(x, j, a.cols, whole);
            group<T> out = a.accumulate ? load_group(y, j, a.cols, whole) : g;

            EACH_ELEMENT(T, e, j, a.cols)
            {
                const R d = get(g.at[e]) - m;

                store(&out.at[e], KIND == SOFTMAX ? exp_of(d) / sum : d - log_sum, a.accumulate);
            }
            store_group(y, j, a.cols, whole, out);
        }
    }
}

/* dx = dy - exp(y) sum(dy); dx = y (dy - sum(y dy)). */
template <class T, int KIND> static __global__ void backward(const msi_softmax_args a, bool whole)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *y = (const T *)a.y + i * a.cols, *dy = (const T *)a.dy + i * a.cols;
        T *dx = (T *)a.out + i * a.cols;
        R sum = 0;

        EACH_GROUP(T, j, a.cols)
        {
            const group<T> v = load_group(y, j, a.cols, whole),
                           g = load_group(dy, j, a.cols, whole);

            EACH_ELEMENT(T, e, j, a.cols)
            {
                sum += KIND == SOFTMAX ? get(v.at[e]) * get(g.at[e]) : get(g.at[e]);
            }
        }
        sum = block_sum(sum);
        EACH_GROUP(T, j, a.cols)
        {
            const group<T> v = load_group(y, j, a.cols, whole),
                           g = load_group(dy, j, a.cols, whole);
            group<T> out = a.accumulate ? load_group(dx, j, a.cols, whole) : g;

            EACH_ELEMENT(T, e, j, a.cols)
            {
                store(&out.at[e],
                      KIND == SOFTMAX ? get(v.at[e]) * (get(g.at[e]) - sum)
                                      : get(g.at[e]) - exp_of(get(v.at[e])) * sum,
                      a.accumulate);
            }
            store_group(dx, j, a.cols, whole, out);
        }
    }
}

#define ENTER(name, kernel, KIND, first, second, dtype, type)                                      \
    MS_ENTRY(name, dtype)                                                                          \
    {                                                                                              \
        const msi_softmax_args *a = (const msi_softmax_args *)args;                                \
        return ms_launch(kernel<type, KIND>, ms_blocks(a->rows), row_threads<type>(a->cols), 0,    \
                         stream, *a, whole_rows<type>(a->cols, a->out, a->first, a->second));      \
    }
#define ENTER_ALL(op, dtype, type)                                                                 \
    ENTER(softmax, forward, SOFTMAX, x, x, dtype, type)                                            \
    ENTER(softmax_grad, backward, SOFTMAX, y, dy, dtype, type)                                     \
    ENTER(log_softmax, forward, LOG_SOFTMAX, x, x, dtype, type)                                    \
    ENTER(log_softmax_grad, backward, LOG_SOFTMAX, y, dy, dtype, type)
MS_FLOATS(ENTER_ALL, softmax)
