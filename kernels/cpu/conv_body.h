/* Body of conv.c for one dtype. Operands of products are T, or REAL if the library has no products
 * of T. Results and sums are REAL. */

#include "row_lanes.h"

#ifdef NARROW
#define WIDENS(a) ((a)->tile_dtype != DTYPE)
#else
#define WIDENS(a) false
#endif

static int64_t LOCAL(operand_size)(const msi_conv_args *a)
{
    return WIDENS(a) ? sizeof(REAL) : sizeof(T);
}

/* Convert n elements to the dtype of operands. */
static void LOCAL(to_operand)(const msi_conv_args *a, void *to, const T *from, int64_t n)
{
    if (!WIDENS(a)) {
        memcpy(to, from, (size_t)n * sizeof(T));
        return;
    }
    for (int64_t j = 0; j < n; j += WIDTH) {
        OF(store_n)((REAL *)to + j, LOAD_N(from + j, n - j), n - j);
    }
}

/* -- input and its gradient -------------------------------------------------------------------- */

/* slab = the region of one channel, whose plane begins at `x`. */
static void LOCAL(read_region)(const msi_conv_args *a, const conv_box *b, const T *x, char *slab)
{
    const int64_t size = LOCAL(operand_size)(a), row = b->extent[2] * size;
    int64_t begin, end;

    inside(a, b, &begin, &end);
    for (int64_t d = 0; d < b->extent[0]; d++) {
        for (int64_t h = 0; h < b->extent[1]; h++, slab += row) {
            const int64_t from = input_row(a, b, d, h);

            if (from < 0 || begin == end) {
                memset(slab, 0, (size_t)row);
                continue;
            }
            memset(slab, 0, (size_t)(begin * size));
            LOCAL(to_operand)
            (a, slab + begin * size, x + from * a->in[2] + b->from[2] + begin, end - begin);
            memset(slab + end * size, 0, (size_t)(row - end * size));
        }
    }
}

/* cols (K, columns) of one group. */
static void LOCAL(unfold)(const msi_conv_args *a, const conv_box *b, int64_t group)
{
    const int64_t size = LOCAL(operand_size)(a), taps = volume(a->kernel), plane = volume(a->in);
    char *slab = work_part(a, MSI_CONV_SLAB), *cols = work_part(a, MSI_CONV_COLS);

    for (int64_t i = 0; i < b->images; i++) {
        const int64_t channel = ((b->image + i) * a->groups + group) * a->in_channels;
        char *to = cols + i * (b->cols / b->images) * size;

        for (int64_t c = 0; c < a->in_channels; c++) {
            int64_t tap[3] = {0};

            LOCAL(read_region)(a, b, (const T *)a->x + (channel + c) * plane, slab);
            for (int64_t t = 0; t < taps; t++, to += b->cols * size, next_tap(a, tap)) {
                unfold_tap(a, b, tap, slab, to, size);
            }
        }
    }
}

static void LOCAL(add_run)(REAL *to, const REAL *from, int64_t n, int64_t step)
{
    if (step != 1) {
        for (int64_t i = 0; i < n; i++) {
            to[i * step] += from[i];
        }
        return;
    }
    for (int64_t j = 0; j < n; j += WIDTH) {
        const V sum = OF(load_n)(to + j, n - j) + OF(load_n)(from + j, n - j);

        OF(store_n)(to + j, sum, n - j);
    }
}

/* slab += the columns of one tap. */
static void LOCAL(fold_tap)(const msi_conv_args *a, const conv_box *b, const int64_t *tap,
                            REAL *slab, const REAL *from)
{
    for (int64_t d = 0; d < b->size[0]; d++, from += b->size[1] * b->width) {
        if (a->wide) {
            LOCAL(add_run)(slab + tap_offset(a, b, tap, d, 0), from, run_of(b), 1);
            continue;
        }
        for (int64_t h = 0; h < b->size[1]; h++) {
            LOCAL(add_run)
            (slab + tap_offset(a, b, tap, d, h), from + h * b->width, b->size[2], a->stride[2]);
        }
    }
}

