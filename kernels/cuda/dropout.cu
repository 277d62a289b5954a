/* Dropout: the same elements as on the CPU. A thread has four elements, one Philox counter. */
#include "cuda_kernel.h"

template <class T>
static __global__ void dropout_kernel(const msi_dropout_args a, uint64_t threshold, uint64_t key,
                                      double factor, bool whole)
{
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) four {
        T at[4];
    };
    const int64_t groups = (a.per_sample + 3) / 4;
    const REAL(T) scale = (REAL(T))factor;

    MS_EACH(i, a.samples * groups)
    {
        const int64_t sample = i / groups, group = i % groups;
        uint32_t word[4];

        philox(word, (uint64_t)group, (uint64_t)(a.sample_base + sample), key);
        if (whole) {
            const four x = ((const four *)a.x)[i];
            four out = a.accumulate ? ((const four *)a.out)[i] : x;

            MS_UNROLL
            for (int k = 0; k < 4; k++) {
                store(&out.at[k], word[k] >= threshold ? get(x.at[k]) * scale : (REAL(T))0,
                      a.accumulate);
            }
            ((four *)a.out)[i] = out;
            continue;
        }
        for (int k = 0; k < 4 && 4 * group + k < a.per_sample; k++) {
            const int64_t at = sample * a.per_sample + 4 * group + k;

            store((T *)a.out + at,
                  word[k] >= threshold ? get(((const T *)a.x)[at]) * scale : (REAL(T))0,
                  a.accumulate);
        }
    }
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_dropout_args *a = (const msi_dropout_args *)args;                                \
        return ms_launch(dropout_kernel<type>, ms_grid(a->samples * ((a->per_sample + 3) / 4)),    \
                         MS_THREADS, 0, stream, *a, drop_threshold(a->p),                          \
                         philox_key(a->seed, a->site, (uint64_t)a->call), 1 / (1 - a->p),          \
                         a->per_sample % 4 == 0 && at_16(a->x, a->out));                           \
    }
MS_FLOATS(ENTER, dropout)
