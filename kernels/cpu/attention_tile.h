/* Body of attention.c for one dtype. Letters: T queries, S keys, D head width; a tile is nq <=
 * MSI_ATTENTION_ROWS queries times nk <= MSI_ATTENTION_COLS keys, dense, in `work`.
 *
 * Forward (arXiv:2205.14135, algorithm 1), per head and block of queries, over blocks of keys:
 *   scores = q k^T;  m' = max(m, scale scores);  p = exp(scale scores - m')
 *   l = l exp(m - m') + sum p;  acc = acc exp(m - m') + p v          out = acc / l, lse = m + log l
 * Backward (algorithm 4), per head and block of keys, over blocks of queries:
 *   p = exp(scale q k^T - lse);  ds = scale p (dout v^T - delta),  delta = sum over D of dout out
 *   dv += p^T dout;  dk += ds^T q;  dq += ds k
 * Products of tiles are msi_gemm()'s; sums stay in the compute type until the end. Blocks that the
 * causal mask hides are skipped, and tiles end at the last key that any of their queries sees. */

/* c (m, n) dense = x (m, k) y (k, n) [+ c], in the compute type. */
static void LOCAL(product)(const msi_attention_args *a, int64_t m, int64_t n, int64_t k, const T *x,
                           int64_t x_row, int64_t x_col, const T *y, int64_t y_row, int64_t y_col,
                           REAL *c, bool accumulate)
{
    msi_gemm_args g = {.m = m,
                       .n = n,
                       .k = k,
                       .a = x,
                       .b = y,
                       .c = c,
                       .a_row = x_row,
                       .a_col = x_col,
                       .b_row = y_row,
                       .b_col = y_col,
                       .c_row = n,
                       .batch = 1,
                       .dtype = DTYPE,
                       .c_dtype = REAL_DTYPE,
                       .accumulate = accumulate};

    if (*a->status == MS_OK) {
        *a->status = msi_gemm(a->ctx, &g);
    }
}

/* Keys in [k0, k0 + nk) that query t sees. */
static int64_t LOCAL(visible)(const msi_attention_args *a, int64_t t, int64_t k0, int64_t nk)
{
    int64_t n = a->causal ? t + a->kv_len - a->q_len + 1 - k0 : nk;

    return n < 0 ? 0 : n < nk ? n : nk;
}

/* Largest scaled score among the first n. */
static REAL LOCAL(row_max)(const REAL *scores, int64_t n, REAL scale)
{
    V best = SPLAT(-INFINITY);
    int64_t j = 0;

    for (; j + 16 <= n; j += 16) {
        best = VMAX(best, LOAD_REAL(scores + j) * scale);
    }
    if (j < n) {
        best = VMAX(best, LOCAL(keep)(LOAD_REAL_N(scores + j, n - j) * scale, n - j, -INFINITY));
    }
    return HMAX(best);
}

/* p = exp(scale scores - m) for the first n of nk keys, 0 for the rest. @return their sum */
static REAL LOCAL(row_exp)(T *p, const REAL *scores, int64_t n, int64_t nk, REAL scale, REAL m)
{
    V sum = SPLAT(0);
    int64_t j = 0;

    for (; j + 16 <= n; j += 16) {
        V e = OF_REAL(exp_neg)(LOAD_REAL(scores + j) * scale - m);

        sum += e;
        LOCAL(store_score)(p + j, e);
    }
    if (j < n) {
        V e = LOCAL(keep)(OF_REAL(exp_neg)(LOAD_REAL_N(scores + j, n - j) * scale - m), n - j, 0);

        sum += e;
        STORE_N(p + j, e, n - j);
    }
    if (n < nk) {
        memset(p + n, 0, (size_t)(nk - n) * sizeof(T));
    }
    return HSUM(sum);
}

