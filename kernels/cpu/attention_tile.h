/* Tiles of attention for one dtype of their operands, T here. Letters: T queries, S keys, D head
 * width; a tile is nq <= MSI_ATTENTION_ROWS queries times nk <= MSI_ATTENTION_COLS keys.
 *
 * Forward (arXiv:2205.14135, algorithm 1), per head and block of queries, over blocks of keys:
 *   scores = q k^T;  m' = max(m, scale scores);  p = exp(scale scores - m')
 *   l = l exp(m - m') + sum p;  acc = acc exp(m - m') + p v          out = acc / l
 * Backward (algorithm 4), per head and block of keys, over blocks of queries:
 *   p = exp(scale q k^T - m) / l;  ds = scale p (dout v^T - delta),  delta = sum over D of dout out
 *   dv += p^T dout;  dk += ds^T q;  dq += ds k
 * (m and l are not combined to m + log l: with large scores, rounding would lose l.)
 * Products of tiles use msi_gemm(); sums stay in the compute type until the end. Blocks that are
 * causally masked are skipped, and a tile ends at the last key that any of its queries attends to.
 * Masked elements inside a tile have p = ds = 0. Because 0 times inf or NaN is NaN, a partly masked
 * tile with such values is summed over the unmasked elements only.
 * A mask is added to the scaled scores of a tile in place; a bool mask adds 0 or -inf. A tile ends
 * at the last key that the mask allows for any of its queries. */

/* c (m, n) = x (m, k) y (k, n) [+ c], c in the compute type. */
static void LOCAL(product)(const msi_attention_args *a, int64_t m, int64_t n, int64_t k, const T *x,
                           int64_t x_row, int64_t x_col, const T *y, int64_t y_row, int64_t y_col,
                           REAL *c, int64_t c_row, bool accumulate)
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
                       .c_row = c_row,
                       .batch = 1,
                       .dtype = DTYPE,
                       .c_dtype = REAL_DTYPE,
                       .accumulate = accumulate,
                       .is_gradient = a->dq != NULL,
                       .op = a->op};

    if (*a->status == MS_OK) {
        *a->status = msi_gemm(a->ctx, &g);
    }
}

/* Are all n elements finite? */
static bool LOCAL(finite)(const T *x, int64_t n)
{
    V sum[LOCAL(PARTS)] = {SPLAT(0)};

    for (int64_t i = 0; i < n; i += LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < LOCAL(PARTS); u++) {
            if (i + WIDTH * u < n) {
                V v = LOAD_N(x + i + WIDTH * u, n - i - WIDTH * u);

                sum[u] += v - v;
            }
        }
    }
    return LOCAL(fold)(sum) == 0;
}

/* c (D) = sum over n rows of y (n, D) times x, whose elements are x_step apart [+ c]. */
static void LOCAL(sum_seen)(REAL *c, const T *x, int64_t x_step, const T *y, int64_t n,
                            int64_t depth, bool accumulate)
{
    for (int64_t d = 0; d < depth; d += WIDTH) {
        V sum = accumulate ? OF(load_n)(c + d, depth - d) : SPLAT(0);

        for (int64_t i = 0; i < n; i++) {
            sum += LOAD_N(y + i * depth + d, depth - d) * SPLAT(LOCAL(get)(x + i * x_step));
        }
        OF(store_n)(c + d, sum, depth - d);
    }
}

/* c (nq, D) = x (nq, padded(nk)) y (nk, D) [+ c]; x is 0 for keys that a query does not attend to.
 */
static void LOCAL(sum_keys)(const msi_attention_args *a, int64_t q0, int64_t nq, int64_t k0,
                            int64_t nk, const T *x, const T *y, REAL *c, bool accumulate)
{
    const int64_t depth = a->head_dim, row = padded(nk), seen = visible(a, q0, k0, nk);

    if (LOCAL(finite)(y + seen * depth, (nk - seen) * depth)) {
        LOCAL(product)(a, nq, depth, nk, x, row, 1, y, depth, 1, c, depth, accumulate);
        return;
    }
    for (int64_t i = 0; i < nq; i++) {
        LOCAL(sum_seen)
        (c + i * depth, x + i * row, 1, y, visible(a, q0 + i, k0, nk), depth, accumulate);
    }
}

