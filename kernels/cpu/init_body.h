/* Body of init.c for one dtype. */

#if IS_F64
#define NORMAL_VALUES normal_values_f64
#else
#define NORMAL_VALUES normal_values_f32
#endif

/* The largest T below b: rounding must not return the excluded upper bound. */
static double LOCAL(below)(double b)
{
#if IS_F64
    return nextafter(b, -INFINITY);
#elif defined(NARROW)
    T h;

    STORE_N(&h, SPLAT((float)b), 1);
    if ((double)LOAD_N(&h, 1)[0] >= b) { /* the next lower number: sign and magnitude */
        h = (T)((h & 0x7fff) == 0 ? 0x8001 : h & 0x8000 ? h + 1 : h - 1);
    }
    return (double)LOAD_N(&h, 1)[0];
#else
    return (double)(float)b >= b ? (double)nextafterf((float)b, -INFINITY) : (double)(float)b;
#endif
}

/* Elements [32 block, 32 block + 32), limited to `most`. */
static void LOCAL(values)(REAL *out, const msi_init_args *a, int64_t block, double most)
{
    double x[PER_BLOCK];

    if (a->kind == MS_INIT_NORMAL) {
        NORMAL_VALUES(out, a, block);
        return;
    }
    uniform_values(x, a, block);
    for (int i = 0; i < PER_BLOCK; i++) {
        out[i] = (REAL)(x[i] > most ? most : x[i]);
    }
}

void MSI_NAME(LOCAL(init))(const void *args)
{
    const msi_init_args *a = args;
    const bool bounded = a->kind == MS_INIT_UNIFORM && a->b > a->a;
    const double most = bounded ? LOCAL(below)(a->b) : INFINITY;
    REAL x[PER_BLOCK + WIDTH]; /* whole registers are loaded */
    T *out = a->out;

    for (int i = 0; i < PER_BLOCK + WIDTH; i++) {
        x[i] = (REAL)a->a;
    }
    for (int64_t i = 0; i < a->n;) {
        const int64_t at = (a->first + i) % PER_BLOCK;
        const int64_t n = PER_BLOCK - at < a->n - i ? PER_BLOCK - at : a->n - i;

        if (a->kind != MS_INIT_CONSTANT) {
            LOCAL(values)(x, a, (a->first + i) / PER_BLOCK, most);
        }
        for (int64_t k = 0; k < n; k += WIDTH) {
            STORE_N(out + i + k, OF(load)(x + at + k), n - k);
        }
        i += n;
    }
}

#undef NORMAL_VALUES
