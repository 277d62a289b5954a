/* runtime/tensor/overlap.c: which views share memory, and what in-place writes refuse. */
#include "books.h"

#include "tensor.h"

enum { STORE = 64 };

/* The bytes a view shows, marked one by one. */
static void mark(const msi_view *v, bool seen[STORE * 8])
{
    const int64_t size = ms_dtype_size(v->dtype), n = msi_view_numel(v);

    memset(seen, 0, sizeof(bool) * STORE * 8);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = v->offset, rest = i;

        for (int32_t d = v->ndim - 1; d >= 0; d--) {
            at += rest % v->shape[d] * v->stride[d];
            rest /= v->shape[d];
        }
        for (int64_t b = 0; b < size; b++) {
            seen[at * size + b] = true;
        }
    }
}

static int32_t below(uint64_t *state, int32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((*state >> 33) % (uint64_t)n);
}

/* Cut `x` down by random narrows, selects and permutes. Frees `x`. */
static ms_tensor *random_part(ms_tensor *x, uint64_t *seed)
{
    for (int32_t steps = below(seed, 5); steps > 0 && x->v.ndim > 0; steps--) {
        const int32_t d = below(seed, x->v.ndim);
        const int64_t n = x->v.shape[d];
        ms_tensor *y;

        if (n > 0 && below(seed, 4) == 0) {
            assert_ok(ms_op_select(&y, x, d, below(seed, (int32_t)n)));
        } else if (n > 0 && below(seed, 2) == 0) {
            const int64_t start = below(seed, (int32_t)n);

            assert_ok(ms_op_narrow(&y, x, d, start, 1 + below(seed, (int32_t)(n - start))));
        } else {
            int32_t perm[MS_MAX_DIMS];

            for (int32_t i = 0; i < x->v.ndim; i++) {
                perm[i] = (i + d) % x->v.ndim;
            }
            assert_ok(ms_op_permute(&y, x, x->v.ndim, perm));
        }
        ms_tensor_free(x);
        x = y;
    }
    return x;
}

static ms_tensor *random_view(double *memory, uint64_t *seed)
{
    static const int64_t shapes[6][3] = {{4, 4, 4}, {2, 8, 4}, {64, 1, 1},
                                         {3, 7, 3}, {1, 9, 7}, {5, 1, 12}};
    const int64_t *shape = shapes[below(seed, 6)];
    const bool narrow = below(seed, 4) == 0; /* the same memory in another dtype */
    ms_tensor *x;

    assert_ok(ms_tensor_borrow(&x, narrow ? MS_DTYPE_F32 : MS_DTYPE_F64, 3, shape, memory));
    return random_part(x, seed);
}

static void test_tensor_overlap__is_found_exactly(void **state)
{
    static double memory[STORE];
    static bool in_a[STORE * 8], in_b[STORE * 8];
    uint64_t seed = 7;
    int32_t apart = 0, shared = 0;

    for (int32_t k = 0; k < 20000; k++) {
        ms_tensor *a = random_view(memory, &seed), *b = random_view(memory, &seed);
        bool want = false;

        mark(&a->v, in_a);
        mark(&b->v, in_b);
        for (int32_t i = 0; i < STORE * 8; i++) {
            want = want || (in_a[i] && in_b[i]);
        }
        assert_int_equal(want, msi_view_shares(&a->v, &b->v));
        apart += !want;
        shared += want;
        ms_tensor_free(a);
        ms_tensor_free(b);
    }
    assert_true(apart > 2000 && shared > 2000);
}

