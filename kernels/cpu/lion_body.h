/* Body of lion.c for one dtype.
 *
 *   p = p (1 - lr weight_decay)                           (g negated to maximize)
 *   p = p - lr sign(beta1 m + (1 - beta1) g)              (sign(0) is 0)
 *   m = beta2 m + (1 - beta2) g */

typedef struct LOCAL(rule) {
    REAL sign, keep, beta1, fresh1, beta2, fresh2, lr;
} LOCAL(rule);

/* n <= WIDTH elements. */
LANES_INLINE void LOCAL(step)(const LOCAL(rule) * r, T *param, const T *grad, T *first, int64_t n)
{
    const V g = LOAD_N(grad, n) * r->sign, m = LOAD_N(first, n);
    const V mixed = m * r->beta1 + g * r->fresh1;
    const V unit = OF(select)(OF(ne)(mixed, SPLAT(0)), OF(copysign)(SPLAT(1), mixed), SPLAT(0));
    /* NaN is kept */
    const V move = OF(select)(OF(ne)(mixed, mixed), mixed, unit);

    STORE_N(first, m * r->beta2 + g * r->fresh2, n);
    STORE_N(param, LOAD_N(param, n) * r->keep - move * r->lr, n);
}

void MSI_NAME(LOCAL(lion))(const void *args)
{
    const msi_lion_args *a = args;
    const LOCAL(rule) r = {.sign = a->maximize ? -1 : 1,
                           .keep = (REAL)(1 - a->lr * a->weight_decay),
                           .beta1 = (REAL)a->beta1,
                           .fresh1 = (REAL)(1 - a->beta1),
                           .beta2 = (REAL)a->beta2,
                           .fresh2 = (REAL)(1 - a->beta2),
                           .lr = (REAL)a->lr};
    const T *g = a->g;
    T *p = a->p, *m = a->m;

    for (int64_t i = 0; i < a->n; i += WIDTH) {
        LOCAL(step)(&r, p + i, g + i, m + i, a->n - i < WIDTH ? a->n - i : WIDTH);
    }
}
