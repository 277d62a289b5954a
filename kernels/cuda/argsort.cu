/* Positions of the elements of lines in sorted order: stable, NaN as the largest number, 0 and -0
 * equal. A thread counts the elements that come before its own: n comparisons an element, and no
 * scratch. */
#include "order.h"

template <class T> static __global__ void argsort_kernel(const msi_argsort_args a, int64_t total)
{
    MS_EACH(e, total)
    {
        const int64_t line = e / a.n, i = e % a.n;
        const T *in = (const T *)a.in + loop_offset(a.lines, 1, line);
        const int64_t mine = order_key(same_zero(get(in[i * a.in_step])), 0);
        int64_t rank = 0;

        for (int64_t j = 0; j < a.n; j++) {
            const int64_t other = order_key(same_zero(get(in[j * a.in_step])), 0);

            rank += (a.descending ? other > mine : other < mine) || (other == mine && j < i);
        }
        if (rank < a.take) {
            a.out[loop_offset(a.lines, 0, line) + rank * a.out_step] = i + 1;
        }
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_argsort_args *a = (const msi_argsort_args *)args;                                \
        const int64_t total = loop_count(a->lines) * a->n;                                         \
        return ms_launch(argsort_kernel<type>, ms_grid(total), (unsigned)MS_THREADS, 0, stream,    \
                         *a, total);                                                               \
    }
MS_ALL_DTYPES(ENTER, argsort)
