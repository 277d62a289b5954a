/* Comparisons of operands of `in_dtype` with a bool result, and selection by a bool. NaN compares
 * as in C: unequal to everything, and neither less nor greater. */
#include "element.h"
#include "ew.h"

/* -- comparing --------------------------------------------------------------------------------- */

/* |a - b| <= atol + rtol |b| in f64. Equal infinities are close; NaN is never close. */
static inline uint8_t is_close(double a, double b, double rtol, double atol)
{
    const double distance = __builtin_fabs(a - b);

    return (a == b) |
           ((distance <= atol + rtol * __builtin_fabs(b)) & (distance < __builtin_inf()));
}

/* One loop for each pattern of repeated operands, so that the compiler knows the steps. */
#define COMPARE_LOOP(get, step_a, step_b, EXPR)                                                    \
    for (int64_t i = 0; i < n; i++) {                                                              \
        const __auto_type x = get(a[i * (step_a)]);                                                \
        const __auto_type y = get(b[i * (step_b)]);                                                \
        const uint8_t z = (uint8_t)(EXPR);                                                         \
        out[i] = (uint8_t)(z | (out[i] & kept));                                                   \
    }

#define COMPARE_ROW(op, dtype, EXPR)                                                               \
    static void op##_row_##dtype(const ew_row *r)                                                  \
    {                                                                                              \
        const double rtol = r->args->scalar[0], atol = r->args->scalar[1];                         \
        const uint8_t kept = r->args->accumulate; /* bool adds by "or" */                          \
        const c_##dtype *a = r->in[0], *b = r->in[1];                                              \
        const int64_t n = r->n;                                                                    \
        uint8_t *out = r->out;                                                                     \
        (void)rtol, (void)atol;                                                                    \
        switch (2 * r->step[0] + r->step[1]) {                                                     \
        case 3:                                                                                    \
            COMPARE_LOOP(GET_##dtype, 1, 1, EXPR)                                                  \
            break;                                                                                 \
        case 2:                                                                                    \
            COMPARE_LOOP(GET_##dtype, 1, 0, EXPR)                                                  \
            break;                                                                                 \
        case 1:                                                                                    \
            COMPARE_LOOP(GET_##dtype, 0, 1, EXPR)                                                  \
            break;                                                                                 \
        default:                                                                                   \
            COMPARE_LOOP(GET_##dtype, 0, 0, EXPR)                                                  \
            break;                                                                                 \
        }                                                                                          \
    }

#define COMPARE(op, EXPR)                                                                          \
    COMPARE_ROW(op, f32, EXPR)                                                                     \
    COMPARE_ROW(op, f64, EXPR)                                                                     \
    COMPARE_ROW(op, bf16, EXPR)                                                                    \
    COMPARE_ROW(op, f16, EXPR)                                                                     \
    COMPARE_ROW(op, i64, EXPR)                                                                     \
    COMPARE_ROW(op, i32, EXPR)                                                                     \
    COMPARE_ROW(op, u8, EXPR)                                                                      \
    COMPARE_ROW(op, bool, EXPR)                                                                    \
    void MSI_NAME(op##_bool)(const void *args)                                                     \
    {                                                                                              \
        static const ew_row_fn rows[MS_DTYPE_COUNT] = {                                            \
            [MS_DTYPE_F32] = op##_row_f32,   [MS_DTYPE_F64] = op##_row_f64,                        \
            [MS_DTYPE_BF16] = op##_row_bf16, [MS_DTYPE_F16] = op##_row_f16,                        \
            [MS_DTYPE_I64] = op##_row_i64,   [MS_DTYPE_I32] = op##_row_i32,                        \
            [MS_DTYPE_U8] = op##_row_u8,     [MS_DTYPE_BOOL] = op##_row_bool,                      \
        };                                                                                         \
        const int32_t from = ((const msi_ew_args *)args)->in_dtype;                                \
        ew_run(args, rows[from], 2, 1, ms_dtype_size(from));                                       \
    }

COMPARE(eq, x == y)
COMPARE(ne, x != y)
COMPARE(lt, x < y)
COMPARE(le, x <= y)
/* x compared with itself: x - x is 0 unless x is infinite or NaN. */
COMPARE(is_inf, (x == y) & !((double)x - (double)y == 0))
COMPARE(is_finite, (double)x - (double)y == 0)
COMPARE(close, is_close((double)x, (double)y, rtol, atol))

/* -- choosing ---------------------------------------------------------------------------------- */

/* Bits are copied, in an unsigned type as wide as the dtype. */
typedef uint32_t bits_f32;
typedef uint64_t bits_f64;
typedef uint16_t bits_bf16;
typedef uint16_t bits_f16;
typedef uint64_t bits_i64;
typedef uint32_t bits_i32;
typedef uint8_t bits_u8;
typedef uint8_t bits_bool;

/* Masks instead of branches, because conditions are unpredictable. */
#define CHOOSE(bits_t)                                                                             \
    const bits_t mask = (bits_t) - (bits_t)(c[i * step_c] != 0);                                   \
    const bits_t bits = (bits_t)((a[i * step_a] & mask) | (b[i * step_b] & ~mask));

#define WHERE(op, dtype, DTYPE)                                                                    \
    LANES_INLINE void where_loop_##dtype(const ew_row *r, int64_t step_c, int64_t step_a,          \
                                         int64_t step_b)                                           \
    {                                                                                              \
        const uint8_t *c = r->in[0];                                                               \
        const bits_##dtype *a = r->in[1], *b = r->in[2];                                           \
        bits_##dtype *out = r->out;                                                                \
        const int64_t n = r->n; /* local: a store might change the row */                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            CHOOSE(bits_##dtype)                                                                   \
            out[i] = bits;                                                                         \
        }                                                                                          \
    }                                                                                              \
    static void where_add_##dtype(const ew_row *r)                                                 \
    {                                                                                              \
        const int64_t step_c = r->step[0], step_a = r->step[1], step_b = r->step[2];               \
        const uint8_t *c = r->in[0];                                                               \
        const bits_##dtype *a = r->in[1], *b = r->in[2];                                           \
        c_##dtype *out = r->out;                                                                   \
        const int64_t n = r->n;                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                          \
            c_##dtype chosen;                                                                      \
            CHOOSE(bits_##dtype)                                                                   \
            memcpy(&chosen, &bits, sizeof(chosen));                                                \
            out[i] = ADD_##dtype(out[i], GET_##dtype(chosen));                                     \
        }                                                                                          \
    }                                                                                              \
    static void where_row_##dtype(const ew_row *r)                                                 \
    {                                                                                              \
        if (r->args->accumulate) {                                                                 \
            where_add_##dtype(r);                                                                  \
        } else if (r->step[0] == 1 && r->step[1] == 1 && r->step[2] == 1) {                        \
            where_loop_##dtype(r, 1, 1, 1);                                                        \
        } else if (r->step[0] == 1 && r->step[1] == 1) {                                           \
            where_loop_##dtype(r, 1, 1, 0);                                                        \
        } else if (r->step[0] == 1 && r->step[2] == 1) {                                           \
            where_loop_##dtype(r, 1, 0, 1);                                                        \
        } else {                                                                                   \
            where_loop_##dtype(r, r->step[0], r->step[1], r->step[2]);                             \
        }                                                                                          \
    }                                                                                              \
    void MSI_NAME(where_##dtype)(const void *args)                                                 \
    {                                                                                              \
        const int64_t bytes[3] = {1, sizeof(c_##dtype), sizeof(c_##dtype)};                        \
        ew_run_mixed(args, where_row_##dtype, 3, sizeof(c_##dtype), bytes);                        \
    }
MSI_ALL(WHERE, where)
