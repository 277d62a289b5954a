/* kernels/cpu/cross_entropy.c: loss and gradient against plain loops in f64, from any start. */
#include "kernel_test.h"

enum { IGNORE = -100 };

typedef struct loss {
    msi_cross_entropy_args args;
    placed logits, max, sum_exp, grad;
    typed old;           /* the gradient before */
    typed value, dvalue; /* of the loss, and its gradient */
    int64_t *targets;
    int64_t counted;
} loss;

/* Gradient of the loss. */
static const double dloss = 0.375;

static double loss_of(const loss *l)
{
    return typed_get(&l->value, 0);
}

/* Every fifth row does not count, nor does any without columns: it has no class to name. */
static void make(loss *l, int32_t dtype, int64_t rows, int64_t cols, int64_t start, bool accumulate)
{
    const int32_t stat = dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;

    l->logits = placed_read(dtype, rows * cols, start, 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        typed_set(&l->logits.t, i, 8 * typed_get(&l->logits.t, i));
    }
    l->max = placed_written(stat, rows, start, 2);
    l->sum_exp = placed_written(stat, rows, start, 4);
    l->grad = placed_written(dtype, rows * cols, start, 3);
    l->old = typed_copy(&l->grad.t);
    l->value = typed_filled(stat, 1, 5);
    l->dvalue = typed_filled(stat, 1, 6);
    typed_set(&l->dvalue, 0, dloss);
    l->targets = malloc((size_t)(rows + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < rows; i++) {
        l->targets[i] = cols == 0 || i % 5 == 3 ? IGNORE : (cols - 1 + i * 7919) % cols;
    }
    l->args = (msi_cross_entropy_args){.rows = rows,
                                       .cols = cols,
                                       .logits = l->logits.t.data,
                                       .targets = l->targets,
                                       .ignore_index = IGNORE,
                                       .loss = l->value.data,
                                       .n_counted = &l->counted,
                                       .max = l->max.t.data,
                                       .sum = l->sum_exp.t.data,
                                       .dloss = l->dvalue.data,
                                       .dlogits = l->grad.t.data,
                                       .accumulate = accumulate};
}

static void discard(loss *l)
{
    placed_free(&l->logits);
    placed_free(&l->max);
    placed_free(&l->sum_exp);
    placed_free(&l->grad);
    typed_free(&l->old);
    typed_free(&l->value);
    typed_free(&l->dvalue);
    free(l->targets);
}

static void run_forward(loss *l)
{
    run_on_all_isas(
        &(kernel_call){.kernel = MSI_K_cross_entropy,
                       .dtype = l->logits.t.dtype,
                       .args = &l->args,
                       .out = {l->max.all.data, l->sum_exp.all.data, l->value.data, &l->counted},
                       .nbytes = {typed_nbytes(&l->max.all), typed_nbytes(&l->sum_exp.all),
                                  typed_nbytes(&l->value), sizeof(l->counted)}},
        "loss");
    check_guards("max", &l->max);
    check_guards("sum", &l->sum_exp);
}

/* The gradient goes into `grad`, or over the logits. */
static void run_backward(loss *l, placed *into)
{
    l->args.dlogits = into->t.data;
    run_placed(MSI_K_cross_entropy_grad, l->logits.t.dtype, &l->args, (placed *[]){into}, 1);
}

static void run(loss *l)
{
    run_forward(l);
    run_backward(l, &l->grad);
}

static double inner_epsilon(const loss *l)
{
    return 40 * compute_epsilon(l->logits.t.dtype);
}

static void check_loss(const loss *l)
{
    const int64_t cols = l->args.cols;
    double sum = 0, size = 0;
    int64_t counted = 0;

    for (int64_t i = 0; i < l->args.rows; i++) {
        if (l->targets[i] == IGNORE) {
            continue;
        }
        const double lse = log_sum_exp_of(&l->logits.t, i * cols, cols);

        sum += lse - typed_get(&l->logits.t, i * cols + l->targets[i]);
        size += fabs(lse) + 8;
        counted++;
        check_element("max + log sum", i,
                      typed_get(&l->max.t, i) + log(typed_get(&l->sum_exp.t, i)), lse,
                      inner_epsilon(l) * (1 + fabs(lse)));
    }
    assert_int_equal(counted, l->counted);
    if (l->args.mean && counted > 0) {
        sum /= (double)counted;
        size /= (double)counted;
    }
    check_element("loss", 0, loss_of(l), sum, inner_epsilon(l) * size);
}

/* Factor of every row that counts. */
static double row_scale(const loss *l)
{
    return l->args.mean ? dloss / (double)l->counted : dloss;
}

/* Row i of scale (softmax - one_hot) [+ old]; a row that does not count has a gradient of 0. */
static void check_gradient_row(const loss *l, int64_t i)
{
    const int64_t cols = l->args.cols;
    const double lse = log_sum_exp_of(&l->logits.t, i * cols, cols);
    const double scale = l->targets[i] == IGNORE ? 0 : row_scale(l);

    for (int64_t j = 0; j < cols; j++) {
        const int64_t at = i * cols + j;
        const double p = exp(typed_get(&l->logits.t, at) - lse), hit = j == l->targets[i];
        const double want = scale * (p - hit) + (l->args.accumulate ? typed_get(&l->old, at) : 0);

        check_element("gradient", at, typed_get(&l->grad.t, at), want,
                      inner_epsilon(l) * (p * 10 + hit + 1) +
                          1.01 * typed_rounding(l->grad.t.dtype, want));
    }
}

static void check(int32_t dtype, int64_t rows, int64_t cols, int64_t start, bool accumulate)
{
    loss l;

    make(&l, dtype, rows, cols, start, accumulate);
    name_case("%s (%lld, %lld) from %lld", ms_dtype_name(dtype), (long long)rows, (long long)cols,
              (long long)start);
    l.args.mean = (rows + start) % 2 == 0 && rows > 0 && cols > 0;
    run(&l);
    check_loss(&l);
    for (int64_t i = 0; i < rows; i++) {
        check_gradient_row(&l, i);
    }
    discard(&l);
}

/* The whole square of lengths and starts for both kernels and every dtype. */
static void test_cpu_cross_entropy__equals_plain_loops_at_any_length_from_any_start(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t cols = 0; cols < N_LENGTHS; cols++) {
            for (int64_t start = 0; start < N_STARTS; start++) {
                check(float_dtypes[d], 1 + (cols + start) % 4, cols, start, (cols + start / 4) % 2);
            }
        }
    }
}

