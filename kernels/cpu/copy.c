/* copy: out = in with any pair of dtypes; fill: out = a scalar.
 *
 * Conversions are those of moonshard/ops.h. Between equal dtypes bits are moved. */
#include "element.h"
#include "ew.h"

/* -- copy -------------------------------------------------------------------------------------- */

#define COPY_ROW(to, from)                                                                         \
    static void copy_##from##_to_##to(const ew_row *r)                                             \
    {                                                                                              \
        c_##to *out = r->out;                                                                      \
        const c_##from *in = r->in[0];                                                             \
        const int64_t n = r->n, step = r->step[0];                                                 \
        if (r->args->accumulate) {                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                      \
                out[i] = ADD_##to(out[i], GET_##from(in[i * step]));                               \
            }                                                                                      \
        } else if (step == 0) {                                                                    \
            const c_##to y = PUT_##to(GET_##from(in[0]));                                          \
            for (int64_t i = 0; i < n; i++) {                                                      \
                out[i] = y;                                                                        \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                out[i] = PUT_##to(GET_##from(in[i]));                                              \
            }                                                                                      \
        }                                                                                          \
    }

#if MSI_ISA == 4
#define STREAM(to, from)                                                                           \
    _mm512_stream_si512((__m512i *)(to), _mm512_loadu_si512((const void *)(from)))
#elif MSI_ISA == 3
#define STREAM(to, from)                                                                           \
    _mm256_stream_si256((__m256i *)(to), _mm256_loadu_si256((const __m256i *)(from)))
#else
#define STREAM(to, from) _mm_stream_si128((__m128i *)(to), _mm_loadu_si128((const __m128i *)(from)))
#endif

static void move_bytes(char *to, const char *from, int64_t n, bool streams)
{
    if (!streams || (uintptr_t)to % LANES_REGISTER != 0) {
        memmove(to, from, (size_t)n);
        return;
    }
    int64_t i = 0;

    for (; i + LANES_REGISTER <= n; i += LANES_REGISTER) {
        STREAM(to + i, from + i);
    }
    memcpy(to + i, from + i, (size_t)(n - i));
}

