/* Shape inference of every row: an operator says of meta tensors (shapes without memory) what it
 * says of real ones, be it the result's form or the error for operands that do not fit. */
#include "row.h"

#include "backend.h"
#include "tensor.h"

enum { CALLS = 400 };

/* -- what ran ---------------------------------------------------------------------------------- */

static int64_t kernels_run;

ms_status __real_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __real_msi_gemm(ms_context *ctx, const msi_gemm_args *args);
ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args);

ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args)
{
    kernels_run++;
    return __real_msi_dispatch(op, kernel, dtype, args);
}

ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args)
{
    kernels_run++;
    return __real_msi_gemm(ctx, args);
}

/* -- asking twice ------------------------------------------------------------------------------ */

/* A view of the same form over memory that is not there. */
static ms_tensor *meta_twin(const ms_tensor *t)
{
    msi_view v = t->v;
    ms_tensor *twin;

    assert_ok(msi_storage_wrap(&v.storage, t->ctx, MS_STORAGE_NONE, NULL, 0));
    v.storage->meta = true;
    assert_ok(msi_tensor_new(&twin, t->ctx, &v));
    msi_storage_release(v.storage);
    return twin;
}

/* The operand whose memory a result shows; -1: its own. */
static int32_t operand_shown(const call *c, ms_tensor *const *in, const ms_tensor *out)
{
    for (int32_t k = 0; k < c->n_in; k++) {
        if (out->v.storage == in[k]->v.storage) {
            return k;
        }
    }
    return -1;
}

typedef struct answer {
    ms_status status;
    char message[MSI_MESSAGE_BYTES];
    msi_view form;
    int32_t shown;
} answer;

/* Does the error speak of a value, as no meta operand has one? */
static bool is_about_values(const answer *a)
{
    return a->status == MS_INDEX_ERROR && strstr(a->message, ", number ") != NULL;
}

static void ask(answer *a, const call *c, ms_tensor *const *in)
{
    ms_tensor *out = NULL;

    *a = (answer){.status = c->op->run(&out, in, c)};
    assert_true((a->status == MS_OK) == (out != NULL));
    if (out != NULL) {
        a->status = msi_settle(out->ctx); /* which tells of values on a device */
    }
    if (a->status != MS_OK) {
        snprintf(a->message, sizeof(a->message), "%s", ms_error_message());
        ms_tensor_free(out);
        return;
    }
    a->form = out->v;
    a->shown = operand_shown(c, in, out);
    ms_tensor_free(out);
}

static bool same_answer(const answer *a, const answer *b)
{
    if (a->status != MS_OK) {
        return a->status == b->status && strcmp(a->message, b->message) == 0;
    }
    bool same = b->status == MS_OK && a->form.dtype == b->form.dtype && a->shown == b->shown &&
                msi_view_same_shape(&a->form, &b->form) && a->form.offset == b->form.offset;

    for (int32_t d = 0; same && d < a->form.ndim; d++) {
        same = a->form.stride[d] == b->form.stride[d];
    }
    return same;
}

/* Ask of real operands, then of those where `meta` has a bit, then of none that is real: no kernel
 * may run then, and no memory be taken. @return whether the operands were right */
static bool compare_answers(const call *c, ms_tensor *const *in, uint32_t meta)
{
    static answer plain, other;
    ms_tensor *twins[MAX_IN] = {NULL}, *mixed[MAX_IN] = {NULL};
    ms_memory_stats before, after;

    for (int32_t k = 0; k < c->n_in; k++) {
        twins[k] = meta_twin(in[k]);
        mixed[k] = meta >> k & 1 ? twins[k] : in[k];
    }
    ask(&plain, c, in);
    if (is_about_values(&plain)) {
        plain.status = MS_OK;
    } else {
        ms_memory_stats_get(&before);
        kernels_run = 0;
        for (int32_t k = 0; k < 2; k++) {
            ask(&other, c, k == 0 ? mixed : twins);
            if (!same_answer(&plain, &other)) {
                describe(c, in);
                fail_msg(
                    "of real operands %s %s %s %s, of meta ones %s %s %s %s",
                    ms_status_name(plain.status), plain.message, ms_dtype_name(plain.form.dtype),
                    msi_shape_text(plain.form.ndim, plain.form.shape), ms_status_name(other.status),
                    other.message, ms_dtype_name(other.form.dtype),
                    msi_shape_text(other.form.ndim, other.form.shape));
            }
        }
        ms_memory_stats_get(&after);
        assert_int_equal(kernels_run, 0);
        assert_int_equal(after.n_allocs, before.n_allocs);
    }
    for (int32_t k = 0; k < c->n_in; k++) {
        ms_tensor_free(twins[k]);
    }
    return plain.status == MS_OK;
}

/* -- drawing ----------------------------------------------------------------------------------- */

/* Change one thing about the call, perhaps to what the operator refuses. */
static void spoil(call *c, uint64_t *rng)
{
    form *f = &c->in[below(rng, c->n_in)];
    const int32_t d = f->ndim > 0 ? below(rng, f->ndim) : 0;

    switch (below(rng, 6)) {
    case 0:
        f->dtype = below(rng, MS_DTYPE_COUNT);
        f->draw = f->draw == DRAW_POSITIVE ? DRAW_SIGNED : f->draw; /* integers have no fractions */
        break;
    case 1:
        f->shape[d] += f->ndim > 0;
        break;
    case 2:
        f->ndim -= f->ndim > 0;
        break;
    case 3:
        f->shape[f->ndim++] = 2;
        break;
    case 4:
        c->i[0] += strcmp(c->op->name, "ms_op_reshape") == 0 ? 0 : 7;
        break;
    default:
        c->i[1 + below(rng, 3)] += 7;
        break;
    }
}

