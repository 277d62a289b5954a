/* How the convolution kernels cut their work, and their scratch. */
#include "device.h"

#include "moonshard/tensor.h"

enum {
    BOX_BYTES = 384 << 10, /* of a box's columns and results: they stay in a core's cache */
    MOST_BYTES = 8 << 20,  /* where LEAST_COLUMNS need more than BOX_BYTES */
    LEAST_COLUMNS = 256
};

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* The least equal parts of n, each at most `most`. */
static int64_t part_of(int64_t n, int64_t most)
{
    const int64_t parts = most > 0 ? (n + most - 1) / most : n;

    return parts > 0 ? (n + parts - 1) / parts : 1;
}

static int64_t extent(const msi_conv_args *a, int32_t d)
{
    return (a->box[d] - 1) * a->stride[d] + (a->kernel[d] - 1) * a->dilation[d] + 1;
}

/* Boxes of at most `columns`: of whole images, or else rows of one. */
static void choose_box(msi_conv_args *a, int64_t columns)
{
    const int64_t spread = a->out[2] + (a->kernel[2] - 1) * a->dilation[2];

    a->wide =
        a->stride[1] == 1 && a->stride[2] == 1 && a->out[1] > 1 && spread * 8 <= a->out[2] * 9;
    const int64_t row = a->wide ? spread : a->out[2], sheet = a->out[1] * row;

    a->images = 1;
    for (int32_t d = 0; d < 3; d++) {
        a->box[d] = at_most(a->out[d], 1) + (a->out[d] == 0);
    }
    if (columns < row) {
        a->wide = false;
        a->box[2] = part_of(a->out[2], columns);
        return;
    }
    a->box[2] = a->out[2];
    if (columns < sheet) {
        a->box[1] = part_of(a->out[1], columns / row);
        return;
    }
    a->box[1] = a->out[1];
    a->box[0] = part_of(a->out[0], columns / sheet);
    if (a->box[0] == a->out[0]) {
        a->images = part_of(a->batch, columns / (a->out[0] * sheet));
    }
}

int64_t msi_conv_plan(msi_conv_args *a, int32_t dtype, bool gradient)
{
    const int64_t of_device =
        msi_work_bytes(a->ctx, gradient ? MSI_K_conv_grad : MSI_K_conv, dtype, a);
    const int64_t real = dtype == MS_DTYPE_F64 ? 8 : 4, operand = ms_dtype_size(a->tile_dtype);
    const int64_t k = a->in_channels * a->kernel[0] * a->kernel[1] * a->kernel[2];
    const int64_t column = k * (operand + (gradient ? real : 0)) + a->out_channels * real;
    int64_t columns = BOX_BYTES / column;

    if (of_device >= 0) {
        return of_device;
    }
    if (columns < LEAST_COLUMNS) {
        columns = at_most(LEAST_COLUMNS, MOST_BYTES / column);
    }
    choose_box(a, columns > 0 ? columns : 1);
    a->in_place = k == a->in_channels && a->in[0] * a->in[1] * a->out[0] * a->out[1] == 1 &&
                  a->in[2] == a->out[2] && a->stride[2] == 1 && a->pad[2] == 0 && a->images == 1 &&
                  a->tile_dtype == dtype;
    columns = a->images * a->box[0] * a->box[1] * (a->wide ? extent(a, 2) : a->box[2]);
    const int64_t bytes[MSI_CONV_PARTS] = {
        [MSI_CONV_SLAB] = extent(a, 0) * extent(a, 1) * extent(a, 2) * real,
        [MSI_CONV_COLS] = a->in_place ? 0 : k * columns * operand,
        [MSI_CONV_BLOCK] = a->out_channels * columns * real,
        [MSI_CONV_DCOLS] = gradient && !a->in_place ? k * columns * real : 0,
        [MSI_CONV_FILTER] = a->tile_dtype == dtype ? 0 : a->groups * a->out_channels * k * operand};
    int64_t end = 0;

    for (int32_t i = 0; i < MSI_CONV_PARTS; i++) {
        a->work_at[i] = end;
        end += (bytes[i] + 63) / 64 * 64;
    }
    return end;
}
