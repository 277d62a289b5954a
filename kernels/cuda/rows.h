/* Largest element of a row and sum of exponentials, by a block. */
#ifndef MS_CUDA_ROWS_H
#define MS_CUDA_ROWS_H

#include "cuda_kernel.h"

/* @return m, the largest element; *total: the sum of exp(x - m). They stay apart: x - (m +
 * log(sum)) would lose what x - m keeps. */
template <class T, class R>
static __device__ inline R row_sum_exp(const T *x, int64_t cols, R *total)
{
    R most = -(R)INFINITY, sum = 0;

    for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
        const R v = get(x[j]);

        most = v > most ? v : most;
    }
    most = block_fold<fold_max>(most, -(R)INFINITY);
    /* -inf - -inf is NaN: masked entries add 0, and a NaN itself */
    const R m = most == -(R)INFINITY ? (R)0 : most;

    for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
        sum += exp_of(get(x[j]) - m);
    }
    *total = block_sum(sum);
    return most;
}

#endif
