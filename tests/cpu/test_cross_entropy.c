/* kernels/cpu/cross_entropy.c: loss and gradient against plain loops in f64. */
#include "backend.h"
#include "ms_test.h"
#include "typed.h"

enum { IGNORE = -100 };

typedef struct loss {
    msi_cross_entropy_args args;
    typed logits, lse, grad, old;
    int64_t *targets;
    double sum;
    int64_t counted;
} loss;

static void expect(double got, double want, double bound, const char *what, int64_t i)
{
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s %lld is %.17g, expected %.17g +- %g", what, (long long)i, got, want, bound);
    }
}

static void make(loss *l, int32_t dtype, int64_t rows, int64_t cols, bool accumulate)
{
    int32_t stat = dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;

    l->logits = typed_filled(dtype, rows * cols, 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        typed_set(&l->logits, i, 8 * typed_get(&l->logits, i));
    }
    l->lse = typed_filled(stat, rows, 2);
    l->grad = typed_filled(dtype, rows * cols, 3);
    l->old = typed_copy(&l->grad);
    l->targets = malloc((size_t)(rows + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < rows; i++) {
        l->targets[i] = i % 5 == 3 ? IGNORE : (i * 7919) % cols;
    }
    l->args = (msi_cross_entropy_args){.rows = rows,
                                       .cols = cols,
                                       .logits = l->logits.data,
                                       .targets = l->targets,
                                       .ignore_index = IGNORE,
                                       .loss_sum = &l->sum,
                                       .n_counted = &l->counted,
                                       .lse = l->lse.data,
                                       .scale = 0.375,
                                       .dlogits = l->grad.data,
                                       .accumulate = accumulate};
}

static void discard(loss *l)
{
    typed_free(&l->logits);
    typed_free(&l->lse);
    typed_free(&l->grad);
    typed_free(&l->old);
    free(l->targets);
}

static void run(loss *l, const msi_kernel_table *table)
{
    table->fn[MSI_K_cross_entropy][l->logits.dtype](&l->args);
    table->fn[MSI_K_cross_entropy_grad][l->logits.dtype](&l->args);
}

static double log_sum_exp(const typed *x, int64_t first, int64_t n)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++) {
        double v = typed_get(x, first + j);

        largest = v > largest ? v : largest;
    }
    for (int64_t j = 0; j < n; j++) {
        sum += exp(typed_get(x, first + j) - largest);
    }
    return largest + log(sum);
}

static void check(int32_t dtype, int64_t rows, int64_t cols, bool accumulate)
{
    double inner = 40 * typed_epsilon(dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);
    double outer = 1.01 * typed_epsilon(dtype), sum = 0, size = 0;
    int64_t counted = 0;
    loss l;

    make(&l, dtype, rows, cols, accumulate);
    run(&l, msi_kernels());
    for (int64_t i = 0; i < rows; i++) {
        bool counts = l.targets[i] != IGNORE;
        double lse = log_sum_exp(&l.logits, i * cols, cols);

        if (counts) {
            sum += lse - typed_get(&l.logits, i * cols + l.targets[i]);
            size += fabs(lse) + 8;
            counted++;
            expect(typed_get(&l.lse, i), lse, inner * (1 + fabs(lse)), "lse", i);
        }
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = i * cols + j;
            double p = exp(typed_get(&l.logits, at) - lse), hit = j == l.targets[i];
            double want =
                (counts ? 0.375 * (p - hit) : 0) + (accumulate ? typed_get(&l.old, at) : 0);

            expect(typed_get(&l.grad, at), want, inner * (p * 10 + hit + 1) + outer * fabs(want),
                   "gradient", at);
        }
    }
    assert_int_equal(counted, l.counted);
    expect(l.sum, sum, inner * size, "loss", 0);
    discard(&l);
}

static void test_cpu_cross_entropy__equals_plain_loops(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        for (int64_t cols = 1; cols <= 130; cols++) {
            check(dtype, 1 + cols % 11, cols, cols % 2);
        }
        check(dtype, 9, 1024, false);
        check(dtype, 4, 5003, true);
        check(dtype, 0, 10, false);
    }
}