/* One channel of dx += slab. */
static void LOCAL(add_region)(const msi_conv_args *a, const conv_box *b, REAL *dx, const REAL *slab)
{
    int64_t begin, end;

    inside(a, b, &begin, &end);
    for (int64_t d = 0; d < b->extent[0]; d++) {
        for (int64_t h = 0; h < b->extent[1]; h++, slab += b->extent[2]) {
            const int64_t to = input_row(a, b, d, h);

            if (to >= 0) {
                LOCAL(add_run)
                (dx + to * a->in[2] + b->from[2] + begin, slab + begin, end - begin, 1);
            }
        }
    }
}

/* dx += dcols of one group. */
static void LOCAL(fold_columns)(const msi_conv_args *a, const conv_box *b, int64_t group)
{
    const int64_t taps = volume(a->kernel), plane = volume(a->in);
    REAL *slab = work_part(a, MSI_CONV_SLAB);

    for (int64_t i = 0; i < b->images; i++) {
        const int64_t channel = ((b->image + i) * a->groups + group) * a->in_channels;
        const REAL *from = (const REAL *)work_part(a, MSI_CONV_DCOLS) + i * (b->cols / b->images);

        for (int64_t c = 0; c < a->in_channels; c++) {
            int64_t tap[3] = {0};

            memset(slab, 0, (size_t)volume(b->extent) * sizeof(REAL));
            for (int64_t t = 0; t < taps; t++, from += b->cols, next_tap(a, tap)) {
                LOCAL(fold_tap)(a, b, tap, slab, from);
            }
            LOCAL(add_region)(a, b, (REAL *)a->dx + (channel + c) * plane, slab);
        }
    }
}

/* -- output and its gradient ------------------------------------------------------------------- */

/* y of one group = block (O, columns) + bias. */
static void LOCAL(write_block)(const msi_conv_args *a, const conv_box *b, int64_t group)
{
    const int64_t plane = volume(a->out), first = group * a->out_channels;
    const REAL *block = work_part(a, MSI_CONV_BLOCK);

    for (int64_t o = 0; o < a->out_channels; o++) {
        const REAL bias = a->bias != NULL ? LOCAL(get)((const T *)a->bias + first + o) : 0;

        for (int64_t i = 0; i < b->images; i++) {
            T *y = (T *)a->y + ((b->image + i) * a->groups * a->out_channels + first + o) * plane +
                   b->at[2];

            for (int64_t d = 0; d < b->size[0]; d++) {
                for (int64_t h = 0; h < b->size[1]; h++, block += b->width) {
                    T *to = y + ((b->at[0] + d) * a->out[1] + b->at[1] + h) * a->out[2];

                    for (int64_t j = 0; j < b->size[2]; j += WIDTH) {
                        const int64_t left = b->size[2] - j;

                        STORE_N(to + j, OF(load_n)(block + j, left) + bias, left);
                    }
                }
            }
        }
    }
}

/* block (O, columns) = dy of one group. */
static void LOCAL(read_block)(const msi_conv_args *a, const conv_box *b, int64_t group)
{
    const int64_t plane = volume(a->out), size = LOCAL(operand_size)(a);
    const int64_t first = group * a->out_channels, row = b->width * size;
    char *block = work_part(a, MSI_CONV_BLOCK);

    for (int64_t o = 0; o < a->out_channels; o++) {
        for (int64_t i = 0; i < b->images; i++) {
            const T *dy = (const T *)a->dy +
                          ((b->image + i) * a->groups * a->out_channels + first + o) * plane +
                          b->at[2];

            for (int64_t d = 0; d < b->size[0]; d++) {
                for (int64_t h = 0; h < b->size[1]; h++, block += row) {
                    LOCAL(to_operand)
                    (a, block, dy + ((b->at[0] + d) * a->out[1] + b->at[1] + h) * a->out[2],
                     b->size[2]);
                    memset(block + b->size[2] * size, 0, (size_t)(row - b->size[2] * size));
                }
            }
        }
    }
}

