/* Body of gemm.c for one compute type: define REAL, T (type of A and B), WIDEN (T to REAL) and
 * NAME, then include; FEW_ROWS is the function for products of few rows (gemm_rows.h), if any; if T
 * is narrower than REAL also WIDENED, DTYPE and NARROWED (REAL to T). A product is cut into blocks
 * of MC x NC of C and KC of the inner dimension:
 *
 *   C block <- sum over inner blocks of (sum over k in the block), both in ascending order
 *
 * so an element's value depends only on its row of A and its column of B, not on its position in C
 * or on the register tile, which differs between instruction sets. Tiles of ROWS x 2 vectors stay
 * in registers. B is packed into panels of two vectors' width (zeros beyond the edge). A is packed
 * and widened too, unless one panel covers all columns and A has the compute type. */

#define CAT2(a, b) a##_##b
#define CAT(a, b) CAT2(a, b)
#define LOCAL(name) CAT(name, NAME)
#define VECTOR LOCAL(vector)
#define PANEL ((int64_t)(2 * VECTOR_BYTES / sizeof(REAL))) /* columns of a tile */

typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL))));

/* c (ROWS, PANEL) = [c +] a (ROWS, kc) panel (kc, PANEL). Rows from n_rows on repeat the last one;
 * their results are not read. */
static void LOCAL(tile)(int64_t kc, const REAL *a, int64_t a_row, int64_t a_col, int64_t n_rows,
                        const REAL *panel, REAL *c, bool add)
{
    VECTOR sum[ROWS][2] = {0};
    const REAL *row[ROWS];

#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        row[r] = a + (r < n_rows ? r : n_rows - 1) * a_row;
    }
    for (int64_t k = 0; k < kc; k++) {
        VECTOR b0 = *(const VECTOR *)(panel + k * PANEL);
        VECTOR b1 = *(const VECTOR *)(panel + k * PANEL + PANEL / 2);

#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            REAL x = row[r][k * a_col];

            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        VECTOR *to = (VECTOR *)(c + r * NC), *to1 = (VECTOR *)(c + r * NC + PANEL / 2);

        if (add) {
            sum[r][0] += *to;
            sum[r][1] += *to1;
        }
        *to = sum[r][0];
        *to1 = sum[r][1];
    }
}

/* panel (kc, PANEL) = b (kc, width) and zeros to its right. */
static void LOCAL(pack_b)(REAL *restrict panel, const T *restrict b, int64_t b_row, int64_t b_col,
                          int64_t kc, int64_t width)
{
    if (b_col == 1 && width == PANEL) {
        for (int64_t k = 0; k < kc; k++) {
            for (int64_t j = 0; j < PANEL; j++) {
                panel[k * PANEL + j] = WIDEN(b[k * b_row + j]);
            }
        }
        return;
    }
    if (width < PANEL) {
        memset(panel, 0, (size_t)(kc * PANEL) * sizeof(REAL));
    }
    if (b_col == 1) {
        for (int64_t k = 0; k < kc; k++) {
            for (int64_t j = 0; j < width; j++) {
                panel[k * PANEL + j] = WIDEN(b[k * b_row + j]);
            }
        }
        return;
    }
    for (int64_t j = 0; j < width; j++) {
        for (int64_t k = 0; k < kc; k++) {
            panel[k * PANEL + j] = WIDEN(b[k * b_row + j * b_col]);
        }
    }
}

/* block = a (rows, kc), in a's own order. */
static void LOCAL(pack_a)(REAL *restrict block, const T *restrict a, int64_t rows, int64_t kc,
                          int64_t *a_row, int64_t *a_col)
{
    bool by_row = *a_col == 1;
    int64_t outer = by_row ? rows : kc, inner = by_row ? kc : rows;
    int64_t step = by_row ? KC : MC, outer_stride = by_row ? *a_row : *a_col;
    int64_t inner_stride = by_row ? *a_col : *a_row;

    for (int64_t i = 0; i < outer; i++) {
        const T *from = a + i * outer_stride;
        REAL *restrict to = block + i * step;

        if (inner_stride == 1) {
            for (int64_t j = 0; j < inner; j++) {
                to[j] = WIDEN(from[j]);
            }
        } else {
            for (int64_t j = 0; j < inner; j++) {
                to[j] = WIDEN(from[j * inner_stride]);
            }
        }
    }
    *a_row = by_row ? KC : 1;
    *a_col = by_row ? 1 : MC;
}

