/* Body of rmsprop.c for one dtype.
 *
 *   g = g + weight_decay p                  (g negated to maximize)
 *   v = alpha v + (1 - alpha) g g           (from the left, as PyTorch)
 *   mean = mean + (1 - alpha) (g - mean);   d = sqrt(v - mean mean) + eps   (centered)
 *                                           d = sqrt(v) + eps               (otherwise)
 *   buf = momentum buf + g / d;   p = p - lr buf    (with momentum)
 *   p = p - lr g / d                                (without) */

typedef struct LOCAL(rule) {
    REAL sign, decay, alpha, fresh, eps, momentum, lr;
} LOCAL(rule);

/* n <= WIDTH elements; mean and buf may be NULL. */
LANES_INLINE void LOCAL(step)(const LOCAL(rule) * r, T *param, const T *grad, T *second, T *mean,
                              T *buf, int64_t n)
{
    V p = LOAD_N(param, n), g = LOAD_N(grad, n) * r->sign;

    if (r->decay != 0) {
        g += p * r->decay;
    }
    V v = LOAD_N(second, n) * r->alpha + g * r->fresh * g, square = v;

    STORE_N(second, v, n);
    if (mean != NULL) {
        V m = LOAD_N(mean, n);

        m += (g - m) * r->fresh;
        STORE_N(mean, m, n);
        square = v - m * m;
    }
    V move = g / (OF(sqrt)(square) + r->eps);

    if (buf != NULL) {
        move = LOAD_N(buf, n) * r->momentum + move;
        STORE_N(buf, move, n);
    }
    STORE_N(param, p - move * r->lr, n);
}

void MSI_NAME(LOCAL(rmsprop))(const void *args)
{
    const msi_rmsprop_args *a = args;
    const LOCAL(rule) r = {.sign = a->maximize ? -1 : 1,
                           .decay = (REAL)a->weight_decay,
                           .alpha = (REAL)a->alpha,
                           .fresh = (REAL)(1 - a->alpha),
                           .eps = (REAL)a->eps,
                           .momentum = (REAL)a->momentum,
                           .lr = (REAL)a->lr};
    const T *g = a->g;
    T *p = a->p, *v = a->v, *mean = a->mean, *buf = a->buf;

    for (int64_t i = 0; i < a->n; i += WIDTH) {
        LOCAL(step)
        (&r, p + i, g + i, v + i, mean != NULL ? mean + i : NULL, buf != NULL ? buf + i : NULL,
         a->n - i < WIDTH ? a->n - i : WIDTH);
    }
}
