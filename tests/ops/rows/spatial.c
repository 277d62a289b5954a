/* Rows of convolutions and pooling. Attributes: i[0] spatial dimensions; i[1] groups, or flags of
 * pooling; i[2 + d] of dimension d, a byte each: kernel, stride, dilation, padding in front,
 * behind (of conv_transpose: output_padding).
 */
#include "row.h"

static int64_t byte_of(const call *c, int32_t d, int32_t k)
{
    return c->i[2 + d] >> (8 * k) & 255;
}

enum { KERNEL, STRIDE, DILATION, FRONT, BACK };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The bytes k of all dimensions, of at most three, every `step` numbers. */
static void list_of(const call *c, int32_t k, int32_t step, int64_t *to)
{
    for (int32_t d = 0; d < least(c->i[0], 3); d++) {
        to[d * step] = byte_of(c, d, k);
    }
}

/* Set the spatial dimensions from in[0]. False: it has none, or no elements in a channel. */
static bool is_spatial(call *c)
{
    const form *x = &c->in[0];

    c->i[0] = x->ndim - 2;
    for (int32_t d = 1; d < x->ndim; d++) {
        if (x->shape[d] == 0) {
            return false;
        }
    }
    return is_float(x) && c->i[0] >= 1 && c->i[0] <= 3;
}

static void begin_spatial(call *c)
{
    static const int32_t most[N_SIZES][3] = {{7, 5, 3}, {60, 9, 5}, {130, 11, 6}};
    form *x = &c->in[0];

    x->ndim = 3 + below(c->rng, 3);
    x->shape[0] = below(c->rng, 16) == 0 ? 0 : 1 + below(c->rng, 3);
    x->shape[1] = 1 + below(c->rng, 4);
    for (int32_t d = 2; d < x->ndim; d++) {
        x->shape[d] = 1 + below(c->rng, most[c->size][x->ndim - 3]);
    }
}

/* Draw windows that fit: padding up to `pads` of a window's half. */
static bool draw_windows(call *c, bool halves)
{
    const form *x = &c->in[0];

    for (int32_t d = 0; d < c->i[0]; d++) {
        const int64_t kernel = 1 + below(c->rng, 3), dilation = 1 + below(c->rng, 2);
        const int64_t window = dilation * (kernel - 1) + 1;
        const int32_t most = halves ? (int32_t)window / 2 + 1 : 3;
        const int64_t front = below(c->rng, most), back = halves ? front : below(c->rng, most);

        c->i[2 + d] =
            kernel | (1 + below(c->rng, 3)) << 8 | dilation << 16 | front << 24 | back << 32;
        if (window > x->shape[2 + d] + front + back) {
            return false;
        }
    }
    return true;
}

/* Input position of a tap of result `o`. */
static int64_t tap_at(const call *c, int32_t d, int64_t o, int64_t tap)
{
    return o * byte_of(c, d, STRIDE) + tap * byte_of(c, d, DILATION) - byte_of(c, d, FRONT);
}

/* Offset in a plane of the input of tap t of the window at `o`; -1 outside. */
static int64_t place(const call *c, const int64_t *o, int64_t t)
{
    const form *x = &c->in[0];
    int64_t taps = 1, at = 0;

    for (int32_t d = 0; d < c->i[0]; d++) {
        taps *= byte_of(c, d, KERNEL);
    }
    for (int32_t d = 0; d < c->i[0]; d++) {
        taps /= byte_of(c, d, KERNEL);
        const int64_t i = tap_at(c, d, o[d], t / taps % byte_of(c, d, KERNEL));

        if (i < 0 || i >= x->shape[2 + d]) {
            return -1;
        }
        at = at * x->shape[2 + d] + i;
    }
    return at;
}

static int64_t product(const int64_t *sizes, int64_t n)
{
    int64_t all = 1;

    for (int64_t d = 0; d < n; d++) {
        all *= sizes[d];
    }
    return all;
}

