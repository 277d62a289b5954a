/* runtime/collective: collectives as operators. Values beside those of the functions that work in
 * place, which tests/comm/test_collectives.c compares with plain loops; gradients beside finite
 * differences of a function of all ranks' operands. */
#include "collectives.h"

#include "books.h"
#include "bytes.h"

#include "backend.h"

/* -- values ------------------------------------------------------------------------------------ */

/* x (R, C) that shows memory of (C, R). */
static ms_status strided(ms_tensor **out, int32_t dtype, int64_t rows, int64_t cols, int32_t rank)
{
    const int64_t shape[2] = {cols, rows};
    ms_tensor *drawn = filled(MS_DTYPE_F64, 2, shape, 7 + (uint64_t)rank), *wide, *x;

    MS_TRY(ms_op_with_number(&wide, drawn, 1000, MS_NUMBER_MUL));
    MS_TRY(ms_op_cast(&x, wide, dtype));
    MS_TRY(ms_op_permute(out, x, 2, (const int32_t[]){1, 0}));
    ms_tensor_free(x);
    ms_tensor_free(wide);
    ms_tensor_free(drawn);
    return MS_OK;
}

/* The same with a root, or with a part for each rank; zeros where nothing is written. */
static ms_status parts_in_place(ms_tensor **out, ms_comm *c, const collective *k, ms_tensor *x)
{
    const int32_t w = ms_comm_size(c), root = last_or(c, k->run == reduce_to_1 ? 1 : k->a);
    const bool is_root = ms_comm_rank(c) == root;
    int64_t shape[2] = {x->v.shape[0], x->v.shape[1]}, from[MS_MAX_RANKS], to[MS_MAX_RANKS];

    shape[0] = k->run == scatter ? shape[0] / w : k->run == gather_to ? shape[0] * w : shape[0];
    MS_TRY(ms_tensor_full(out, x->v.dtype, 2, shape, 0));
    if (k->run == scatter) {
        return ms_comm_scatter(c, *out, is_root ? x : NULL, root);
    }
    if (k->run == gather_to) {
        return ms_comm_gather(c, is_root ? *out : NULL, x, root);
    }
    if (k->run == all_to_all) {
        rows_of(c, x, from, to);
        return ms_comm_all_to_all(c, *out, x, k->a ? from : NULL, k->a ? to : NULL);
    }
    if (k->run == permute) {
        for (int32_t q = 0; q < w; q++) {
            to[q] = q == (ms_comm_rank(c) + k->a) % w ? shape[0] : 0;
            from[q] = ms_comm_rank(c) == (q + k->a) % w ? shape[0] : 0;
        }
        return ms_comm_all_to_all(c, *out, x, from, to);
    }
    MS_TRY(ms_comm_reduce(c, x, root, k->a));
    return is_root ? msi_copy(&(*out)->v, &x->v, false) : MS_OK;
}

/* What the function that works in place makes of a copy of x. */
static ms_status in_place(ms_tensor **out, ms_comm *c, const collective *k, ms_tensor *x)
{
    const int64_t numel = msi_view_numel(&x->v), w = ms_comm_size(c);
    const int64_t numels[2] = {numel * w, numel / w};
    const bool gathers = k->run == gather, scatters = k->run == ms_op_reduce_scatter;
    ms_tensor *copy;

    MS_TRY(ms_op_clone(&copy, x));
    if (k->run == scatter || k->run == gather_to || k->run == reduce_to_1 || k->run == all_to_all ||
        k->run == permute) {
        MS_TRY(parts_in_place(out, c, k, copy));
        ms_tensor_free(copy);
        return MS_OK;
    }
    if (!gathers && !scatters) {
        *out = copy;
        return k->run == broadcast ? ms_comm_broadcast(c, copy, k->a < w ? k->a : (int32_t)w - 1)
                                   : ms_comm_all_reduce(c, copy, k->a);
    }
    MS_TRY(ms_tensor_full(out, x->v.dtype, 1, &numels[scatters], 0));
    MS_TRY(gathers ? ms_comm_all_gather(c, *out, copy)
                   : ms_comm_reduce_scatter(c, *out, copy, k->a));
    ms_tensor_free(copy);
    return MS_OK;
}