/* c (nk, D) = x^T (nq, padded(nk)) y (nq, D) [+ c], x as in sum_keys(). */
static void LOCAL(sum_queries)(const msi_attention_args *a, int64_t q0, int64_t nq, int64_t k0,
                               int64_t nk, const T *x, const T *y, REAL *c, bool accumulate)
{
    const int64_t depth = a->head_dim, row = padded(nk);
    int64_t first = 0; /* first query that attends to key i */

    if (visible(a, q0, k0, nk) == nk || LOCAL(finite)(y, nq * depth)) {
        LOCAL(product)(a, nk, depth, nq, x, 1, row, y, depth, 1, c, depth, accumulate);
        return;
    }
    for (int64_t i = 0; i < nk; i++) {
        while (visible(a, q0 + first, k0, nk) <= i) {
            first++;
        }
        LOCAL(sum_seen)
        (c + i * depth, x + first * row + i, row, y + first * depth, nq - first, depth, accumulate);
    }
}

/* Largest scaled score among the first n. */
static REAL LOCAL(row_max)(const REAL *scores, int64_t n, REAL scale)
{
    V best[LOCAL(PARTS)];
    int64_t j = 0;

#pragma GCC unroll 8
    for (int u = 0; u < LOCAL(PARTS); u++) {
        best[u] = SPLAT(-INFINITY);
    }
    for (; j + LANES <= n; j += LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < LOCAL(PARTS); u++) {
            best[u] = OF(max)(best[u], OF(load)(scores + j + WIDTH * u) * SPLAT(scale));
        }
    }
    for (int u = 0; j < n; u++, j += WIDTH) {
        V v = OF(load)(scores + j) * SPLAT(scale);

        best[u] = OF(max)(best[u], LOCAL(keep)(v, n - j, -INFINITY));
    }
    return LOCAL(fold_max)(best);
}

/* p = exp(scale scores - m) for the first n of nk keys, 0 for the rest. @return their sum */
static REAL LOCAL(row_exp)(T *p, const REAL *scores, int64_t n, int64_t nk, REAL scale, REAL m)
{
    V sum[LOCAL(PARTS)] = {SPLAT(0)};
    int64_t j = 0;

    for (; j + LANES <= n; j += LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < LOCAL(PARTS); u++) {
            const int64_t at = j + WIDTH * u;
            V e = OF(exp_neg)(OF(load)(scores + at) * SPLAT(scale) - SPLAT(m));

            sum[u] += e;
            LOCAL(store_score)(p + at, e);
        }
    }
    for (int u = 0; j < n; u++, j += WIDTH) {
        V e = OF(exp_neg)(OF(load)(scores + j) * SPLAT(scale) - SPLAT(m));

        e = LOCAL(keep)(e, n - j, 0);
        sum[u] += e;
        LOCAL(store_score)(p + j, e);
    }
    for (; j < padded(nk); j += WIDTH) {
        LOCAL(store_score)(p + j, SPLAT(0));
    }
    return LOCAL(fold)(sum);
}

static void LOCAL(scale_row)(REAL *row, int64_t n, REAL factor)
{
    for (int64_t d = 0; d < n; d += WIDTH) {
        OF(store_n)(row + d, OF(load_n)(row + d, n - d) * SPLAT(factor), n - d);
    }
}

/* -- masks and dropout ------------------------------------------------------------------------- */

/* Offset of the mask of query t and key k0, in elements. */
static int64_t LOCAL(mask_offset)(const int64_t *stride, int64_t t, int64_t k0)
{
    return t * stride[2] + k0 * stride[3];
}

/* Number of keys in [k0, k0 + nk) up to the last one that the mask allows for queries [q0, q0 +
 * nq). */
static int64_t LOCAL(shown)(const msi_attention_args *a, const tiles *w, int64_t q0, int64_t nq,
                            int64_t k0, int64_t nk)
{
    const int64_t rows = a->mask_stride[2] == 0 ? 1 : nq, step = a->mask_stride[3];
    int64_t n = 0;

    if (a->mask == NULL) {
        return nk;
    }
    for (int64_t i = 0; i < rows && n < nk; i++) {
        const int64_t at = LOCAL(mask_offset)(a->mask_stride, q0 + i, k0);
        int64_t end = nk;

        if (a->mask_is_bool) {
            const uint8_t *m = (const uint8_t *)w->mask + at;

            while (end > n && m[(end - 1) * step] == 0) {
                end--;
            }
        } else {
            const REAL *m = (const REAL *)w->mask + at;

            while (end > n && m[(end - 1) * step] == -(REAL)INFINITY) {
                end--;
            }
        }
        n = end;
    }
    return n;
}

