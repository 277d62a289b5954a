/* runtime/data/sample.c: drawing tokens. */
#include "ms_test.h"

static ms_tensor *logits_of(const double *values, int64_t n)
{
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, 1, &n, values, n));
    return t;
}

/* Sampling without limits. */
static ms_sampling plain(double temperature)
{
    return (ms_sampling){.temperature = temperature, .top_p = 1, .repetition_penalty = 1};
}

static ms_sampling top_k(double temperature, int32_t k)
{
    ms_sampling how = plain(temperature);

    how.top_k = k;
    return how;
}

static void test_data_sample__temperature_zero_takes_the_first_largest(void **state)
{
    const ms_sampling how = plain(0);
    ms_tensor *logits = logits_of((double[]){1, 3, -2, 3}, 4);
    int64_t token;

    (void)state;
    assert_ok(ms_data_sample(&token, logits, &how, 1, 1));
    assert_int_equal(1, token);
    ms_tensor_free(logits);
}

/* Shares of 40,000 draws; a share of p deviates by sqrt(p (1 - p) / 40,000) <= 0.0025. */
static void shares(const double *values, int64_t n, ms_sampling how, double *share)
{
    ms_tensor *logits = logits_of(values, n);

    memset(share, 0, (size_t)n * sizeof(*share));
    for (int64_t draw = 0; draw < 40000; draw++) {
        int64_t token;

        assert_ok(ms_data_sample(&token, logits, &how, 5, draw));
        assert_true(token >= 0 && token < n);
        share[token] += 1.0 / 40000;
    }
    ms_tensor_free(logits);
}

static void test_data_sample__draws_follow_the_softmax(void **state)
{
    double share[3];

    (void)state;
    shares((double[]){log(1), log(2), log(5)}, 3, plain(1), share);
    assert_true(fabs(share[0] - 1.0 / 8) < 0.012);
    assert_true(fabs(share[1] - 2.0 / 8) < 0.012);
    assert_true(fabs(share[2] - 5.0 / 8) < 0.012);
    shares((double[]){log(1), log(2), log(5)}, 3, plain(0.5), share); /* squares: 1, 4, 25 */
    assert_true(fabs(share[0] - 1.0 / 30) < 0.012);
    assert_true(fabs(share[1] - 4.0 / 30) < 0.012);
}

static void test_data_sample__top_k_keeps_the_first_of_equals_at_the_edge(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){0, 2, 0, 0}, 4, top_k(1e6, 2), share); /* so hot that all kept are equal */
    assert_true(share[2] == 0 && share[3] == 0);
    assert_true(fabs(share[0] - 0.5) < 0.012 && fabs(share[1] - 0.5) < 0.012);
}

/* Shares of 5, 3, 2 of 10. */
static void test_data_sample__top_p_keeps_the_token_that_reaches_it(void **state)
{
    const double values[] = {log(2), log(5), log(3)};
    ms_sampling how = plain(1);
    double share[3];

    (void)state;
    how.top_p = 0.49;
    shares(values, 3, how, share);
    assert_true(fabs(share[1] - 1) < 1e-9);
    how.top_p = 0.51;
    shares(values, 3, how, share);
    assert_true(share[0] == 0 && fabs(share[1] - 5.0 / 8) < 0.012);
    how.top_k = 2; /* first: of the two, 5 / 8 is not enough */
    how.top_p = 0.6;
    shares(values, 3, how, share);
    assert_true(fabs(share[1] - 1) < 1e-9);
}

static void test_data_sample__min_p_is_relative_to_the_most_likely(void **state)
{
    ms_sampling how = plain(0.5); /* 4, 25, 9 of 38 */
    double share[3];

    (void)state;
    how.min_p = 0.3;
    shares((double[]){log(2), log(5), log(3)}, 3, how, share);
    assert_true(share[0] == 0 && fabs(share[1] - 25.0 / 34) < 0.012);
}

