/* kernels/cpu/rmsprop.c, adagrad.c, lion.c: each option alone and together, against the rules
 * written out in f64. */
#include "kernel_test.h"

enum { P, G, A, B, C, N_BUFFERS }; /* parameter, gradient, states */

typedef struct buffers {
    typed now[N_BUFFERS], old[N_BUFFERS];
    int64_t start;
} buffers;

/* The first two states are 0 or more, and the second is small, so that a variance is above 0. */
static buffers filled(int32_t dtype, int64_t n, int64_t start)
{
    buffers b = {.start = start};

    for (int32_t k = 0; k < N_BUFFERS; k++) {
        b.now[k] = typed_filled(dtype, start + n, (uint64_t)k + 1);
        for (int64_t i = 0; i < start + n && k >= A; i++) {
            typed_set(&b.now[k], i, fabs(typed_get(&b.now[k], i)) * (k == B ? 0.25 : 1) + (k == A));
        }
        b.old[k] = typed_copy(&b.now[k]);
    }
    return b;
}

static void *at(buffers *b, int32_t k)
{
    return (char *)b->now[k].data + b->start * dtype_bytes(b->now[k].dtype);
}

static void run(buffers *b, int32_t kernel, void *args)
{
    kernel_call call = {kernel, b->now[P].dtype, args, {0}, {0}};

    for (int32_t k = P, n = 0; k < N_BUFFERS; k++) {
        if (k != G) {
            call.out[n] = b->now[k].data;
            call.nbytes[n++] = typed_nbytes(&b->now[k]);
        }
    }
    run_on_all_isas(&call, "rule");
}

/* `scale`: size of an error of one unit in the last place of what is computed. */
static void check_one(const buffers *b, int32_t k, int64_t i, double want, double scale)
{
    const int32_t dtype = b->now[k].dtype;

    check_element("value", i, typed_get(&b->now[k], i), want,
                  8 * compute_epsilon(dtype) * (1 + scale) + typed_rounding(dtype, want));
}

static void release(buffers *b)
{
    for (int32_t k = 0; k < N_BUFFERS; k++) {
        typed_free(&b->now[k]);
        typed_free(&b->old[k]);
    }
}

/* The gradient as the rules use it, and the old values of the others. */
static void old_values(const buffers *b, int64_t i, bool maximize, double decay,
                       double v[N_BUFFERS])
{
    for (int32_t k = 0; k < N_BUFFERS; k++) {
        v[k] = typed_get(&b->old[k], i);
    }
    v[G] = (maximize ? -v[G] : v[G]) + decay * v[P];
}

static void check_rmsprop(int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    buffers b = filled(dtype, n, start);
    msi_rmsprop_args args = {.n = n,
                             .p = at(&b, P),
                             .g = at(&b, G),
                             .v = at(&b, A),
                             .mean = options & 1 ? at(&b, B) : NULL,
                             .buf = options & 2 ? at(&b, C) : NULL,
                             .lr = 0.05,
                             .alpha = 0.9,
                             .eps = 1e-3,
                             .weight_decay = options & 4 ? 0.125 : 0,
                             .momentum = 0.5,
                             .maximize = options & 8};

    run(&b, MSI_K_rmsprop, &args);
    for (int64_t i = 0; i < start + n; i++) {
        double v[N_BUFFERS];

        old_values(&b, i, args.maximize, args.weight_decay, v);
        if (i >= start) {
            v[A] = 0.9 * v[A] + (1 - 0.9) * v[G] * v[G];
            v[B] = options & 1 ? v[B] + (1 - 0.9) * (v[G] - v[B]) : v[B];
            double move = v[G] / (sqrt(v[A] - (options & 1 ? v[B] * v[B] : 0)) + 1e-3);

            v[C] = options & 2 ? 0.5 * v[C] + move : v[C];
            v[P] -= 0.05 * (options & 2 ? v[C] : move);
        }
        for (int32_t k = 0; k < N_BUFFERS; k++) {
            check_one(&b, k, i, k == G ? typed_get(&b.old[G], i) : v[k], 4);
        }
    }
    release(&b);
}

static void check_adagrad(int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    buffers b = filled(dtype, n, start);
    msi_adagrad_args args = {.n = n,
                             .p = at(&b, P),
                             .g = at(&b, G),
                             .sum = at(&b, A),
                             .lr = 0.05,
                             .eps = 1e-3,
                             .weight_decay = options & 1 ? 0.125 : 0,
                             .maximize = options & 2};

    run(&b, MSI_K_adagrad, &args);
    for (int64_t i = 0; i < start + n; i++) {
        double v[N_BUFFERS];

        old_values(&b, i, args.maximize, args.weight_decay, v);
        if (i >= start) {
            v[A] += v[G] * v[G];
            v[P] -= 0.05 * v[G] / (sqrt(v[A]) + 1e-3);
        }
        check_one(&b, P, i, v[P], 1);
        check_one(&b, A, i, v[A], 1);
    }
    release(&b);
}

static void check_lion(int32_t dtype, int64_t n, int64_t start, uint32_t options)
{
    buffers b = filled(dtype, n, start);
    msi_lion_args args = {.n = n,
                          .p = at(&b, P),
                          .g = at(&b, G),
                          .m = at(&b, B),
                          .lr = 0.05,
                          .beta1 = 0.75,
                          .beta2 = 0.875,
                          .weight_decay = options & 1 ? 0.125 : 0,
                          .maximize = options & 2};

    for (int64_t i = start; i < start + n && options & 4; i++) { /* no direction: no move */
        typed_set(&b.now[G], i, 0);
        typed_set(&b.now[B], i, 0);
        typed_set(&b.old[B], i, 0);
        typed_set(&b.old[G], i, 0);
    }
    run(&b, MSI_K_lion, &args);
    for (int64_t i = 0; i < start + n; i++) {
        double v[N_BUFFERS];

        old_values(&b, i, args.maximize, 0, v);
        if (i >= start) {
            const double mixed = 0.75 * v[B] + 0.25 * v[G];

            v[P] = v[P] * (1 - 0.05 * args.weight_decay) - 0.05 * ((mixed > 0) - (mixed < 0));
            v[B] = 0.875 * v[B] + 0.125 * v[G];
        }
        check_one(&b, P, i, v[P], 1);
        check_one(&b, B, i, v[B], 1);
    }
    release(&b);
}

static void test_cpu_rules__every_combination_of_options(void **state)
{
    check_every_option(check_rmsprop, 16);
    check_every_option(check_adagrad, 4);
    check_every_option(check_lion, 8);
}

static void test_cpu_rules__lengths_0_to_130_and_starts_0_to_63(void **state)
{
    check_every_length_and_start(check_rmsprop);
    check_every_length_and_start(check_adagrad);
    check_every_length_and_start(check_lion);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_rules__every_combination_of_options),
        cmocka_unit_test(test_cpu_rules__lengths_0_to_130_and_starts_0_to_63),
    };

    return cmocka_run_group_tests_name("cpu/rules", tests, NULL, NULL);
}
