/* Products over dimensions: floating ones in f64, rounded once; those of integers and bool in i64,
 * which wraps. From PROD_MANY factors on, factor i is in lane i % 16, and lanes are folded in
 * halves; fewer factors are multiplied in loop order. So bits depend on shapes only. */
#include "element.h"
#include "lanes.h"
#include "loop.h"
#include "table.h"

enum { PROD_TILE = 64, PROD_LANES = 16, PROD_MANY = 64 };

static inline int64_t prod_lanes(int64_t n)
{
    return n < PROD_MANY ? 1 : PROD_LANES;
}

/* Multiply the lanes by n elements, which are factors `first`, first + 1, ... */
#define PROD_ROW(dtype, TOTAL)                                                                     \
    LANES_INLINE void prod_row_##dtype(TOTAL *lane, int64_t lanes, const c_##dtype *x,             \
                                       int64_t step, int64_t first, int64_t n)                     \
    {                                                                                              \
        int64_t j = 0;                                                                             \
                                                                                                   \
        for (; j < n && (lanes == 1 || (first + j) % lanes != 0); j++) {                           \
            lane[(first + j) % lanes] *= (TOTAL)GET_##dtype(x[j * step]);                          \
        }                                                                                          \
        for (; j + PROD_LANES <= n; j += PROD_LANES) {                                             \
            for (int64_t c = 0; c < PROD_LANES; c++) {                                             \
                lane[c] *= (TOTAL)GET_##dtype(x[(j + c) * step]);                                  \
            }                                                                                      \
        }                                                                                          \
        for (; j < n; j++) {                                                                       \
            lane[(first + j) % lanes] *= (TOTAL)GET_##dtype(x[j * step]);                          \
        }                                                                                          \
    }

/* Processes one kept element at a time, or a tile of them (total[lane][kept]) if kept elements and
 * not reduced ones are adjacent in memory. */