static ms_status try_values(void *user, int32_t rank)
{
    static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_I64};
    ms_tensor *x, *expected, *got;
    ms_comm *c;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    for (int32_t i = 0; i < MSI_COUNT(collectives) * MSI_COUNT(dtypes) * 3; i++) {
        static const int64_t cols[] = {0, 3, 17001};
        const collective *k = &collectives[i / MSI_COUNT(dtypes) / 3];
        const int32_t dtype = dtypes[i / 3 % MSI_COUNT(dtypes)];

        if (dtype == MS_DTYPE_I64 && strstr(k->text, "average") != NULL) {
            continue;
        }
        MS_TRY(strided(&x, dtype, 2 * ms_comm_size(c), cols[i % 3], rank));
        MS_TRY(in_place(&expected, c, k, x));
        MS_TRY(k->run(&got, c, x, k->a));
        EXPECT(same_bytes(got, expected));
        EXPECT(got->v.ndim == 2 && got->v.shape[1] == cols[i % 3]);
        ms_tensor_free(got);
        ms_tensor_free(expected);
        ms_tensor_free(x);
    }
    return MS_OK;
}

static void test_collective_ops__make_what_those_in_place_make(void **state)
{
    (void)state;
    for (int32_t w = 1; w <= 4; w++) {
        run_ranks(w, try_values, NULL);
    }
}

/* -- gradients --------------------------------------------------------------------------------- */

enum { COLS = 2 };

/* Squares of x, the collective, squares of that, each with a weight of this rank's own, summed. */
static ms_status forward(ms_tensor **loss, ms_comm *c, const collective *k, ms_tensor *x)
{
    ms_tensor *squares, *turned, *y, *again, *weights, *weighted;

    MS_TRY(ms_op_mul(&squares, x, x));
    MS_TRY(ms_op_permute(&turned, squares, 2, (const int32_t[]){1, 0}));
    MS_TRY(k->run(&y, c, turned, k->a));
    EXPECT(y->requires_grad == (x->requires_grad && k->differentiable));
    MS_TRY(ms_op_mul(&again, y, y));
    weights = filled(MS_DTYPE_F64, y->v.ndim, y->v.shape, 50 + (uint64_t)ms_comm_rank(c));
    MS_TRY(ms_op_mul(&weighted, again, weights));
    MS_TRY(ms_op_sum(loss, weighted, 0, false));
    ms_tensor *all[] = {squares, turned, y, again, weights, weighted};

    for (int32_t i = 0; i < MSI_COUNT(all); i++) {
        ms_tensor_free(all[i]);
    }
    return MS_OK;
}

/* The sum of all ranks' losses where element `i` of this rank's operand is off by `step`. */
static ms_status total(double *out, ms_comm *c, const collective *k, int64_t i, double step)
{
    const int64_t shape[2] = {COLS, 2 * ms_comm_size(c)};
    ms_tensor *x = filled(MS_DTYPE_F64, 2, shape, 7 + (uint64_t)ms_comm_rank(c)), *loss;

    if (i >= 0) {
        double values[COLS * 2 * 4];

        read_bytes(x, values);
        values[i] += step;
        write_bytes(x, values);
    }
    MS_TRY(forward(&loss, c, k, x));
    MS_TRY(ms_comm_all_reduce(c, loss, MS_REDUCE_SUM));
    MS_TRY(ms_tensor_to_doubles(loss, out, 1));
    ms_tensor_free(loss);
    ms_tensor_free(x);
    return MS_OK;
}