static bool run_call(call *c, uint64_t *rng)
{
    ms_tensor *in[MAX_IN];
    static array values;

    for (int32_t k = 0; k < c->n_in; k++) {
        in[k] = make_leaf(&c->in[k], LEAF_PLAIN, rng, &values);
    }
    const bool right = compare_answers(c, in, 1u << below(rng, c->n_in));

    for (int32_t k = 0; k < c->n_in; k++) {
        ms_tensor_free(in[k]);
    }
    return right;
}

static void test_ops_meta__rows_say_the_same_of_real_and_meta_operands(void **state)
{
    static const int32_t floats[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16};
    const op_row *const *rows;
    const int32_t n_rows = collect_rows(&rows);
    int32_t wrong = 0;

    (void)state;
    for (int32_t n = 0; n < n_rows * CALLS; n++) {
        const op_row *row = rows[n % n_rows];
        uint64_t rng = (uint64_t)n * 0x9e3779b97f4a7c15u + 1;
        const int32_t any = below(&rng, MS_DTYPE_COUNT);
        call c;

        if (row->flags & ROW_IN_PLACE ||
            !draw_call(&c, row, any % 4 == 0 ? any : floats[below(&rng, 4)], SIZE_SMALL, &rng)) {
            continue;
        }
        if (n / n_rows % 2 == 0) {
            assert_true(run_call(&c, &rng));
        } else {
            spoil(&c, &rng);
            wrong += !run_call(&c, &rng);
        }
    }
    assert_true(wrong > n_rows * CALLS / 16); /* functions of one tensor take any shape */
}

/* -- what meta tensors are --------------------------------------------------------------------- */

static void test_ops_meta__shapes_are_as_large_as_one_likes(void **state)
{
    const int64_t wide[2] = {1 << 20, 1 << 20};
    ms_tensor *x, *y, *z;
    ms_tensor_info info;

    (void)state;
    assert_ok(ms_tensor_meta(&x, MS_DTYPE_BF16, 2, wide));
    assert_ok(ms_op_matmul(&y, x, x));
    assert_ok(ms_op_sum(&z, y, 1, false));
    assert_ok(ms_tensor_describe(z, &info));
    assert_int_equal(info.storage_kind, MS_STORAGE_NONE);
    assert_int_equal(info.dtype, MS_DTYPE_BF16);
    assert_int_equal(info.ndim, 1);
    assert_int_equal(info.shape[0], 1 << 20);
    assert_null(info.data);
    ms_tensor_free(z);
    ms_tensor_free(y);
    ms_tensor_free(x);
}

static void test_ops_meta__results_have_no_values_and_no_graph(void **state)
{
    const int64_t shape[1] = {3};
    double values[3];
    ms_tensor *x, *y;

    (void)state;
    assert_ok(ms_tensor_meta(&x, MS_DTYPE_F32, 1, shape));
    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_op_exp(&y, x));
    assert_false(y->requires_grad);
    assert_null(y->grad_fn);
    assert_fails(MS_RUNTIME_ERROR, "a meta tensor of shape (3) has no values yet",
                 ms_tensor_to_doubles(y, values, 3));
    ms_tensor_free(y);
    ms_tensor_free(x);
}

/* A declared parameter is to have values: an operator that runs too early is a mistake. */
static void test_ops_meta__parameters_without_values_are_none(void **state)
{
    const int64_t shape[2] = {3, 3};
    ms_tensor *weight, *made, *view, *x, *y;

    (void)state;
    assert_ok(ms_tensor_parameter(&weight, MS_DTYPE_F32, 2, shape, MS_INIT_CONSTANT, 1, 0));
    assert_ok(ms_tensor_meta(&made, MS_DTYPE_F32, 2, shape));
    assert_ok(ms_tensor_make_parameter(made));
    assert_ok(ms_tensor_set_name(weight, "w"));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    assert_fails(MS_RUNTIME_ERROR, "parameter 'w' has no values yet", ms_op_matmul(&y, x, weight));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_op_matmul(&y, x, made));
    assert_ok(ms_op_permute(&view, weight, 2, (const int32_t[]){1, 0}));
    assert_fails(MS_RUNTIME_ERROR, "parameter 'w' has no values yet", ms_op_add(&y, x, view));
    ms_tensor_free(view);
    ms_tensor_free(x);
    assert_ok(ms_tensor_meta(&x, MS_DTYPE_F32, 2, shape));
    assert_ok(ms_op_matmul(&y, x, weight)); /* what comes of a shape alone needs no values */
    assert_int_equal(y->v.storage->kind, MS_STORAGE_NONE);
    ms_tensor_free(y);
    ms_tensor_free(x);
    ms_tensor_free(made);
    ms_tensor_free(weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_meta__rows_say_the_same_of_real_and_meta_operands),
        cmocka_unit_test(test_ops_meta__shapes_are_as_large_as_one_likes),
        cmocka_unit_test(test_ops_meta__results_have_no_values_and_no_graph),
        cmocka_unit_test(test_ops_meta__parameters_without_values_are_none),
    };

    return cmocka_run_group_tests_name("ops/meta", tests, NULL, NULL);
}
