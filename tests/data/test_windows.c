/* runtime/data/windows.c: windows in order and shuffled, digests. */
#include "token_test.h"

static void test_data_windows__in_order_windows_follow_each_other(void **state)
{
    /* 11 tokens, windows of 3: 0..2, 3..5, 6..8; 9 is the last target, 10 is left over */
    ms_tensor *tokens = token_file("order.bin", 11);
    ms_tensor *x = windows_tensor(2, 3), *y = windows_tensor(2, 3);
    double got[6];
    int64_t n;

    (void)state;
    assert_ok(ms_data_n_windows(tokens, 3, &n));
    assert_int_equal(3, n);
    assert_ok(ms_data_windows(x, y, tokens, 1, 3, 9, false));
    assert_ok(ms_tensor_to_doubles(x, got, 6));
    for (int i = 0; i < 6; i++) {
        assert_true(got[i] == 3 + i);
    }
    assert_ok(ms_tensor_to_doubles(y, got, 6));
    for (int i = 0; i < 6; i++) {
        assert_true(got[i] == 4 + i);
    }
    assert_fails(MS_INDEX_ERROR, "samples 2 to 3 are asked for, 3 exist",
                 ms_data_windows(x, y, tokens, 2, 3, 9, false));
    assert_fails(MS_INDEX_ERROR, "samples -1 to 0", ms_data_windows(x, y, tokens, -1, 3, 9, false));
    assert_fails(MS_VALUE_ERROR, "an epoch has 4 samples, expected 1 to 3",
                 ms_data_windows(x, y, tokens, 0, 4, 9, false));
    assert_fails(MS_VALUE_ERROR, "an epoch has 0 samples, expected 1 to 3",
                 ms_data_windows(x, y, tokens, 0, 0, 9, false));
    assert_ok(ms_data_windows(x, y, tokens, 7, 3, 9, false)); /* the third epoch's second */
    assert_ok(ms_tensor_to_doubles(x, got, 6));
    assert_true(got[0] == 3);
    ms_tensor_free(x);
    ms_tensor_free(y);
    ms_tensor_free(tokens);
}

/* Window numbers of all samples of an epoch; windows of one token, so that the token is it. */
static void order_of_epoch(int64_t n, uint64_t seed, int64_t epoch, double *order)
{
    ms_tensor *tokens, *x = windows_tensor(n, 1), *y = windows_tensor(n, 1);

    assert_ok(ms_tensor_arange(&tokens, MS_DTYPE_I64, 0, 1, n + 1));
    assert_ok(ms_data_windows(x, y, tokens, epoch * n, n, seed, true));
    assert_ok(ms_tensor_to_doubles(x, order, n));
    ms_tensor_free(x);
    ms_tensor_free(y);
    ms_tensor_free(tokens);
}

static void test_data_windows__every_epoch_is_a_permutation(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 1000, 4097};
    static double order[4097];
    static bool seen[4097];

    (void)state;
    for (int i = 0; i < (int)(sizeof(sizes) / sizeof(sizes[0])); i++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof(seen));
            order_of_epoch(sizes[i], 7, epoch, order);
            for (int64_t s = 0; s < sizes[i]; s++) {
                int64_t w = (int64_t)order[s];

                assert_true(w >= 0 && w < sizes[i] && !seen[w]);
                seen[w] = true;
            }
        }
    }
}

static void test_data_windows__the_order_depends_on_seed_and_epoch_alone(void **state)
{
    static double a[1000], b[1000];

    (void)state;
    order_of_epoch(1000, 1, 0, a);
    order_of_epoch(1000, 1, 0, b);
    assert_memory_equal(a, b, sizeof(a));
    for (int64_t i = 0; i < 1000; i++) {
        int64_t sample;

        assert_ok(ms_data_permute(&sample, i, 1000, 1, 0));
        assert_true(a[i] == (double)sample);
    }
    assert_fails(MS_INDEX_ERROR, "sample 3 is asked for, 3 exist",
                 ms_data_permute(&(int64_t){0}, 3, 3, 1, 0));
    order_of_epoch(1000, 1, 1, b);
    assert_memory_not_equal(a, b, sizeof(a));
    order_of_epoch(1000, 2, 0, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

static void test_data_windows__a_digest_tells_streams_apart(void **state)
{
    enum { N = 300000 };
    static uint8_t bytes[N];
    static const int32_t places[] = {0, 65535, N - 65536, N - 1};
    uint64_t first, again;
    ms_tensor *t;

    (void)state;
    for (int32_t i = -2; i < (int32_t)(sizeof(places) / sizeof(places[0])); i++) {
        int64_t n = i == -1 ? N - 1 : N;

        memset(bytes, 7, sizeof(bytes));
        if (i >= 0) {
            bytes[places[i]] = 8;
        }
        assert_ok(ms_data_map(&t, write_file("digest.bin", bytes, (size_t)n), MS_DTYPE_U8));
        assert_ok(ms_data_digest(t, i == -2 ? &first : &again));
        assert_true(i == -2 || again != first);
        ms_tensor_free(t);
    }
    assert_ok(ms_tensor_arange(&t, MS_DTYPE_I64, 0, 1, 3));
    assert_ok(ms_data_digest(t, &again));
    ms_tensor_free(t);
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 1, (int64_t[]){3}));
    assert_fails(MS_TYPE_ERROR, "tokens are u8 or i64, got f32", ms_data_digest(t, &again));
    ms_tensor_free(t);
}

static void test_data_windows__shuffled_neighbours_are_far_apart(void **state)
{
    /* |p(s + 1) - p(s)| of a random permutation of n averages n / 3; +-8 % is five deviations. */
    static double order[4097];
    double sum = 0;

    (void)state;
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        order_of_epoch(4097, 0, epoch, order);
        for (int64_t s = 0; s + 1 < 4097; s++) {
            sum += fabs(order[s + 1] - order[s]);
        }
    }
    assert_true(fabs(sum / (4 * 4096) - 4097.0 / 3) < 0.08 * 4097 / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_windows__in_order_windows_follow_each_other),
        cmocka_unit_test(test_data_windows__every_epoch_is_a_permutation),
        cmocka_unit_test(test_data_windows__the_order_depends_on_seed_and_epoch_alone),
        cmocka_unit_test(test_data_windows__a_digest_tells_streams_apart),
        cmocka_unit_test(test_data_windows__shuffled_neighbours_are_far_apart),
    };
    return cmocka_run_group_tests_name("data/windows", tests, NULL, NULL);
}