/* The inner sums of rows [0, mc) and columns [0, nc) of C. */
static void LOCAL(block)(const msi_gemm_args *g, const T *a, const T *b, int64_t mc, int64_t nc,
                         REAL *c)
{
    REAL panel[KC * PANEL] __attribute__((aligned(64)));
    REAL packed[MC * KC] __attribute__((aligned(64)));

    for (int64_t k0 = 0; k0 < g->k; k0 += KC) {
        int64_t kc = g->k - k0 < KC ? g->k - k0 : KC;
        int64_t a_row = g->a_row, a_col = g->a_col;
        const T *a_block = a + k0 * a_col;
#ifdef WIDENED
        const REAL *from = packed;

        LOCAL(pack_a)(packed, a_block, mc, kc, &a_row, &a_col);
#else
        const REAL *from = a_block;

        if (nc > PANEL) {
            LOCAL(pack_a)(packed, a_block, mc, kc, &a_row, &a_col);
            from = packed;
        }
#endif
        for (int64_t j = 0; j < nc; j += PANEL) {
            int64_t width = nc - j < PANEL ? nc - j : PANEL;

            LOCAL(pack_b)(panel, b + k0 * g->b_row + j * g->b_col, g->b_row, g->b_col, kc, width);
            for (int64_t i = 0; i < mc; i += ROWS) {
                const REAL *rows = from + i * a_row;
                REAL *to = c + i * NC + j;

                LOCAL(tile)(kc, rows, a_row, a_col, mc - i, panel, to, k0 > 0);
            }
        }
    }
}

/* C block = inner sums [+ bias] [+ C], rounded once. */
static void LOCAL(finish)(const msi_gemm_args *g, REAL *sums, int64_t i0, int64_t j0, int64_t mc,
                          int64_t nc, void *c)
{
    const T *bias = g->bias;
    const bool accumulate = g->accumulate; /* read in the loops, it would keep them scalar */

    for (int64_t i = 0; i < mc; i++) {
        REAL *restrict from = sums + i * NC;
        int64_t at = (i0 + i) * g->c_row + j0;

        if (bias != NULL) {
            for (int64_t j = 0; j < nc; j++) {
                from[j] += WIDEN(bias[j0 + j]);
            }
        }
#ifdef WIDENED
        if (g->c_dtype == DTYPE) {
            T *restrict to = (T *)c + at;

            for (int64_t j = 0; j < nc; j++) {
                to[j] = NARROWED(accumulate ? from[j] + WIDEN(to[j]) : from[j]);
            }
            continue;
        }
#endif
        REAL *restrict to = (REAL *)c + at;

        for (int64_t j = 0; j < nc; j++) {
            to[j] = accumulate ? from[j] + to[j] : from[j];
        }
    }
}

void MSI_NAME(NAME)(const void *args)
{
    const msi_gemm_args *g = args;
    const int64_t c_bytes = g->c_dtype == g->dtype ? sizeof(T) : sizeof(REAL);

#ifdef FEW_ROWS
    if (msi_gemm_has_few_rows(g)) {
        FEW_ROWS(g);
        return;
    }
#endif
    REAL sums[(MC + ROWS) * NC] __attribute__((aligned(64)));

    for (int64_t p = 0; p < g->batch; p++) {
        const T *a = (const T *)g->a + p * g->a_batch;
        const T *b = (const T *)g->b + p * g->b_batch;
        char *c = (char *)g->c + p * g->c_batch * c_bytes;

        for (int64_t i = 0; i < g->m; i += MC) {
            int64_t mc = g->m - i < MC ? g->m - i : MC;

            for (int64_t j = 0; j < g->n; j += NC) {
                int64_t nc = g->n - j < NC ? g->n - j : NC;

                if (g->k == 0) {
                    memset(sums, 0, sizeof(sums));
                }
                LOCAL(block)(g, a + i * g->a_row, b + j * g->b_col, mc, nc, sums);
                LOCAL(finish)(g, sums, i, j, mc, nc, c);
            }
        }
    }
}

#undef CAT2
#undef CAT
#undef LOCAL
#undef VECTOR
#undef PANEL
#undef REAL
#undef T
#undef WIDEN
#undef NARROWED
#undef DTYPE
#undef NAME
#undef FEW_ROWS
