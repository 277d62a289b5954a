/* Body of layer_norm.c for one dtype; the macros are documented in each_register.h. */

#include "row_lanes.h"

enum { LOCAL(BLOCK) = 32 }; /* rows whose dw and db are summed in registers first */

static REAL LOCAL(mean_of)(const T *x, int64_t cols)
{
    return LOCAL(sum64)(x, cols) / (REAL)cols;
}

/* Mean of the squared distances from `mean`. */
static REAL LOCAL(variance_of)(const T *x, int64_t cols, REAL mean)
{
    return LOCAL(squares64)(x, cols, mean) / (REAL)cols;
}

/* The mean limited to the range of its row, which rounding may have exceeded. */
static REAL LOCAL(mean_within)(const T *x, int64_t cols, REAL mean)
{
    V most = SPLAT(-INFINITY), least = SPLAT(INFINITY);
    REAL low = INFINITY, high = -INFINITY;

    for (int64_t j = 0; j < cols; j += WIDTH) {
        const V v = LOAD_N(x + j, cols - j);

        most = OF(max)(most, LOCAL(keep)(v, cols - j, -INFINITY));
        least = OF(min)(least, LOCAL(keep)(v, cols - j, INFINITY));
    }
    for (int u = 0; u < WIDTH; u++) {
        low = least[u] < low ? least[u] : low;
        high = most[u] > high ? most[u] : high;
    }
    return mean < low ? low : mean > high ? high : mean;
}

/* Do the elements of a row differ by no more than the rounding error of its mean? Normalising such
 * a row would amplify that error: to 1 each if all are equal. */
static bool LOCAL(is_level)(int64_t cols, REAL mean, REAL variance)
{
    const REAL epsilon = sizeof(REAL) == sizeof(float) ? (REAL)FLT_EPSILON : (REAL)DBL_EPSILON;
    const REAL rounding = epsilon * ((REAL)cols / 64 + 8) * mean; /* bound for sums in 64 lanes */

    return variance <= rounding * rounding;
}

void MSI_NAME(LOCAL(layer_norm))(const void *args)
{
    const msi_layer_norm_args *a = args;
    const int64_t cols = a->cols;
    const T *w = a->w, *b = a->b;

    for (int64_t i = 0; i < a->rows; i++) {
        const T *x = (const T *)a->x + i * cols;
        T *y = (T *)a->y + i * cols;
        REAL mean = LOCAL(mean_of)(x, cols), variance = LOCAL(variance_of)(x, cols, mean);

        if (LOCAL(is_level)(cols, mean, variance)) {
            const REAL within = LOCAL(mean_within)(x, cols, mean);

            variance = LOCAL(variance_of)(x, cols, within);
            mean = isfinite(mean) || variance == 0 ? within : mean; /* a sum that overflowed: NaN */
        }
        const REAL rstd = 1 / SQRT1(variance + (REAL)a->eps);

        for (int64_t j = 0; j < cols; j += WIDTH) {
            const int64_t n = cols - j;
            V v = (LOAD_N(x + j, n) - SPLAT(mean)) * SPLAT(rstd);

            if (w != NULL) {
                v *= LOAD_N(w + j, n);
            }
            if (b != NULL) {
                v += LOAD_N(b + j, n);
            }
            STORE_N(y + j, v, n);
        }
        ((REAL *)a->mean)[i] = mean;
        ((REAL *)a->rstd)[i] = rstd;
    }
}

/* -- gradient ---------------------------------------------------------------------------------- */

/* A term of dx for the columns of a register at j, of which n are valid: g = dy w. */
LANES_INLINE V LOCAL(gradient_at)(const T *dy, const T *w, int64_t j, int64_t n)
{
    V g = LOAD_N(dy + j, n);

    return w != NULL ? g * LOAD_N(w + j, n) : g;
}

/* dx of one row: rstd (g - mean(g) - xhat mean(g xhat)), g = dy w. Sums are in 16 lanes. */
static void LOCAL(row_dx)(const msi_layer_norm_grad_args *a, int64_t i)
{
    const int64_t cols = a->cols;
    const T *x = (const T *)a->x + i * cols, *dy = (const T *)a->dy + i * cols, *w = a->w;
    T *dx = (T *)a->dx + i * cols;
    const V mean = SPLAT(((const REAL *)a->mean)[i]), rstd = SPLAT(((const REAL *)a->rstd)[i]);
    V sum[LOCAL(PARTS)] = {SPLAT(0)}, dot[LOCAL(PARTS)] = {SPLAT(0)};

    for (int64_t j = 0; j < cols; j += LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < LOCAL(PARTS); u++) {
            const int64_t at = j + WIDTH * u, n = cols - at;

            if (n > 0) { /* lanes beyond the row have g = 0 */
                const V g = LOCAL(gradient_at)(dy, w, at, n);

                sum[u] += g;
                dot[u] += g * ((LOAD_N(x + at, n) - mean) * rstd);
            }
        }
    }
    const V mean_g = SPLAT(LOCAL(fold)(sum) / (REAL)cols),
            mean_gx = SPLAT(LOCAL(fold)(dot) / (REAL)cols);

    for (int64_t j = 0; j < cols; j += WIDTH) {
        const int64_t n = cols - j;
        V xhat = (LOAD_N(x + j, n) - mean) * rstd;
        V v = (LOCAL(gradient_at)(dy, w, j, n) - mean_g - xhat * mean_gx) * rstd;

        if (a->dx_accumulate) {
            v += LOAD_N(dx + j, n);
        }
        STORE_N(dx + j, v, n);
    }
}