/* to (rows, D), strided = from (rows, D), dense, row i times factor[i] (NULL: 1). */
static void LOCAL(put_rows)(T *to, int64_t stride, const REAL *from, int64_t rows, int64_t depth,
                            const REAL *factor)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL f = factor != NULL ? factor[i] : 1;
        int64_t d = 0;

        for (; d + 16 <= depth; d += 16) {
            STORE(to + i * stride + d, LOAD_REAL(from + i * depth + d) * f);
        }
        if (d < depth) {
            STORE_N(to + i * stride + d, LOAD_REAL_N(from + i * depth + d, depth - d) * f,
                    depth - d);
        }
    }
}

static void LOCAL(scale_row)(REAL *row, int64_t n, REAL factor)
{
    int64_t d = 0;

    for (; d + 16 <= n; d += 16) {
        STORE_REAL(row + d, LOAD_REAL(row + d) * factor);
    }
    for (; d < n; d++) {
        row[d] *= factor;
    }
}

static REAL LOCAL(dot)(const T *x, const T *y, int64_t n)
{
    V sum = SPLAT(0);
    int64_t d = 0;

    for (; d + 16 <= n; d += 16) {
        sum += LOAD(x + d) * LOAD(y + d);
    }
    if (d < n) {
        sum += LOAD_N(x + d, n - d) * LOAD_N(y + d, n - d);
    }
    return HSUM(sum);
}

/* What lies in `work`. The operands of one head are copied in when their rows are not neighbours:
 * dense tiles are the faster products. */
#define WORK LOCAL(work)
typedef struct WORK {
    T *q, *k, *v, *dout; /* (T, D), (S, D), (S, D), (T, D) of the present head */
    REAL *scores, *dp;   /* (nq, nk) */
    T *p, *ds;           /* (nq, nk) */
    REAL *acc;           /* forward: (nq, D) */
    REAL *m, *l;         /* forward: (nq) running maximum and sum */
    REAL *dq, *dk, *dv;  /* (T, D), (nk, D), (nk, D) */
    REAL *delta;         /* (T) */
    const REAL *lse;     /* (T) of the present head */
} WORK;

/* The next n elements of `work`, on a cache line. */
static void *LOCAL(part)(char **work, int64_t n, size_t size)
{
    char *at = *work;

    *work += (n * (int64_t)size + 63) & ~(int64_t)63;
    return at;
}

static WORK LOCAL(lay_out)(const msi_attention_args *a, bool gradient)
{
    const int64_t rows = a->q_len < MSI_ATTENTION_ROWS ? a->q_len : MSI_ATTENTION_ROWS;
    const int64_t cols = a->kv_len < MSI_ATTENTION_COLS ? a->kv_len : MSI_ATTENTION_COLS;
    const int64_t depth = a->head_dim;
    char *work = a->work;
    WORK w = {0};

    w.q = LOCAL(part)(&work, a->q_len * depth, sizeof(T));
    w.k = LOCAL(part)(&work, a->kv_len * depth, sizeof(T));
    w.v = LOCAL(part)(&work, a->kv_len * depth, sizeof(T));
    w.scores = LOCAL(part)(&work, rows * cols, sizeof(REAL));
    w.p = LOCAL(part)(&work, rows * cols, sizeof(T));
    if (gradient) {
        w.dout = LOCAL(part)(&work, a->q_len * depth, sizeof(T));
        w.dp = LOCAL(part)(&work, rows * cols, sizeof(REAL));
        w.ds = LOCAL(part)(&work, rows * cols, sizeof(T));
        w.dq = LOCAL(part)(&work, a->q_len * depth, sizeof(REAL));
        w.dk = LOCAL(part)(&work, cols * depth, sizeof(REAL));
        w.dv = LOCAL(part)(&work, cols * depth, sizeof(REAL));
        w.delta = LOCAL(part)(&work, a->q_len, sizeof(REAL));
    } else {
        w.acc = LOCAL(part)(&work, rows * depth, sizeof(REAL));
        w.m = LOCAL(part)(&work, rows, sizeof(REAL));
        w.l = LOCAL(part)(&work, rows, sizeof(REAL));
    }
    return w;
}