/* Spatial indices of result i, of a shape (N, C, ...). */
static void indices(const int64_t *shape, int64_t n, int64_t i, int64_t *o)
{
    for (int64_t d = n - 1; d >= 0; d--) {
        o[d] = i % shape[2 + d];
        i /= shape[2 + d];
    }
}

/* -- conv -------------------------------------------------------------------------------------- */

static bool plan_conv(call *c)
{
    const form *x = &c->in[0];
    form *w = &c->in[1];

    c->n_in = 2 + below(c->rng, 2);
    if (!is_spatial(c) || !draw_windows(c, false)) {
        return false;
    }
    c->i[1] = below(c->rng, 2) ? 1 : x->shape[1];
    *w = *x;
    w->shape[0] = c->i[1] * (1 + below(c->rng, 3));
    w->shape[1] = x->shape[1] / c->i[1];
    list_of(c, KERNEL, 1, w->shape + 2);
    c->in[2] = (form){.dtype = x->dtype, .ndim = 1, .shape = {w->shape[0]}};
    return numel_of(x) * w->shape[0] / x->shape[1] <= 2000;
}

static ms_status run_conv(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    int64_t stride[3], padding[6], dilation[3];

    list_of(c, STRIDE, 1, stride);
    list_of(c, FRONT, 2, padding);
    list_of(c, BACK, 2, padding + 1);
    list_of(c, DILATION, 1, dilation);
    return ms_op_conv(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL, (int32_t)c->i[0], stride,
                      padding, dilation, c->i[1]);
}

static void oracle_conv(const call *c, const array *const *in, array *out)
{
    const int64_t *x = in[0]->form.shape, *w = in[1]->form.shape, n = c->i[0];
    const int64_t taps = product(w + 2, n), plane = product(x + 2, n);
    int64_t shape[5] = {x[0], w[0]}, o[3];

    for (int32_t d = 0; d < n; d++) {
        shape[2 + d] = (x[2 + d] + byte_of(c, d, FRONT) + byte_of(c, d, BACK) -
                        byte_of(c, d, DILATION) * (w[2 + d] - 1) - 1) /
                           byte_of(c, d, STRIDE) +
                       1;
    }
    set_form(out, in[0]->form.dtype, in[0]->form.ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t channel = i / product(shape + 2, n) % w[0];
        const int64_t image = i / product(shape + 2, n) / w[0];
        const int64_t first = image * x[1] + channel / (w[0] / c->i[1]) * w[1];
        const real bias = c->n_in > 2 ? in[2]->v[channel] : 0;
        real sum = bias, size = fabsl(bias) + 0x1p-1000L;

        indices(shape, n, i, o);
        for (int64_t k = 0; k < w[1] * taps; k++) {
            const int64_t at = place(c, o, k % taps);

            if (at >= 0) {
                const real part =
                    in[0]->v[(first + k / taps) * plane + at] * in[1]->v[channel * w[1] * taps + k];

                sum += part;
                size += fabsl(part);
            }
        }
        out->v[i] = sum;
        out->slack[i] = 32 * compute_unit_of(out->form.dtype) * size;
    }
}

/* -- conv_transpose ---------------------------------------------------------------------------- */

/* Size of the result's dimension d. */
static int64_t transposed_size(const call *c, int32_t d)
{
    return (c->in[0].shape[2 + d] - 1) * byte_of(c, d, STRIDE) - 2 * byte_of(c, d, FRONT) +
           byte_of(c, d, DILATION) * (byte_of(c, d, KERNEL) - 1) + byte_of(c, d, BACK) + 1;
}

