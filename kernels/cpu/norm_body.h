/* Body of norm.c for one dtype. */

/* sums += squares of 32 elements, element i in sum i. */
LANES_INLINE void LOCAL(add_squares)(f64_part sums[SUM_PARTS], const T *x)
{
#pragma GCC unroll 16
    for (int64_t k = 0; k < 2 * LANES / WIDTH; k++) {
        V v = LOAD(x + k * WIDTH);

#if IS_F64
        sums[k] += v * v;
#else
        f32_half half[2];

        memcpy(half, &v, sizeof(half));
        f64_part a = __builtin_convertvector(half[0], f64_part);
        f64_part b = __builtin_convertvector(half[1], f64_part);

        sums[2 * k] += a * a;
        sums[2 * k + 1] += b * b;
#endif
    }
}

static double LOCAL(squares)(const T *x, int64_t n)
{
    f64_part sums[SUM_PARTS] = {{0}};
    f64x16 lanes[2];
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        LOCAL(add_squares)(sums, x + i);
    }
    if (i < n) {
        T rest[2 * LANES] = {0};

        memcpy(rest, x + i, (size_t)(n - i) * sizeof(T));
        LOCAL(add_squares)(sums, rest);
    }
    memcpy(lanes, sums, sizeof(lanes));
    return hsum_f64(lanes[0] + lanes[1]);
}

static double LOCAL(magnitude)(const T *x, int64_t n)
{
    V best = SPLAT(0), bad = SPLAT(0);
    REAL most = 0;

    for (int64_t i = 0; i < n; i += WIDTH) {
        V v = OF(abs)(n - i >= WIDTH ? LOAD(x + i) : LOAD_N(x + i, n - i));

        best = OF(max)(v, best); /* ignores NaN */
        bad = OF(select)(OF(ne)(v, v), v, bad);
    }
    for (int64_t k = 0; k < WIDTH; k++) {
        if (bad[k] != 0) {
            return (double)NAN;
        }
        most = best[k] > most ? best[k] : most;
    }
    return (double)most;
}

static double LOCAL(powers)(const T *x, int64_t n, double order)
{
    double total = 0;

    for (int64_t i = 0; i < n; i += WIDTH) {
        const int64_t width = n - i < WIDTH ? n - i : WIDTH;
        const V v = OF(abs)(width == WIDTH ? LOAD(x + i) : LOAD_N(x + i, width));

        for (int64_t k = 0; k < width; k++) {
            total += norm_power((double)v[k], order);
        }
    }
    return total;
}

static double LOCAL(block_norm)(const T *x, int64_t n, double order)
{
    return order == 2          ? LOCAL(squares)(x, n)
           : order == HUGE_VAL ? LOCAL(magnitude)(x, n)
                               : LOCAL(powers)(x, n, order);
}

void MSI_NAME(LOCAL(norm))(const void *args)
{
    const msi_norm_args *a = args;

    for (int64_t b = 0; b * a->block < a->n; b++) {
        const int64_t first = b * a->block;
        const int64_t n = a->n - first < a->block ? a->n - first : a->block;

        a->out[b] = LOCAL(block_norm)((const T *)a->x + first, n, a->order);
    }
}

void MSI_NAME(LOCAL(norm_cut))(const void *args)
{
    const msi_norm_cut_args *a = args;

    for (int64_t k = 0; k < a->n; k++) {
        T block[MSI_NORM_BLOCK];
        int64_t n = 0;

        for (int64_t i = a->first[k]; i < a->first[k + 1]; i++) {
            const msi_norm_piece *p = &a->pieces[i];

            memcpy(block + n, (const T *)a->in + p->from, (size_t)p->n * sizeof(T));
            n += p->n;
        }
        a->out[k] = LOCAL(block_norm)(block, n, a->order);
    }
}
