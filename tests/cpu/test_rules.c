/* kernels/cpu/adam.c, sgd.c, rmsprop.c, adagrad.c, lion.c: each option alone and together, against
 * the rules written out in f64. */
#include "kernel_test.h"

enum { P, G, A, B, C, N_BUFFERS }; /* parameter, gradient, states */

typedef union rule_args {
    msi_adam_args adam;
    msi_sgd_args sgd;
    msi_rmsprop_args rmsprop;
    msi_adagrad_args adagrad;
    msi_lion_args lion;
} rule_args;

typedef struct rule {
    const char *name;
    int32_t kernel;
    uint32_t n_options, zeroes; /* with this option gradient and first state are 0 */
    double low[3], high[3];     /* of the states before the step */
    rule_args (*args)(int64_t n, void *const at[N_BUFFERS], uint32_t options);
    /* One element's step; how far an error of the gradient moves the parameter. */
    double (*step)(double v[N_BUFFERS], uint32_t options);
} rule;

static const double LR = 0.05, EPS = 1e-3, DECAY = 0.125;

/* -- Adam, AdamW, Adamax ----------------------------------------------------------------------- */

static double adam_correction(double beta, uint32_t options)
{
    return 1 - pow(beta, 1 + options % 5);
}

static rule_args adam_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    return (rule_args){.adam = {.n = n,
                                .p = at[P],
                                .g = at[G],
                                .m = at[A],
                                .v = at[B],
                                .lr = LR,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = EPS,
                                .weight_decay = options & 4 ? DECAY : 0,
                                .correction1 = adam_correction(0.9, options),
                                .correction2 = adam_correction(0.95, options),
                                .decoupled = options & 1,
                                .maximize = options & 2,
                                .most = options & 8 ? at[C] : NULL}};
}

static double adam_step(double v[N_BUFFERS], uint32_t options)
{
    const double decay = options & 4 ? DECAY : 0, rate = LR / adam_correction(0.9, options);

    v[G] = options & 2 ? -v[G] : v[G];
    if (options & 1) {
        v[P] *= 1 - LR * decay;
    } else {
        v[G] += decay * v[P];
    }
    v[A] = 0.9 * v[A] + 0.1 * v[G];
    v[B] = 0.95 * v[B] + 0.05 * v[G] * v[G];
    v[C] = options & 8 ? fmax(v[C], v[B]) : v[C];
    const double root = sqrt(options & 8 ? v[C] : v[B]);
    const double move = rate * v[A] / (root / sqrt(adam_correction(0.95, options)) + EPS);

    v[P] -= move;
    return rate / (root + EPS) + 16 * fabs(move);
}

static rule_args adamax_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    rule_args args = adam_args(n, at, options);

    args.adam.v = NULL;
    args.adam.most = at[C];
    return args;
}

static double adamax_step(double v[N_BUFFERS], uint32_t options)
{
    const double decay = options & 4 ? DECAY : 0, rate = LR / adam_correction(0.9, options);

    v[G] = (options & 2 ? -v[G] : v[G]) + (options & 1 ? 0 : decay * v[P]);
    v[P] *= options & 1 ? 1 - LR * decay : 1;
    v[A] = 0.9 * v[A] + 0.1 * v[G];
    v[C] = fmax(0.95 * v[C], fabs(v[G]) + EPS);
    v[P] -= rate * v[A] / v[C];
    return rate * (1 + 16 * fabs(v[A])) / v[C];
}

/* -- SGD --------------------------------------------------------------------------------------- */

static rule_args sgd_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    return (rule_args){.sgd = {.n = n,
                               .p = at[P],
                               .g = at[G],
                               .buf = options & 1 ? at[A] : NULL,
                               .lr = LR,
                               .momentum = options & 1 ? 0.9 : 0,
                               .dampening = options & 2 ? 0.25 : 0,
                               .weight_decay = options & 4 ? DECAY : 0,
                               .nesterov = options & 8,
                               .maximize = options & 16,
                               .first_step = options & 32}};
}

static double sgd_step(double v[N_BUFFERS], uint32_t options)
{
    double d = (options & 16 ? -v[G] : v[G]) + (options & 4 ? DECAY : 0) * v[P];

    if (options & 1) {
        v[A] = options & 32 ? d : 0.9 * v[A] + (options & 2 ? 0.75 : 1) * d;
        d = options & 8 ? d + 0.9 * v[A] : v[A];
    }
    v[P] -= LR * d;
    return 0;
}