static void test_cpu_cross_entropy__equals_plain_loops_with_many_rows_or_columns(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t cols = 1; cols <= 2200; cols += cols < 70 ? 3 : 211) {
            check(float_dtypes[d], 6 + cols % 11, cols, 29 * cols % N_STARTS, cols % 2);
        }
        check(float_dtypes[d], 9, 1024, 0, false);
        check(float_dtypes[d], 4, 5003, 1, true);
        check(float_dtypes[d], 0, 10, 2, false);
    }
}

static void test_cpu_cross_entropy__the_gradient_may_take_the_place_of_the_logits(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        loss apart, in_place;

        make(&apart, float_dtypes[d], 13, 77, 5, false);
        make(&in_place, float_dtypes[d], 13, 77, 5, false);
        run(&apart);
        run_forward(&in_place);
        run_backward(&in_place, &in_place.logits);
        assert_memory_equal(apart.grad.t.data, in_place.logits.t.data,
                            (size_t)typed_nbytes(&apart.grad.t));
        discard(&apart);
        discard(&in_place);
    }
}

static void test_cpu_cross_entropy__all_rows_ignored_count_nothing(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F32, 6, 20, 0, false);
    for (int64_t i = 0; i < 6; i++) {
        l.targets[i] = IGNORE;
    }
    run(&l);
    assert_int_equal(0, l.counted);
    assert_true(loss_of(&l) == 0);
    l.args.mean = true;
    run(&l);
    assert_true(isnan(loss_of(&l)));
    for (int64_t i = 0; i < 120; i++) {
        assert_true(typed_get(&l.grad.t, i) == 0);
    }
    discard(&l);
}