/* -- products ---------------------------------------------------------------------------------- */

/* One output channel per group (depthwise convolution): a product for each would be slower than
 * these loops. Operands are REAL. */

static void LOCAL(one_forward)(REAL *y, const REAL *w, const REAL *cols, int64_t n, int64_t taps)
{
    for (int64_t j = 0; j < n; j += WIDTH) {
        V sum = SPLAT(0);

        for (int64_t k = 0; k < taps; k++) {
            sum += OF(load_n)(cols + k * n + j, n - j) * w[k];
        }
        OF(store_n)(y + j, sum, n - j);
    }
}

static void LOCAL(one_dw)(REAL *dw, const REAL *dy, const REAL *cols, int64_t n, int64_t taps,
                          bool accumulate)
{
    for (int64_t k = 0; k < taps; k++, cols += n) {
        V sum[LOCAL(PARTS)] = {SPLAT(0)};

        for (int64_t j = 0; j < n; j += LANES) {
#pragma GCC unroll 8
            for (int u = 0; u < LOCAL(PARTS); u++) {
                const int64_t at = j + WIDTH * u;

                if (at < n) {
                    sum[u] += OF(load_n)(cols + at, n - at) * OF(load_n)(dy + at, n - at);
                }
            }
        }
        dw[k] = LOCAL(fold)(sum) + (accumulate ? dw[k] : 0);
    }
}

static void LOCAL(one_dcols)(REAL *dcols, const REAL *w, const REAL *dy, int64_t n, int64_t taps)
{
    for (int64_t k = 0; k < taps; k++, dcols += n) {
        for (int64_t j = 0; j < n; j += WIDTH) {
            OF(store_n)(dcols + j, OF(load_n)(dy + j, n - j) * w[k], n - j);
        }
    }
}

static void LOCAL(conv_product)(const msi_conv_args *a, msi_gemm_args g)
{
    g.batch = 1;
    g.dtype = WIDENS(a) ? REAL_DTYPE : DTYPE;
    g.c_dtype = REAL_DTYPE;
    g.op = a->op;
    g.is_gradient = a->dy != NULL;
    if (*a->status == MS_OK) {
        *a->status = msi_gemm(a->ctx, &g);
    }
}

/* w of one group as an operand. */
static const void *LOCAL(filter)(const msi_conv_args *a, int64_t group, int64_t k)
{
    const int64_t at = group * a->out_channels * k;

    return WIDENS(a) ? (const void *)((const REAL *)work_part(a, MSI_CONV_FILTER) + at)
                     : (const void *)((const T *)a->w + at);
}

/* cols of one group: the input itself if each position reads one element of one image, else
 * unfolded. *row: elements between its rows. */
static const void *LOCAL(columns_of)(const msi_conv_args *a, const conv_box *b, int64_t group,
                                     int64_t *row)
{
    if (a->in_place) {
        *row = volume(a->in);
        return (const T *)a->x + (b->image * a->groups + group) * a->in_channels * *row + b->at[2];
    }
    *row = b->cols;
    LOCAL(unfold)(a, b, group);
    return work_part(a, MSI_CONV_COLS);
}

static void LOCAL(widen_filter)(const msi_conv_args *a)
{
    if (WIDENS(a)) {
        LOCAL(to_operand)
        (a, work_part(a, MSI_CONV_FILTER), a->w,
         a->groups * a->out_channels * a->in_channels * volume(a->kernel));
    }
}

void MSI_NAME(LOCAL(conv))(const void *args)
{
    const msi_conv_args *a = args;
    const int64_t k = a->in_channels * volume(a->kernel), end = n_boxes(a);
    void *block = work_part(a, MSI_CONV_BLOCK);

    LOCAL(widen_filter)(a);
    for (int64_t i = 0; i < end; i++) {
        const conv_box b = box_at(a, i);

        for (int64_t g = 0; g < a->groups; g++) {
            int64_t row;
            const void *w = LOCAL(filter)(a, g, k), *cols = LOCAL(columns_of)(a, &b, g, &row);

            if (a->out_channels == 1 && !a->in_place) {
                LOCAL(one_forward)(block, w, cols, b.cols, k);
            } else {
                LOCAL(conv_product)
                (a, (msi_gemm_args){.m = a->out_channels,
                                    .n = b.cols,
                                    .k = k,
                                    .a = w,
                                    .a_row = k,
                                    .a_col = 1,
                                    .b = cols,
                                    .b_row = row,
                                    .b_col = 1,
                                    .c = block,
                                    .c_row = b.cols});
            }
            LOCAL(write_block)(a, &b, g);
        }
    }
}

