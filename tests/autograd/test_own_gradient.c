/* A leaf's own .grad as operand: rules read the memory its gradient is added to. */
#include "values.h"

typedef ms_status (*operation)(ms_tensor **out, ms_tensor *w, ms_tensor *other);

enum { N = 3 };

/* Row-major (N, N). */
static const double W[N * N] = {1, -2, 3, 0.5, 4, -1, 2, 0.25, -3};
static const double G[N * N] = {2, 1, -1, 3, 0.5, 4, -2, 1.5, 0.25};

static ms_tensor *square(const double *values)
{
    const int64_t shape[2] = {N, N};
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F64, 2, shape, values, (int64_t)N * N));
    return t;
}

/* W with gradient G. */
static ms_tensor *leaf_with_gradient(void)
{
    ms_tensor *w = require(square(W)), *g = square(G);

    assert_ok(ms_tensor_set_grad(w, g));
    ms_tensor_free(g);
    return w;
}

/* The leaf's own .grad, transposed. */
static ms_tensor *flipped_gradient(ms_tensor *w)
{
    const int32_t swap[2] = {1, 0};
    ms_tensor *g, *t;

    assert_ok(ms_tensor_grad(&g, w));
    assert_ok(ms_op_permute(&t, g, 2, swap));
    ms_tensor_free(g);
    return t;
}

static ms_status linear_of_gradient(ms_tensor **out, ms_tensor *w, ms_tensor *g)
{
    return ms_op_linear(out, g, w, NULL);
}

static ms_status quotient(ms_tensor **out, ms_tensor *w, ms_tensor *g)
{
    return ms_op_div(out, w, g);
}

/* What a gradient of ones makes of them, with h = G^T. */
static double of_product(int32_t i, int32_t j)
{
    return G[j * N + i];
}

static double of_quotient(int32_t i, int32_t j)
{
    return 1 / G[j * N + i];
}

static double of_matmul(int32_t i, int32_t j) /* 1 h^T */
{
    (void)i;
    return G[j] + G[N + j] + G[2 * N + j];
}

static double of_linear(int32_t i, int32_t j) /* 1 h */
{
    (void)i;
    return G[j * N] + G[j * N + 1] + G[j * N + 2];
}

static void test_autograd_own_gradient__is_read_before_it_is_added_to(void **state)
{
    static const struct {
        operation op;
        double (*gradient)(int32_t i, int32_t j);
    } cases[] = {{ms_op_mul, of_product},
                 {quotient, of_quotient},
                 {ms_op_matmul, of_matmul},
                 {linear_of_gradient, of_linear}};

    (void)state;
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        ms_tensor *w = leaf_with_gradient(), *h = flipped_gradient(w), *y, *sum;
        double want[N * N];

        assert_ok(cases[k].op(&y, w, h));
        assert_ok(ms_op_sum(&sum, y, 0, false));
        assert_ok(ms_backward(sum, NULL));
        for (int32_t i = 0; i < N * N; i++) {
            want[i] = G[i] + cases[k].gradient(i / N, i % N);
        }
        expect_grad(w, (int64_t)N * N, want);
        ms_tensor_free(sum);
        ms_tensor_free(y);
        ms_tensor_free(h);
        ms_tensor_free(w);
    }
}

/* Whichever of several contributions reads it: 2 w + h, in both orders of the program. */
static void test_autograd_own_gradient__is_read_by_one_contribution_of_several(void **state)
{
    (void)state;
    for (int32_t order = 0; order < 2; order++) {
        ms_tensor *w = leaf_with_gradient(), *h = flipped_gradient(w), *term[2], *y, *sum;
        double want[N * N];

        assert_ok(ms_op_mul(&term[0], w, order == 0 ? h : w));
        assert_ok(ms_op_mul(&term[1], w, order == 0 ? w : h));
        assert_ok(ms_op_add(&y, term[0], term[1]));
        assert_ok(ms_op_sum(&sum, y, 0, false));
        assert_ok(ms_backward(sum, NULL));
        for (int32_t i = 0; i < N * N; i++) {
            want[i] = G[i] + 2 * W[i] + of_product(i / N, i % N);
        }
        expect_grad(w, (int64_t)N * N, want);
        ms_tensor_free(sum);
        ms_tensor_free(y);
        ms_tensor_free(term[1]);
        ms_tensor_free(term[0]);
        ms_tensor_free(h);
        ms_tensor_free(w);
    }
}

static ms_status give_flipped(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    (void)grad;
    *replacement = flipped_gradient(user);
    return MS_OK;
}

/* As what a hook puts in a gradient's place, on the leaf and on a result. */
static void test_autograd_own_gradient__is_what_a_hook_returns(void **state)
{
    (void)state;
    for (int32_t on_leaf = 0; on_leaf < 2; on_leaf++) {
        ms_tensor *w = leaf_with_gradient(), *ones, *y, *sum;
        double want[N * N];

        assert_ok(ms_tensor_full(&ones, MS_DTYPE_F64, 2, (const int64_t[]){N, N}, 1));
        assert_ok(ms_op_matmul(&y, w, ones));
        assert_ok(ms_tensor_hook(on_leaf ? w : y, give_flipped, w, NULL, NULL));
        assert_ok(ms_op_sum(&sum, y, 0, false));
        assert_ok(ms_backward(sum, NULL));
        for (int32_t i = 0; i < N * N; i++) { /* h, or h 1^T */
            want[i] = G[i] + (on_leaf ? of_product(i / N, i % N)
                                      : G[i / N] + G[N + i / N] + G[2 * N + i / N]);
        }
        expect_grad(w, (int64_t)N * N, want);
        ms_tensor_free(sum);
        ms_tensor_free(y);
        ms_tensor_free(ones);
        ms_tensor_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_autograd_own_gradient__is_read_before_it_is_added_to),
        BOOKED_TEST(test_autograd_own_gradient__is_read_by_one_contribution_of_several),
        BOOKED_TEST(test_autograd_own_gradient__is_what_a_hook_returns),
    };
    return cmocka_run_group_tests_name("autograd/own_gradient", tests, NULL, NULL);
}
