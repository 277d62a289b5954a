/* Products over dimensions: floating ones in f64, in loop order, rounded once; those of integers
 * and bool in i64, which wraps. */
#include "element.h"
#include "loop.h"
#include "table.h"

enum { PROD_TILE = 64 };

/* A kept element at a time, or a tile of them where they, and not the reduced ones, are neighbours
 * in memory. */
#define PROD(dtype, name, out_dtype, TOTAL, VALUE)                                                 \
    void MSI_NAME(prod_##name)(const void *args)                                                   \
    {                                                                                              \
        const msi_reduction_args *a = args;                                                        \
        const msi_loop *along = &a->reduced;                                                       \
        const int32_t outer = along->ndim > 0 ? along->ndim - 1 : 0, last = a->kept.ndim;          \
        const int64_t n = loop_width(along), step = loop_step(along, 1);                           \
        const int64_t kept = loop_count(&a->kept, last), rows = loop_count(along, outer);          \
        const int64_t width = loop_width(&a->kept), next = loop_step(&a->kept, 1);                 \
        const int64_t most = next == 1 && step != 1 ? PROD_TILE : 1;                               \
        int64_t tile;                                                                              \
                                                                                                   \
        for (int64_t k = 0; k < kept; k += tile) {                                                 \
            const c_##dtype *in = (const c_##dtype *)a->in + loop_offset(&a->kept, 1, last, k);    \
            const int64_t rest = width - k % width;                                                \
            TOTAL total[PROD_TILE];                                                                \
                                                                                                   \
            tile = rest < most ? rest : most;                                                      \
            for (int64_t c = 0; c < tile; c++) {                                                   \
                total[c] = 1;                                                                      \
            }                                                                                      \
            for (int64_t row = 0; row < rows; row++) {                                             \
                const c_##dtype *x = in + loop_offset(along, 1, outer, row);                       \
                                                                                                   \
                for (int64_t j = 0; most == 1 && j < n; j++) {                                     \
                    total[0] *= (TOTAL)GET_##dtype(x[j * step]);                                   \
                }                                                                                  \
                for (int64_t j = 0; most > 1 && j < n; j++, x += step) {                           \
                    for (int64_t c = 0; c < tile; c++) {                                           \
                        total[c] *= (TOTAL)GET_##dtype(x[c * next]);                               \
                    }                                                                              \
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

/* The product of the others: P / x without a zero; with one zero only that element has a slope. */
#define PROD_GRAD(dtype)                                                                           \
    void MSI_NAME(prod_grad_##dtype)(const void *args)                                             \
    {                                                                                              \
        const msi_reduction_args *a = args;                                                        \
        const msi_loop *along = &a->reduced;                                                       \
        const int64_t n = loop_count(&a->kept, a->kept.ndim);                                      \
        const int64_t m = loop_count(along, along->ndim);                                          \
                                                                                                   \
        for (int64_t k = 0; k < n; k++) {                                                          \
            const c_##dtype *x =                                                                   \
                (const c_##dtype *)a->in + loop_offset(&a->kept, 1, a->kept.ndim, k);              \
            const double g =                                                                       \
                GET_##dtype(((const c_##dtype *)a->g)[loop_offset(&a->kept, 3, a->kept.ndim, k)]); \
            c_##dtype *dx = (c_##dtype *)a->out + loop_offset(&a->kept, 0, a->kept.ndim, k);       \
            double product = 1;                                                                    \
            int64_t zeros = 0;                                                                     \
                                                                                                   \
            for (int64_t j = 0; j < m; j++) {                                                      \
                const double v = GET_##dtype(x[loop_offset(along, 1, along->ndim, j)]);            \
                zeros += v == 0;                                                                   \
                product *= v == 0 ? 1 : v;                                                         \
            }                                                                                      \
            for (int64_t j = 0; j < m; j++) {                                                      \
                const double v = GET_##dtype(x[loop_offset(along, 1, along->ndim, j)]);            \
                const double others = zeros == 0             ? product / v                         \
                                      : zeros == 1 && v == 0 ? product                             \
                                                             : 0;                                  \
                c_##dtype *to = dx + loop_offset(along, 0, along->ndim, j);                        \
                                                                                                   \
                *to = a->accumulate ? ADD_##dtype(*to, g * others) : PUT_##dtype(g * others);      \
            }                                                                                      \
        }                                                                                          \
    }
PROD_GRAD(f32)
PROD_GRAD(f64)
PROD_GRAD(bf16)
PROD_GRAD(f16)