enum { LOCAL(WIDE) = 4 }; /* registers of columns that are summed together */

/* Sums of dy xhat and dy over rows [i, end) in `vectors` times n columns from j. Inlined with
 * constants; the grouping of columns does not affect the sums. */
LANES_INLINE void LOCAL(columns)(const msi_layer_norm_grad_args *a, int64_t i, int64_t end,
                                 int64_t j, int vectors, int64_t n, V *dw, V *db)
{
    V w[LOCAL(WIDE)] = {SPLAT(0)}, b[LOCAL(WIDE)] = {SPLAT(0)};

    for (; i < end; i++) {
        const T *x = (const T *)a->x + i * a->cols + j, *dy = (const T *)a->dy + i * a->cols + j;
        const V mean = SPLAT(((const REAL *)a->mean)[i]), rstd = SPLAT(((const REAL *)a->rstd)[i]);

#pragma GCC unroll 4
        for (int u = 0; u < vectors; u++) {
            V g = LOAD_N(dy + WIDTH * u, n);

            w[u] += g * ((LOAD_N(x + WIDTH * u, n) - mean) * rstd);
            b[u] += g;
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < vectors; u++) {
        dw[u] = w[u];
        db[u] = b[u];
    }
}

/* [old +] v into the first n columns at `to`, which may be NULL. */
LANES_INLINE void LOCAL(add_real)(REAL *to, V v, int64_t n, bool add)
{
    if (to != NULL) {
        OF(store_n)(to, add ? OF(load_n)(to, n) + v : v, n);
    }
}

/* Add dw and db of rows [i, end) to the earlier rows'. */
static void LOCAL(block_dw)(const msi_layer_norm_grad_args *a, int64_t i, int64_t end)
{
    REAL *dw = a->dw, *db = a->db;
    V w[LOCAL(WIDE)], b[LOCAL(WIDE)];

    for (int64_t j = 0; j < a->cols;) {
        const bool wide = j + WIDTH * LOCAL(WIDE) <= a->cols;
        const int64_t left = a->cols - j;

        if (wide) {
            LOCAL(columns)(a, i, end, j, LOCAL(WIDE), WIDTH, w, b);
        } else {
            LOCAL(columns)(a, i, end, j, 1, left, w, b);
        }
        for (int u = 0; u < (wide ? LOCAL(WIDE) : 1); u++, j += WIDTH) {
            const int64_t n = a->cols - j;

            LOCAL(add_real)(dw != NULL ? dw + j : NULL, w[u], n, i > 0 || a->dw_accumulate);
            LOCAL(add_real)(db != NULL ? db + j : NULL, b[u], n, i > 0 || a->db_accumulate);
        }
    }
}

#ifdef NARROW
LANES_INLINE void LOCAL(add_narrow)(T *to, V v, int64_t n, bool add)
{
    if (to != NULL) {
        STORE_N(to, add ? LOAD_N(to, n) + v : v, n);
    }
}

/* dw and db in f16 or bf16: the sum over all blocks is computed first and rounded once. */
static void LOCAL(narrow_dw)(const msi_layer_norm_grad_args *a)
{
    T *dw = a->dw, *db = a->db;

    for (int64_t j = 0; j < a->cols; j += WIDTH) {
        const int64_t n = a->cols - j;
        V w = SPLAT(0), b = SPLAT(0);

        for (int64_t i = 0; i < a->rows; i += LOCAL(BLOCK)) {
            const int64_t end = i + LOCAL(BLOCK) < a->rows ? i + LOCAL(BLOCK) : a->rows;
            V part_w, part_b;

            LOCAL(columns)(a, i, end, j, 1, n, &part_w, &part_b);
            w += part_w;
            b += part_b;
        }
        LOCAL(add_narrow)(dw != NULL ? dw + j : NULL, w, n, a->dw_accumulate);
        LOCAL(add_narrow)(db != NULL ? db + j : NULL, b, n, a->db_accumulate);
    }
}
#endif

static void LOCAL(no_rows)(void *to, int32_t dtype, int64_t cols, bool accumulate)
{
    if (to != NULL && !accumulate) {
        memset(to, 0, (size_t)cols * (dtype == DTYPE ? sizeof(T) : sizeof(REAL)));
    }
}

void MSI_NAME(LOCAL(layer_norm_grad))(const void *args)
{
    const msi_layer_norm_grad_args *a = args;
    bool blocks = a->dw != NULL || a->db != NULL;

    if (a->rows == 0) {
        LOCAL(no_rows)(a->dw, a->dw_dtype, a->cols, a->dw_accumulate);
        LOCAL(no_rows)(a->db, a->dw_dtype, a->cols, a->db_accumulate);
        return;
    }
#ifdef NARROW
    if (blocks && a->dw_dtype == DTYPE) {
        LOCAL(narrow_dw)(a);
        blocks = false;
    }
#endif
    for (int64_t i = 0; i < a->rows; i += LOCAL(BLOCK)) {
        const int64_t end = i + LOCAL(BLOCK) < a->rows ? i + LOCAL(BLOCK) : a->rows;

        if (blocks) { /* before dx, which may overwrite dy */
            LOCAL(block_dw)(a, i, end);
        }
        for (int64_t r = i; a->dx != NULL && r < end; r++) {
            LOCAL(row_dx)(a, r);
        }
    }
}