/* The rows of one head, dense: in place when they are, else copied to `room`. */
static T *LOCAL(dense)(T *room, const void *x, const int64_t *stride, int64_t b, int64_t h,
                       int64_t rows, int64_t depth)
{
    const T *from = (const T *)x + b * stride[0] + h * stride[1];

    if (stride[2] == depth) {
        return (T *)(uintptr_t)from; /* only read */
    }
    for (int64_t i = 0; i < rows; i++) {
        memcpy(room + i * depth, from + i * stride[2], (size_t)depth * sizeof(T));
    }
    return room;
}

/* `w` with the operands of head (b, h). */
static WORK LOCAL(enter)(const msi_attention_args *a, const WORK *w, int64_t b, int64_t h)
{
    const int64_t depth = a->head_dim;
    WORK head = *w;

    head.q = LOCAL(dense)(w->q, a->q, a->q_stride, b, h, a->q_len, depth);
    head.k = LOCAL(dense)(w->k, a->k, a->k_stride, b, h, a->kv_len, depth);
    head.v = LOCAL(dense)(w->v, a->v, a->v_stride, b, h, a->kv_len, depth);
    if (w->dout != NULL) {
        head.dout = LOCAL(dense)(w->dout, a->dout, a->do_stride, b, h, a->q_len, depth);
    }
    head.lse = (const REAL *)a->lse + (b * a->heads + h) * a->q_len;
    return head;
}

/* -- forward ----------------------------------------------------------------------------------- */

/* One tile: fold keys [k0, k0 + nk) into the sums of queries [q0, q0 + nq). */
static void LOCAL(forward_tile)(const msi_attention_args *a, const WORK *w, int64_t q0, int64_t nq,
                                int64_t k0, int64_t nk)
{
    const int64_t depth = a->head_dim;
    const REAL scale = (REAL)a->scale;
    const T *q = w->q + q0 * depth, *k = w->k + k0 * depth, *v = w->v + k0 * depth;
    REAL m_new[MSI_ATTENTION_ROWS], shrink[MSI_ATTENTION_ROWS] = {0};

    LOCAL(product)(a, nq, nk, depth, q, depth, 1, k, 1, depth, w->scores, false);
    for (int64_t i = 0; i < nq; i++) {
        const int64_t n = LOCAL(visible)(a, q0 + i, k0, nk);
        const REAL m = LOCAL(row_max)(w->scores + i * nk, n, scale);

        m_new[i] = w->m[i] > m ? w->m[i] : m;
        shrink[i] = w->m[i] - m_new[i]; /* NaN while nothing was seen: the sums are 0 then */
    }
    for (int64_t i = 0; i < nq; i += 16) {
        STORE_REAL(shrink + i, OF_REAL(exp_neg)(LOAD_REAL(shrink + i)));
    }
    for (int64_t i = 0; i < nq; i++) {
        const int64_t n = LOCAL(visible)(a, q0 + i, k0, nk);

        if (k0 > 0 && n > 0 && shrink[i] != 1) {
            LOCAL(scale_row)(w->acc + i * depth, depth, shrink[i]);
            w->l[i] *= shrink[i];
        }
        w->l[i] += LOCAL(row_exp)(w->p + i * nk, w->scores + i * nk, n, nk, scale, m_new[i]);
        w->m[i] = m_new[i];
    }
    LOCAL(product)(a, nq, depth, nk, w->p, nk, 1, v, depth, 1, w->acc, k0 > 0);
}