static bool plan_conv_transpose(call *c)
{
    const form *x = &c->in[0];
    form *w = &c->in[1];
    int64_t numel = 1;

    c->n_in = 2 + below(c->rng, 2);
    if (!is_spatial(c)) {
        return false;
    }
    for (int32_t d = 0; d < c->i[0]; d++) {
        const int32_t stride = 1 + below(c->rng, 3), dilation = 1 + below(c->rng, 2);
        const int64_t kernel = 1 + below(c->rng, 3), padding = below(c->rng, 3);
        const int64_t more = below(c->rng, stride > dilation ? stride : dilation);

        c->i[2 + d] = kernel | stride << 8 | dilation << 16 | padding << 24 | more << 32;
        if (transposed_size(c, d) < 1) {
            return false;
        }
        numel *= transposed_size(c, d);
    }
    c->i[1] = below(c->rng, 2) ? 1 : x->shape[1];
    *w = *x;
    w->shape[0] = x->shape[1];
    w->shape[1] = 1 + below(c->rng, 3);
    list_of(c, KERNEL, 1, w->shape + 2);
    c->in[2] = (form){.dtype = x->dtype, .ndim = 1, .shape = {c->i[1] * w->shape[1]}};
    return numel * x->shape[0] * c->i[1] * w->shape[1] <= 2000;
}

static ms_status run_conv_transpose(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    int64_t stride[3], padding[3], more[3], dilation[3];

    list_of(c, STRIDE, 1, stride);
    list_of(c, FRONT, 1, padding);
    list_of(c, BACK, 1, more);
    list_of(c, DILATION, 1, dilation);
    return ms_op_conv_transpose(out, in[0], in[1], c->n_in > 2 ? in[2] : NULL, (int32_t)c->i[0],
                                stride, padding, more, dilation, c->i[1]);
}

/* Does tap t of the filter take position `at` of the input to position `o` of the result? */
static bool meets(const call *c, const int64_t *o, const int64_t *at, int64_t t)
{
    for (int32_t d = (int32_t)c->i[0] - 1; d >= 0; d--) {
        const int64_t k = t % byte_of(c, d, KERNEL);

        t /= byte_of(c, d, KERNEL);
        if (tap_at(c, d, at[d], k) != o[d]) {
            return false;
        }
    }
    return true;
}

static void oracle_conv_transpose(const call *c, const array *const *in, array *out)
{
    const int64_t *x = in[0]->form.shape, *w = in[1]->form.shape, n = c->i[0];
    const int64_t taps = product(w + 2, n), plane = product(x + 2, n), of_group = x[1] / c->i[1];
    int64_t shape[5] = {x[0], c->i[1] * w[1]}, o[3], at[3];

    for (int32_t d = 0; d < n; d++) {
        shape[2 + d] = transposed_size(c, d);
    }
    set_form(out, in[0]->form.dtype, in[0]->form.ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t channel = i / product(shape + 2, n) % shape[1];
        const int64_t image = i / product(shape + 2, n) / shape[1];
        const int64_t first = channel / w[1] * of_group;
        const real bias = c->n_in > 2 ? in[2]->v[channel] : 0;
        real sum = bias, size = fabsl(bias) + 0x1p-1000L;

        indices(shape, n, i, o);
        for (int64_t k = 0; k < plane * taps; k++) {
            indices(x, n, k / taps, at);
            if (!meets(c, o, at, k % taps)) {
                continue;
            }
            for (int64_t from = first; from < first + of_group; from++) {
                const real part = in[0]->v[(image * x[1] + from) * plane + k / taps] *
                                  in[1]->v[(from * w[1] + channel % w[1]) * taps + k % taps];

                sum += part;
                size += fabsl(part);
            }
        }
        out->v[i] = sum;
        out->slack[i] = 32 * compute_unit_of(out->form.dtype) * size;
    }
}

/* -- pooling ----------------------------------------------------------------------------------- */

enum { CEIL = 1, COUNT_PAD = 2 };

static bool plan_pool(call *c)
{
    c->n_in = 1;
    c->i[1] = below(c->rng, 4);
    return is_spatial(c) && draw_windows(c, true);
}

