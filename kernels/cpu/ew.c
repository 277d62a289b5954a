/* Loops around elementwise rows. The innermost dimension is one that is dense in the destination,
 * if there is one. Rows that are dense (or broadcast) in every operand are passed to the op
 * directly, others are copied through small dense buffers. A source that is dense in another
 * dimension (transposed) is read in tiles, so that whole cache lines are used. */
#include "ew.h"

#include "tile.h"

enum { CHUNK = 256, STREAMED = 1 << 20 };

/* Position in the outer dimensions: all but `inner` and `cross`. */
typedef struct walk {
    const msi_loop *loop;
    int32_t inner, cross; /* cross: dimension in which a source is dense if not in `inner`; or -1 */
    int32_t n_operands;
    int64_t index[MSI_LOOP_DIMS];
    int64_t offset[4]; /* elements */
} walk;

static bool walk_next(walk *w)
{
    for (int32_t d = w->loop->ndim - 1; d >= 0; d--) {
        if (d == w->inner || d == w->cross) {
            continue;
        }
        w->index[d]++;
        for (int32_t k = 0; k < w->n_operands; k++) {
            w->offset[k] += w->loop->stride[k][d];
        }
        if (w->index[d] < w->loop->shape[d]) {
            return true;
        }
        for (int32_t k = 0; k < w->n_operands; k++) {
            w->offset[k] -= w->loop->stride[k][d] * w->index[d];
        }
        w->index[d] = 0;
    }
    return false;
}

static int32_t choose_inner(const msi_loop *loop)
{
    for (int32_t d = loop->ndim - 1; d >= 0; d--) {
        if (loop->stride[0][d] == 1 && loop->shape[d] > 1) {
            return d;
        }
    }
    return loop->ndim - 1;
}

#define MOVE(type)                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                              \
        ((type *)to)[i * to_stride] = ((const type *)from)[i * from_stride];                       \
    }

static void move(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t n,
                 int64_t bytes)
{
    switch (bytes) {
    case 1:
        MOVE(uint8_t);
        break;
    case 2:
        MOVE(uint16_t);
        break;
    case 4:
        MOVE(uint32_t);
        break;
    default:
        MOVE(uint64_t);
        break;
    }
}

/* One row with any strides, CHUNK elements at a time. */
static void run_strided(ew_row *r, ew_row_fn row, int32_t n_in, char *out, int64_t out_stride,
                        const char *const *in, const int64_t *in_stride, int64_t n,
                        int64_t out_bytes, const int64_t *in_bytes)
{
    uint64_t out_chunk[CHUNK], in_chunk[3][CHUNK];

    for (int64_t i = 0; i < n; i += CHUNK) {
        r->n = n - i < CHUNK ? n - i : CHUNK;
        for (int32_t k = 0; k < n_in; k++) {
            if (r->step[k] == 0) {
                continue; /* the caller has copied it */
            }
            const char *from = in[k] + i * in_stride[k] * in_bytes[k];

            if (in_stride[k] == 1) {
                r->in[k] = from;
            } else {
                move(in_chunk[k], 1, from, in_stride[k], r->n, in_bytes[k]);
                r->in[k] = in_chunk[k];
            }
        }
        char *to = out + i * out_stride * out_bytes;

        if (out_stride == 1) {
            r->out = to;
            row(r);
            continue;
        }
        r->out = out_chunk;
        if (r->args->accumulate) {
            move(out_chunk, 1, to, out_stride, r->n, out_bytes);
        }
        row(r);
        move(to, out_stride, out_chunk, 1, r->n, out_bytes);
    }
}

static int32_t choose_cross(const walk *w)
{
    for (int32_t k = 1; k < w->n_operands; k++) {
        const int64_t stride = w->loop->stride[k][w->inner];

        for (int32_t d = 0; d < w->loop->ndim && stride != 0 && stride != 1; d++) {
            if (d != w->inner && w->loop->stride[k][d] == 1 && w->loop->shape[d] > 1) {
                return d;
            }
        }
    }
    return -1;
}

/* The sources of one row of a tile. */
typedef union row_space {
    uint64_t copies[LANES];
    uint64_t chunk[TILE_LENGTH];
} row_space;