static void test_data_sample__penalizes_seen_tokens_once(void **state)
{
    const int64_t seen[] = {0, 2, 0};
    ms_sampling how = plain(1);
    double share[3];

    (void)state;
    how.seen = seen;
    how.n_seen = 3;
    how.repetition_penalty = 2;
    shares((double[]){2 * log(6), log(3), -log(2) / 2}, 3, how, share); /* 6, 3, 1 / 2 */
    assert_true(fabs(share[0] - 12.0 / 19) < 0.012 && fabs(share[1] - 6.0 / 19) < 0.012);
    how.temperature = 0;
    shares((double[]){3, 2, 1}, 3, how, share);
    assert_true(fabs(share[1] - 1) < 1e-9);
}

/* The limits of growing logits and temperatures. */
static void test_data_sample__infinite_logits_and_temperatures_are_limits(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){1, 2, INFINITY, 0}, 4, plain(1), share);
    assert_true(fabs(share[2] - 1) < 1e-9);
    shares((double[]){INFINITY, 2, INFINITY, -INFINITY}, 4, top_k(INFINITY, 3), share);
    assert_true(share[1] == 0 && share[3] == 0 && fabs(share[0] - 0.5) < 0.012);
    shares((double[]){0, -INFINITY, 3}, 3, plain(INFINITY), share);
    assert_true(share[1] == 0 && fabs(share[0] - 0.5) < 0.012);
}

static void test_data_sample__refuses_what_cannot_be_drawn_from(void **state)
{
    ms_tensor *logits = logits_of((double[]){0, NAN}, 2);
    int64_t token;

    (void)state;
    const struct {
        ms_status status;
        const char *text;
        ms_sampling how;
    } rows[] = {
        {MS_VALUE_ERROR, "logit 1 is NaN", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
        {MS_VALUE_ERROR, "neither below 0", {.temperature = -1}},
        {MS_VALUE_ERROR, "neither below 0", {.top_k = -1}},
        {MS_VALUE_ERROR, "top p above 0", {.repetition_penalty = 1}},
        {MS_VALUE_ERROR, "min p from 0", {.top_p = 1, .min_p = 2, .repetition_penalty = 1}},
        {MS_VALUE_ERROR, "penalty above 0", {.top_p = 1}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        assert_fails(rows[i].status, rows[i].text,
                     ms_data_sample(&token, logits, &rows[i].how, 0, 0));
    }
    ms_tensor_free(logits);
    ms_sampling how = plain(1);
    logits = logits_of((double[]){0, 1}, 2);
    how.seen = (int64_t[]){1, 2};
    how.n_seen = 2;
    how.repetition_penalty = 2;
    assert_fails(MS_INDEX_ERROR, "seen token 1 is 2, expected 0 to 1",
                 ms_data_sample(&token, logits, &how, 0, 0));
    ms_tensor_free(logits);
    logits = logits_of((double[]){-INFINITY, -INFINITY}, 2);
    for (int32_t temperature = 0; temperature < 2; temperature++) {
        how = top_k(temperature, 1);
        assert_fails(MS_VALUE_ERROR, "all 2 logits are -inf",
                     ms_data_sample(&token, logits, &how, 0, 0));
    }
    ms_tensor_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_sample__temperature_zero_takes_the_first_largest),
        cmocka_unit_test(test_data_sample__draws_follow_the_softmax),
        cmocka_unit_test(test_data_sample__top_k_keeps_the_first_of_equals_at_the_edge),
        cmocka_unit_test(test_data_sample__top_p_keeps_the_token_that_reaches_it),
        cmocka_unit_test(test_data_sample__min_p_is_relative_to_the_most_likely),
        cmocka_unit_test(test_data_sample__penalizes_seen_tokens_once),
        cmocka_unit_test(test_data_sample__infinite_logits_and_temperatures_are_limits),
        cmocka_unit_test(test_data_sample__refuses_what_cannot_be_drawn_from),
    };
    return cmocka_run_group_tests_name("data/sample", tests, NULL, NULL);
}