static bool plan_avg_pool(call *c)
{
    if (!plan_pool(c)) {
        return false;
    }
    for (int32_t d = 0; d < c->i[0]; d++) {
        if (byte_of(c, d, DILATION) != 1) {
            return false;
        }
    }
    c->p[0] = below(c->rng, 4) == 0 ? 3 : 0;
    return true;
}

/* The result's form; NaN and infinities are left to the drivers of edges. */
static void set_pooled(const call *c, const array *x, array *out)
{
    int64_t shape[5] = {x->form.shape[0], x->form.shape[1]};

    for (int32_t d = 0; d < c->i[0]; d++) {
        const int64_t in = x->form.shape[2 + d], stride = byte_of(c, d, STRIDE);
        int64_t n = 0;

        /* Windows that end in the padding, or with CEIL begin in the input. */
        while (tap_at(c, d, n, byte_of(c, d, KERNEL) - 1) < in + byte_of(c, d, FRONT) ||
               ((c->i[1] & CEIL) && tap_at(c, d, n, 0) < in &&
                tap_at(c, d, n - 1, byte_of(c, d, KERNEL) - 1) < in + byte_of(c, d, FRONT) - 1 &&
                stride > 1)) {
            n++;
        }
        shape[2 + d] = n;
    }
    set_form(out, x->form.dtype, x->form.ndim, shape);
}

static ms_status run_max_pool(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    int64_t kernel[3], stride[3], padding[3], dilation[3];

    list_of(c, KERNEL, 1, kernel);
    list_of(c, STRIDE, 1, stride);
    list_of(c, FRONT, 1, padding);
    list_of(c, DILATION, 1, dilation);
    return ms_op_max_pool(out, in[0], (int32_t)c->i[0], kernel, stride, padding, dilation,
                          c->i[1] & CEIL);
}

/* The largest and the second of each window; no second: -inf. */
static real largest(const call *c, const array *x, const int64_t *o, int64_t first, real *second)
{
    int64_t kernel[3];
    real most = -INFINITY;

    *second = -INFINITY;
    list_of(c, KERNEL, 1, kernel);
    for (int64_t t = 0; t < product(kernel, c->i[0]); t++) {
        const int64_t at = place(c, o, t);

        if (at >= 0) {
            const real v = x->v[first + at];

            *second = v > most ? most : fmaxl(*second, v);
            most = v > most || isnan(v) ? v : most;
        }
    }
    return most;
}

static void oracle_max_pool(const call *c, const array *const *in, array *out)
{
    const int64_t plane = product(in[0]->form.shape + 2, c->i[0]);
    int64_t o[3];
    real second;

    set_pooled(c, in[0], out);
    for (int64_t i = 0; i < out->n; i++) {
        indices(out->form.shape, c->i[0], i, o);
        out->v[i] =
            largest(c, in[0], o, i / product(out->form.shape + 2, c->i[0]) * plane, &second);
    }
}

static bool smooth_max_pool(const call *c, const array *const *in)
{
    const int64_t plane = product(in[0]->form.shape + 2, c->i[0]);
    array *out = malloc(sizeof(*out));
    bool smooth = true;
    int64_t o[3];

    set_pooled(c, in[0], out);
    for (int64_t i = 0; i < out->n; i++) {
        real second;

        indices(out->form.shape, c->i[0], i, o);
        const real most =
            largest(c, in[0], o, i / product(out->form.shape + 2, c->i[0]) * plane, &second);

        smooth = smooth && most - second > 0.008L;
    }
    free(out);
    return smooth;
}

static ms_status run_avg_pool(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    int64_t kernel[3], stride[3], padding[3];

    list_of(c, KERNEL, 1, kernel);
    list_of(c, STRIDE, 1, stride);
    list_of(c, FRONT, 1, padding);
    return ms_op_avg_pool(out, in[0], (int32_t)c->i[0], kernel, stride, padding, c->i[1] & CEIL,
                          c->i[1] & COUNT_PAD, (int64_t)c->p[0]);
}

