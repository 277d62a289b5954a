/* Convolution and its gradient, in boxes of output positions. Per box and group, with K = channels
 * times taps of the filter:
 *   cols (K, positions) = the inputs that each position reads ("unfolded")
 *   y = w cols + bias;  dw += dy cols^T;  dcols = w^T dy, which is folded back into dx
 * Products use msi_gemm(). A channel of the region that a box reads is first copied into a slab,
 * with zeros for the padding, so that no later loop checks bounds.
 *
 * In a wide box (msi_conv_args) a row of columns also contains the elements between two rows of the
 * region, so that a tap is copied in one run. These columns of y are not read; in dy they are 0. */
#include "lanes.h"
#include "table.h"

#include "backend.h"

/* A box of output positions of some images, and the region of the input that it reads. */
typedef struct conv_box {
    int64_t image, images;
    int64_t at[3], size[3];
    int64_t from[3], extent[3]; /* from < 0: in the padding */
    int64_t width, cols;        /* columns of a row, of the box */
} conv_box;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t boxes_along(const msi_conv_args *a, int32_t d)
{
    return (a->out[d] + a->box[d] - 1) / a->box[d];
}

static int64_t boxes_of_image(const msi_conv_args *a)
{
    return boxes_along(a, 0) * boxes_along(a, 1) * boxes_along(a, 2);
}

static int64_t n_boxes(const msi_conv_args *a)
{
    return (a->batch + a->images - 1) / a->images * boxes_of_image(a);
}

static conv_box box_at(const msi_conv_args *a, int64_t index)
{
    conv_box b;

    for (int32_t d = 2; d >= 0; d--) {
        b.at[d] = index % boxes_along(a, d) * a->box[d];
        index /= boxes_along(a, d);
        b.size[d] = least(a->box[d], a->out[d] - b.at[d]);
        b.from[d] = b.at[d] * a->stride[d] - a->pad[d];
        b.extent[d] = (b.size[d] - 1) * a->stride[d] + (a->kernel[d] - 1) * a->dilation[d] + 1;
    }
    b.image = index * a->images;
    b.images = least(a->images, a->batch - b.image);
    b.width = a->wide ? b.extent[2] : b.size[2];
    b.cols = b.images * b.size[0] * b.size[1] * b.width;
    return b;
}

static int64_t volume(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

/* The part of a row of the region that is inside the input: [*begin, *end). */
static void inside(const msi_conv_args *a, const conv_box *b, int64_t *begin, int64_t *end)
{
    *begin = b->from[2] >= 0 ? 0 : least(-b->from[2], b->extent[2]);
    *end = least(b->extent[2], a->in[2] - b->from[2]);
    *end = *end > *begin ? *end : *begin;
}

/* Row (d, h) of the region as a row of the input's plane; -1 in the padding. */
static int64_t input_row(const msi_conv_args *a, const conv_box *b, int64_t d, int64_t h)
{
    const int64_t z = b->from[0] + d, y = b->from[1] + h;

    return z < 0 || z >= a->in[0] || y < 0 || y >= a->in[1] ? -1 : z * a->in[1] + y;
}

/* Offset in the slab of a tap of position (d, h, 0) of the box. */
static int64_t tap_offset(const msi_conv_args *a, const conv_box *b, const int64_t *tap, int64_t d,
                          int64_t h)
{
    return ((d * a->stride[0] + tap[0] * a->dilation[0]) * b->extent[1] + h * a->stride[1] +
            tap[1] * a->dilation[1]) *
               b->extent[2] +
           tap[2] * a->dilation[2];
}

/* Elements of a run in a wide box: the rows and the elements between them. */
static int64_t run_of(const conv_box *b)
{
    return (b->size[1] - 1) * b->width + b->size[2];
}

static void copy_strided(char *to, const char *from, int64_t n, int64_t step, int64_t size)
{
    if (step == 1) {
        memcpy(to, from, (size_t)(n * size));
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(to + 4 * i, from + 4 * i * step, 4);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            memcpy(to + size * i, from + size * i * step, (size_t)size);
        }
    }
}

/* Copy the columns of one image for one tap from the slab; elements have `size` bytes. */
static void unfold_tap(const msi_conv_args *a, const conv_box *b, const int64_t *tap,
                       const char *slab, char *to, int64_t size)
{
    const int64_t row = b->width * size;

    for (int64_t d = 0; d < b->size[0]; d++, to += b->size[1] * row) {
        if (a->wide) {
            const int64_t run = run_of(b) * size;

            memcpy(to, slab + tap_offset(a, b, tap, d, 0) * size, (size_t)run);
            memset(to + run, 0, (size_t)(b->size[1] * row - run));
            continue;
        }
        for (int64_t h = 0; h < b->size[1]; h++) {
            copy_strided(to + h * row, slab + tap_offset(a, b, tap, d, h) * size, b->size[2],
                         a->stride[2], size);
        }
    }
}

/* Advance a counter over the taps of a filter. */
static void next_tap(const msi_conv_args *a, int64_t *tap)
{
    for (int32_t d = 2; d >= 0 && ++tap[d] == a->kernel[d]; d--) {
        tap[d] = 0;
    }
}

static void *work_part(const msi_conv_args *a, int32_t part)
{
    return (char *)a->work + a->work_at[part];
}

#define BODY "conv_body.h"
#include "each_register.h"