static void test_cpu_cross_entropy__gradient_equals_finite_differences(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F64, 4, 23, 0, false);
    run(&l);
    for (int64_t i = 0; i < l.logits.t.n; i++) {
        double x = typed_get(&l.logits.t, i), plus;

        typed_set(&l.logits.t, i, x + 1e-5);
        run_forward(&l);
        plus = loss_of(&l);
        typed_set(&l.logits.t, i, x - 1e-5);
        run_forward(&l);
        typed_set(&l.logits.t, i, x);
        check_element("gradient", i, typed_get(&l.grad.t, i), dloss * (plus - loss_of(&l)) / 2e-5,
                      1e-8);
    }
    discard(&l);
}

static void test_cpu_cross_entropy__masked_logits_have_no_probability(void **state)
{
    (void)state;
    loss l;

    make(&l, MS_DTYPE_F32, 1, 3000, 0, false);
    for (int64_t j = 0; j < 3000; j++) { /* two whole chunks and a part */
        typed_set(&l.logits.t, j, j == 2500 || j == 2999 ? 1 : -INFINITY);
    }
    l.targets[0] = 2999;
    run(&l);
    check_element("loss", 0, loss_of(&l), log(2), 1e-6);
    check_element("gradient", 2999, typed_get(&l.grad.t, 2999), -0.5 * dloss, 1e-6);
    check_element("gradient", 5, typed_get(&l.grad.t, 5), 0, 0);
    discard(&l);
}

/* Rows 1 and 4 name no class: their loss is no number, and they have no gradient. */
/* Of a row whose target is none: of no use to anybody. */
static void check_no_gradient_row(const loss *l, int64_t i)
{
    for (int64_t j = 0; j < l->args.cols; j++) {
        assert_true(isnan(typed_get(&l->grad.t, i * l->args.cols + j)));
    }
}

static void test_cpu_cross_entropy__tells_of_the_first_target_that_is_none(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        msi_fault fault = {0};
        loss l;

        make(&l, float_dtypes[d], 6, 20, 0, false);
        l.args.fault = &fault;
        l.targets[1] = 20;
        l.targets[4] = -1;
        run(&l);
        assert_int_equal(fault.found, 1);
        assert_int_equal(fault.kernel, MSI_K_cross_entropy);
        assert_int_equal(fault.index, 20);
        assert_int_equal(fault.position, 1);
        assert_int_equal(fault.n, 6);
        assert_int_equal(fault.end, 20);
        assert_int_equal(3, l.counted); /* row 3 is ignored */
        assert_true(isnan(loss_of(&l)));
        for (int64_t i = 0; i < 6; i++) {
            if (i == 1 || i == 4) {
                check_no_gradient_row(&l, i);
            } else {
                check_gradient_row(&l, i);
            }
        }
        discard(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_cross_entropy__equals_plain_loops_at_any_length_from_any_start),
        cmocka_unit_test(test_cpu_cross_entropy__equals_plain_loops_with_many_rows_or_columns),
        cmocka_unit_test(test_cpu_cross_entropy__the_gradient_may_take_the_place_of_the_logits),
        cmocka_unit_test(test_cpu_cross_entropy__all_rows_ignored_count_nothing),
        cmocka_unit_test(test_cpu_cross_entropy__gradient_equals_finite_differences),
        cmocka_unit_test(test_cpu_cross_entropy__masked_logits_have_no_probability),
        cmocka_unit_test(test_cpu_cross_entropy__tells_of_the_first_target_that_is_none),
    };

    return cmocka_run_group_tests_name("cpu/cross_entropy", tests, NULL, NULL);
}