/* -- RMSprop, Adagrad, Lion -------------------------------------------------------------------- */

static rule_args rmsprop_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    return (rule_args){.rmsprop = {.n = n,
                                   .p = at[P],
                                   .g = at[G],
                                   .v = at[A],
                                   .mean = options & 1 ? at[B] : NULL,
                                   .buf = options & 2 ? at[C] : NULL,
                                   .lr = LR,
                                   .alpha = 0.9,
                                   .eps = EPS,
                                   .weight_decay = options & 4 ? DECAY : 0,
                                   .momentum = 0.5,
                                   .maximize = options & 8}};
}

static double rmsprop_step(double v[N_BUFFERS], uint32_t options)
{
    const double g = (options & 8 ? -v[G] : v[G]) + (options & 4 ? DECAY : 0) * v[P];

    v[A] = 0.9 * v[A] + 0.1 * g * g;
    v[B] = options & 1 ? v[B] + 0.1 * (g - v[B]) : v[B];
    const double move = g / (sqrt(v[A] - (options & 1 ? v[B] * v[B] : 0)) + EPS);

    v[C] = options & 2 ? 0.5 * v[C] + move : v[C];
    v[P] -= LR * (options & 2 ? v[C] : move);
    return 4;
}

static rule_args adagrad_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    return (rule_args){.adagrad = {.n = n,
                                   .p = at[P],
                                   .g = at[G],
                                   .sum = at[A],
                                   .lr = LR,
                                   .eps = EPS,
                                   .weight_decay = options & 1 ? DECAY : 0,
                                   .maximize = options & 2}};
}

static double adagrad_step(double v[N_BUFFERS], uint32_t options)
{
    const double g = (options & 2 ? -v[G] : v[G]) + (options & 1 ? DECAY : 0) * v[P];

    v[A] += g * g;
    v[P] -= LR * g / (sqrt(v[A]) + EPS);
    return 1;
}

static rule_args lion_args(int64_t n, void *const at[N_BUFFERS], uint32_t options)
{
    return (rule_args){.lion = {.n = n,
                                .p = at[P],
                                .g = at[G],
                                .m = at[A],
                                .lr = LR,
                                .beta1 = 0.75,
                                .beta2 = 0.875,
                                .weight_decay = options & 1 ? DECAY : 0,
                                .maximize = options & 2}};
}

static double lion_step(double v[N_BUFFERS], uint32_t options)
{
    const double g = options & 2 ? -v[G] : v[G], mixed = 0.75 * v[A] + 0.25 * g;

    v[P] = v[P] * (1 - LR * (options & 1 ? DECAY : 0)) - LR * ((mixed > 0) - (mixed < 0));
    v[A] = 0.875 * v[A] + 0.125 * g;
    return 1;
}

/* RMSprop's mean is small, so that a variance is above 0. */
static const rule rules[] = {
    {"adam", MSI_K_adam, 40, 0, {-1, 0, 0}, {1, 1, 1}, adam_args, adam_step},
    {"adamax", MSI_K_adam, 8, 0, {-1, 0, 0}, {1, 1, 1}, adamax_args, adamax_step},
    {"sgd", MSI_K_sgd, 64, 0, {-1}, {1}, sgd_args, sgd_step},
    {"rmsprop", MSI_K_rmsprop, 16, 0, {1, 0, 0}, {2, 0.25, 1}, rmsprop_args, rmsprop_step},
    {"adagrad", MSI_K_adagrad, 4, 0, {1}, {2}, adagrad_args, adagrad_step},
    {"lion", MSI_K_lion, 8, 4, {-1}, {1}, lion_args, lion_step},
};

