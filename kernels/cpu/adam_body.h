/* Body of adam.c for one dtype.
 *
 *   decoupled: p = p (1 - lr weight_decay), else g = g + weight_decay p   (g negated to maximize)
 *   (weight_decay 0: p is not read, since infinity times 0 is NaN)
 *   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g g   (from the left, as PyTorch: g g
 *   alone would overflow or underflow sooner)
 *   amsgrad: most = max(most, v), in place of v below
 *   p = p - lr / correction1 * m / (sqrt(v) / sqrt(correction2) + eps)
 *
 *   without v (Adamax): most = max(beta2 most, |g| + eps);   p = p - lr / correction1 * m / most */

typedef struct LOCAL(rule) {
    REAL sign, keep, decay, beta1, fresh1, beta2, fresh2, root, eps, step;
} LOCAL(rule);

/* n <= WIDTH elements; second or most may be NULL. */
LANES_INLINE void LOCAL(step)(const LOCAL(rule) * r, T *param, const T *grad, T *first, T *second,
                              T *most, int64_t n)
{
    V p = LOAD_N(param, n);
    V g = LOAD_N(grad, n) * r->sign;

    if (r->decay != 0) {
        g += p * r->decay;
    }
    V m = LOAD_N(first, n) * r->beta1 + g * r->fresh1;

    STORE_N(first, m, n);
    if (second == NULL) {
        const V largest = OF(max)(LOAD_N(most, n) * r->beta2, OF(abs)(g) + r->eps);

        STORE_N(most, largest, n);
        STORE_N(param, p * r->keep - m / largest * r->step, n);
        return;
    }
    V v = LOAD_N(second, n) * r->beta2 + g * r->fresh2 * g;

    STORE_N(second, v, n);
    if (most != NULL) {
        v = OF(max)(LOAD_N(most, n), v);
        STORE_N(most, v, n);
    }
    STORE_N(param, p * r->keep - m / (OF(sqrt)(v) / r->root + r->eps) * r->step, n);
}

void MSI_NAME(LOCAL(adam))(const void *args)
{
    const msi_adam_args *a = args;
    const LOCAL(rule) r = {.sign = a->maximize ? -1 : 1,
                           .keep = (REAL)(a->decoupled ? 1 - a->lr * a->weight_decay : 1),
                           .decay = (REAL)(a->decoupled ? 0 : a->weight_decay),
                           .beta1 = (REAL)a->beta1,
                           .fresh1 = (REAL)(1 - a->beta1),
                           .beta2 = (REAL)a->beta2,
                           .fresh2 = (REAL)(1 - a->beta2),
                           .root = (REAL)sqrt(a->correction2),
                           .eps = (REAL)a->eps,
                           .step = (REAL)(a->lr / a->correction1)};
    const T *g = a->g;
    T *p = a->p, *m = a->m, *v = a->v, *most = a->most;
    int64_t i = 0;

    for (; i + WIDTH <= a->n; i += WIDTH) {
        LOCAL(step)
        (&r, p + i, g + i, m + i, v != NULL ? v + i : NULL, most != NULL ? most + i : NULL, WIDTH);
    }
    if (i < a->n) {
        LOCAL(step)
        (&r, p + i, g + i, m + i, v != NULL ? v + i : NULL, most != NULL ? most + i : NULL,
         a->n - i);
    }
}
