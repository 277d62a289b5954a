/* Cumulative sums along one dimension: out[j] = [out[j] +] in[0] + ... + in[j]. Floating sums run
 * in f64 and are rounded once for each element; sums of integers and bool run in i64, which wraps.
 * Lines along the dimension are independent; a tile of neighbouring lines is processed at a time.
 */
#include "element.h"
#include "table.h"

enum { CUMSUM_TILE = 64 };

/* Offsets of destination and source of a tile's first line; `line` counts lines. */
static void cumsum_begin(const msi_loop *lines, int64_t line, int64_t *out, int64_t *in)
{
    *out = *in = 0;
    for (int32_t d = lines->ndim - 1; d >= 0; d--) {
        *out += line % lines->shape[d] * lines->stride[0][d];
        *in += line % lines->shape[d] * lines->stride[1][d];
        line /= lines->shape[d];
    }
}

/* TOTAL is the type of sums (unsigned if they wrap), VALUE the type of results. An f16 or bf16
 * source writes its own dtype or f32. */
#define CUMSUM(dtype, out_dtype, suffix, TOTAL, VALUE)                                             \
    static void cumsum_##dtype##_##suffix(const msi_sum_args *a)                                   \
    {                                                                                              \
        const msi_loop *lines = &a->kept, *along = &a->reduced;                                    \
        const int32_t last = lines->ndim - 1;                                                      \
        const int64_t width = last >= 0 ? lines->shape[last] : 1, n = along->shape[0];             \
        const int64_t out_next = last >= 0 ? lines->stride[0][last] : 0;                           \
        const int64_t in_next = last >= 0 ? lines->stride[1][last] : 0;                            \
        int64_t n_lines = 1;                                                                       \
                                                                                                   \
        for (int32_t d = 0; d <= last; d++) {                                                      \
            n_lines *= lines->shape[d];                                                            \
        }                                                                                          \
        for (int64_t line = 0; line < n_lines;) {                                                  \
            const int64_t rest = width - line % width;                                             \
            const int64_t tile = rest < CUMSUM_TILE ? rest : CUMSUM_TILE;                          \
            TOTAL total[CUMSUM_TILE] = {0};                                                        \
            int64_t out_at, in_at;                                                                 \
                                                                                                   \
            cumsum_begin(lines, line, &out_at, &in_at);                                            \
            c_##out_dtype *out = (c_##out_dtype *)a->out + out_at;                                 \
            const c_##dtype *in = (const c_##dtype *)a->in + in_at;                                \
                                                                                                   \
            for (int64_t j = 0; j < n; j++) {                                                      \
                for (int64_t c = 0; c < tile; c++) {                                               \
                    c_##out_dtype *to = out + c * out_next;                                        \
                                                                                                   \
                    total[c] += (TOTAL)GET_##dtype(in[c * in_next]);                               \
                    *to = a->accumulate ? ADD_##out_dtype(*to, (VALUE)total[c])                    \
                                        : PUT_##out_dtype((VALUE)total[c]);                        \
                }                                                                                  \
                out += along->stride[0][0];                                                        \
                in += along->stride[1][0];                                                         \
            }                                                                                      \
            line += tile;                                                                          \
        }                                                                                          \
    }

#define CUMSUM_KERNEL(dtype, out_dtype, TOTAL, VALUE)                                              \
    CUMSUM(dtype, out_dtype, own, TOTAL, VALUE)                                                    \
    void MSI_NAME(cumsum_##dtype)(const void *args)                                                \
    {                                                                                              \
        cumsum_##dtype##_own(args);                                                                \
    }
#define CUMSUM_NARROW(dtype)                                                                       \
    CUMSUM(dtype, dtype, own, double, double)                                                      \
    CUMSUM(dtype, f32, wide, double, double)                                                       \
    void MSI_NAME(cumsum_##dtype)(const void *args)                                                \
    {                                                                                              \
        const msi_sum_args *a = args;                                                              \
                                                                                                   \
        a->out_dtype == MS_DTYPE_F32 ? cumsum_##dtype##_wide(a) : cumsum_##dtype##_own(a);         \
    }

CUMSUM_KERNEL(f32, f32, double, double)
CUMSUM_KERNEL(f64, f64, double, double)
CUMSUM_NARROW(bf16)
CUMSUM_NARROW(f16)
CUMSUM_KERNEL(i64, i64, uint64_t, int64_t)
CUMSUM_KERNEL(i32, i64, uint64_t, int64_t)
CUMSUM_KERNEL(u8, i64, uint64_t, int64_t)

typedef c_bool c_truth; /* `bool` is a macro */
#define GET_truth(x) GET_bool(x)
CUMSUM(truth, i64, own, uint64_t, int64_t)

void MSI_NAME(cumsum_bool)(const void *args)
{
    cumsum_truth_own(args);
}