static void LOCAL(forward_head)(const msi_attention_args *a, const WORK *w, T *out, REAL *lse)
{
    const int64_t depth = a->head_dim;

    for (int64_t q0 = 0; q0 < a->q_len; q0 += MSI_ATTENTION_ROWS) {
        const int64_t left = a->q_len - q0;
        const int64_t nq = left < MSI_ATTENTION_ROWS ? left : MSI_ATTENTION_ROWS;
        const int64_t end = LOCAL(visible)(a, q0 + nq - 1, 0, a->kv_len);

        for (int64_t i = 0; i < nq; i++) {
            w->m[i] = -INFINITY;
            w->l[i] = 0;
        }
        if (end == 0) {
            memset(w->acc, 0, (size_t)(nq * depth) * sizeof(REAL));
        }
        for (int64_t k0 = 0; k0 < end; k0 += MSI_ATTENTION_COLS) {
            const int64_t nk = end - k0 < MSI_ATTENTION_COLS ? end - k0 : MSI_ATTENTION_COLS;

            LOCAL(forward_tile)(a, w, q0, nq, k0, nk);
        }
        for (int64_t i = 0; i < nq; i++) { /* a query that sees nothing gives zeros */
            lse[q0 + i] = w->l[i] == 0 ? -INFINITY : w->m[i] + LOG1(w->l[i]);
            w->l[i] = w->l[i] == 0 ? 0 : 1 / w->l[i];
        }
        LOCAL(put_rows)(out + q0 * a->o_stride[2], a->o_stride[2], w->acc, nq, depth, w->l);
    }
}

void MSI_NAME(LOCAL(attention))(const void *args)
{
    const msi_attention_args *a = args;
    const WORK w = LOCAL(lay_out)(a, false);

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const WORK head = LOCAL(enter)(a, &w, b, h);
            T *out = (T *)a->out + b * a->o_stride[0] + h * a->o_stride[1];

            LOCAL(forward_head)(a, &head, out, (REAL *)(uintptr_t)head.lse);
        }
    }
}

/* -- backward ---------------------------------------------------------------------------------- */

/* p and ds of the row at `at` in the tile, which is query t: the first n of nk keys, 0 for the
 * rest.
 */
static void LOCAL(row_grad)(const WORK *w, int64_t at, int64_t n, int64_t nk, REAL scale, int64_t t)
{
    const REAL *scores = w->scores + at, *dp = w->dp + at;
    const REAL lse = w->lse[t], delta = w->delta[t];
    T *p = w->p + at, *ds = w->ds + at;
    int64_t j = 0;

    for (; j + 16 <= n; j += 16) {
        V e = OF_REAL(exp_neg)(LOAD_REAL(scores + j) * scale - lse);

        LOCAL(store_score)(p + j, e);
        LOCAL(store_score)(ds + j, e * (LOAD_REAL(dp + j) - delta) * scale);
    }
    if (j < n) {
        V e = OF_REAL(exp_neg)(LOAD_REAL_N(scores + j, n - j) * scale - lse);

        STORE_N(p + j, e, n - j);
        STORE_N(ds + j, e * (LOAD_REAL_N(dp + j, n - j) - delta) * scale, n - j);
    }
    if (n < nk) {
        memset(p + n, 0, (size_t)(nk - n) * sizeof(T));
        memset(ds + n, 0, (size_t)(nk - n) * sizeof(T));
    }
}

/* One tile. The first tile of a block of keys stores dk and dv, the first of queries dq. */
static void LOCAL(backward_tile)(const msi_attention_args *a, const WORK *w, int64_t q0, int64_t nq,
                                 int64_t k0, int64_t nk, bool first)
{
    const int64_t depth = a->head_dim;
    const REAL scale = (REAL)a->scale;
    const T *q = w->q + q0 * depth, *dout = w->dout + q0 * depth;
    const T *k = w->k + k0 * depth, *v = w->v + k0 * depth;
    REAL *dq = w->dq + q0 * depth;

    LOCAL(product)(a, nq, nk, depth, q, depth, 1, k, 1, depth, w->scores, false);
    LOCAL(product)(a, nq, nk, depth, dout, depth, 1, v, 1, depth, w->dp, false);
    for (int64_t i = 0; i < nq; i++) {
        LOCAL(row_grad)(w, i * nk, LOCAL(visible)(a, q0 + i, k0, nk), nk, scale, q0 + i);
    }
    LOCAL(product)(a, nk, depth, nq, w->p, 1, nk, dout, depth, 1, w->dv, !first);
    LOCAL(product)(a, nk, depth, nq, w->ds, 1, nk, q, depth, 1, w->dk, !first);
    LOCAL(product)(a, nq, depth, nk, w->ds, nk, 1, k, depth, 1, dq, k0 > 0);
}

