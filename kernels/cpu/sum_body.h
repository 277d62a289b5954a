/* Body of sum.c for one dtype. */

#ifdef INTEGER
typedef uint64_t LOCAL(total);

LANES_INLINE V LOCAL(load_n)(const T *p, int64_t n)
{
    T first[WIDTH] = {0};

    memcpy(first, p, (size_t)(n < WIDTH ? n : WIDTH) * sizeof(T));
    return LOAD(first);
}
#else
typedef double LOCAL(total);
#endif

/* out = [out +] scale * total, rounded once. */
static void LOCAL(finish)(const msi_sum_args *a, int64_t at, LOCAL(total) total)
{
#ifdef INTEGER
    int64_t *out = (int64_t *)a->out + at;
    int64_t x = a->scale == 1 ? (int64_t)total : whole_f64(a->scale * (double)(int64_t)total);

    *out = a->accumulate ? (int64_t)((uint64_t)*out + (uint64_t)x) : x;
#else
    double x = a->scale * total;

#ifdef NARROW
    if (a->out_dtype != DTYPE) {
        REAL *wide = (REAL *)a->out + at;

        *wide = (REAL)(a->accumulate ? x + (double)*wide : x);
        return;
    }
#endif
    T *out = (T *)a->out + at;

    x = a->accumulate ? x + (double)LOAD_N(out, 1)[0] : x;
    STORE_N(out, SPLAT(x), 1);
#endif
}

/* Sum of n <= 512 dense elements. */
static REAL LOCAL(chunk)(const T *x, int64_t n)
{
    enum { PARTS = LANES * sizeof(REAL) / LANES_REGISTER }; /* registers that hold 16 lanes */
    V part[PARTS] = {{0}};
    REAL lane[LANES];
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < PARTS; k++) {
            part[k] += LOAD(x + i + k * WIDTH);
        }
    }
    if (i < n) {
        T rest[LANES] = {0};

        memcpy(rest, x + i, (size_t)(n - i) * sizeof(T));
#pragma GCC unroll 8
        for (int64_t k = 0; k < PARTS; k++) {
            part[k] += LOAD(rest + k * WIDTH);
        }
    }
    memcpy(lane, part, sizeof(lane));
    return HSUM(lane);
}

/* One kept element, whose n reduced elements begin at `in`. */
static LOCAL(total) LOCAL(row)(const T *in, const msi_loop *reduced, int64_t n)
{
    const bool dense = n == 1 || (reduced->ndim == 1 && reduced->stride[1][0] == 1);
    position p = {.loop = reduced};
    LOCAL(total) total = 0;
    T buffer[SUM_CHUNK];

    for (int64_t k = 0; k < n; k += SUM_CHUNK) {
        const int64_t m = n - k < SUM_CHUNK ? n - k : SUM_CHUNK;

        if (dense) {
            total += LOCAL(chunk)(in + k, m);
            continue;
        }
        for (int64_t i = 0; i < m; i++) {
            buffer[i] = in[p.offset[1]];
            advance(&p);
        }
        total += LOCAL(chunk)(buffer, m);
    }
    return total;
}

/* A tile of `width` neighbouring columns; the reduced loop gives the rows. */
static void LOCAL(tile)(const msi_sum_args *a, const T *in, int64_t out, int64_t out_stride,
                        int64_t width, int64_t n)
{
    REAL lanes[LANES][SUM_TILE] __attribute__((aligned(64)));
    LOCAL(total) total[SUM_TILE];
    int64_t offset[SUM_CHUNK];
    position p = {.loop = &a->reduced};

    memset(total, 0, (size_t)width * sizeof(*total));
    for (int64_t k = 0; k < n; k += SUM_CHUNK) {
        const int64_t m = n - k < SUM_CHUNK ? n - k : SUM_CHUNK;

        for (int64_t i = 0; i < m; i++) {
            offset[i] = p.offset[1];
            advance(&p);
        }
        for (int64_t lane = m; lane < LANES; lane++) { /* lanes without rows are read too */
            memset(lanes[lane], 0, (size_t)(width + WIDTH - 1) / WIDTH * WIDTH * sizeof(REAL));
        }
        /* four rows of a lane at a time, to access its sums less often */
        for (int64_t first = 0; first < m; first += 4 * LANES) {
            for (int64_t lane = 0; lane < LANES && first + lane < m; lane++) {
                const T *row[4];
                int32_t rows = 0;

                for (int64_t i = first + lane; rows < 4 && i < m; i += LANES) {
                    row[rows++] = in + offset[i];
                }
                for (int64_t c = 0; c < width; c += WIDTH) {
                    V sum = {0};

                    if (first > 0) {
                        sum = LOAD_LANES(lanes[lane] + c);
                    }
                    if (rows == 4 && c + WIDTH <= width) {
                        sum = sum + LOAD(row[0] + c) + LOAD(row[1] + c) + LOAD(row[2] + c) +
                              LOAD(row[3] + c);
                    } else {
                        for (int32_t r = 0; r < rows; r++) {
                            sum += LOAD_N(row[r] + c, width - c);
                        }
                    }
                    STORE_LANES(lanes[lane] + c, sum);
                }
            }
        }
        for (int64_t half = LANES / 2; half > 0; half /= 2) { /* the order of hsum */
            for (int64_t lane = 0; lane < half; lane++) {
                for (int64_t c = 0; c < width; c += WIDTH) {
                    STORE_LANES(lanes[lane] + c,
                                LOAD_LANES(lanes[lane] + c) + LOAD_LANES(lanes[lane + half] + c));
                }
            }
        }
        for (int64_t c = 0; c < width; c++) {
            total[c] += lanes[0][c];
        }
    }
    for (int64_t c = 0; c < width; c++) {
        LOCAL(finish)(a, out + c * out_stride, total[c]);
    }
}

void MSI_NAME(LOCAL(sum))(const void *args)
{
    const msi_sum_args *a = args;
    const int64_t n = count(&a->reduced), n_kept = count(&a->kept);
    const T *in = a->in;
    position p = {.loop = &a->kept};

    if (!by_columns(a)) {
        for (int64_t i = 0; i < n_kept; i++) {
            LOCAL(finish)(a, p.offset[0], LOCAL(row)(in + p.offset[1], &a->reduced, n));
            advance(&p);
        }
        return;
    }
    msi_loop outer = a->kept;
    const int64_t width = outer.shape[--outer.ndim], stride = a->kept.stride[0][outer.ndim];

    p.loop = &outer;
    for (int64_t i = 0; i < n_kept; i += width) {
        for (int64_t c = 0; c < width; c += SUM_TILE) {
            LOCAL(tile)
            (a, in + p.offset[1] + c, p.offset[0] + c * stride, stride,
             width - c < SUM_TILE ? width - c : SUM_TILE, n);
        }
        advance(&p);
    }
}
