/* Body of embedding.c for one dtype. */

void MSI_NAME(LOCAL(embedding))(const void *args)
{
    const msi_embedding_args *a = args;
    const size_t bytes = (size_t)a->width * sizeof(T);
    const T *table = a->table;
    T *out = a->out;

    for (int64_t i = 0; i < a->n; i++) {
        if (index_is_inside(a->ids[i], a->vocab)) {
            memcpy(out + i * a->width, table + a->ids[i] * a->width, bytes);
        } else {
            fault_found(a->fault, MSI_K_embedding, a->ids, i, a->n, a->vocab);
            memset(out + i * a->width, 0xff, bytes); /* NaN */
        }
    }
}

/* to (width) += dy (width) */
static void LOCAL(add_row)(REAL *to, const T *dy, int64_t width)
{
    int64_t j = 0;

    for (; j + WIDTH <= width; j += WIDTH) {
        OF(store)(to + j, OF(load)(to + j) + LOAD(dy + j));
    }
    if (j < width) {
        OF(store_n)(to + j, OF(load_n)(to + j, width - j) + LOAD_N(dy + j, width - j), width - j);
    }
}

#ifdef NARROW
/* Add `blocks` registers of rows, from column j with n lanes each, of all tokens that `next` links
 * from `token` on. Inlined with constants, so that the sums stay in registers. */
LANES_INLINE void LOCAL(add_tokens)(const msi_embedding_args *a, const int64_t *next, int64_t token,
                                    int64_t j, int blocks, int64_t n)
{
    T *to = (T *)a->dtable + a->ids[token] * a->width + j;
    V sum[4];

#pragma GCC unroll 4
    for (int u = 0; u < blocks; u++) {
        sum[u] = LOAD_N(to + u * WIDTH, n);
    }
    for (; token >= 0; token = next[token]) {
        const T *dy = (const T *)a->dy + token * a->width + j;

#pragma GCC unroll 4
        for (int u = 0; u < blocks; u++) {
            sum[u] += LOAD_N(dy + u * WIDTH, n);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < blocks; u++) {
        STORE_N(to + u * WIDTH, sum[u], n);
    }
}

/* Sum row by row, because only the complete sum is rounded: tokens of one id are linked first. */
static void LOCAL(add_rows_once)(const msi_embedding_args *a)
{
    int64_t *first = a->work, *next = a->work + a->vocab;

    for (int64_t v = 0; v < a->vocab; v++) {
        first[v] = -1;
    }
    for (int64_t i = a->n - 1; i >= 0; i--) {
        if (index_is_inside(a->ids[i], a->vocab)) {
            next[i] = first[a->ids[i]];
            first[a->ids[i]] = i;
        }
    }
    for (int64_t i = 0; i < a->n; i++) {
        int64_t j = 0;

        if (!index_is_inside(a->ids[i], a->vocab) || first[a->ids[i]] != i) {
            continue;
        }
        for (; j + 4 * WIDTH <= a->width; j += 4 * WIDTH) {
            LOCAL(add_tokens)(a, next, i, j, 4, WIDTH);
        }
        for (; j + WIDTH <= a->width; j += WIDTH) {
            LOCAL(add_tokens)(a, next, i, j, 1, WIDTH);
        }
        if (j < a->width) {
            LOCAL(add_tokens)(a, next, i, j, 1, a->width - j);
        }
    }
}
#endif

void MSI_NAME(LOCAL(embedding_grad))(const void *args)
{
    const msi_embedding_args *a = args;
    const size_t bytes = a->dtable_dtype == DTYPE ? sizeof(T) : sizeof(REAL);

    if (!a->accumulate) {
        memset(a->dtable, 0, (size_t)(a->vocab * a->width) * bytes);
    }
#ifdef NARROW
    if (a->dtable_dtype == DTYPE) {
        LOCAL(add_rows_once)(a);
        return;
    }
#endif
    for (int64_t i = 0; i < a->n; i++) {
        if (index_is_inside(a->ids[i], a->vocab)) {
            LOCAL(add_row)
            ((REAL *)a->dtable + a->ids[i] * a->width, (const T *)a->dy + i * a->width, a->width);
        }
    }
}