/* What to add to the scores of query t and keys [k0, k0 + nk): the mask itself, or a copy in
 * `room`. */
static const REAL *LOCAL(bias_row)(const msi_attention_args *a, const tiles *w, REAL *room,
                                   int64_t t, int64_t k0, int64_t nk)
{
    const int64_t at = LOCAL(mask_offset)(a->mask_stride, t, k0), step = a->mask_stride[3];

    if (!a->mask_is_bool) {
        const REAL *m = (const REAL *)w->mask + at;

        if (step == 1) {
            return m;
        }
        for (int64_t j = 0; j < nk; j++) {
            room[j] = m[0];
        }
        return room;
    }
    const uint8_t *m = (const uint8_t *)w->mask + at;

    if (step == 1) {
        for (int64_t j = 0; j < nk; j++) {
            room[j] = m[j] != 0 ? 0 : -(REAL)INFINITY;
        }
    } else {
        for (int64_t j = 0; j < nk; j++) {
            room[j] = m[0] != 0 ? 0 : -(REAL)INFINITY;
        }
    }
    return room;
}

/* scores = scale scores + mask, for a tile. @return the remaining factor of the scores */
static REAL LOCAL(add_mask)(const msi_attention_args *a, const tiles *w, REAL *scores, int64_t q0,
                            int64_t nq, int64_t k0, int64_t nk)
{
    const int64_t row = padded(nk);
    const REAL scale = (REAL)a->scale, *bias = NULL;
    REAL room[MSI_ATTENTION_COLS];

    if (a->mask == NULL) {
        return scale;
    }
    for (int64_t i = 0; i < nq; i++, scores += row) {
        if (i == 0 || a->mask_stride[2] != 0) {
            bias = LOCAL(bias_row)(a, w, room, q0 + i, k0, nk);
        }
        for (int64_t j = 0; j < nk; j += WIDTH) {
            V v = OF(load)(scores + j) * SPLAT(scale) + OF(load_n)(bias + j, nk - j);

            OF(store)(scores + j, v);
        }
    }
    return 1;
}

/* Zero the dropped probabilities among the first n of a row. */
static void LOCAL(drop_row)(T *p, const uint32_t *words, uint64_t threshold, int64_t n)
{
    const uint32_t most = (uint32_t)(threshold - 1); /* threshold is 1 to 2^32 */

    for (int64_t j = 0; j < n; j++) {
        p[j] = words[j] > most ? p[j] : 0;
    }
}

/* -- forward ----------------------------------------------------------------------------------- */

/* Process one tile: add keys [k0, k0 + nk) to the sums of queries [q0, q0 + nq). */
static void LOCAL(forward_tile)(const msi_attention_args *a, const tiles *w, int64_t q0, int64_t nq,
                                int64_t k0, int64_t nk, bool first)
{
    const int64_t depth = a->head_dim, row = padded(nk);
    const T *q = (const T *)w->q + q0 * depth, *k = (const T *)w->k + k0 * depth;
    const T *v = (const T *)w->v + k0 * depth;
    REAL *scores = w->scores, *acc = w->acc, *m = (REAL *)w->max + q0, *l = (REAL *)w->rsum + q0;
    REAL m_new[MSI_ATTENTION_ROWS], shrink[MSI_ATTENTION_ROWS] = {0};
    uint32_t words[DROP_WORDS];
    T *p = w->p;

    LOCAL(product)(a, nq, nk, depth, q, depth, 1, k, 1, depth, scores, row, false);
    const REAL scale = LOCAL(add_mask)(a, w, scores, q0, nq, k0, nk);

    for (int64_t i = 0; i < nq; i++) {
        const int64_t n = visible(a, q0 + i, k0, nk);
        const REAL most = LOCAL(row_max)(scores + i * row, n, scale);

        m_new[i] = m[i] > most ? m[i] : most;
        shrink[i] = m[i] - m_new[i];
    }
    for (int64_t i = 0; i < nq; i += WIDTH) {
        OF(store)(shrink + i, OF(exp_neg)(OF(load)(shrink + i)));
    }
    for (int64_t i = 0; i < nq; i++) {
        const int64_t n = visible(a, q0 + i, k0, nk);

        if (!first && n > 0 && shrink[i] != 1) {
            LOCAL(scale_row)(acc + i * depth, depth, shrink[i]);
            l[i] *= shrink[i];
        }
        l[i] += LOCAL(row_exp)(p + i * row, scores + i * row, n, nk, scale, m_new[i]);
        m[i] = m_new[i];
        if (a->dropout_p > 0) {
            LOCAL(drop_row)
            (p + i * row, drop_words(a, w, words, q0 + i, k0, n), drop_threshold(a), n);
        }
    }
    LOCAL(sum_keys)(a, q0, nq, k0, nk, p, v, acc, !first);
}

