/* The fixed tree over sources, for reductions of collectives and of gradient accumulation.
 *
 * One pass over memory. The binary counter that merges leaves (after leaf k as many merges as k has
 * trailing ones) runs once for each register of lanes. For the counts and dtypes that occur in
 * training (1, 2, 4 sources of one dtype) it is unrolled, with its nodes in registers; otherwise
 * the nodes are a small array. */
#include "lanes.h"
#include "table.h"

enum { LEVELS = 32 }; /* most nodes at once: one for each bit of n_src, and the next leaf */

/* One element of a source. */
static double get(const void *src, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case MS_DTYPE_F64:
        return ((const double *)src)[i];
    case MS_DTYPE_F32:
        return (double)((const float *)src)[i];
    case MS_DTYPE_F16:
        return (double)load_n_f16w((const uint16_t *)src + i, 1)[0];
    default:
        return (double)load_n_bf16w((const uint16_t *)src + i, 1)[0];
    }
}

/* x rounded to `dtype`; unchanged unless it is f16 or bf16. */
LANES_INLINE f32_part rounded_lanes(f32_part x, int32_t dtype)
{
    return dtype == MS_DTYPE_F32    ? x
           : dtype == MS_DTYPE_BF16 ? widen_bf16w(narrow_bf16w(x))
           : dtype == MS_DTYPE_F16  ? widen_f16w(narrow_f16w(x))
                                    : x;
}

static double rounded(double x, int32_t dtype)
{
    return (double)rounded_lanes(splat_f32w((float)x), dtype)[0];
}

/* One element of a mixed tree. A sum or product of two f32 that is computed in f64 and rounded to
 * f32 equals the one computed in f32. */
static double mixed_element(const msi_tree_args *a, int64_t i, bool single)
{
    double nodes[LEVELS];
    int32_t top = 0;

    for (int32_t k = 0; k < a->n_src; k++) {
        double x = get(a->src[k].data, a->src[k].dtype, i);

        for (int32_t bits = k; bits & 1; bits >>= 1) {
            x = nodes[--top] + x;
            x = single ? (double)(float)x : x;
        }
        nodes[top++] = x;
    }
    double x = nodes[--top];

    while (top > 0) {
        x = nodes[--top] + x;
        x = single ? (double)(float)x : x;
    }
    x *= single ? (double)(float)a->factor : a->factor;
    return a->round_dtype == MS_DTYPE_F64 ? x : rounded(x, a->round_dtype);
}

#define BODY "tree_body.h"
#include "each_register.h"

/* Integers wrap: sums and products are computed on unsigned numbers, without rounding. */
#define REDUCE(type, FACTOR, EXPR)                                                                 \
    for (int64_t i = 0; i < a->n; i++) {                                                           \
        type x = ((const type *)a->src[0].data)[i];                                                \
        for (int32_t k = 1; k < a->n_src; k++) {                                                   \
            const type y = ((const type *)a->src[k].data)[i];                                      \
            x = (EXPR);                                                                            \
        }                                                                                          \
        x = (type)((u##type)x * (FACTOR));                                                         \
        out[i] = a->accumulate ? (type)((u##type)out[i] + (u##type)x) : x;                         \
    }
#define TREE(name, type)                                                                           \
    void MSI_NAME(name)(const void *args)                                                          \
    {                                                                                              \
        const msi_tree_args *a = args;                                                             \
        type *out = a->out;                                                                        \
        if (a->n_src == 0) {                                                                       \
            return;                                                                                \
        }                                                                                          \
        if (a->reduce == MSI_TREE_MAX) {                                                           \
            REDUCE(type, 1, x > y ? x : y)                                                         \
        } else if (a->reduce == MSI_TREE_MIN) {                                                    \
            REDUCE(type, 1, x < y ? x : y)                                                         \
        } else {                                                                                   \
            REDUCE(type, (u##type)a->factor, (type)((u##type)x + (u##type)y))                      \
        }                                                                                          \
    }
TREE(tree_i64, int64_t)
TREE(tree_i32, int32_t)
