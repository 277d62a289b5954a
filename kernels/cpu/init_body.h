/* Body of init.c for one dtype. */

/* The largest T below b: rounding must not carry a uniform value up to the open end. */
static double LOCAL(below)(double b)
{
#if LANES_IS_F64
    return nextafter(b, -INFINITY);
#elif defined(NARROW)
    float f = (float)b;
    T h;

    do {
        f = nextafterf(f, -INFINITY);
        store_n_bf16(&h, splat_f32(f), 1);
    } while ((double)load_n_bf16(&h, 1)[0] >= b);
    return (double)load_n_bf16(&h, 1)[0];
#else
    return (double)(float)b >= b ? (double)nextafterf((float)b, -INFINITY) : (double)(float)b;
#endif
}

void MSI_NAME(LOCAL(init))(const void *args)
{
    const msi_init_args *a = args;
    const bool bounded = a->kind == MS_INIT_UNIFORM && a->b > a->a;
    const double most = bounded ? LOCAL(below)(a->b) : INFINITY;
    double x[PER_BLOCK];
    T *out = a->out;

    for (int i = 0; i < PER_BLOCK; i++) {
        x[i] = a->a;
    }
    for (int64_t i = 0; i < a->n;) {
        const int64_t at = (a->first + i) % PER_BLOCK;
        int64_t n = PER_BLOCK - at < a->n - i ? PER_BLOCK - at : a->n - i;

        if (a->kind != MS_INIT_CONSTANT) {
            values(x, a, (a->first + i) / PER_BLOCK);
        }
        for (int64_t k = 0; k < n; k++) {
            REAL y = (REAL)(x[at + k] > most ? most : x[at + k]);

            STORE_N(out + i + k, SPLAT(y), 1);
        }
        i += n;
    }
}