/* dw of one group += dy cols^T. */
static void LOCAL(filter_gradient)(const msi_conv_args *a, const conv_box *b, int64_t group,
                                   int64_t k, bool accumulate)
{
    int64_t row;
    const void *cols = LOCAL(columns_of)(a, b, group, &row);
    void *block = work_part(a, MSI_CONV_BLOCK);
    REAL *dw = (REAL *)a->dw + group * a->out_channels * k;

    if (a->out_channels == 1 && !a->in_place) {
        LOCAL(one_dw)(dw, block, cols, b->cols, k, accumulate);
        return;
    }
    LOCAL(conv_product)
    (a, (msi_gemm_args){.m = a->out_channels,
                        .n = k,
                        .k = b->cols,
                        .a = block,
                        .a_row = b->cols,
                        .a_col = 1,
                        .b = cols,
                        .b_row = 1,
                        .b_col = row,
                        .c = dw,
                        .c_row = k,
                        .accumulate = accumulate});
}

/* dx of one group += w^T dy, folded. */
static void LOCAL(input_gradient)(const msi_conv_args *a, const conv_box *b, int64_t group,
                                  int64_t k)
{
    const int64_t plane = volume(a->in);
    const void *w = LOCAL(filter)(a, group, k), *block = work_part(a, MSI_CONV_BLOCK);
    REAL *dcols = work_part(a, MSI_CONV_DCOLS);

    if (a->out_channels == 1 && !a->in_place) {
        LOCAL(one_dcols)(dcols, w, block, b->cols, k);
        LOCAL(fold_columns)(a, b, group);
        return;
    }
    if (a->in_place) {
        dcols = (REAL *)a->dx + (b->image * a->groups + group) * k * plane + b->at[2];
    }
    LOCAL(conv_product)
    (a, (msi_gemm_args){.m = k,
                        .n = b->cols,
                        .k = a->out_channels,
                        .a = w,
                        .a_row = 1,
                        .a_col = k,
                        .b = block,
                        .b_row = b->cols,
                        .b_col = 1,
                        .c = dcols,
                        .c_row = a->in_place ? plane : b->cols,
                        .accumulate = a->in_place && a->dx_accumulate});
    if (!a->in_place) {
        LOCAL(fold_columns)(a, b, group);
    }
}

void MSI_NAME(LOCAL(conv_grad))(const void *args)
{
    const msi_conv_args *a = args;
    const int64_t k = a->in_channels * volume(a->kernel), end = n_boxes(a);

    LOCAL(widen_filter)(a);
    if (a->dx != NULL && !a->dx_accumulate && !a->in_place) {
        memset(a->dx, 0,
               (size_t)(a->batch * a->groups * a->in_channels * volume(a->in)) * sizeof(REAL));
    }
    if (a->dw != NULL && !a->dw_accumulate && end == 0) {
        memset(a->dw, 0, (size_t)(a->groups * a->out_channels * k) * sizeof(REAL));
    }
    for (int64_t i = 0; i < end; i++) {
        const conv_box b = box_at(a, i);

        for (int64_t g = 0; g < a->groups; g++) {
            LOCAL(read_block)(a, &b, g);
            if (a->dw != NULL) {
                LOCAL(filter_gradient)(a, &b, g, k, i > 0 || a->dw_accumulate);
            }
            if (a->dx != NULL) {
                LOCAL(input_gradient)(a, &b, g, k);
            }
        }
    }
}
#undef WIDENS
