/* Body of pool.c for one dtype. */

#include "row_lanes.h"

typedef __typeof__(OF(lt)((V){0}, (V){0})) LOCAL(index); /* integers as wide as REAL */

/* The first n lanes of x[0], x[step], ...; the others are 0. */
LANES_INLINE V LOCAL(load_steps)(const T *x, int64_t step, int64_t n)
{
    T lane[WIDTH] = {0};

    if (step == 1) {
        return LOAD_N(x, n);
    }
    if (step == 2 && n > WIDTH) { /* x[2 * WIDTH] is an element of the row */
        LOCAL(index) even = {0};

#pragma GCC unroll 16
        for (int u = 0; u < WIDTH; u++) {
            even[u] = 2 * u;
        }
        return __builtin_shuffle(LOAD(x), LOAD(x + WIDTH), even);
    }
#pragma GCC unroll 16
    for (int64_t u = 0; u < WIDTH; u++) {
        if (u < n) {
            lane[u] = x[u * step];
        }
    }
    return LOAD(lane);
}

/* Results [first, first + n) of row (d, h) of one plane. */
static void LOCAL(max_chunk)(const msi_pool_args *a, const T *x, int64_t d, int64_t h,
                             int64_t first, int64_t n, T *y, int32_t *taps)
{
    const int64_t step = a->stride[2];
    REAL most[CHUNK], taken[CHUNK]; /* taken: bits of LOCAL(index), the tap of `most` or -1 */
    LOCAL(index) tap = {0};

    for (int64_t j = 0; j < n; j += WIDTH) {
        OF(store)(most + j, SPLAT(-INFINITY));
        OF(store)(taken + j, (V)(tap - 1));
    }
    for (int64_t kd = 0; kd < a->kernel[0]; kd++) {
        const int64_t z = d * a->stride[0] - a->pad[0] + kd * a->dilation[0];

        for (int64_t kh = 0; kh < a->kernel[1]; kh++) {
            const int64_t v = h * a->stride[1] - a->pad[1] + kh * a->dilation[1];
            const bool inside = z >= 0 && z < a->in[0] && v >= 0 && v < a->in[1];

            for (int64_t kw = 0; kw < a->kernel[2]; kw++, tap += 1) {
                int64_t begin, end;

                reached(a, 2, kw, &begin, &end);
                begin = begin < first ? 0 : begin - first;
                end = least(end - first, n);
                if (!inside) {
                    continue;
                }
                const T *row = x + (z * a->in[1] + v) * a->in[2] + first * step - a->pad[2] +
                               kw * a->dilation[2];

                for (int64_t j = begin; j < end; j += WIDTH) {
                    const int64_t left = end - j;
                    const V value = LOCAL(load_steps)(row + j * step, step, left);
                    const V old = OF(load_n)(most + j, left), old_tap = OF(load_n)(taken + j, left);
                    const LOCAL(index) takes =
                        ((LOCAL(index))old_tap < 0) | OF(lt)(old, value) | OF(ne)(value, value);

                    OF(store_n)(most + j, OF(select)(takes, value, old), left);
                    OF(store_n)(taken + j, OF(select)(takes, (V)tap, old_tap), left);
                }
            }
        }
    }
    for (int64_t j = 0; j < n; j += WIDTH) {
        STORE_N(y + j, OF(load)(most + j), n - j);
    }
#if IS_F64
    for (int64_t j = 0; j < n; j++) {
        int64_t tap_of;

        memcpy(&tap_of, taken + j, sizeof(tap_of));
        taps[j] = (int32_t)tap_of;
    }
#else
    memcpy(taps, taken, (size_t)n * sizeof(*taps));
#endif
}

