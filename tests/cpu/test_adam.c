/* kernels/cpu/adam.c: Adam and AdamW against the rule written out in f64. */
#include "kernel_test.h"

static void check(int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    typed t[5], old[5]; /* p, g, m, v, most */
    const int64_t bytes = start * dtype_bytes(dtype), step = 1 + options % 5;
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-3;
    const double decay = options & 4 ? 0.125 : 0;
    const double c1 = 1 - pow(beta1, (double)step), c2 = 1 - pow(beta2, (double)step);

    for (int32_t k = 0; k < 5; k++) {
        t[k] = typed_filled(dtype, start + n, (uint64_t)k + 1);
        for (int64_t i = 0; i < start + n && k >= 3; i++) {
            typed_set(&t[k], i, fabs(typed_get(&t[k], i)));
        }
        old[k] = typed_copy(&t[k]);
    }
    msi_adam_args args = {.n = n,
                          .p = (char *)t[0].data + bytes,
                          .g = (char *)t[1].data + bytes,
                          .m = (char *)t[2].data + bytes,
                          .v = (char *)t[3].data + bytes,
                          .lr = lr,
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .eps = eps,
                          .weight_decay = decay,
                          .correction1 = c1,
                          .correction2 = c2,
                          .decoupled = options & 1,
                          .maximize = options & 2,
                          .most = options & 8 ? (char *)t[4].data + bytes : NULL};

    run_on_all_isas(&(kernel_call){MSI_K_adam,
                                   dtype,
                                   &args,
                                   {t[0].data, t[2].data, t[3].data, t[4].data},
                                   {typed_nbytes(&t[0]), typed_nbytes(&t[2]), typed_nbytes(&t[3]),
                                    typed_nbytes(&t[4])}},
                    "adam");
    for (int64_t i = 0; i < start + n; i++) {
        double p = typed_get(&old[0], i), g = typed_get(&old[1], i);
        double m = typed_get(&old[2], i), v = typed_get(&old[3], i), move = 0;
        double most = typed_get(&old[4], i), root = v;

        if (i >= start) {
            g = options & 2 ? -g : g;
            if (options & 1) {
                p *= 1 - lr * decay;
            } else {
                g += decay * p;
            }
            m = beta1 * m + (1 - beta1) * g;
            v = beta2 * v + (1 - beta2) * g * g;
            most = options & 8 ? fmax(most, v) : most;
            root = options & 8 ? most : v;
            move = lr / c1 * m / (sqrt(root) / sqrt(c2) + eps);
            p -= move;
        }
        double tiny = 8 * compute_epsilon(dtype), ulp = typed_epsilon(dtype);

        check_element("p", i, typed_get(&t[0], i), p,
                      tiny * (1 + lr / c1 / (sqrt(root) + eps)) + 16 * tiny * fabs(move) +
                          ulp * fabs(p));
        check_element("m", i, typed_get(&t[2], i), m, tiny + ulp * fabs(m));
        check_element("v", i, typed_get(&t[3], i), v, tiny + ulp * fabs(v));
        check_element("most", i, typed_get(&t[4], i), most, tiny + ulp * fabs(most));
    }
    for (int32_t k = 0; k < 5; k++) {
        typed_free(&t[k]);
        typed_free(&old[k]);
    }
}

static void test_cpu_adam__every_combination_of_options(void **state)
{
    check_every_option(check, 40);
}

static void test_cpu_adam__lengths_0_to_130_and_starts_0_to_63(void **state)
{
    check_every_length_and_start(check);
}

/* The first step moves by lr against the sign of the gradient, whatever its size: m / correction1
 * is g, sqrt(v / correction2) is |g|. */
static void test_cpu_adam__the_first_step_has_the_length_of_lr(void **state)
{
    double p[2] = {1, 1}, m[2] = {0}, v[2] = {0};
    const double g[2] = {1e-3, -1e4};
    msi_adam_args args = {.n = 2,
                          .p = p,
                          .g = g,
                          .m = m,
                          .v = v,
                          .lr = 0.25,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .correction1 = 0.1,
                          .correction2 = 0.001};

    msi_kernels()->fn[MSI_K_adam][MS_DTYPE_F64](&args);
    assert_true(fabs(p[0] - 0.75) < 1e-12 && fabs(p[1] - 1.25) < 1e-12);
}

/* Expected values: PyTorch 2.15, Adam(lr=0.5) on ones, this gradient and then one of (1, 1, 1,
 * 0.5). Squares of the first three are beyond f32. */
static void test_cpu_adam__squares_beyond_the_dtype_do_not_freeze_a_parameter(void **state)
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
        cmocka_unit_test(test_cpu_adam__every_combination_of_options),
        cmocka_unit_test(test_cpu_adam__lengths_0_to_130_and_starts_0_to_63),
        cmocka_unit_test(test_cpu_adam__the_first_step_has_the_length_of_lr),
        cmocka_unit_test(test_cpu_adam__squares_beyond_the_dtype_do_not_freeze_a_parameter),
    };

    return cmocka_run_group_tests_name("cpu/adam", tests, NULL, NULL);
}