/* dk and dv of keys [k0, k0 + nk), and what they add to dq. */
static void LOCAL(backward_keys)(const msi_attention_args *a, const WORK *w, int64_t k0, int64_t nk)
{
    const int64_t depth = a->head_dim, rows = MSI_ATTENTION_ROWS;
    const int64_t hidden = a->causal ? k0 - (a->kv_len - a->q_len) : 0; /* queries that see none */
    const int64_t first = hidden > 0 ? hidden / rows * rows : 0;
    int64_t stored = 0; /* keys whose dk and dv the first tile stores: later ones may be wider */

    if (first < a->q_len) {
        const int64_t last = first + rows < a->q_len ? first + rows : a->q_len;

        stored = LOCAL(visible)(a, last - 1, k0, nk);
    }
    memset(w->dk + stored * depth, 0, (size_t)((nk - stored) * depth) * sizeof(REAL));
    memset(w->dv + stored * depth, 0, (size_t)((nk - stored) * depth) * sizeof(REAL));
    for (int64_t q0 = first; q0 < a->q_len; q0 += rows) {
        const int64_t nq = a->q_len - q0 < rows ? a->q_len - q0 : rows;
        const int64_t n = LOCAL(visible)(a, q0 + nq - 1, k0, nk);

        LOCAL(backward_tile)(a, w, q0, nq, k0, n, q0 == first);
    }
}

static void LOCAL(backward_head)(const msi_attention_args *a, const WORK *w, const T *o, T *dq,
                                 T *dk, T *dv)
{
    const int64_t depth = a->head_dim, cols = MSI_ATTENTION_COLS;
    const int64_t blind = a->kv_len == 0 ? a->q_len : a->causal ? a->q_len - a->kv_len : 0;

    for (int64_t t = 0; t < a->q_len; t++) {
        w->delta[t] = LOCAL(dot)(o + t * a->o_stride[2], w->dout + t * depth, depth);
    }
    if (blind > 0) { /* queries before the first key: no tile may store their dq */
        memset(w->dq, 0, (size_t)(blind * depth) * sizeof(REAL));
    }
    for (int64_t k0 = 0; k0 < a->kv_len; k0 += cols) {
        const int64_t nk = a->kv_len - k0 < cols ? a->kv_len - k0 : cols;

        LOCAL(backward_keys)(a, w, k0, nk);
        LOCAL(put_rows)(dk + k0 * a->dk_stride[2], a->dk_stride[2], w->dk, nk, depth, NULL);
        LOCAL(put_rows)(dv + k0 * a->dv_stride[2], a->dv_stride[2], w->dv, nk, depth, NULL);
    }
    LOCAL(put_rows)(dq, a->dq_stride[2], w->dq, a->q_len, depth, NULL);
}

void MSI_NAME(LOCAL(attention_grad))(const void *args)
{
    const msi_attention_args *a = args;
    const WORK w = LOCAL(lay_out)(a, true);

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const WORK head = LOCAL(enter)(a, &w, b, h);
            const T *o = (const T *)a->o + b * a->o_stride[0] + h * a->o_stride[1];
            T *dq = (T *)a->dq + b * a->dq_stride[0] + h * a->dq_stride[1];
            T *dk = (T *)a->dk + b * a->dk_stride[0] + h * a->dk_stride[1];
            T *dv = (T *)a->dv + b * a->dv_stride[0] + h * a->dv_stride[1];

            LOCAL(backward_head)(a, &head, o, dq, dk, dv);
        }
    }
}

#undef WORK
