/* Pooling over windows of planes, and its gradient. */
#include "lanes.h"
#include "table.h"

/* Input positions of window `o` along dimension d: begin, begin + dilation, ..., below end. */
typedef struct pool_span {
    int64_t begin, end;
} pool_span;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The span with padding, which averages may count; windows end at the end of the padding. */
static pool_span padded_span(const msi_pool_args *a, int32_t d, int64_t o)
{
    if (a->adaptive) {
        return (pool_span){o * a->in[d] / a->out[d],
                           ((o + 1) * a->in[d] + a->out[d] - 1) / a->out[d]};
    }
    const int64_t begin = o * a->stride[d] - a->pad[d];

    return (pool_span){begin, least(begin + a->kernel[d], a->in[d] + a->pad[d])};
}

static pool_span span(const msi_pool_args *a, int32_t d, int64_t o)
{
    const pool_span s = padded_span(a, d, o);

    return (pool_span){s.begin < 0 ? 0 : s.begin, least(s.end, a->in[d])};
}

/* Elements along dimension d that the average of window `o` counts. */
static int64_t counted(const msi_pool_args *a, int32_t d, int64_t o)
{
    const pool_span s = a->count_pad ? padded_span(a, d, o) : span(a, d, o);

    return s.end - s.begin;
}

/* The number of rows in a window of row (d, h) of the output. */
static int64_t counted_rows(const msi_pool_args *a, const int64_t *row)
{
    return counted(a, 0, row[0]) * counted(a, 1, row[1]);
}

/* The divisor of the sum of window `o` of a row. */
static double divisor(const msi_pool_args *a, int64_t rows, int64_t o)
{
    return a->divisor != 0 ? a->divisor : (double)(rows * counted(a, 2, o));
}

/* Outputs [*begin, *end) along dimension d whose windows have `tap` inside the input. */
static void reached(const msi_pool_args *a, int32_t d, int64_t tap, int64_t *begin, int64_t *end)
{
    const int64_t at = tap * a->dilation[d] - a->pad[d], stride = a->stride[d];

    *begin = at >= 0 ? 0 : (-at + stride - 1) / stride;
    *end = at >= a->in[d] ? 0 : least(a->out[d], (a->in[d] - 1 - at) / stride + 1);
}

static int64_t volume(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

enum { CHUNK = 256 }; /* results that are computed together */

#define BODY "pool_body.h"
#include "each_register.h"
