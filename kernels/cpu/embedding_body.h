/* Body of embedding.c for one dtype. */

void MSI_NAME(LOCAL(embedding))(const void *args)
{
    const msi_embedding_args *a = args;
    const T *table = a->table;
    T *out = a->out;

    for (int64_t i = 0; i < a->n; i++) {
        memcpy(out + i * a->width, table + a->ids[i] * a->width, (size_t)a->width * sizeof(T));
    }
}

/* to (width) += dy (width) */
static void LOCAL(add_row)(T *to, const T *dy, int64_t width)
{
    int64_t j = 0;

    for (; j + WIDTH <= width; j += WIDTH) {
        STORE(to + j, LOAD(to + j) + LOAD(dy + j));
    }
    if (j < width) {
        STORE_N(to + j, LOAD_N(to + j, width - j) + LOAD_N(dy + j, width - j), width - j);
    }
}

#ifdef NARROW
static void LOCAL(add_row_wide)(REAL *to, const T *dy, int64_t width)
{
    int64_t j = 0;

    for (; j + WIDTH <= width; j += WIDTH) {
        OF(store)(to + j, OF(load)(to + j) + LOAD(dy + j));
    }
    if (j < width) {
        OF(store_n)(to + j, OF(load_n)(to + j, width - j) + LOAD_N(dy + j, width - j), width - j);
    }
}
#endif

void MSI_NAME(LOCAL(embedding_grad))(const void *args)
{
    const msi_embedding_args *a = args;
    const int64_t bytes = a->dtable_dtype == DTYPE ? (int64_t)sizeof(T) : (int64_t)sizeof(REAL);

    if (!a->accumulate) {
        memset(a->dtable, 0, (size_t)(a->vocab * a->width * bytes));
    }
    for (int64_t i = 0; i < a->n; i++) {
        void *to = (char *)a->dtable + a->ids[i] * a->width * bytes;
        const T *dy = (const T *)a->dy + i * a->width;

#ifdef NARROW
        if (a->dtable_dtype != DTYPE) {
            LOCAL(add_row_wide)(to, dy, a->width);
            continue;
        }
#endif
        LOCAL(add_row)(to, dy, a->width);
    }
}
