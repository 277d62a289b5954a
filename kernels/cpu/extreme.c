/* The largest or the smallest element, or its position, over dimensions; the gradient, which equal
 * elements share. Keys (order.h) are compared, so the result does not depend on the order of the
 * walk:
 *
 *   rows     a kept element at a time, its reduced elements in chunks
 *   columns  neighbouring kept elements are neighbours in memory: a tile of them at a time */
#include "loop.h"
#include "order.h"
#include "table.h"

enum { EXTREME_TILE = 64, EXTREME_CHUNK = 1024 };

/* Are neighbouring kept elements adjacent in memory, and neighbouring reduced ones not? */
static bool extreme_by_columns(const msi_reduction_args *a)
{
    return loop_width(&a->kept) > 1 && loop_step(&a->kept, 1) == 1 &&
           loop_step(&a->reduced, 1) != 1;
}

/* The first of the largest keys of `n` elements. `KEY` converts an element to a key. */
#define EXTREME_WALK(dtype, suffix, indexed, KEY)                                                  \
    static o_##dtype chunk_##suffix##_##dtype(const c_##dtype *x, int64_t n, int64_t step,         \
                                              o_##dtype flip)                                      \
    {                                                                                              \
        o_##dtype best = ORDER_LEAST(o_##dtype);                                                   \
                                                                                                   \
        if (step == 1) {                                                                           \
            for (int64_t j = 0; j < n; j++) {                                                      \
                const o_##dtype key = KEY(x[j], flip);                                             \
                best = key > best ? key : best;                                                    \
            }                                                                                      \
            return best;                                                                           \
        }                                                                                          \
        for (int64_t j = 0; j < n; j++) {                                                          \
            const o_##dtype key = KEY(x[j * step], flip);                                          \
            best = key > best ? key : best;                                                        \
        }                                                                                          \
        return best;                                                                               \
    }                                                                                              \
                                                                                                   \
    /* One kept element: its key, and its position from 0. */                                      \
    static o_##dtype row_##suffix##_##dtype(const msi_reduction_args *a, const c_##dtype *in,      \
                                            o_##dtype flip, int64_t *where)                        \
    {                                                                                              \
        const msi_loop *along = &a->reduced;                                                       \
        const int32_t outer = along->ndim > 0 ? along->ndim - 1 : 0;                               \
        const int64_t n = loop_width(along), step = loop_step(along, 1);                           \
        const int64_t rows = loop_count(along, outer);                                             \
        o_##dtype best = ORDER_LEAST(o_##dtype);                                                   \
                                                                                                   \
        *where = 0;                                                                                \
        for (int64_t row = 0; row < rows; row++) {                                                 \
            const c_##dtype *x = in + loop_offset(along, 1, outer, row);                           \
                                                                                                   \
            for (int64_t j = 0; j < n; j += EXTREME_CHUNK) {                                       \
                const int64_t m = n - j < EXTREME_CHUNK ? n - j : EXTREME_CHUNK;                   \
                const o_##dtype key = chunk_##suffix##_##dtype(x + j * step, m, step, flip);       \
                                                                                                   \
                if (key > best) {                                                                  \
                    int64_t first = j;                                                             \
                                                                                                   \
                    while ((indexed) && KEY(x[first * step], flip) != key) {                       \
                        first++;                                                                   \
                    }                                                                              \
                    best = key;                                                                    \
                    *where = row * n + first;                                                      \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        return best;                                                                               \
    }                                                                                              \
                                                                                                   \
    /* A tile of kept elements that are neighbours in memory. */                                   \
    static void tile_##suffix##_##dtype(const msi_reduction_args *a, const c_##dtype *in,          \
                                        int64_t tile, o_##dtype flip, o_##dtype *best,             \
                                        int64_t *where)                                            \
    {                                                                                              \
        const msi_loop *along = &a->reduced;                                                       \
        const int32_t outer = along->ndim > 0 ? along->ndim - 1 : 0;                               \
        const int64_t n = loop_width(along), step = loop_step(along, 1);                           \
        const int64_t rows = loop_count(along, outer);                                             \
                                                                                                   \
        for (int64_t c = 0; c < tile; c++) {                                                       \
            best[c] = ORDER_LEAST(o_##dtype);                                                      \
            where[c] = 0;                                                                          \
        }                                                                                          \
        for (int64_t row = 0; row < rows; row++) {                                                 \
            const c_##dtype *x = in + loop_offset(along, 1, outer, row);                           \
                                                                                                   \
            for (int64_t j = 0; j < n; j++, x += step) {                                           \
                for (int64_t c = 0; c < tile; c++) {                                               \
                    const o_##dtype key = KEY(x[c], flip);                                         \
                    if ((indexed) && key > best[c]) {                                              \
                        where[c] = row * n + j;                                                    \
                    }                                                                              \
                    best[c] = key > best[c] ? key : best[c];                                       \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

#define EXTREME(dtype)                                                                             \
    EXTREME_WALK(dtype, value, false, ORDER_##dtype)                                               \
    EXTREME_WALK(dtype, index, true, ORDER_SAME_##dtype)                                           \
    static void extreme_of_##dtype(const msi_reduction_args *a)                                    \
    {                                                                                              \
        const o_##dtype flip = a->largest ? 0 : -1;                                                \
        const int64_t n = loop_count(&a->kept, a->kept.ndim), width = loop_width(&a->kept);        \
        const int64_t most = extreme_by_columns(a) ? EXTREME_TILE : 1;                             \
        o_##dtype best[EXTREME_TILE];                                                              \
        int64_t where[EXTREME_TILE], tile;                                                         \
                                                                                                   \
        for (int64_t k = 0; k < n; k += tile) {                                                    \
            const c_##dtype *in =                                                                  \
                (const c_##dtype *)a->in + loop_offset(&a->kept, 1, a->kept.ndim, k);              \
            const int64_t rest = width - k % width;                                                \
                                                                                                   \
            tile = rest < most ? rest : most;                                                      \
            if (tile > 1) {                                                                        \
                a->index != NULL ? tile_index_##dtype(a, in, tile, flip, best, where)              \
                                 : tile_value_##dtype(a, in, tile, flip, best, where);             \
            } else {                                                                               \
                best[0] = a->index != NULL ? row_index_##dtype(a, in, flip, where)                 \
                                           : row_value_##dtype(a, in, flip, where);                \
            }                                                                                      \
            for (int64_t c = 0; c < tile; c++) {                                                   \
                const int64_t at = loop_offset(&a->kept, 0, a->kept.ndim, k + c);                  \
                                                                                                   \
                if (a->index != NULL) {                                                            \
                    a->index[at] = where[c] + 1;                                                   \
                } else {                                                                           \
                    ((c_##dtype *)a->out)[at] = NUMBER_##dtype(best[c], flip);                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
ORDER_ALL(EXTREME)

#define EXTREME_KERNEL(dtype, name)                                                                \
    void MSI_NAME(extreme_##name)(const void *args)                                                \
    {                                                                                              \
        extreme_of_##dtype(args);                                                                  \
    }
EXTREME_KERNEL(f32, f32)
EXTREME_KERNEL(f64, f64)
EXTREME_KERNEL(bf16, bf16)
EXTREME_KERNEL(f16, f16)
EXTREME_KERNEL(i64, i64)
EXTREME_KERNEL(i32, i32)
EXTREME_KERNEL(u8, u8)
EXTREME_KERNEL(truth, bool)

/* -- gradient ---------------------------------------------------------------------------------- */

#define EXTREME_GRAD(dtype)                                                                        \
    void MSI_NAME(extreme_grad_##dtype)(const void *args)                                          \
    {                                                                                              \
        const msi_reduction_args *a = args;                                                        \
        const int64_t n = loop_count(&a->kept, a->kept.ndim);                                      \
        const int64_t m = loop_count(&a->reduced, a->reduced.ndim);                                \
                                                                                                   \
        for (int64_t k = 0; k < n; k++) {                                                          \
            const c_##dtype *x =                                                                   \
                (const c_##dtype *)a->in + loop_offset(&a->kept, 1, a->kept.ndim, k);              \
            const __auto_type y =                                                                  \
                GET_##dtype(((const c_##dtype *)a->y)[loop_offset(&a->kept, 2, a->kept.ndim, k)]); \
            const __auto_type g =                                                                  \
                GET_##dtype(((const c_##dtype *)a->g)[loop_offset(&a->kept, 3, a->kept.ndim, k)]); \
            c_##dtype *dx = (c_##dtype *)a->out + loop_offset(&a->kept, 0, a->kept.ndim, k);       \
            int64_t equal = 0;                                                                     \
                                                                                                   \
            for (int64_t j = 0; j < m; j++) {                                                      \
                const __auto_type v =                                                              \
                    GET_##dtype(x[loop_offset(&a->reduced, 1, a->reduced.ndim, j)]);               \
                equal += v == y || (v != v && y != y);                                             \
            }                                                                                      \
            for (int64_t j = 0; j < m; j++) {                                                      \
                const __auto_type v =                                                              \
                    GET_##dtype(x[loop_offset(&a->reduced, 1, a->reduced.ndim, j)]);               \
                c_##dtype *to = dx + loop_offset(&a->reduced, 0, a->reduced.ndim, j);              \
                const __auto_type share = v == y || (v != v && y != y) ? g / equal : 0;            \
                                                                                                   \
                *to = a->accumulate ? ADD_##dtype(*to, share) : PUT_##dtype(share);                \
            }                                                                                      \
        }                                                                                          \
    }
EXTREME_GRAD(f32)
EXTREME_GRAD(f64)
EXTREME_GRAD(bf16)
EXTREME_GRAD(f16)