/* Process all rows of `inner` and `cross` from the operands' addresses `at`. */
static void run_tiles(const walk *w, ew_row *r, ew_row_fn row, char *const *at,
                      const int64_t *bytes)
{
    const int64_t n = w->loop->shape[w->inner], n_rows = w->loop->shape[w->cross];
    uint64_t tile[3][TILE_LINE * TILE_PITCH / sizeof(uint64_t)];
    row_space space[3];
    int64_t most = TILE_LINE, stride[4], cross[4];
    bool tiled[4];

    for (int32_t k = 0; k < w->n_operands; k++) {
        stride[k] = w->loop->stride[k][w->inner];
        cross[k] = w->loop->stride[k][w->cross];
        tiled[k] = k > 0 && cross[k] == 1 && stride[k] != 0 && stride[k] != 1;
        most = tiled[k] && tile_rows(bytes[k]) < most ? tile_rows(bytes[k]) : most;
    }
    for (int64_t i = 0; i < n; i += TILE_LENGTH) {
        r->n = n - i < TILE_LENGTH ? n - i : TILE_LENGTH;
        for (int64_t j = 0; j < n_rows; j += most) {
            const int64_t rows = n_rows - j < most ? n_rows - j : most;

            for (int32_t k = 1; k < w->n_operands; k++) {
                if (tiled[k]) {
                    tile_read(tile[k - 1], at[k] + (j + i * stride[k]) * bytes[k], stride[k], r->n,
                              rows, bytes[k]);
                }
            }
            for (int64_t l = 0; l < rows; l++) {
                for (int32_t k = 1; k < w->n_operands; k++) {
                    const char *from = at[k] + ((j + l) * cross[k] + i * stride[k]) * bytes[k];

                    r->step[k - 1] = stride[k] != 0;
                    r->in[k - 1] = from;
                    if (tiled[k]) {
                        r->in[k - 1] = (char *)tile[k - 1] + l * TILE_PITCH * bytes[k];
                    } else if (stride[k] != 1) {
                        move(&space[k - 1], 1, from, stride[k], stride[k] == 0 ? LANES : r->n,
                             bytes[k]);
                        r->in[k - 1] = &space[k - 1];
                    }
                }
                r->out = at[0] + ((j + l) * cross[0] + i) * bytes[0];
                row(r);
            }
        }
    }
}

void ew_run_mixed(const msi_ew_args *args, ew_row_fn row, int32_t n_in, int64_t out_bytes,
                  const int64_t *in_bytes)
{
    const msi_loop *loop = &args->loop;
    walk w = {.loop = loop, .inner = choose_inner(loop), .cross = -1, .n_operands = n_in + 1};
    const int64_t n = loop->ndim == 0 ? 1 : loop->shape[w.inner];
    ew_row r = {.n = n, .args = args};
    uint64_t copies[3][LANES]; /* copies of an element that is broadcast along the row */
    int64_t stride[4] = {1, 1, 1, 1};
    bool dense = true;

    for (int32_t d = 0; d < loop->ndim; d++) {
        if (loop->shape[d] == 0) {
            return;
        }
    }
    for (int32_t k = 0; k <= n_in && n > 1; k++) {
        stride[k] = loop->stride[k][w.inner];
        dense = dense && (stride[k] == 1 || (k > 0 && stride[k] == 0));
    }
    if (!dense && stride[0] == 1) {
        w.cross = choose_cross(&w);
    }
    if (w.cross >= 0) {
        const int64_t bytes[4] = {out_bytes, in_bytes[0], in_bytes[1], in_bytes[2]};

        r.streams = n * loop->shape[w.cross] * out_bytes > STREAMED;
        do {
            char *at[4] = {(char *)args->out + w.offset[0] * out_bytes};

            for (int32_t k = 1; k < w.n_operands; k++) {
                at[k] = (char *)args->in[k - 1] + w.offset[k] * bytes[k];
            }
            run_tiles(&w, &r, row, at, bytes);
        } while (walk_next(&w));
        _mm_sfence();
        return;
    }
    do {
        char *out = (char *)args->out + w.offset[0] * out_bytes;
        const char *in[3];

        for (int32_t k = 0; k < n_in; k++) {
            in[k] = (const char *)args->in[k] + w.offset[k + 1] * in_bytes[k];
            r.step[k] = stride[k + 1] != 0;
            r.in[k] = in[k];
            if (r.step[k] == 0) {
                move(copies[k], 1, in[k], 0, LANES, in_bytes[k]);
                r.in[k] = copies[k];
            }
        }
        if (dense) {
            r.out = out;
            row(&r);
        } else {
            run_strided(&r, row, n_in, out, stride[0], in, stride + 1, n, out_bytes, in_bytes);
        }
    } while (walk_next(&w));
}