/* acc, m and l (stored in rsum) of queries [q0, q0 + nq). */
static void LOCAL(forward_queries)(const msi_attention_args *a, const tiles *w, int64_t q0,
                                   int64_t nq)
{
    const int64_t end = visible(a, q0 + nq - 1, 0, a->kv_len);
    REAL *m = (REAL *)w->max + q0, *l = (REAL *)w->rsum + q0;
    bool first = true;

    for (int64_t i = 0; i < nq; i++) {
        m[i] = OF_REAL(lowest); /* not -inf: a score of -inf must have probability 0 */
        l[i] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += MSI_ATTENTION_COLS) {
        const int64_t most = end - k0 < MSI_ATTENTION_COLS ? end - k0 : MSI_ATTENTION_COLS;
        const int64_t nk = LOCAL(shown)(a, w, q0, nq, k0, most);

        if (nk > 0) {
            LOCAL(forward_tile)(a, w, q0, nq, k0, nk, first);
            first = false;
        }
    }
    if (first) {
        memset(w->acc, 0, (size_t)(nq * a->head_dim) * sizeof(REAL));
    }
}

/* -- backward ---------------------------------------------------------------------------------- */

/* p and ds of one query from its scores and dp: for the first n of nk keys, 0 for the others. */
static void LOCAL(row_grad)(T *p, T *ds, const REAL *scores, const REAL *dp, int64_t n, int64_t nk,
                            REAL score_scale, REAL scale, REAL max, REAL rsum, REAL delta)
{
    int64_t j = 0;

    for (; j < n; j += WIDTH) {
        V e = OF(exp_neg)(OF(load)(scores + j) * SPLAT(score_scale) - SPLAT(max)) * SPLAT(rsum);

        LOCAL(store_score)(p + j, LOCAL(keep)(e, n - j, 0));
        e = e * (OF(load)(dp + j) - SPLAT(delta)) * SPLAT(scale);
        LOCAL(store_score)(ds + j, LOCAL(keep)(e, n - j, 0));
    }
    for (; j < padded(nk); j += WIDTH) {
        LOCAL(store_score)(p + j, SPLAT(0));
        LOCAL(store_score)(ds + j, SPLAT(0));
    }
}

/* dmask += p (dp - delta) for a query and n keys; the sum over the keys if `step` is 0. */
static void LOCAL(add_dmask)(REAL *dmask, int64_t step, const REAL *scores, const REAL *dp,
                             int64_t n, REAL score_scale, REAL max, REAL rsum, REAL delta)
{
    V sum[LOCAL(PARTS)] = {SPLAT(0)};

    for (int64_t j = 0; j < n; j += WIDTH) {
        V e = OF(exp_neg)(OF(load)(scores + j) * SPLAT(score_scale) - SPLAT(max)) * SPLAT(rsum);

        e = e * (OF(load)(dp + j) - SPLAT(delta));
        if (step == 1) {
            OF(store_n)(dmask + j, OF(load_n)(dmask + j, n - j) + e, n - j);
        } else {
            sum[j / WIDTH % LOCAL(PARTS)] += LOCAL(keep)(e, n - j, 0);
        }
    }
    if (step == 0) {
        dmask[0] += LOCAL(fold)(sum);
    }
}

