/* -x[i, targets[i]] and its gradient. */
#include "cuda_kernel.h"

/* One block, which reports the first bad target. */
template <class T> static __global__ void forward(const msi_nll_args a)
{
    int64_t bad = a.rows;

    for (int64_t i = threadIdx.x; i < a.rows; i += blockDim.x) {
        const int64_t target = a.targets[i];
        REAL(T) y = 0;

        if (target != a.ignore_index && is_inside(target, a.cols)) {
            y = -get(((const T *)a.x)[i * a.cols + target]);
        } else if (target != a.ignore_index) {
            y = (REAL(T))NAN;
            bad = i < bad ? i : bad;
        }
        ((T *)a.out)[i] = element<T>::put(y);
    }
    bad = block_fold<fold_min>(bad, a.rows);
    if (threadIdx.x == 0 && bad < a.rows) {
        fault_found(a.fault, MSI_K_nll_loss, a.targets[bad], bad, a.rows, a.cols);
    }
}

template <class T> static __global__ void backward(const msi_nll_args a)
{
    MS_EACH(i, a.rows * a.cols)
    {
        T *dx = (T *)a.out + i;
        const int64_t row = i / a.cols, target = a.targets[row];
        const bool hit = target != a.ignore_index && target == i % a.cols;
        const REAL(T) dy = get(((const T *)a.dy)[row]);

        if (hit) {
            store(dx, -dy, a.accumulate);
        } else if (!a.accumulate) {
            *dx = element<T>::put((REAL(T))0);
        }
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(nll_loss, dtype)                                                                      \
    {                                                                                              \
        return ms_launch(forward<type>, 1, 256, 0, stream, *(const msi_nll_args *)args);           \
    }                                                                                              \
    MS_ENTRY(nll_loss_grad, dtype)                                                                 \
    {                                                                                              \
        const msi_nll_args *a = (const msi_nll_args *)args;                                        \
        return ms_launch(backward<type>, ms_grid(a->rows * a->cols), (unsigned)MS_THREADS, 0,      \
                         stream, *a);                                                              \
    }
MS_FLOATS(ENTER, nll_loss)
