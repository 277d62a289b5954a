/* kernels/cpu/sgd.c: each option alone and together, against the rule written out in f64. */
#include "kernel_test.h"

static void check(int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    typed p = typed_filled(dtype, start + n, 1), g = typed_filled(dtype, start + n, 2);
    typed buf = typed_filled(dtype, start + n, 3), old_p = typed_copy(&p), old = typed_copy(&buf);
    const int64_t bytes = start * dtype_bytes(dtype);
    msi_sgd_args args = {.n = n,
                         .p = (char *)p.data + bytes,
                         .g = (char *)g.data + bytes,
                         .buf = options & 1 ? (char *)buf.data + bytes : NULL,
                         .lr = 0.05,
                         .momentum = options & 1 ? 0.9 : 0,
                         .dampening = options & 2 ? 0.25 : 0,
                         .weight_decay = options & 4 ? 0.125 : 0,
                         .nesterov = options & 8,
                         .maximize = options & 16,
                         .first_step = options & 32};
    double eps = 8 * compute_epsilon(dtype);

    run_on_all_isas(
        &(kernel_call){
            MSI_K_sgd, dtype, &args, {p.data, buf.data}, {typed_nbytes(&p), typed_nbytes(&buf)}},
        "sgd");
    for (int64_t i = 0; i < start + n; i++) {
        double x = typed_get(&old_p, i), b = typed_get(&old, i);

        if (i >= start) {
            double d = typed_get(&g, i);

            d = args.maximize ? -d : d;
            d += args.weight_decay * x;
            if (options & 1) {
                b = args.first_step ? d : 0.9 * b + (1 - args.dampening) * d;
                d = args.nesterov ? d + 0.9 * b : b;
            }
            x -= 0.05 * d;
        }
        check_element("p", i, typed_get(&p, i), x, eps + typed_rounding(dtype, x));
        check_element("buf", i, typed_get(&buf, i), b, eps * 2 + typed_rounding(dtype, b));
    }
    typed_free(&p);
    typed_free(&g);
    typed_free(&buf);
    typed_free(&old_p);
    typed_free(&old);
}

static void test_cpu_sgd__every_combination_of_options(void **state)
{
    check_every_option(check, 64);
}

static void test_cpu_sgd__lengths_0_to_130_and_starts_0_to_63(void **state)
{
    check_every_length_and_start(check);
}

/* By hand: p 1, g 0.5, lr 0.1, momentum 0.5, decay 0.2, two steps with nesterov.
 * step 1: d = 0.7, buf = 0.7, d = 1.05, p = 0.895
 * step 2: d = 0.679, buf = 1.029, d = 1.1935, p = 0.77565 */
static void test_cpu_sgd__two_steps_by_hand(void **state)
{
    double p = 1, g = 0.5, buf = -99;
    msi_sgd_args args = {.n = 1,
                         .p = &p,
                         .g = &g,
                         .buf = &buf,
                         .lr = 0.1,
                         .momentum = 0.5,
                         .weight_decay = 0.2,
                         .nesterov = true,
                         .first_step = true};

    msi_kernels()->fn[MSI_K_sgd][MS_DTYPE_F64](&args);
    assert_true(fabs(p - 0.895) < 1e-15 && fabs(buf - 0.7) < 1e-15);
    args.first_step = false;
    msi_kernels()->fn[MSI_K_sgd][MS_DTYPE_F64](&args);
    assert_true(fabs(p - 0.77565) < 1e-15 && fabs(buf - 1.029) < 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_sgd__every_combination_of_options),
        cmocka_unit_test(test_cpu_sgd__lengths_0_to_130_and_starts_0_to_63),
        cmocka_unit_test(test_cpu_sgd__two_steps_by_hand),
    };

    return cmocka_run_group_tests_name("cpu/sgd", tests, NULL, NULL);
}
