/* The fixed tree over sources: reductions of collectives and of gradient accumulation.
 *
 * One pass over memory. The binary counter that merges leaves (as many merges after leaf k as k has
 * trailing ones) runs once per register of lanes. For the counts and dtypes that training meets (1,
 * 2, 4 sources of one dtype) it is unrolled, its nodes being registers; else they are a small
 * array. */
#include "lanes.h"
#include "table.h"

enum { LEVELS = 32 }; /* nodes alive at once: a level for every bit of n_src, and the next leaf */

/* One element of a source. */
static double get(const void *src, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case MS_DTYPE_F64:
        return ((const double *)src)[i];
    case MS_DTYPE_F32:
        return (double)((const float *)src)[i];
    default:
        return (double)load_n_bf16w((const uint16_t *)src + i, 1)[0];
    }
}

static double rounded(double x, int32_t dtype)
{
    f32_part single = splat_f32w((float)x);

    return (double)(dtype == MS_DTYPE_BF16 ? widen_bf16w(narrow_bf16w(single)) : single)[0];
}

#define BODY "tree_body.h"
#include "each_register.h"

/* i64 has no factor and no rounding; addition wraps, in unsigned numbers. */
#define REDUCE(EXPR)                                                                               \
    for (int64_t i = 0; i < a->n; i++) {                                                           \
        int64_t x = ((const int64_t *)a->src[0].data)[i];                                          \
        for (int32_t k = 1; k < a->n_src; k++) {                                                   \
            const int64_t y = ((const int64_t *)a->src[k].data)[i];                                \
            x = (EXPR);                                                                            \
        }                                                                                          \
        out[i] = a->accumulate ? (int64_t)((uint64_t)out[i] + (uint64_t)x) : x;                    \
    }

void MSI_NAME(tree_i64)(const void *args)
{
    const msi_tree_args *a = args;
    int64_t *out = a->out;

    if (a->n_src == 0) {
        return;
    }
    if (a->reduce == 2) {
        REDUCE(x > y ? x : y)
    } else if (a->reduce == 3) {
        REDUCE(x < y ? x : y)
    } else {
        REDUCE((int64_t)((uint64_t)x + (uint64_t)y))
    }
}
