/* Cross-entropy over rows of logits: a block a row finds the largest logit and the sum of
 * exponentials; one block adds the rows' losses in f64 and reports the first bad target. */
#include "rows.h"

static __device__ inline bool counts(const msi_cross_entropy_args &a, int64_t i)
{
    return a.targets[i] != a.ignore_index && is_inside(a.targets[i], a.cols);
}

template <class T> static __global__ void row_kernel(const msi_cross_entropy_args a, bool whole)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        R m = 0, sum = 0;

        if (counts(a, i)) {
            m = row_sum_exp((const T *)a.logits + i * a.pitch, a.cols, whole, &sum);
        }
        if (threadIdx.x == 0) {
            ((R *)a.max)[i] = m;
            ((R *)a.sum)[i] = sum;
        }
    }
}

template <class T> static __global__ void loss_kernel(const msi_cross_entropy_args a)
{
    typedef REAL(T) R;
    double loss = 0;
    int64_t n = 0, bad = a.rows;

    for (int64_t i = threadIdx.x; i < a.rows; i += blockDim.x) {
        if (counts(a, i)) {
            loss += (double)((const R *)a.max)[i] -
                    (double)get(((const T *)a.logits)[i * a.pitch + a.targets[i]]) +
                    (double)log_of(((const R *)a.sum)[i]);
            n++;
        } else if (a.targets[i] != a.ignore_index) {
            loss = (double)NAN;
            bad = i < bad ? i : bad;
        }
    }
    loss = block_sum(loss);
    n = block_sum(n);
    bad = block_fold<fold_min>(bad, a.rows);
    if (threadIdx.x == 0) {
        *(R *)a.loss = (R)(a.mean ? loss / (double)n : loss);
        *a.n_counted = n;
        if (bad < a.rows) {
            fault_found(a.fault, MSI_K_cross_entropy, a.targets[bad], bad, a.rows, a.cols);
        }
    }
}

/* dlogits = row_scale (exp(x - m) / sum - one_hot(target)), possibly over the logits. */
template <class T> static __global__ void grad_kernel(const msi_cross_entropy_args a, bool whole)
{
    typedef REAL(T) R;
    const double dloss = (double)*(const R *)a.dloss;
    const double row_scale = a.mean ? dloss / (double)*a.n_counted : dloss;

    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.logits + i * a.pitch;
        T *dx = (T *)a.dlogits + i * a.pitch;
        const int64_t target = a.targets[i];
        const R m = ((const R *)a.max)[i], sum = ((const R *)a.sum)[i];
        const R scale = (R)row_scale, factor = (R)(row_scale / (double)sum);

        const bool counted = counts(a, i), bad = !counted && target != a.ignore_index;

        EACH_GROUP(T, j, a.cols)
        {
            const bool all = whole_group<T>(whole, j, a.cols);
            const group<T> g = load_group(x, j, a.cols, all);
            group<T> out = a.accumulate ? load_group(dx, j, a.cols, all) : g;

            EACH_ELEMENT(T, k, j, a.cols)
            {
                const R e = exp_of(get(g.at[k]) - m);

                if (counted) {
                    store(&out.at[k], j + k == target ? (e / sum - 1) * scale : e * factor,
                          a.accumulate);
                } else if (bad || !a.accumulate) {
                    out.at[k] = element<T>::put(bad ? (R)NAN : (R)0);
                }
            }
            store_group(dx, j, a.cols, all, out);
        }
    }
}

template <class T> static cudaError_t cross_entropy(cudaStream_t stream, const void *args)
{
    const msi_cross_entropy_args *a = (const msi_cross_entropy_args *)args;
    const cudaError_t e = ms_launch(row_kernel<T>, ms_blocks(a->rows), row_threads<T>(a->cols), 0,
                                    stream, *a, whole_rows<T>(a->pitch, a->logits));

    return e != cudaSuccess ? e : ms_launch(loss_kernel<T>, 1, 256, 0, stream, *a);
}

template <class T> static cudaError_t cross_entropy_grad(cudaStream_t stream, const void *args)
{
    const msi_cross_entropy_args *a = (const msi_cross_entropy_args *)args;

    return ms_launch(grad_kernel<T>, ms_blocks(a->rows), row_threads<T>(a->cols), 0, stream, *a,
                     whole_rows<T>(a->pitch, a->logits, a->dlogits));
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, cross_entropy)
MS_FLOATS(ENTER, cross_entropy_grad)
