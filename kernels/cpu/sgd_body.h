/* Body of sgd.c for one dtype.
 *
 *   d = g + weight_decay p            (g negated to maximize; weight_decay 0: p is not read, since
 *                                      infinity times 0 is NaN)
 *   buf = d at the first step, else momentum buf + (1 - dampening) d
 *   d = d + momentum buf (nesterov), else buf
 *   p = p - lr d */

typedef struct LOCAL(rule) {
    REAL sign, decay, lr, momentum, fresh;
    bool first_step, nesterov;
} LOCAL(rule);

/* n <= WIDTH elements; buf may be NULL. */
LANES_INLINE void LOCAL(step)(const LOCAL(rule) * r, T *p, const T *g, T *buf, int64_t n)
{
    V x = LOAD_N(p, n), d = LOAD_N(g, n) * r->sign;

    if (r->decay != 0) {
        d += x * r->decay;
    }
    if (buf != NULL) {
        V b = r->first_step ? d : LOAD_N(buf, n) * r->momentum + d * r->fresh;

        STORE_N(buf, b, n);
        d = r->nesterov ? d + b * r->momentum : b;
    }
    STORE_N(p, x - d * r->lr, n);
}

void MSI_NAME(LOCAL(sgd))(const void *args)
{
    const msi_sgd_args *a = args;
    const LOCAL(rule) r = {.sign = a->maximize ? -1 : 1,
                           .decay = (REAL)a->weight_decay,
                           .lr = (REAL)a->lr,
                           .momentum = (REAL)a->momentum,
                           .fresh = (REAL)(1 - a->dampening),
                           .first_step = a->first_step,
                           .nesterov = a->nesterov};
    const T *g = a->g;
    T *p = a->p, *buf = a->buf;
    int64_t i = 0;

    for (; i + WIDTH <= a->n; i += WIDTH) {
        LOCAL(step)(&r, p + i, g + i, buf != NULL ? buf + i : NULL, WIDTH);
    }
    if (i < a->n) {
        LOCAL(step)(&r, p + i, g + i, buf != NULL ? buf + i : NULL, a->n - i);
    }
}