#define PROD(dtype, name, out_dtype, TOTAL, VALUE)                                                 \
    PROD_ROW(dtype, TOTAL)                                                                         \
                                                                                                   \
    void MSI_NAME(prod_##name)(const void *args)                                                   \
    {                                                                                              \
        const msi_reduction_args *a = args;                                                        \
        const msi_loop *along = &a->reduced;                                                       \
        const int32_t outer = along->ndim > 0 ? along->ndim - 1 : 0, last = a->kept.ndim;          \
        const int64_t n = loop_width(along), step = loop_step(along, 1);                           \
        const int64_t kept = loop_count(&a->kept, last), rows = loop_count(along, outer);          \
        const int64_t width = loop_width(&a->kept), next = loop_step(&a->kept, 1);                 \
        const int64_t most = next == 1 && step != 1 ? PROD_TILE : 1;                               \
        const int64_t lanes = prod_lanes(rows * n);                                                \
        int64_t tile;                                                                              \
                                                                                                   \
        for (int64_t k = 0; k < kept; k += tile) {                                                 \
            const c_##dtype *in = (const c_##dtype *)a->in + loop_offset(&a->kept, 1, last, k);    \
            const int64_t rest = width - k % width;                                                \
            TOTAL total[PROD_LANES * PROD_TILE];                                                   \
                                                                                                   \
            tile = rest < most ? rest : most;                                                      \
            for (int64_t i = 0; i < lanes * tile; i++) {                                           \
                total[i] = 1;                                                                      \
            }                                                                                      \
            for (int64_t row = 0; row < rows; row++) {                                             \
                const c_##dtype *x = in + loop_offset(along, 1, outer, row);                       \
                const int64_t first = row * n;                                                     \
                                                                                                   \
                if (tile == 1 && step == 1) {                                                      \
                    prod_row_##dtype(total, lanes, x, 1, first, n);                                \
                } else if (tile == 1) {                                                            \
                    prod_row_##dtype(total, lanes, x, step, first, n);                             \
                } else {                                                                           \
                    for (int64_t j = 0; j < n; j++, x += step) {                                   \
                        TOTAL *to = total + (row * n + j) % lanes * tile;                          \
                                                                                                   \
                        for (int64_t c = 0; c < tile; c++) {                                       \
                            to[c] *= (TOTAL)GET_##dtype(x[c]);                                     \
                        }                                                                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            for (int64_t half = lanes / 2; half > 0; half /= 2) {                                  \
                for (int64_t i = 0; i < half * tile; i++) {                                        \
                    total[i] *= total[half * tile + i];                                            \
                }                                                                                  \
            }                                                                                      \
            for (int64_t c = 0; c < tile; c++) {                                                   \
                ((c_##out_dtype *)a->out)[loop_offset(&a->kept, 0, last, k + c)] =                 \
                    PUT_##out_dtype((VALUE)total[c]);                                              \
            }                                                                                      \
        }                                                                                          \
    }
typedef c_bool c_truth; /* `bool` is a macro */
#define GET_truth(x) GET_bool(x)

PROD(f32, f32, f32, double, double)
PROD(f64, f64, f64, double, double)
PROD(bf16, bf16, bf16, double, double)
PROD(f16, f16, f16, double, double)
PROD(i64, i64, i64, uint64_t, int64_t)
PROD(i32, i32, i64, uint64_t, int64_t)
PROD(u8, u8, i64, uint64_t, int64_t)
PROD(truth, bool, i64, uint64_t, int64_t)

/* The product of the other elements: P / x without a zero; with one zero only that element has a
 * gradient other than 0. `in` has the steps of operand 1 of a row, `dx` those of operand 0. */
#define PROD_GRAD(dtype)                                                                           \
    LANES_INLINE void prod_slopes_##dtype(c_##dtype *dx, int64_t to, const c_##dtype *x,           \
                                          int64_t from, int64_t n, double product, int64_t zeros,  \
                                          double g, bool accumulate)                               \
    {                                                                                              \
        for (int64_t j = 0; j < n; j++) {                                                          \
            const double v = GET_##dtype(x[j * from]);                                             \
            const double others = zeros == 0 ? product / v : zeros == 1 && v == 0 ? product : 0;   \
                                                                                                   \
            dx[j * to] =                                                                           \
                accumulate ? ADD_##dtype(dx[j * to], g * others) : PUT_##dtype(g * others);        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* The product of the elements other than 0, with the lanes of prod, and their number. */      \
    LANES_INLINE int64_t prod_others_##dtype(double *lane, int64_t lanes, const c_##dtype *x,      \
                                             int64_t step, int64_t first, int64_t n)               \
    {                                                                                              \
        int64_t zeros = 0, j = 0;                                                                  \
                                                                                                   \
        for (; lanes > 1 && first % lanes == 0 && j + PROD_LANES <= n; j += PROD_LANES) {          \
            for (int64_t c = 0; c < PROD_LANES; c++) {                                             \
                const double v = GET_##dtype(x[(j + c) * step]);                                   \
                zeros += v == 0;                                                                   \
                lane[c] *= v + (v == 0);                                                           \
            }                                                                                      \
        }                                                                                          \
        for (; j < n; j++) {                                                                       \
            const double v = GET_##dtype(x[j * step]);                                             \
            zeros += v == 0;                                                                       \
            lane[(first + j) % lanes] *= v + (v == 0);                                             \
        }                                                                                          \
        return zeros;                                                                              \
    }                                                                                              \
                                                                                                   \
    void MSI_NAME(prod_grad_##dtype)(const void *args)                                             \
    {                                                                                              \
        const msi_reduction_args *a = args;                                                        \
        const msi_loop *along = &a->reduced;                                                       \
        const int32_t outer = along->ndim > 0 ? along->ndim - 1 : 0, last = a->kept.ndim;          \
        const int64_t n = loop_width(along), rows = loop_count(along, outer);                      \
        const int64_t from = loop_step(along, 1), to = loop_step(along, 0);                        \
        const int64_t kept = loop_count(&a->kept, last), lanes = prod_lanes(rows * n);             \
                                                                                                   \
        for (int64_t k = 0; k < kept; k++) {                                                       \
            const c_##dtype *x = (const c_##dtype *)a->in + loop_offset(&a->kept, 1, last, k);     \
            const double g =                                                                       \
                GET_##dtype(((const c_##dtype *)a->g)[loop_offset(&a->kept, 3, last, k)]);         \
            c_##dtype *dx = (c_##dtype *)a->out + loop_offset(&a->kept, 0, last, k);               \
            double lane[PROD_LANES];                                                               \
            int64_t zeros = 0;                                                                     \
                                                                                                   \
            for (int64_t i = 0; i < lanes; i++) {                                                  \
                lane[i] = 1;                                                                       \
            }                                                                                      \
            for (int64_t row = 0; row < rows; row++) {                                             \
                const c_##dtype *at = x + loop_offset(along, 1, outer, row);                       \
                const int64_t first = row * n;                                                     \
                                                                                                   \
                zeros += from == 1 ? prod_others_##dtype(lane, lanes, at, 1, first, n)             \
                                   : prod_others_##dtype(lane, lanes, at, from, first, n);         \
            }                                                                                      \
            for (int64_t half = lanes / 2; half > 0; half /= 2) {                                  \
                for (int64_t i = 0; i < half; i++) {                                               \
                    lane[i] *= lane[half + i];                                                     \
                }                                                                                  \
            }                                                                                      \
            for (int64_t row = 0; row < rows; row++) {                                             \
                const c_##dtype *at = x + loop_offset(along, 1, outer, row);                       \
                c_##dtype *dest = dx + loop_offset(along, 0, outer, row);                          \
                                                                                                   \
                if (from == 1 && to == 1 && zeros == 0 && !a->accumulate) {                        \
                    prod_slopes_##dtype(dest, 1, at, 1, n, lane[0], 0, g, false);                  \
                } else {                                                                           \
                    prod_slopes_##dtype(dest, to, at, from, n, lane[0], zeros, g, a->accumulate);  \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
PROD_GRAD(f32)
PROD_GRAD(f64)
PROD_GRAD(bf16)
PROD_GRAD(f16)