/* Rows of equal dtypes are copied as bytes unless elements are computed. */
#define MOVE_ROW(dtype)                                                                            \
    static void move_##dtype(const ew_row *r)                                                      \
    {                                                                                              \
        if (r->step[0] == 0 || r->args->accumulate) {                                              \
            copy_##dtype##_to_##dtype(r);                                                          \
        } else {                                                                                   \
            move_bytes(r->out, r->in[0], r->n *(int64_t)sizeof(c_##dtype), r->streams);            \
        }                                                                                          \
    }

enum { WIDTH = LANES_REGISTER / 4 };

/* f32 to and from f16 and bf16, the most frequent conversions, use whole registers. */
#define LANE_ROW(to, from)                                                                         \
    static void lanes_##from##_to_##to(const ew_row *r)                                            \
    {                                                                                              \
        c_##to *out = r->out;                                                                      \
        const c_##from *in = r->in[0];                                                             \
        const int64_t step = r->step[0];                                                           \
        const bool accumulate = r->args->accumulate;                                               \
        int64_t i = 0;                                                                             \
        for (; i + WIDTH <= r->n; i += WIDTH) {                                                    \
            f32_part x = load_##from##w(in + i * step);                                            \
            store_##to##w(out + i, accumulate ? load_##to##w(out + i) + x : x);                    \
        }                                                                                          \
        if (i < r->n) {                                                                            \
            const int64_t m = r->n - i;                                                            \
            f32_part x = load_n_##from##w(in + i * step, m);                                       \
            store_n_##to##w(out + i, accumulate ? load_n_##to##w(out + i, m) + x : x, m);          \
        }                                                                                          \
    }

COPY_ROW(f32, f32)
COPY_ROW(f32, f64)
LANE_ROW(f32, bf16)
LANE_ROW(f32, f16)
COPY_ROW(f32, i64)
COPY_ROW(f32, i32)
COPY_ROW(f32, u8)
COPY_ROW(f32, bool)

COPY_ROW(f64, f32)
COPY_ROW(f64, f64)
COPY_ROW(f64, bf16)
COPY_ROW(f64, f16)
COPY_ROW(f64, i64)
COPY_ROW(f64, i32)
COPY_ROW(f64, u8)
COPY_ROW(f64, bool)

LANE_ROW(bf16, f32)
COPY_ROW(bf16, f64)
COPY_ROW(bf16, bf16)
COPY_ROW(bf16, f16)
COPY_ROW(bf16, i64)
COPY_ROW(bf16, i32)
COPY_ROW(bf16, u8)
COPY_ROW(bf16, bool)

LANE_ROW(f16, f32)
COPY_ROW(f16, f64)
COPY_ROW(f16, bf16)
COPY_ROW(f16, f16)
COPY_ROW(f16, i64)
COPY_ROW(f16, i32)
COPY_ROW(f16, u8)
COPY_ROW(f16, bool)

COPY_ROW(i64, f32)
COPY_ROW(i64, f64)
COPY_ROW(i64, bf16)
COPY_ROW(i64, f16)
COPY_ROW(i64, i64)
COPY_ROW(i64, i32)
COPY_ROW(i64, u8)
COPY_ROW(i64, bool)

COPY_ROW(i32, f32)
COPY_ROW(i32, f64)
COPY_ROW(i32, bf16)
COPY_ROW(i32, f16)
COPY_ROW(i32, i64)
COPY_ROW(i32, i32)
COPY_ROW(i32, u8)
COPY_ROW(i32, bool)

COPY_ROW(u8, f32)
COPY_ROW(u8, f64)
COPY_ROW(u8, bf16)
COPY_ROW(u8, f16)
COPY_ROW(u8, i64)
COPY_ROW(u8, i32)
COPY_ROW(u8, u8)
COPY_ROW(u8, bool)

COPY_ROW(bool, f32)
COPY_ROW(bool, f64)
COPY_ROW(bool, bf16)
COPY_ROW(bool, f16)
COPY_ROW(bool, i64)
COPY_ROW(bool, i32)
COPY_ROW(bool, u8)
COPY_ROW(bool, bool) /* normalises any nonzero byte to 1 */

MOVE_ROW(f32)
MOVE_ROW(f64)
MOVE_ROW(bf16)
MOVE_ROW(f16)
MOVE_ROW(i64)
MOVE_ROW(i32)
MOVE_ROW(u8)
#define copy_bf16_to_f32 lanes_bf16_to_f32
#define copy_f32_to_bf16 lanes_f32_to_bf16
#define copy_f16_to_f32 lanes_f16_to_f32
#define copy_f32_to_f16 lanes_f32_to_f16

#define copy_f32_to_f32 move_f32
#define copy_f64_to_f64 move_f64
#define copy_bf16_to_bf16 move_bf16
#define copy_f16_to_f16 move_f16
#define copy_i64_to_i64 move_i64
#define copy_i32_to_i32 move_i32
#define copy_u8_to_u8 move_u8

#define COPY(op, to, TO)                                                                           \
    void MSI_NAME(copy_##to)(const void *args)                                                     \
    {                                                                                              \
        static const ew_row_fn rows[MS_DTYPE_COUNT] = {                                            \
            [MS_DTYPE_F32] = copy_f32_to_##to,   [MS_DTYPE_F64] = copy_f64_to_##to,                \
            [MS_DTYPE_BF16] = copy_bf16_to_##to, [MS_DTYPE_F16] = copy_f16_to_##to,                \
            [MS_DTYPE_I64] = copy_i64_to_##to,   [MS_DTYPE_I32] = copy_i32_to_##to,                \
            [MS_DTYPE_U8] = copy_u8_to_##to,     [MS_DTYPE_BOOL] = copy_bool_to_##to,              \
        };                                                                                         \
        const int32_t from = ((const msi_ew_args *)args)->in_dtype;                                \
        ew_run(args, rows[from], 1, sizeof(c_##to), ms_dtype_size(from));                          \
    }
MSI_ALL(COPY, copy)

/* -- fill -------------------------------------------------------------------------------------- */

#define FILL(op, to, TO)                                                                           \
    static void fill_##to(const ew_row *r)                                                         \
    {                                                                                              \
        const double x = r->args->scalar[0];                                                       \
        const c_##to y = PUT_##to(x);                                                              \
        const int64_t n = r->n;                                                                    \
        c_##to *out = r->out;                                                                      \
        if (r->args->accumulate) {                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                      \
                out[i] = ADD_##to(out[i], x);                                                      \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                out[i] = y;                                                                        \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    void MSI_NAME(fill_##to)(const void *args)                                                     \
    {                                                                                              \
        ew_run(args, fill_##to, 0, sizeof(c_##to), 0);                                             \
    }
MSI_ALL(FILL, fill)
