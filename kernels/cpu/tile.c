/* Transposes a square of N x N elements (N elements are 16 bytes) in registers: log2 N times, row i
 * and row i + N / 2 are interleaved into rows 2i and 2i + 1. */
#include "tile.h"

#define SQUARE(type, N, bits)                                                                      \
    LANES_INLINE void square_##bits(type *to, const type *from, int64_t stride)                    \
    {                                                                                              \
        __m128i row[N], next[N];                                                                   \
        _Pragma("GCC unroll 16") for (int32_t i = 0; i < (N); i++)                                 \
        {                                                                                          \
            row[i] = _mm_loadu_si128((const __m128i *)(from + i * stride));                        \
        }                                                                                          \
        _Pragma("GCC unroll 4") for (int32_t n = 1; n < (N); n *= 2)                               \
        {                                                                                          \
            _Pragma("GCC unroll 8") for (int32_t i = 0; i < (N) / 2; i++)                          \
            {                                                                                      \
                next[2 * i] = _mm_unpacklo_epi##bits(row[i], row[i + (N) / 2]);                    \
                next[2 * i + 1] = _mm_unpackhi_epi##bits(row[i], row[i + (N) / 2]);                \
            }                                                                                      \
            _Pragma("GCC unroll 16") for (int32_t i = 0; i < (N); i++)                             \
            {                                                                                      \
                row[i] = next[i]; /* memcpy would store them in memory */                          \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int32_t i = 0; i < (N); i++)                                 \
        {                                                                                          \
            _mm_storeu_si128((__m128i *)(to + i * TILE_PITCH), row[i]);                            \
        }                                                                                          \
    }                                                                                              \
    static void read_##bits(type *to, const type *from, int64_t stride, int64_t n, int64_t rows)   \
    {                                                                                              \
        const int64_t whole = rows == TILE_LINE / (int64_t)sizeof(type) ? n - n % (N) : 0;         \
        for (int64_t i = 0; i < whole; i += (N)) {                                                 \
            for (int64_t k = 0; k < (N); k++) {                                                    \
                __builtin_prefetch((const char *)(from + (i + k) * stride) + TILE_LINE);           \
            }                                                                                      \
            for (int64_t j = 0; j < rows; j += (N)) {                                              \
                square_##bits(to + j * TILE_PITCH + i, from + i * stride + j, stride);             \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = whole; i < n; i++) {                                                      \
            for (int64_t j = 0; j < rows; j++) {                                                   \
                to[j * TILE_PITCH + i] = from[i * stride + j];                                     \
            }                                                                                      \
        }                                                                                          \
    }

SQUARE(uint8_t, 16, 8)
SQUARE(uint16_t, 8, 16)
SQUARE(uint32_t, 4, 32)
SQUARE(uint64_t, 2, 64)

void tile_read(void *to, const void *from, int64_t stride, int64_t n, int64_t rows, int64_t bytes)
{
    switch (bytes) {
    case 1:
        read_8(to, from, stride, n, rows);
        break;
    case 2:
        read_16(to, from, stride, n, rows);
        break;
    case 4:
        read_32(to, from, stride, n, rows);
        break;
    default:
        read_64(to, from, stride, n, rows);
        break;
    }
}