static void check(const rule *r, int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    typed now[N_BUFFERS], old[N_BUFFERS];
    void *at[N_BUFFERS];

    for (int32_t k = 0; k < N_BUFFERS; k++) {
        now[k] = typed_filled(dtype, start + n, (uint64_t)k + 1);
        for (int64_t i = 0; i < start + n && k >= A; i++) {
            const double part = (typed_get(&now[k], i) + 1) / 2;

            typed_set(&now[k], i, r->low[k - A] + part * (r->high[k - A] - r->low[k - A]));
        }
        for (int64_t i = 0; i < start + n && (k == G || k == A) && (options & r->zeroes); i++) {
            typed_set(&now[k], i, 0);
        }
        old[k] = typed_copy(&now[k]);
        at[k] = (char *)now[k].data + start * dtype_bytes(dtype);
    }
    const rule_args args = r->args(n, at, options);
    kernel_call call = {r->kernel, dtype, &args, {0}, {0}};

    for (int32_t k = P, n_out = 0; k < N_BUFFERS; k++) {
        if (k != G) {
            call.out[n_out] = now[k].data;
            call.nbytes[n_out++] = typed_nbytes(&now[k]);
        }
    }
    run_on_all_isas(&call, r->name);
    for (int64_t i = 0; i < start + n; i++) {
        double v[N_BUFFERS], scale = 0;

        for (int32_t k = 0; k < N_BUFFERS; k++) {
            v[k] = typed_get(&old[k], i);
        }
        if (i >= start) {
            scale = r->step(v, options);
        }
        v[G] = typed_get(&old[G], i);
        for (int32_t k = 0; k < N_BUFFERS; k++) {
            name_case("%s, options %u, buffer %d", r->name, options, (int)k);
            check_element("value", i, typed_get(&now[k], i), v[k],
                          8 * compute_epsilon(dtype) * (k == P ? 1 + scale : 2) +
                              typed_rounding(dtype, v[k]));
        }
    }
    for (int32_t k = 0; k < N_BUFFERS; k++) {
        typed_free(&now[k]);
        typed_free(&old[k]);
    }
}

static void test_cpu_rules__every_combination_of_options(void **state)
{
    report_missing_isas();
    for (size_t k = 0; k < 3 * MSI_COUNT(rules); k++) {
        const rule *r = &rules[k / 3];

        for (uint32_t options = 0; options < r->n_options; options++) {
            check(r, float_dtypes[k % 3], 67, options % 11, options);
        }
    }
}

static void test_cpu_rules__lengths_0_to_130_and_starts_0_to_63(void **state)
{
    for (size_t k = 0; k < 3 * MSI_COUNT(rules); k++) {
        for (int64_t n = 0; n <= 130; n++) {
            check(&rules[k / 3], float_dtypes[k % 3], n, n * 29 % 64, (uint32_t)n);
        }
        for (int64_t start = 0; start < 64; start++) {
            check(&rules[k / 3], float_dtypes[k % 3], 35, start, 1 | 4);
        }
    }
}

/* Expected values: PyTorch 2.15, Adam(lr=0.5) on ones, this gradient and then one of (1, 1, 1,
 * 0.5). Squares of the first three are beyond f32. */
static void test_cpu_rules__squares_beyond_the_dtype_do_not_freeze_adam(void **state)
{
    static const double expected[2][4] = {{0.5, 1.5, 0.5, 0.50000006},
                                          {0.164970875, 1.83502913, 0.164970934, 5.96046448e-08}};
    float p[4] = {1, 1, 1, 1}, m[4] = {0}, v[4] = {0}, g[4] = {1e20F, -3e20F, 2e19F, 0.5F};
    msi_adam_args args = {
        .n = 4, .p = p, .g = g, .m = m, .v = v, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.999};

    args.eps = 1e-8;
    for (int32_t step = 0; step < 2; step++) {
        args.correction1 = 1 - pow(args.beta1, step + 1);
        args.correction2 = 1 - pow(args.beta2, step + 1);
        run_on_all_isas(
            &(kernel_call){
                MSI_K_adam, MS_DTYPE_F32, &args, {p, m, v}, {sizeof(p), sizeof(m), sizeof(v)}},
            "adam");
        for (int32_t i = 0; i < 4; i++) {
            check_element("p", i, (double)p[i], expected[step][i], 3e-7);
            g[i] = i < 3 ? 1 : 0.5F;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_rules__every_combination_of_options),
        cmocka_unit_test(test_cpu_rules__lengths_0_to_130_and_starts_0_to_63),
        cmocka_unit_test(test_cpu_rules__squares_beyond_the_dtype_do_not_freeze_adam),
    };

    return cmocka_run_group_tests_name("cpu/rules", tests, NULL, NULL);
}