void MSI_NAME(LOCAL(max_pool))(const void *args)
{
    const msi_pool_args *a = args;
    T *y = a->y;
    int32_t *taps = a->taps;

    for (int64_t p = 0; p < a->planes; p++) {
        const T *x = (const T *)a->x + p * volume(a->in);

        for (int64_t row = 0; row < a->out[0] * a->out[1]; row++) {
            for (int64_t j = 0; j < a->out[2]; j += CHUNK) {
                const int64_t n = least(CHUNK, a->out[2] - j);

                LOCAL(max_chunk)(a, x, row / a->out[1], row % a->out[1], j, n, y, taps);
                y += n;
                taps += n;
            }
        }
    }
}

static void LOCAL(clear)(const msi_pool_args *a)
{
    if (!a->accumulate) {
        memset(a->dx, 0, (size_t)(a->planes * volume(a->in)) * sizeof(REAL));
    }
}

void MSI_NAME(LOCAL(max_pool_grad))(const void *args)
{
    const msi_pool_args *a = args;
    const T *dy = a->dy;
    const int32_t *taps = a->taps;

    LOCAL(clear)(a);
    for (int64_t p = 0; p < a->planes; p++) {
        REAL *dx = (REAL *)a->dx + p * volume(a->in);

        for (int64_t row = 0; row < a->out[0] * a->out[1]; row++) {
            const int64_t d = row / a->out[1] * a->stride[0] - a->pad[0];
            const int64_t h = row % a->out[1] * a->stride[1] - a->pad[1];

            for (int64_t j = 0; j < a->out[2]; j++, taps++, dy++) {
                if (*taps < 0) {
                    continue;
                }
                const int64_t kd = *taps / (a->kernel[1] * a->kernel[2]);
                const int64_t kh = *taps / a->kernel[2] % a->kernel[1], kw = *taps % a->kernel[2];
                const int64_t z = d + kd * a->dilation[0], v = h + kh * a->dilation[1];
                const int64_t w = j * a->stride[2] - a->pad[2] + kw * a->dilation[2];

                dx[(z * a->in[1] + v) * a->in[2] + w] += LOCAL(get)(dy);
            }
        }
    }
}

/* Sum of a window's part of one row; long ones in lanes. */
static REAL LOCAL(row_sum)(const T *x, int64_t n)
{
    if (n < 16) {
        REAL sum = 0;

        for (int64_t j = 0; j < n; j++) {
            sum += LOCAL(get)(x + j);
        }
        return sum;
    }
    V sum[LOCAL(PARTS)] = {SPLAT(0)};

    for (int64_t j = 0; j < n; j += LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < LOCAL(PARTS); u++) {
            const int64_t at = j + WIDTH * u;

            if (at < n) {
                sum[u] += LOAD_N(x + at, n - at);
            }
        }
    }
    return LOCAL(fold)(sum);
}

/* Averages [first, first + n) of row (d, h) of one plane, tap by tap. */
static void LOCAL(avg_chunk)(const msi_pool_args *a, const T *x, const int64_t *row, int64_t first,
                             int64_t n, T *y)
{
    const pool_span d = span(a, 0, row[0]), h = span(a, 1, row[1]);
    const int64_t step = a->stride[2], rows = counted_rows(a, row);
    REAL sum[CHUNK];

    memset(sum, 0, (size_t)n * sizeof(REAL));

    for (int64_t z = d.begin; z < d.end; z++) {
        for (int64_t v = h.begin; v < h.end; v++) {
            for (int64_t kw = 0; kw < a->kernel[2]; kw++) {
                const T *from = x + (z * a->in[1] + v) * a->in[2] + first * step - a->pad[2] + kw;
                int64_t begin, end;

                reached(a, 2, kw, &begin, &end);
                begin = begin < first ? 0 : begin - first;
                end = least(end - first, n);
                for (int64_t j = begin; j < end; j += WIDTH) {
                    const int64_t left = end - j;
                    const V x_j = LOCAL(load_steps)(from + j * step, step, left);

                    OF(store_n)(sum + j, OF(load_n)(sum + j, left) + x_j, left);
                }
            }
        }
    }
    for (int64_t j = 0; j < n; j++) {
        sum[j] = (REAL)((double)sum[j] / divisor(a, rows, first + j));
    }
    for (int64_t j = 0; j < n; j += WIDTH) {
        STORE_N(y + j, OF(load_n)(sum + j, n - j), n - j);
    }
}

