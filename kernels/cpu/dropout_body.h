/* Body of dropout.c for one dtype. */

/* v where its word is at least the threshold, else 0. */
LANES_INLINE V LOCAL(chosen)(V v, const uint32_t *words, uint32_t threshold)
{
#if IS_F64
    for (int64_t i = 0; i < WIDTH; i++) {
        v[i] = words[i] >= threshold ? v[i] : 0;
    }
    return v;
#else
    u32_part w;

    memcpy(&w, words, sizeof(w));
    return (V)((u32_part)v & (u32_part)(w >= threshold));
#endif
}

/* n <= WIDTH elements. */
LANES_INLINE void LOCAL(stretch)(T *out, const T *x, const uint32_t *words, uint32_t threshold,
                                 REAL scale, bool accumulate, int64_t n)
{
    V v = LOCAL(chosen)(LOAD_N(x, n) * scale, words, threshold);

    STORE_N(out, accumulate ? LOAD_N(out, n) + v : v, n);
}

/* One block of random words, or the rest of a sample. */
LANES_INLINE void LOCAL(block)(T *out, const T *x, const uint32_t *words, uint32_t threshold,
                               REAL scale, bool accumulate, int64_t n)
{
    int64_t i = 0;

    for (; i + WIDTH <= n; i += WIDTH) {
        LOCAL(stretch)(out + i, x + i, words + i, threshold, scale, accumulate, WIDTH);
    }
    if (i < n) {
        LOCAL(stretch)(out + i, x + i, words + i, threshold, scale, accumulate, n - i);
    }
}

void MSI_NAME(LOCAL(dropout))(const void *args)
{
    static const T zeros[PHILOX_WORDS];
    const msi_dropout_args *a = args;
    const double below = ceil(a->p * 0x1p32); /* word < p 2^32 is equivalent to word < below */
    const bool all = below >= 0x1p32;
    const uint32_t threshold = all ? 0 : (uint32_t)below;
    const uint64_t key = philox_key(a->seed, a->site, (uint64_t)a->call);
    const REAL scale = all ? 0 : (REAL)(1 / (1 - a->p));
    uint32_t words[PHILOX_WORDS];

    for (int64_t b = 0; b < a->samples; b++) {
        const T *x = (const T *)a->x + b * a->per_sample;
        T *out = (T *)a->out + b * a->per_sample;

        for (int64_t e = 0; e < a->per_sample; e += PHILOX_WORDS) {
            const int64_t n = a->per_sample - e < PHILOX_WORDS ? a->per_sample - e : PHILOX_WORDS;
            const T *from = all ? zeros : x + e; /* 0 times infinity would be NaN */

            philox(words, (uint64_t)(e / 4), (uint64_t)(a->sample_base + b), key);
            if (a->accumulate) {
                LOCAL(block)(out + e, from, words, threshold, scale, true, n);
            } else {
                LOCAL(block)(out + e, from, words, threshold, scale, false, n);
            }
        }
    }
}
