/* runtime/data/sample.c: drawing tokens. */
#include "ms_test.h"

static ms_tensor *logits_of(const double *values, int64_t n)
{
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, 1, &n, values, n));
    return t;
}

static void test_data_sample__temperature_zero_takes_the_first_largest(void **state)
{
    ms_tensor *logits = logits_of((double[]){1, 3, -2, 3}, 4);
    int64_t token;

    (void)state;
    assert_ok(ms_data_sample(&token, logits, 0, 0, 1, 1));
    assert_int_equal(1, token);
    ms_tensor_free(logits);
}

/* Shares of 40,000 draws; a share of p deviates by sqrt(p (1 - p) / 40,000) <= 0.0025. */
static void shares(const double *values, int64_t n, double temperature, int32_t top_k,
                   double *share)
{
    ms_tensor *logits = logits_of(values, n);

    memset(share, 0, (size_t)n * sizeof(*share));
    for (int64_t draw = 0; draw < 40000; draw++) {
        int64_t token;

        assert_ok(ms_data_sample(&token, logits, temperature, top_k, 5, draw));
        assert_true(token >= 0 && token < n);
        share[token] += 1.0 / 40000;
    }
    ms_tensor_free(logits);
}

static void test_data_sample__draws_follow_the_softmax(void **state)
{
    double share[3];

    (void)state;
    shares((double[]){log(1), log(2), log(5)}, 3, 1, 0, share);
    assert_true(fabs(share[0] - 1.0 / 8) < 0.012);
    assert_true(fabs(share[1] - 2.0 / 8) < 0.012);
    assert_true(fabs(share[2] - 5.0 / 8) < 0.012);
    shares((double[]){log(1), log(2), log(5)}, 3, 0.5, 0, share); /* squares: 1, 4, 25 */
    assert_true(fabs(share[0] - 1.0 / 30) < 0.012);
    assert_true(fabs(share[1] - 4.0 / 30) < 0.012);
}

static void test_data_sample__top_k_keeps_the_first_of_equals_at_the_edge(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){0, 2, 0, 0}, 4, 1e6, 2, share); /* so hot that all kept are equal */
    assert_true(share[2] == 0 && share[3] == 0);
    assert_true(fabs(share[0] - 0.5) < 0.012 && fabs(share[1] - 0.5) < 0.012);
}

/* The limits of growing logits and temperatures. */
static void test_data_sample__infinite_logits_and_temperatures_are_limits(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){1, 2, INFINITY, 0}, 4, 1, 0, share);
    assert_true(fabs(share[2] - 1) < 1e-9);
    shares((double[]){INFINITY, 2, INFINITY, -INFINITY}, 4, INFINITY, 3, share);
    assert_true(share[1] == 0 && share[3] == 0 && fabs(share[0] - 0.5) < 0.012);
    shares((double[]){0, -INFINITY, 3}, 3, INFINITY, 0, share);
    assert_true(share[1] == 0 && fabs(share[0] - 0.5) < 0.012);
}

static void test_data_sample__refuses_what_cannot_be_drawn_from(void **state)
{
    ms_tensor *logits = logits_of((double[]){0, NAN}, 2);
    int64_t token;

    (void)state;
    assert_fails(MS_VALUE_ERROR, "logit 1 is NaN", ms_data_sample(&token, logits, 1, 0, 0, 0));
    assert_fails(MS_VALUE_ERROR, "neither below 0", ms_data_sample(&token, logits, -1, 0, 0, 0));
    assert_fails(MS_VALUE_ERROR, "neither below 0", ms_data_sample(&token, logits, 1, -1, 0, 0));
    ms_tensor_free(logits);
    logits = logits_of((double[]){-INFINITY, -INFINITY}, 2);
    for (int32_t temperature = 0; temperature < 2; temperature++) {
        assert_fails(MS_VALUE_ERROR, "all 2 logits are -inf",
                     ms_data_sample(&token, logits, temperature, 1, 0, 0));
    }
    ms_tensor_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_sample__temperature_zero_takes_the_first_largest),
        cmocka_unit_test(test_data_sample__draws_follow_the_softmax),
        cmocka_unit_test(test_data_sample__top_k_keeps_the_first_of_equals_at_the_edge),
        cmocka_unit_test(test_data_sample__infinite_logits_and_temperatures_are_limits),
        cmocka_unit_test(test_data_sample__refuses_what_cannot_be_drawn_from),
    };
    return cmocka_run_group_tests_name("data/sample", tests, NULL, NULL);
}
