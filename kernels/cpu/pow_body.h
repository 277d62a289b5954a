/* Body of pow.c for one dtype. */

LANES_INLINE V LOCAL(power_whole)(V x, const power *w)
{
    V base = w->inverse ? (REAL)1 / x : x, y = SPLAT(1);

    for (int32_t n = w->n; n > 0; n >>= 1) {
        if (n & 1) {
            y = y * base;
        }
        base = base * base;
    }
    return y;
}

LANES_INLINE V LOCAL(power_root)(V x, const power *w)
{
    V y = OF(sqrt)(x);

    return w->inverse ? (REAL)1 / y : y;
}

LANES_INLINE V LOCAL(power_general)(V x, const power *w)
{
#if IS_F64
    for (int64_t i = 0; i < WIDTH; i++) {
        x[i] = pow(x[i], w->p);
    }
    return x;
#else
    V y = power_f32w(OF(abs)(x), w->p);

    if (w->integer) {
        return w->odd ? OF(copysign)(y, x) : y;
    }
    /* As in C, powers of -infinity are those of infinity. */
    return OF(select)(OF(lt)(x, SPLAT(0)) & OF(lt)(SPLAT(-INFINITY), x), SPLAT(NAN), y);
#endif
}

LANES_INLINE V LOCAL(power_lanes)(V x, const power *w)
{
    switch (w->way) {
    case POWER_WHOLE:
        return LOCAL(power_whole)(x, w);
    case POWER_ROOT:
        return LOCAL(power_root)(x, w);
    default:
        return LOCAL(power_general)(x, w);
    }
}

static void LOCAL(pow_row)(const ew_row *r)
{
    const power w = power_of(r->args->scalar[0]);
    const bool accumulate = r->args->accumulate;
    const int64_t n = r->n, step = r->step[0];
    const T *x = r->in[0];
    T *out = r->out;

    for (int64_t i = 0; i < n; i += WIDTH) {
        const int64_t m = n - i;
        V y = LOCAL(power_lanes)(LOAD_N(x + i * step, m), &w);

        STORE_N(out + i, accumulate ? y + LOAD_N(out + i, m) : y, m);
    }
}

/* in[0] p in[1]^(p - 1); x^0 is 1 everywhere, so its gradient is 0 everywhere. */
static void LOCAL(pow_grad_row)(const ew_row *r)
{
    const double p = r->args->scalar[0];
    const power w = power_of(p - 1);
    const bool accumulate = r->args->accumulate;
    const int64_t n = r->n, step_g = r->step[0], step_x = r->step[1];
    const T *g = r->in[0], *x = r->in[1];
    T *out = r->out;

    for (int64_t i = 0; i < n; i += WIDTH) {
        const int64_t m = n - i;
        V y = SPLAT(0);

        if (p != 0) {
            y = LOCAL(power_lanes)(LOAD_N(x + i * step_x, m), &w) * (REAL)p;
            y = y * LOAD_N(g + i * step_g, m);
        }
        STORE_N(out + i, accumulate ? y + LOAD_N(out + i, m) : y, m);
    }
}

void MSI_NAME(LOCAL(pow))(const void *args)
{
    ew_run(args, LOCAL(pow_row), 1, sizeof(T), sizeof(T));
}

void MSI_NAME(LOCAL(pow_grad))(const void *args)
{
    ew_run(args, LOCAL(pow_grad_row), 2, sizeof(T), sizeof(T));
}

/* -- an exponent for each element -------------------------------------------------------------- */

LANES_INLINE V LOCAL(power_each)(V x, V p)
{
    for (int64_t i = 0; i < WIDTH; i++) {
        x[i] = (REAL)pow((double)x[i], (double)p[i]);
    }
    return x;
}

EW(power, 2, LOCAL(power_each)(a, b))
EW(power_grad, 3,
   OF(select)(OF(eq)(c, SPLAT(0)), SPLAT(0), LOCAL(power_each)(b, c - (REAL)1) * c * a))
EW(power_grad_exponent, 3,
   OF(select)(OF(eq)(c, SPLAT(0)) & OF(lt)(b, SPLAT(INFINITY)), SPLAT(0), a *b *OF(log)(c)))
