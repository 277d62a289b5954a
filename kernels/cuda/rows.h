/* Largest element of a row and sum of exponentials, by a block. */
#ifndef MS_CUDA_ROWS_H
#define MS_CUDA_ROWS_H

#include "cuda_kernel.h"

/* Groups of a row of `cols` elements, each handled by one thread of the block. */
#define EACH_GROUP(T, j, cols)                                                                     \
    for (int64_t j = threadIdx.x * EACH(T); j < (cols); j += blockDim.x * EACH(T))
/* Elements of the group at j. */
#define EACH_ELEMENT(T, e, j, cols)                                                                \
    MS_UNROLL                                                                                      \
    for (int e = 0; e < EACH(T); e++)                                                              \
        if ((j) + e < (cols))

/* Threads for a row, and whether rows that are `cols` elements apart begin with whole groups. */
template <class T> static inline unsigned row_threads(int64_t cols)
{
    return ms_row_threads((cols + EACH(T) - 1) / EACH(T) * 4);
}
template <class T, class... P> static inline bool whole_rows(int64_t cols, P... x)
{
    return cols % EACH(T) == 0 && at_16(x...);
}

/* -inf - -inf is NaN: masked entries add 0, and a NaN itself. */
template <class R> static __device__ inline R base_of(R most)
{
    return most == -(R)INFINITY ? (R)0 : most;
}

/* Are the elements [j, j + EACH) of a row of whole groups within its columns? What lies behind
 * them, up to the next row, need not be the row's. */
template <class T> static __device__ inline bool whole_group(bool whole, int64_t j, int64_t cols)
{
    return whole && j + EACH(T) <= cols;
}

/* @return m, the largest element; *total: the sum of exp(x - m). They stay apart: x - (m +
 * log(sum)) would lose what x - m keeps. One pass: a thread's sum follows its largest element. */
template <class T, class R>
static __device__ inline R row_sum_exp(const T *x, int64_t cols, bool whole, R *total)
{
    R mine = -(R)INFINITY, sum = 0;

    EACH_GROUP(T, j, cols)
    {
        const group<T> g = load_group(x, j, cols, whole_group<T>(whole, j, cols));
        R most = mine;

        EACH_ELEMENT(T, e, j, cols)
        {
            most = get(g.at[e]) > most ? get(g.at[e]) : most;
        }
        sum = most > mine ? sum * exp_of(mine - most) : sum;
        mine = most;
        EACH_ELEMENT(T, e, j, cols)
        {
            sum += exp_of(get(g.at[e]) - base_of(mine));
        }
    }
    const R most = block_fold<fold_max>(mine, -(R)INFINITY);

    *total = block_sum(mine < most ? sum * exp_of(mine - most) : sum);
    return most;
}

#endif