static ms_status gradient(double *out, ms_comm *c, const collective *k)
{
    const int64_t shape[2] = {COLS, 2 * ms_comm_size(c)};
    ms_tensor *x = filled(MS_DTYPE_F64, 2, shape, 7 + (uint64_t)ms_comm_rank(c)), *loss, *grad;

    MS_TRY(ms_tensor_set_requires_grad(x, true));
    MS_TRY(forward(&loss, c, k, x));
    MS_TRY(ms_backward(loss, NULL));
    MS_TRY(ms_tensor_grad(&grad, x));
    MS_TRY(ms_tensor_to_doubles(grad, out, shape[0] * shape[1]));
    ms_tensor_free(grad);
    ms_tensor_free(loss);
    ms_tensor_free(x);
    return MS_OK;
}

static ms_status try_gradients(void *user, int32_t rank)
{
    double mine[COLS * 2 * 4], above, below;
    const double h = 1e-5;
    ms_comm *c;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    for (int32_t k = 0; k < MSI_COUNT(collectives); k++) {
        const int64_t n = COLS * 2 * ms_comm_size(c);

        if (!collectives[k].differentiable) {
            continue;
        }
        MS_TRY(gradient(mine, c, &collectives[k]));
        for (int64_t i = 0; i < n * ms_comm_size(c); i++) { /* every element of every rank */
            const int64_t own = i / n == rank ? i % n : -1;

            MS_TRY(total(&above, c, &collectives[k], own, h));
            MS_TRY(total(&below, c, &collectives[k], own, -h));
            if (own >= 0 && !(fabs((above - below) / (2 * h) - mine[own]) < 1e-7)) {
                return msi_fail(MS_ASSERTION_ERROR, "%s: gradient %lld is %.12g, expected %.12g",
                                collectives[k].text, (long long)own, mine[own],
                                (above - below) / (2 * h));
            }
        }
    }
    return MS_OK;
}

static void test_collective_ops__have_the_gradients_of_all_ranks_losses(void **state)
{
    (void)state;
    for (int32_t w = 1; w <= 4; w++) {
        run_ranks(w, try_gradients, NULL);
    }
}

/* -- memory that is out ------------------------------------------------------------------------ */

/* The k-th allocation of forward and backward fails, for every k. */
static void run_out_of_memory(ms_comm *c, const collective *k)
{
    ms_tensor *x = FILLED(MS_DTYPE_F64, 3, COLS, 2);
    ms_status status = MS_OUT_OF_MEMORY;

    assert_ok(ms_tensor_set_requires_grad(x, true));
    for (int64_t i = 0; status != MS_OK; i++) {
        ms_memory_stats before, after;
        ms_tensor *turned, *y = NULL, *weights = FILLED(MS_DTYPE_F64, 9, 2, COLS);

        assert_true(i < 100);
        assert_ok(ms_op_permute(&turned, x, 2, (const int32_t[]){1, 0}));
        ms_memory_stats_get(&before);
        msi_alloc_fail_at(msi_context(), i);
        status = k->run(&y, c, turned, k->a);
        if (status == MS_OK && k->differentiable) {
            status = ms_backward(y, weights);
        }
        msi_alloc_fail_at(msi_context(), -1);
        assert_true(status == MS_OK || status == MS_OUT_OF_MEMORY);
        ms_tensor_free(y);
        assert_ok(ms_tensor_set_grad(x, NULL));
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(after.live_total, before.live_total);
        ms_tensor_free(turned);
        ms_tensor_free(weights);
    }
    ms_tensor_free(x);
}

static void test_collective_ops__release_everything_when_memory_is_out(void **state)
{
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    for (int32_t k = 0; k < MSI_COUNT(collectives); k++) {
        run_out_of_memory(self, &collectives[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collective_ops__make_what_those_in_place_make),
        cmocka_unit_test(test_collective_ops__have_the_gradients_of_all_ranks_losses),
        BOOKED_TEST(test_collective_ops__release_everything_when_memory_is_out),
    };

    return cmocka_run_group_tests_name("collective/ops", tests, NULL, NULL);
}