/* x (0 .. 5) and its parts [0, 3), [1, 4), [3, 6). */
static void test_tensor_overlap__in_place_writes_refuse_it(void **state)
{
    static const double in[6] = {0, 1, 2, 3, 4, 5}, fourfold[6] = {0, 4, 8, 0, 4, 8};
    double out[6];
    ms_tensor *x, *first, *second, *last, *row, *pair;
    ms_tensor_info before, after;

    assert_ok(ms_tensor_from_doubles(&x, MS_DTYPE_F32, 1, &(int64_t){6}, in, 6));
    assert_ok(ms_op_narrow(&first, x, 0, 0, 3));
    assert_ok(ms_op_narrow(&second, x, 0, 1, 3));
    assert_ok(ms_op_narrow(&last, x, 0, 3, 3));
    assert_ok(ms_op_select(&row, x, 0, 2));
    assert_ok(ms_tensor_describe(x, &before));
    assert_fails(MS_RUNTIME_ERROR,
                 "copy_: the source of shape (3) overlaps the tensor of shape (3)",
                 ms_tensor_copy(second, first));
    assert_fails(MS_RUNTIME_ERROR, "load: the source of shape (3) overlaps",
                 ms_tensor_check_copy(second, first, "load"));
    assert_ok(ms_tensor_check_copy(last, first, "load"));
    assert_ok(ms_tensor_check_copy(x, x, "load"));
    assert_fails(MS_RUNTIME_ERROR, "add_: the source of shape (3) overlaps",
                 ms_tensor_add_scaled(first, second, 1));
    assert_fails(MS_RUNTIME_ERROR, "the source of shape () overlaps the tensor of shape (6)",
                 ms_tensor_add_scaled(x, row, 1)); /* broadcast from within */
    assert_ok(ms_tensor_describe(x, &after));
    assert_int_equal(before.version, after.version);
    assert_ok(ms_tensor_to_doubles(x, out, 6));
    assert_memory_equal(in, out, sizeof(in));
    assert_ok(ms_tensor_copy(last, first)); /* neighbours */
    assert_ok(ms_tensor_add_scaled(x, x, 1));
    assert_ok(ms_tensor_copy(x, x));
    assert_ok(ms_op_reshape(&pair, x, 3, (const int64_t[]){1, 6, 1}));
    assert_ok(ms_op_reshape(&last, pair, 1, (const int64_t[]){6}));
    assert_ok(ms_tensor_add_scaled(x, last, 1)); /* the same view under another handle */
    assert_ok(ms_tensor_to_doubles(x, out, 6));
    assert_memory_equal(fourfold, out, sizeof(out));
}

/* Columns of one matrix lie between each other without a common element; a square and its transpose
 * have all in common, in another order. */
static void test_tensor_overlap__depends_on_elements_not_on_ranges(void **state)
{
    ms_tensor *x, *left, *right, *turned;

    assert_ok(ms_tensor_arange(&x, MS_DTYPE_F32, 0, 1, 16));
    assert_ok(ms_op_reshape(&left, x, 2, (const int64_t[]){4, 4}));
    x = left;
    assert_ok(ms_op_narrow(&left, x, 1, 0, 2));
    assert_ok(ms_op_narrow(&right, x, 1, 2, 2));
    assert_ok(ms_tensor_copy(left, right));
    assert_ok(ms_op_narrow(&right, x, 1, 1, 2));
    assert_fails(MS_RUNTIME_ERROR, "order of writing", ms_tensor_copy(left, right));
    assert_ok(ms_op_permute(&turned, x, 2, (const int32_t[]){1, 0}));
    assert_fails(MS_RUNTIME_ERROR, "order of writing", ms_tensor_copy(x, turned));
}

static void test_tensor_overlap__a_gradient_is_not_replaced_by_itself_turned(void **state)
{
    const int64_t shape[2] = {3, 3};
    ms_tensor *x, *grad, *turned;

    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_tensor_set_grad(x, x));
    assert_ok(ms_tensor_grad(&grad, x));
    assert_ok(ms_op_permute(&turned, grad, 2, (const int32_t[]){1, 0}));
    assert_fails(MS_RUNTIME_ERROR, "set_grad: the source", ms_tensor_set_grad(x, turned));
    assert_ok(ms_tensor_set_grad(x, grad));
}

/* What a hook on x sees of sum(x): one element, shown six times. */
static ms_status write_to_gradient(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    *(ms_status *)user = ms_tensor_fill(grad, 2);
    return MS_OK;
}

static void test_tensor_overlap__expanded_elements_are_not_written(void **state)
{
    ms_tensor *x, *y, *sum;
    ms_status written = MS_OK;

    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, &(int64_t){6}, 1));
    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_op_exp(&y, x));
    assert_ok(ms_tensor_hook(y, write_to_gradient, &written, NULL, NULL));
    assert_ok(ms_op_sum(&sum, y, 0, false));
    assert_ok(ms_backward(sum, NULL));
    assert_int_equal(MS_RUNTIME_ERROR, written);
    assert_non_null(strstr(ms_error_message(), "is expanded along dimension 0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_overlap__is_found_exactly),
        BOOKED_TEST(test_tensor_overlap__in_place_writes_refuse_it),
        BOOKED_TEST(test_tensor_overlap__depends_on_elements_not_on_ranges),
        BOOKED_TEST(test_tensor_overlap__a_gradient_is_not_replaced_by_itself_turned),
        BOOKED_TEST(test_tensor_overlap__expanded_elements_are_not_written),
    };

    return cmocka_run_group_tests_name("tensor/overlap", tests, NULL, NULL);
}