static void test_cpu_cross_entropy__the_gradient_may_take_the_place_of_the_logits(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        loss apart, in_place;

        make(&apart, dtype, 13, 77, false);
        make(&in_place, dtype, 13, 77, false);
        run(&apart, msi_kernels());
        in_place.args.dlogits = in_place.logits.data;
        run(&in_place, msi_kernels());
        assert_memory_equal(apart.grad.data, in_place.logits.data,
                            (size_t)typed_nbytes(&apart.grad));
        discard(&apart);
        discard(&in_place);
    }
}

static void test_cpu_cross_entropy__all_rows_ignored_count_nothing(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F32, 6, 20, false);
    for (int64_t i = 0; i < 6; i++) {
        l.targets[i] = IGNORE;
    }
    run(&l, msi_kernels());
    assert_int_equal(0, l.counted);
    assert_true(l.sum == 0);
    for (int64_t i = 0; i < 120; i++) {
        assert_true(typed_get(&l.grad, i) == 0);
    }
    discard(&l);
}

static void test_cpu_cross_entropy__gradient_equals_finite_differences(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F64, 4, 23, false);
    run(&l, msi_kernels());
    for (int64_t i = 0; i < l.logits.n; i++) {
        double x = typed_get(&l.logits, i), plus;

        typed_set(&l.logits, i, x + 1e-5);
        msi_kernels()->fn[MSI_K_cross_entropy][MS_DTYPE_F64](&l.args);
        plus = l.sum;
        typed_set(&l.logits, i, x - 1e-5);
        msi_kernels()->fn[MSI_K_cross_entropy][MS_DTYPE_F64](&l.args);
        typed_set(&l.logits, i, x);
        expect(typed_get(&l.grad, i), 0.375 * (plus - l.sum) / 2e-5, 1e-8, "gradient", i);
    }
    discard(&l);
}

static void test_cpu_cross_entropy__masked_logits_have_no_probability(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F32, 1, 3000, false);
    for (int64_t j = 0; j < 3000; j++) { /* two whole chunks and a part */
        typed_set(&l.logits, j, j == 2500 || j == 2999 ? 1 : -INFINITY);
    }
    l.targets[0] = 2999;
    run(&l, msi_kernels());
    expect(l.sum, log(2), 1e-6, "loss", 0);
    expect(typed_get(&l.grad, 2999), -0.5 * 0.375, 1e-6, "gradient", 2999);
    expect(typed_get(&l.grad, 5), 0, 0, "gradient", 5);
    discard(&l);
}

static void test_cpu_cross_entropy__bits_are_equal_on_every_instruction_set(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        for (int64_t cols = 1; cols <= 2200; cols += cols < 70 ? 3 : 211) {
            loss first = {0};

            for (int32_t isa = 2; isa <= 4; isa++) {
                const msi_kernel_table *table = msi_kernels_of(isa);
                loss l;

                if (table == NULL) {
                    continue;
                }
                make(&l, dtype, 6, cols, cols % 2);
                run(&l, table);
                if (first.targets == NULL) {
                    first = l;
                    continue;
                }
                assert_memory_equal(&first.sum, &l.sum, sizeof(l.sum));
                assert_memory_equal(first.lse.data, l.lse.data, (size_t)typed_nbytes(&l.lse));
                assert_memory_equal(first.grad.data, l.grad.data, (size_t)typed_nbytes(&l.grad));
                discard(&l);
            }
            discard(&first);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_cross_entropy__equals_plain_loops),
        cmocka_unit_test(test_cpu_cross_entropy__the_gradient_may_take_the_place_of_the_logits),
        cmocka_unit_test(test_cpu_cross_entropy__all_rows_ignored_count_nothing),
        cmocka_unit_test(test_cpu_cross_entropy__gradient_equals_finite_differences),
        cmocka_unit_test(test_cpu_cross_entropy__masked_logits_have_no_probability),
        cmocka_unit_test(test_cpu_cross_entropy__bits_are_equal_on_every_instruction_set),
    };

    return cmocka_run_group_tests_name("cpu/cross_entropy", tests, NULL, NULL);
}