static void oracle_avg_pool(const call *c, const array *const *in, array *out)
{
    const int64_t plane = product(in[0]->form.shape + 2, c->i[0]);
    int64_t kernel[3], o[3];

    list_of(c, KERNEL, 1, kernel);
    set_pooled(c, in[0], out);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t first = i / product(out->form.shape + 2, c->i[0]) * plane;
        real sum = 0, size = 0, counted = 0, inside = 1;

        indices(out->form.shape, c->i[0], i, o);
        for (int64_t t = 0; t < product(kernel, c->i[0]); t++) {
            const int64_t at = place(c, o, t);

            sum += at >= 0 ? in[0]->v[first + at] : 0;
            size += at >= 0 ? fabsl(in[0]->v[first + at]) : 0;
            counted += at >= 0;
        }
        for (int32_t d = 0; d < c->i[0]; d++) { /* with padding, up to its end */
            inside *= (real)(least(tap_at(c, d, o[d], kernel[d]),
                                   in[0]->form.shape[2 + d] + byte_of(c, d, FRONT)) -
                             tap_at(c, d, o[d], 0));
        }
        const real by = c->p[0] != 0 ? (real)c->p[0] : c->i[1] & COUNT_PAD ? inside : counted;

        out->v[i] = sum / by;
        out->slack[i] = 16 * compute_unit_of(out->form.dtype) * (size / by) + 0x1p-1000L;
    }
}

static bool plan_adaptive_avg_pool(call *c)
{
    c->n_in = 1;
    if (!is_spatial(c)) {
        return false;
    }
    for (int32_t d = 0; d < c->i[0]; d++) {
        c->i[2 + d] = 1 + below(c->rng, 5);
    }
    return true;
}

RUN(adaptive_avg_pool, ms_op_adaptive_avg_pool(out, in[0], (int32_t)c->i[0], c->i + 2))

static void oracle_adaptive_avg_pool(const call *c, const array *const *in, array *out)
{
    const int64_t *x = in[0]->form.shape, n = c->i[0], plane = product(x + 2, n);
    int64_t shape[5] = {x[0], x[1]}, o[3], at[3];

    memcpy(shape + 2, c->i + 2, sizeof(at));
    set_form(out, in[0]->form.dtype, in[0]->form.ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t first = i / product(shape + 2, n) * plane;
        real sum = 0, size = 0, counted = 0;

        indices(shape, n, i, o);
        for (int64_t p = 0; p < plane; p++) {
            bool within = true;

            indices(x, n, p, at);
            for (int32_t d = 0; d < n; d++) {
                within = within && at[d] >= o[d] * x[2 + d] / shape[2 + d] &&
                         at[d] * shape[2 + d] < (o[d] + 1) * x[2 + d];
            }
            if (within) {
                sum += in[0]->v[first + p];
                size += fabsl(in[0]->v[first + p]);
                counted++;
            }
        }
        out->v[i] = sum / counted;
        out->slack[i] = 16 * compute_unit_of(out->form.dtype) * (size / counted) + 0x1p-1000L;
    }
}

const op_row spatial_rows[] = {
    OP(conv, plan_conv, .begin = begin_spatial, .flags = ROW_FINITE | ROW_LIBRARY),
    OP(conv_transpose, plan_conv_transpose, .begin = begin_spatial,
       .flags = ROW_FINITE | ROW_LIBRARY),
    OP(max_pool, plan_pool, .begin = begin_spatial, .smooth = smooth_max_pool),
    OP(avg_pool, plan_avg_pool, .begin = begin_spatial, .flags = ROW_FINITE),
    OP(adaptive_avg_pool, plan_adaptive_avg_pool, .begin = begin_spatial, .flags = ROW_FINITE),
    {0},
};