/* Averages over windows of different widths, one at a time. */
static void LOCAL(adaptive_row)(const msi_pool_args *a, const T *x, const int64_t *row, T *y)
{
    const pool_span d = span(a, 0, row[0]), h = span(a, 1, row[1]);
    const int64_t rows = counted_rows(a, row);

    for (int64_t j = 0; j < a->out[2]; j++) {
        const pool_span w = span(a, 2, j);
        REAL sum = 0;

        for (int64_t z = d.begin; z < d.end; z++) {
            for (int64_t v = h.begin; v < h.end; v++) {
                sum += LOCAL(row_sum)(x + (z * a->in[1] + v) * a->in[2] + w.begin, w.end - w.begin);
            }
        }
        STORE_N(y + j, SPLAT((double)sum / divisor(a, rows, j)), 1);
    }
}

void MSI_NAME(LOCAL(avg_pool))(const void *args)
{
    const msi_pool_args *a = args;
    T *y = a->y;

    for (int64_t p = 0; p < a->planes; p++) {
        const T *x = (const T *)a->x + p * volume(a->in);

        for (int64_t r = 0; r < a->out[0] * a->out[1]; r++, y += a->out[2]) {
            const int64_t row[2] = {r / a->out[1], r % a->out[1]};

            if (a->adaptive) {
                LOCAL(adaptive_row)(a, x, row, y);
                continue;
            }
            for (int64_t j = 0; j < a->out[2]; j += CHUNK) {
                LOCAL(avg_chunk)(a, x, row, j, least(CHUNK, a->out[2] - j), y + j);
            }
        }
    }
}

/* The gradient of averages [first, first + n) of row (d, h), added to one plane. */
static void LOCAL(avg_chunk_grad)(const msi_pool_args *a, const T *dy, const int64_t *row,
                                  int64_t first, int64_t n, REAL *dx)
{
    const pool_span d = span(a, 0, row[0]), h = span(a, 1, row[1]);
    const int64_t step = a->stride[2], rows = counted_rows(a, row);
    REAL g[CHUNK];

    for (int64_t j = 0; j < n; j++) {
        g[j] = (REAL)((double)LOCAL(get)(dy + j) / divisor(a, rows, first + j));
    }
    for (int64_t z = d.begin; z < d.end; z++) {
        for (int64_t v = h.begin; v < h.end; v++) {
            REAL *to = dx + (z * a->in[1] + v) * a->in[2];

            for (int64_t j = 0; a->adaptive && j < n; j++) {
                const pool_span w = span(a, 2, first + j);

                for (int64_t u = w.begin; u < w.end; u++) {
                    to[u] += g[j];
                }
            }
            for (int64_t kw = 0; !a->adaptive && kw < a->kernel[2]; kw++) {
                REAL *at = to + first * step - a->pad[2] + kw;
                int64_t begin, end;

                reached(a, 2, kw, &begin, &end);
                end = least(end - first, n);
                for (int64_t j = begin < first ? 0 : begin - first; j < end; j++) {
                    at[j * step] += g[j];
                }
            }
        }
    }
}

void MSI_NAME(LOCAL(avg_pool_grad))(const void *args)
{
    const msi_pool_args *a = args;
    const T *dy = a->dy;

    LOCAL(clear)(a);
    for (int64_t p = 0; p < a->planes; p++) {
        REAL *dx = (REAL *)a->dx + p * volume(a->in);

        for (int64_t r = 0; r < a->out[0] * a->out[1]; r++, dy += a->out[2]) {
            const int64_t row[2] = {r / a->out[1], r % a->out[1]};

            for (int64_t j = 0; j < a->out[2]; j += CHUNK) {
                LOCAL(avg_chunk_grad)(a, dy + j, row, j, least(CHUNK, a->out[2] - j), dx);
            }
        }
    }
}