/* Apply dropout to dp of a query and n keys. */
static void LOCAL(drop_dp)(REAL *dp, const uint32_t *words, uint64_t threshold, REAL factor,
                           int64_t n)
{
    const uint32_t most = (uint32_t)(threshold - 1);

    for (int64_t j = 0; j < n; j++) {
        dp[j] = words[j] > most ? dp[j] * factor : 0;
    }
}

/* Process one tile. Without a mask the first tile of a block of keys stores dk and dv, and the
 * first of a block of queries dq; all others add. */
static void LOCAL(backward_tile)(const msi_attention_args *a, const tiles *w, int64_t q0,
                                 int64_t nq, int64_t k0, int64_t nk, bool first)
{
    const int64_t depth = a->head_dim, row = padded(nk);
    const REAL scale = (REAL)a->scale, *max = w->max, *rsum = w->rsum, *delta = w->delta;
    const T *q = (const T *)w->q + q0 * depth, *dout = (const T *)w->dout + q0 * depth;
    const T *k = (const T *)w->k + k0 * depth, *v = (const T *)w->v + k0 * depth;
    REAL *scores = w->scores, *dp = w->dp, *dq = (REAL *)w->dq + q0 * depth;
    uint32_t words[DROP_WORDS];
    T *p = w->p, *ds = w->ds;

    LOCAL(product)(a, nq, nk, depth, q, depth, 1, k, 1, depth, scores, row, false);
    LOCAL(product)(a, nq, nk, depth, dout, depth, 1, v, 1, depth, dp, row, false);
    const REAL score_scale = LOCAL(add_mask)(a, w, scores, q0, nq, k0, nk);

    for (int64_t i = 0; i < nq; i++, scores += row, dp += row) {
        const int64_t t = q0 + i, n = visible(a, t, k0, nk);
        const uint32_t *chosen = NULL;

        if (a->dropout_p > 0) {
            chosen = drop_words(a, w, words, t, k0, n);
            LOCAL(drop_dp)(dp, chosen, drop_threshold(a), (REAL)drop_factor(a), n);
        }
        LOCAL(row_grad)
        (p + i * row, ds + i * row, scores, dp, n, nk, score_scale, scale, max[t], rsum[t],
         delta[t]);
        if (chosen != NULL) {
            LOCAL(drop_row)(p + i * row, chosen, drop_threshold(a), n);
        }
        if (a->dmask != NULL) {
            LOCAL(add_dmask)
            ((REAL *)w->dmask + LOCAL(mask_offset)(a->dmask_stride, t, k0), a->dmask_stride[3],
             scores, dp, n, score_scale, max[t], rsum[t], delta[t]);
        }
    }
    LOCAL(sum_queries)(a, q0, nq, k0, nk, p, dout, w->dv, !first);
    LOCAL(sum_queries)(a, q0, nq, k0, nk, ds, q, w->dk, !first);
    LOCAL(sum_keys)(a, q0, nq, k0, nk, ds, k, dq, k0 > 0 || a->mask != NULL);
}

/* Compute dk and dv of keys [k0, k0 + nk), and add their contribution to dq. */
static void LOCAL(backward_keys)(const msi_attention_args *a, const tiles *w, int64_t k0,
                                 int64_t nk)
{
    const int64_t depth = a->head_dim, rows = MSI_ATTENTION_ROWS;
    const int64_t first = a->causal ? k0 / rows * rows : 0; /* no earlier query attends to them */
    int64_t stored = 0; /* whose dk and dv the first tile stores; later ones may be wider */

    if (first < a->q_len && a->mask == NULL) {
        const int64_t last = first + rows < a->q_len ? first + rows : a->q_len;

        stored = visible(a, last - 1, k0, nk);
    }
    memset((REAL *)w->dk + stored * depth, 0, (size_t)((nk - stored) * depth) * sizeof(REAL));
    memset((REAL *)w->dv + stored * depth, 0, (size_t)((nk - stored) * depth) * sizeof(REAL));
    for (int64_t q0 = first; q0 < a->q_len; q0 += rows) {
        const int64_t nq = a->q_len - q0 < rows ? a->q_len - q0 : rows;
        const int64_t n = LOCAL(shown)(a, w, q0, nq, k0, visible(a, q0 + nq - 1, k0, nk));

        if (n > 0) {
            LOCAL(backward_tile)(a, w, q0, nq, k0, n, q0 == first && a->mask == NULL);
        }
    }
}
