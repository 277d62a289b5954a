/* Body of adagrad.c for one dtype.
 *
 *   g = g + weight_decay p      (g negated to maximize)
 *   sum = sum + g g
 *   p = p - lr g / (sqrt(sum) + eps)      (lr after its decay) */

typedef struct LOCAL(rule) {
    REAL sign, decay, eps, lr;
} LOCAL(rule);

/* n <= WIDTH elements. */
LANES_INLINE void LOCAL(step)(const LOCAL(rule) * r, T *param, const T *grad, T *sum, int64_t n)
{
    V p = LOAD_N(param, n), g = LOAD_N(grad, n) * r->sign;

    if (r->decay != 0) {
        g += p * r->decay;
    }
    V s = LOAD_N(sum, n) + g * g;

    STORE_N(sum, s, n);
    STORE_N(param, p - g / (OF(sqrt)(s) + r->eps) * r->lr, n);
}

void MSI_NAME(LOCAL(adagrad))(const void *args)
{
    const msi_adagrad_args *a = args;
    const LOCAL(rule) r = {.sign = a->maximize ? -1 : 1,
                           .decay = (REAL)a->weight_decay,
                           .eps = (REAL)a->eps,
                           .lr = (REAL)a->lr};
    const T *g = a->g;
    T *p = a->p, *sum = a->sum;

    for (int64_t i = 0; i < a->n; i += WIDTH) {
        LOCAL(step)(&r, p + i, g + i, sum + i, a->n - i < WIDTH ? a->n - i : WIDTH);
    }
}
